package session

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// DefaultLeeway is a sensible JWTConfig.Leeway.
	DefaultLeeway = time.Minute

	defaultJWKSRefresh = 5 * time.Minute
	defaultJWKSMaxAge  = time.Hour
	defaultUserClaim   = "sub"

	// maxKeys bounds how many signatures a token without kid may cost.
	maxKeys = 16
)

// JWTConfig says which JSON Web Tokens are good and whose they are.
type JWTConfig struct {
	Algorithms []string // pinned, at least one: HS256, RS256, PS256, ES256, EdDSA … A token cannot choose another.
	Keys       []JWTKey // known beforehand
	JWKSURL    string   // where more keys are published: https, or http to a loopback address; empty: nowhere

	JWKSRefresh time.Duration // how often the published keys are fetched; 0 = 5 minutes
	JWKSMaxAge  time.Duration // for how long they are believed when they cannot be fetched again; 0 = 1 hour

	Issuer        string        // what iss must be; empty: anything
	Audience      []string      // one of these must be in aud; empty: anything
	Leeway        time.Duration // for how far clocks may be apart; 0 = not at all
	AllowNoExpiry bool          // a token without exp is good for ever

	UserClaim    string // which claim is the user id; empty = sub
	ChannelClaim string // which is the channel; empty = none
	SourceClaim  string // which is the source; empty = none
}

// JWTKey is a key from the configuration: a Secret for HS*, else a PublicKey.
type JWTKey struct {
	ID        string // kid; empty: that of the JWK, else the key may be any token's
	Secret    []byte
	PublicKey string // PEM (PKIX, PKCS #1 or a certificate, whose validity does not count), or a JWK
}

// Verify reports all problems at once, each beginning with the field's name. It
// never quotes a secret.
func (c JWTConfig) Verify() error {
	_, err := c.keys()
	problems := append(c.verifyAlgorithms(), err, c.verifyURL())
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"jwksRefresh", c.JWKSRefresh}, {"jwksMaxAge", c.JWKSMaxAge}, {"leeway", c.Leeway}} {
		if d.value < 0 {
			problems = append(problems, fmt.Errorf("%s: must not be negative", d.field))
		}
	}
	c = c.withDefaults()
	if c.JWKSRefresh > 0 && c.JWKSMaxAge > 0 && c.JWKSMaxAge < max(c.JWKSRefresh, askInterval) {
		problems = append(problems, fmt.Errorf("jwksMaxAge: must be at least jwksRefresh, and %s", askInterval))
	}
	if slices.Contains(c.Audience, "") {
		problems = append(problems, errors.New("audience: must not contain an empty text"))
	}
	return errors.Join(problems...)
}

func (c JWTConfig) withDefaults() JWTConfig {
	if c.JWKSRefresh == 0 {
		c.JWKSRefresh = defaultJWKSRefresh
	}
	if c.JWKSMaxAge == 0 {
		c.JWKSMaxAge = defaultJWKSMaxAge
	}
	if c.UserClaim == "" {
		c.UserClaim = defaultUserClaim
	}
	return c
}

func (c JWTConfig) verifyAlgorithms() (problems []error) {
	if len(c.Algorithms) == 0 {
		return []error{fmt.Errorf("algorithms: give at least one of %s", algorithmNames)}
	}
	for _, name := range c.Algorithms {
		if _, isKnown := algorithms[name]; !isKnown {
			problems = append(problems, fmt.Errorf("algorithms: %q is none of %s", name, algorithmNames))
		}
	}
	if c.hasSecrets() && c.hasPublicKeys() {
		problems = append(problems, errors.New("algorithms: HS* cannot be mixed with others, lest a public key be taken for a secret"))
	}
	return problems
}

func (c JWTConfig) hasSecrets() bool {
	return slices.ContainsFunc(c.Algorithms, func(name string) bool {
		algorithm, isKnown := algorithms[name]
		return isKnown && algorithm.family == familySecret
	})
}

