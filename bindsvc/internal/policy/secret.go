package policy

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Secret is a secret in a policy. An administrator gives Value; what is stored is
// Sealed, and what is shown is neither.
type Secret struct {
	ID     string     `json:"id,omitempty"` // names it within its policy; of a JWT key: its kid
	Value  string     `json:"value,omitempty"`
	Sealed string     `json:"sealed,omitempty"`
	SetAt  *time.Time `json:"setAt,omitempty"` // when the value was given
}

// verifySecrets checks that ids differ and values are long enough; isNeeded says
// whether the i-th must have one.
func verifySecrets(field string, secrets []*Secret, p *problems, isNeeded func(i int) bool) {
	ids := map[string]bool{}
	for i, s := range secrets {
		at := fmt.Sprintf("%s[%d].", field, i)
		switch {
		case len(s.ID) > 256 || s.ID == "" && len(secrets) > 1:
			p.add("%sid: want 1 to 256 bytes that tell it from the others", at)
		case ids[s.ID]:
			p.add("%sid: is there twice", at)
		}
		ids[s.ID] = true
		switch {
		case s.Value == "" && s.Sealed == "" && isNeeded(i):
			p.add("%svalue: is needed: no secret with this id is stored", at)
		case s.Value != "" && !isNeeded(i):
			p.add("%svalue: give a secret or a public key, not both", at)
		case s.Value != "" && (utf8.RuneCountInString(s.Value) < MinSecretLength || len(s.Value) > maxText):
			p.add("%svalue: want %d characters or more, at most %d bytes", at, MinSecretLength, maxText)
		}
	}
}

// Sealer encrypts secrets for the stores: AES-256-GCM, bound to the policy and id that
// a secret belongs to. It is safe for concurrent use.
type Sealer struct{ keys []sealingKey }

type sealingKey struct {
	id   string
	aead cipher.AEAD
}

// sealedVersion begins every sealed text: version, key id, nonce and ciphertext.
const sealedVersion = "v1."

// NewSealer makes a Sealer that seals with the first of the keys and opens with any.
func NewSealer(keys ...string) (*Sealer, error) {
	s := &Sealer{}
	for _, secret := range keys {
		key, err := hkdf.Key(sha256.New, []byte(secret), nil, "homenode policy secrets", 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		id := sha256.Sum256(key)
		s.keys = append(s.keys, sealingKey{base64.RawURLEncoding.EncodeToString(id[:6]), aead})
	}
	if len(s.keys) == 0 {
		return nil, errors.New("no key to seal secrets with")
	}
	return s, nil
}

func placeOf(kind gateway.PolicyKind, policyID, secretID string) []byte {
	return []byte(string(kind) + "\x00" + policyID + "\x00" + secretID)
}

func (s *Sealer) seal(value string, place []byte) string {
	key := s.keys[0]
	ciphertext := key.aead.Seal(nil, nil, []byte(value), place) //nolint:gosec // the AEAD makes its own nonces
	return sealedVersion + key.id + "." + base64.RawURLEncoding.EncodeToString(ciphertext)
}

var errSealed = errors.New("is not sealed as it should be")

func (s *Sealer) open(sealed string, place []byte) (string, error) {
	rest, isV1 := strings.CutPrefix(sealed, sealedVersion)
	keyID, text, ok := strings.Cut(rest, ".")
	ciphertext, err := base64.RawURLEncoding.DecodeString(text)
	if !isV1 || !ok || err != nil {
		return "", errSealed
	}
	for _, key := range s.keys {
		if key.id != keyID {
			continue
		}
		value, err := key.aead.Open(nil, nil, ciphertext, place)
		if err != nil {
			return "", errSealed
		}
		return string(value), nil
	}
	return "", errors.New("is sealed with a key that this instance does not have (HOMENODE_POLICY_KEY)")
}

// Prepare makes a body for the stores of one that an administrator has given: verified,
// its secrets sealed. A secret that is named by its id without a value is that of
// stored, the body that it replaces (nil: none). The error names every wrong field.
func (s *Sealer) Prepare(kind gateway.PolicyKind, id string, given, stored []byte, now time.Time) (json.RawMessage, error) {
	r, err := decode(kind, given)
	if err != nil {
		return nil, err
	}
	kept := map[string]*Secret{}
	if stored != nil {
		if before, err := decode(kind, stored); err == nil {
			for _, secret := range before.secrets() {
				kept[secret.ID] = secret
			}
		}
	}
	for _, secret := range r.secrets() {
		if secret.Sealed != "" {
			return nil, errors.New("sealed: is not yours to give: give a value")
		}
		secret.SetAt = nil
		if old := kept[secret.ID]; old != nil && secret.Value == "" {
			secret.Sealed, secret.SetAt = old.Sealed, old.SetAt
		}
	}
	if identity, ok := r.(*Identity); ok && identity.JWT != nil {
		identity.JWT.dropReplaced()
	}
	if err := verify(r, id); err != nil {
		return nil, err
	}
	for _, secret := range r.secrets() {
		if secret.Value == "" {
			continue
		}
		secret.Sealed = s.seal(secret.Value, placeOf(kind, id, secret.ID))
		at := now.UTC().Truncate(time.Second)
		secret.Value, secret.SetAt = "", &at
	}
	if identity, ok := r.(*Identity); ok && identity.JWT != nil {
		if _, err := identity.jwtConfig(s, id); err != nil {
			return nil, err
		}
	}
	return mustJSON(r), nil
}

func mustJSON(value any) json.RawMessage {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // what was decoded from JSON is encoded again
	}
	return raw
}

// View is a stored body as an administrator sees it: without secrets.
func View(kind gateway.PolicyKind, stored json.RawMessage) json.RawMessage {
	newRecord, ok := records[kind]
	if !ok || stored == nil {
		return nil
	}
	r := newRecord()
	if err := json.Unmarshal(stored, r); err != nil {
		return json.RawMessage(`{}`) // made by hand: what is in it is not known to be no secret
	}
	for _, secret := range r.secrets() {
		secret.Value, secret.Sealed = "", ""
	}
	return mustJSON(r)
}
