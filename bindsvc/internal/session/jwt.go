package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// maxJWTBytes is the longest token that is looked at.
const maxJWTBytes = 16 << 10

// lastSecond is the end of the year 9999: a date beyond it is a mistake.
const lastSecond = 253402300799

// Claims is what a good token says.
type Claims struct {
	UserID, Channel, Source string
	IssuedAt, ExpiresAt     time.Time // zero if the token does not tell
}

// JWT tells whose a JSON Web Token is (RFC 7519, signed as in RFC 7515). It is safe
// for concurrent use.
type JWT struct {
	cfg       JWTConfig
	parser    *jwt.Parser
	validator *jwt.Validator
	keys      []verificationKey // from the configuration
	published *keyServer        // nil = none
}

// NewJWT makes a JWT, or reports what JWTConfig.Verify reports. It asks nobody yet.
func NewJWT(cfg JWTConfig, log *slog.Logger, now func() time.Time) (*JWT, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	keys, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Algorithms = slices.Clone(cfg.Algorithms)
	options := []jwt.ParserOption{jwt.WithStrictDecoding(), jwt.WithLeeway(cfg.Leeway), jwt.WithIssuedAt(), jwt.WithTimeFunc(now)}
	if !cfg.AllowNoExpiry {
		options = append(options, jwt.WithExpirationRequired())
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if len(cfg.Audience) > 0 {
		options = append(options, jwt.WithAudience(slices.Clone(cfg.Audience)...))
	}
	j := &JWT{cfg: cfg, parser: jwt.NewParser(options...), validator: jwt.NewValidator(options...), keys: keys}
	if cfg.JWKSURL != "" {
		usable := func(k verificationKey) bool { return k.fitsAny(cfg.Algorithms) }
		j.published = newKeyServer(cfg.JWKSURL, cfg.JWKSMaxAge, usable, log, now)
	}
	return j, nil
}

// Run fetches the published keys, at once and again and again, until ctx ends. Without
// it they are fetched when a token needs them. It is of no use without a JWKSURL.
func (j *JWT) Run(ctx context.Context) error {
	if j.published == nil {
		<-ctx.Done()
		return nil
	}
	return j.published.run(ctx, j.cfg.JWKSRefresh)
}

// Verify returns what a good token says. An error that wraps gateway.ErrNotFound
// means that the token is not good, and says why without quoting it; any other that
// this could not be found out, since the published keys cannot be fetched.
func (j *JWT) Verify(ctx context.Context, token string) (Claims, error) {
	parsed, err := j.parse(token)
	if err != nil {
		return Claims{}, err
	}
	if err := j.verifySignature(ctx, parsed); err != nil {
		return Claims{}, err
	}
	return j.verifyClaims(parsed.payload) // nothing of it was looked at before the signature was good
}

// refusal is why a token is not good.
type refusal struct{ why string }

func (r *refusal) Error() string { return "token refused: " + r.why }
func (r *refusal) Unwrap() error { return gateway.ErrNotFound }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// signedToken is a token in its three parts.
type signedToken struct {
	algorithm    string // a pinned one
	keyID        string // kid; empty: none
	signingInput string
	payload      []byte
	signature    []byte
}

func (j *JWT) parse(token string) (signedToken, error) {
	if len(token) > maxJWTBytes {
		return signedToken{}, refuse("it is longer than %d bytes", maxJWTBytes)
	}
	segments := strings.SplitN(token, ".", 4)
	if len(segments) != 3 {
		return signedToken{}, refuse("it has not three segments")
	}
	// A decoder passes over line breaks however strict it is, and one token would
	// have many spellings.
	if strings.ContainsAny(token, "\r\n") {
		return signedToken{}, refuse("it contains a line break")
	}
	var parts [3][]byte
	for i, segment := range segments {
		var err error
		if parts[i], err = j.parser.DecodeSegment(segment); err != nil {
			return signedToken{}, refuse("its segment %d is not base64url (RFC 7515 2)", i+1)
		}
	}
	header, err := parseObject(parts[0])
	if err != nil {
		return signedToken{}, refuse("its header %s", err)
	}
	parsed := signedToken{signingInput: segments[0] + "." + segments[1], payload: parts[1], signature: parts[2]}
	var isText bool
	if parsed.algorithm, isText = header["alg"].(string); !isText || !slices.Contains(j.cfg.Algorithms, parsed.algorithm) {
		return signedToken{}, refuse("its algorithm is not one of those allowed")
	}
	if _, isThere := header["crit"]; isThere {
		return signedToken{}, refuse("it demands an extension that is not understood (crit, RFC 7515 4.1.11)")
	}
	if keyID, isThere := header["kid"]; isThere {
		if parsed.keyID, isText = keyID.(string); !isText {
			return signedToken{}, refuse("its kid is not text")
		}
	}
	return parsed, nil
}

// verifySignature looks for the token's key among the configured ones and the
// published ones as they are known, and, where none of those can be the token's, among
// those that are published now.
func (j *JWT) verifySignature(ctx context.Context, token signedToken) error {
	keys := j.keys
	if j.published != nil {
		if published, isBelieved := j.published.known(); isBelieved {
			keys = slices.Concat(keys, published)
		}
	}
	decided, err := token.signedWith(keys)
	if decided || j.published == nil {
		return err
	}
	published, askErr := j.published.ask(ctx, askInterval)
	if askErr != nil {
		return fmt.Errorf("published keys: %w", askErr)
	}
	decided, err = token.signedWith(slices.Concat(j.keys, published))
	if err != nil && !decided {
		return fmt.Errorf("%w: %w", ErrUnknownKey, err)
	}
	return err
}

// ErrUnknownKey is that of a token whose key is none of the published ones as they were
// read a moment ago. It wraps gateway.ErrNotFound; but an issuer may publish the key
// later than it signs, so that such a token may yet be somebody's.
var ErrUnknownKey = fmt.Errorf("%w: its key is not published", gateway.ErrNotFound)

// signedWith checks the signature. It is decided if it is good, or if it is not and
// one of the keys is the one that the token names. Otherwise another key may be the
// token's. Keys without a name are tried with every token that names no known key.
func (t signedToken) signedWith(keys []verificationKey) (decided bool, err error) {
	named := func(k verificationKey) bool { return k.id == t.keyID }
	isNamed := t.keyID != "" && slices.ContainsFunc(keys, named)
	tried := 0
	for _, key := range keys {
		mayBe := named(key) || !isNamed && (t.keyID == "" || key.id == "")
		if !mayBe || !key.fits(t.algorithm) {
			continue
		}
		tried++
		if jwt.GetSigningMethod(t.algorithm).Verify(t.signingInput, t.signature, key.key) == nil {
			return true, nil
		}
	}
	switch {
	case tried > 0:
		return isNamed, refuse("its signature is not good")
	case isNamed:
		return true, refuse("its algorithm does not fit its key")
	case t.keyID != "":
		return false, refuse("its key is not known")
	}
	return false, refuse("no key fits its algorithm")
}

func (j *JWT) verifyClaims(payload []byte) (Claims, error) {
	object, err := parseObject(payload)
	if err != nil {
		return Claims{}, refuse("its claims set %s", err)
	}
	set := claimsSet{object}
	if err := j.validator.Validate(set); err != nil {
		return Claims{}, refuse("%s", err)
	}
	var claims Claims
	if claims.UserID, err = set.text(j.cfg.UserClaim); err != nil {
		return Claims{}, refuse("its user id %s", err)
	}
	if err := gateway.VerifyUserID("its user id", claims.UserID); err != nil {
		return Claims{}, refuse("%s", err)
	}
	if claims.Channel, err = set.optionalText(j.cfg.ChannelClaim); err != nil {
		return Claims{}, refuse("its channel %s", err)
	}
	if claims.Source, err = set.optionalText(j.cfg.SourceClaim); err != nil {
		return Claims{}, refuse("its source %s", err)
	}
	claims.IssuedAt, claims.ExpiresAt = set.time("iat"), set.time("exp")
	return claims, nil
}

// parseObject reads a JSON object strictly: names are unique (RFC 7515 4, RFC 7519 4),
// all is UTF-8, nothing follows. Two readers of one token must not see two things in it.
func parseObject(text []byte) (map[string]any, error) {
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, errors.New("is not JSON")
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("is not a JSON object")
	}
	object := map[string]any{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, errors.New("is not JSON")
		}
		var value any
		if err := decoder.Decode(&value); err != nil {
			return nil, errors.New("is not JSON")
		}
		text, _ := name.(string) // a name is always text
		if _, isThere := object[text]; isThere {
			return nil, errors.New("has a name twice")
		}
		object[text] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errors.New("is not JSON")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has something after its end")
	}
	return object, nil
}