func (c JWTConfig) hasPublicKeys() bool {
	return slices.ContainsFunc(c.Algorithms, func(name string) bool {
		algorithm, isKnown := algorithms[name]
		return isKnown && algorithm.family != familySecret
	})
}

func (c JWTConfig) verifyURL() error {
	if c.JWKSURL == "" {
		return nil
	}
	address, err := url.Parse(c.JWKSURL)
	switch {
	case err != nil || address.Hostname() == "":
		return errors.New("jwksUrl: is not a URL with a host")
	case c.hasSecrets():
		return errors.New("jwksUrl: HS* needs secrets, which nobody publishes; give keys instead")
	case address.User != nil:
		return errors.New("jwksUrl: must not contain a user or a password")
	case address.Scheme == "https", address.Scheme == "http" && isLoopback(address.Hostname()):
		return nil
	}
	return errors.New("jwksUrl: must be https, or http to a loopback address: whoever can change the keys can be anybody")
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

// keys reads the configured keys, and reports all problems with them.
func (c JWTConfig) keys() ([]verificationKey, error) {
	var problems []error
	switch {
	case len(c.Keys) == 0 && c.JWKSURL == "":
		problems = append(problems, errors.New("keys: give at least one, or a jwksUrl"))
	case len(c.Keys) > maxKeys:
		return nil, fmt.Errorf("keys: %d are too many, want at most %d", len(c.Keys), maxKeys)
	}
	var keys []verificationKey
	for i, configured := range c.Keys {
		key, field, err := c.key(configured)
		if err != nil {
			problems = append(problems, fmt.Errorf("keys[%d].%s: %w", i, field, err))
			continue
		}
		if key.id != "" && slices.ContainsFunc(keys, func(other verificationKey) bool { return other.id == key.id }) {
			problems = append(problems, fmt.Errorf("keys[%d].id: another key has the same", i))
		}
		keys = append(keys, key)
	}
	return keys, errors.Join(problems...)
}

// key reads one key, or names the field that has a problem.
func (c JWTConfig) key(configured JWTKey) (key verificationKey, field string, err error) {
	if configured.PublicKey != "" {
		key, err = c.publicKey(configured)
		return key, "publicKey", err
	}
	if c.hasPublicKeys() && len(configured.Secret) == 0 {
		return verificationKey{}, "publicKey", errors.New("is missing")
	}
	return verificationKey{id: configured.ID, key: bytes.Clone(configured.Secret)}, "secret", c.verifySecret(configured.Secret)
}

func (c JWTConfig) publicKey(configured JWTKey) (verificationKey, error) {
	key, err := parsePublicKey(configured.PublicKey)
	switch {
	case err != nil:
		return verificationKey{}, err
	case len(configured.Secret) > 0:
		return verificationKey{}, errors.New("is given beside a secret: give one of them")
	case c.hasSecrets() && !c.hasPublicKeys():
		return verificationKey{}, errors.New("is of no use: HS* needs a secret")
	case key.id != "" && configured.ID != "" && key.id != configured.ID:
		return verificationKey{}, errors.New("has a kid that differs from the id")
	case c.hasPublicKeys() && !key.fitsAny(c.Algorithms):
		return verificationKey{}, errors.New("fits none of the algorithms")
	}
	if key.id == "" {
		key.id = configured.ID
	}
	return key, nil
}

func (c JWTConfig) verifySecret(secret []byte) error {
	minimum := 0
	for _, name := range c.Algorithms {
		minimum = max(minimum, algorithms[name].minimum)
	}
	switch {
	case len(secret) == 0:
		return errors.New("is missing")
	case c.hasPublicKeys() && !c.hasSecrets():
		return errors.New("is of no use: only HS* has secrets")
	case len(secret) < minimum:
		return fmt.Errorf("has %d bytes: want at least %d, as long as the hash (RFC 7518 3.2)", len(secret), minimum)
	case bytes.Contains(secret, []byte("-----BEGIN ")):
		return errors.New("is PEM: what others may know is no secret")
	}
	return nil
}
