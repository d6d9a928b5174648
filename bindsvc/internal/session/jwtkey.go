package session

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/MicahParks/jwkset"
)

const (
	minRSABits = 2048 // RFC 7518 3.3
	maxRSABits = 8192 // more takes longer to check than a request may last
)

// algorithms are those that may be pinned, with what a key for them must be.
var algorithms = map[string]struct {
	family  family
	curve   string // of family EC
	minimum int    // length of a secret in bytes: that of the hash (RFC 7518 3.2)
}{
	"HS256": {family: familySecret, minimum: 32},
	"HS384": {family: familySecret, minimum: 48},
	"HS512": {family: familySecret, minimum: 64},
	"RS256": {family: familyRSA}, "RS384": {family: familyRSA}, "RS512": {family: familyRSA},
	"PS256": {family: familyRSA}, "PS384": {family: familyRSA}, "PS512": {family: familyRSA},
	"ES256": {family: familyEC, curve: "P-256"},
	"ES384": {family: familyEC, curve: "P-384"},
	"ES512": {family: familyEC, curve: "P-521"},
	"EdDSA": {family: familyEd25519},
}

// algorithmNames is for messages.
const algorithmNames = "HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA"

type family int

const (
	familySecret family = iota
	familyRSA
	familyEC
	familyEd25519
)

// verificationKey checks signatures.
type verificationKey struct {
	id        string // kid; empty: it has no name
	algorithm string // the only one it is for; empty: any that fits its type
	key       any    // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// fits reports whether the key may check a signature made with the algorithm. A
// token chooses its algorithm, so this is what keeps a public key from being taken
// for a secret.
func (k verificationKey) fits(algorithm string) bool {
	if k.algorithm != "" && k.algorithm != algorithm {
		return false
	}
	want, isKnown := algorithms[algorithm]
	if !isKnown {
		return false
	}
	switch key := k.key.(type) {
	case []byte:
		return want.family == familySecret && len(key) >= want.minimum
	case *rsa.PublicKey:
		return want.family == familyRSA
	case *ecdsa.PublicKey:
		return want.family == familyEC && want.curve == key.Curve.Params().Name
	case ed25519.PublicKey:
		return want.family == familyEd25519
	}
	return false
}

func (k verificationKey) fitsAny(algorithms []string) bool {
	return slices.ContainsFunc(algorithms, k.fits)
}

var errPrivateKey = errors.New("is a private key: give the public key that belongs to it, and consider the private one known")

// parsePublicKey reads a public key: PEM (PKIX, PKCS #1 or a certificate, of which
// only the key counts) or a JWK. Its errors quote nothing of the text.
func parsePublicKey(text string) (verificationKey, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "{") {
		return parseJWK(json.RawMessage(text))
	}
	block, rest := pem.Decode([]byte(text))
	switch {
	case block == nil:
		return verificationKey{}, errors.New("is neither PEM nor a JWK")
	case strings.Contains(block.Type, "PRIVATE KEY") || strings.Contains(string(rest), "PRIVATE KEY"):
		return verificationKey{}, errPrivateKey
	case len(strings.TrimSpace(string(rest))) > 0:
		return verificationKey{}, errors.New("is more than one PEM block: give one key")
	}
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var certificate *x509.Certificate
		if certificate, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = certificate.PublicKey
		}
	default:
		return verificationKey{}, errors.New("is PEM of something else than a public key or a certificate")
	}
	if err != nil {
		return verificationKey{}, fmt.Errorf("cannot be read: %w", err)
	}
	return verificationKey{key: key}, verifyKeyType(key)
}

// parseJWK reads a JSON Web Key (RFC 7517) that is meant for checking signatures.
func parseJWK(text json.RawMessage) (verificationKey, error) {
	var jwk jwkset.JWKMarshal
	if err := json.Unmarshal(text, &jwk); err != nil {
		return verificationKey{}, errors.New("is not a JWK: its JSON cannot be read")
	}
	switch {
	case jwk.KTY == jwkset.KtyOct || jwk.K != "":
		return verificationKey{}, errors.New("is a secret (kty oct), not a public key")
	case jwk.D != "" || jwk.P != "" || jwk.Q != "" || jwk.DP != "" || jwk.DQ != "" || jwk.QI != "" || len(jwk.OTH) > 0:
		return verificationKey{}, errPrivateKey
	case jwk.USE != "" && jwk.USE != jwkset.UseSig:
		return verificationKey{}, errors.New("is not for signatures (use)")
	case len(jwk.KEYOPS) > 0 && !slices.Contains(jwk.KEYOPS, jwkset.KeyOpsVerify):
		return verificationKey{}, errors.New("is not for verifying (key_ops)")
	}
	parsed, err := jwkset.NewJWKFromMarshal(jwk, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return verificationKey{}, errors.New("cannot be read: " + strings.ReplaceAll(err.Error(), "\n", ": ")) // one problem, one line
	}
	return verificationKey{id: jwk.KID, algorithm: jwk.ALG.String(), key: parsed.Key()}, verifyKeyType(parsed.Key())
}

func verifyKeyType(key any) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("is an RSA key of %d bits: want %d to %d", bits, minRSABits, maxRSABits)
		}
		return nil
	case *ecdsa.PublicKey:
		switch key.Curve.Params().Name {
		case "P-256", "P-384", "P-521":
			return nil
		}
		return errors.New("is on a curve that no algorithm uses")
	case ed25519.PublicKey:
		return nil
	}
	return errors.New("is of a type that no algorithm uses")
}