// claimsSet reads dates without the pitfalls of those in jwt.MapClaims, where one out
// of range becomes whatever the conversion makes of it.
type claimsSet struct{ jwt.MapClaims }

var _ jwt.Claims = claimsSet{}

func (c claimsSet) GetExpirationTime() (*jwt.NumericDate, error) { return c.date("exp") }
func (c claimsSet) GetNotBefore() (*jwt.NumericDate, error)      { return c.date("nbf") }
func (c claimsSet) GetIssuedAt() (*jwt.NumericDate, error)       { return c.date("iat") }

// date reads a NumericDate (RFC 7519 2): seconds since 1970, perhaps with a fraction.
func (c claimsSet) date(name string) (*jwt.NumericDate, error) {
	value, isThere := c.MapClaims[name]
	if !isThere {
		return nil, nil //nolint:nilnil // so jwt.Claims has it
	}
	number, _ := value.(json.Number)
	seconds, err := number.Float64()
	if err != nil || seconds < 0 || seconds > lastSecond {
		return nil, fmt.Errorf("%s is not a date", name)
	}
	whole, fraction := math.Modf(seconds)
	return &jwt.NumericDate{Time: time.Unix(int64(whole), int64(fraction*1e9))}, nil
}

func (c claimsSet) time(name string) time.Time {
	date, err := c.date(name)
	if err != nil || date == nil {
		return time.Time{}
	}
	return date.Time
}

// text returns a claim that is text, or a whole number of at most 64 bits with all
// its digits.
func (c claimsSet) text(name string) (string, error) {
	switch value := c.MapClaims[name].(type) {
	case nil:
		return "", errors.New("is missing")
	case string:
		// Half a surrogate pair is read as this character, whichever half it is: two
		// users would become one.
		if strings.ContainsRune(value, utf8.RuneError) {
			return "", errors.New("is not valid Unicode")
		}
		return value, nil
	case json.Number:
		if number, err := strconv.ParseInt(value.String(), 10, 64); err == nil {
			return strconv.FormatInt(number, 10), nil
		}
		if number, err := strconv.ParseUint(value.String(), 10, 64); err == nil {
			return strconv.FormatUint(number, 10), nil
		}
		return "", errors.New("is not a whole number of 64 bits")
	}
	return "", errors.New("is neither text nor a number")
}

// optionalText is text for a claim that need not be there; it ends in a header too.
func (c claimsSet) optionalText(name string) (string, error) {
	if _, isThere := c.MapClaims[name]; name == "" || !isThere {
		return "", nil
	}
	text, err := c.text(name)
	if err != nil || text == "" {
		return "", err
	}
	if gateway.VerifyUserID("", text) != nil {
		return "", errors.New("cannot be a header's value")
	}
	return text, nil
}
