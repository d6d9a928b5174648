package session_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// The keys of these tests, made once: RSA takes its time.
var (
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	p256Key  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	p384Key  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)) })
	p521Key  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)) })
	edKey    = sync.OnceValue(func() ed25519.PrivateKey { _, key, err := ed25519.GenerateKey(rand.Reader); return must(key, err) })
	otherKey = sync.OnceValue(func() ed25519.PrivateKey { _, key, err := ed25519.GenerateKey(rand.Reader); return must(key, err) })
	secret   = []byte(strings.Repeat("0123456789abcdef", 4))
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// clock is what time it is.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock(unix int64) *clock { return &clock{now: time.Unix(unix, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

const noon = 1_800_000_000 // when most of these tests take place

func newJWT(t testing.TB, cfg session.JWTConfig, c *clock) *session.JWT {
	t.Helper()
	j, err := session.NewJWT(cfg, slog.New(slog.DiscardHandler), c.Now)
	require.NoError(t, err)
	return j
}

type object = map[string]any

// sign makes a token; the header gets its alg.
func sign(t testing.TB, algorithm string, key any, header object, claims object) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), jwt.MapClaims(claims))
	for name, value := range header {
		token.Header[name] = value
	}
	signed, err := token.SignedString(key)
	require.NoError(t, err)
	return signed
}

// signRaw makes a token of exactly this header and payload, signed with the secret.
func signRaw(header, payload string) string {
	input := encode(header) + "." + encode(payload)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(input))
	return input + "." + encode(string(mac.Sum(nil)))
}

func encode(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func decode(text string) []byte { return must(base64.RawURLEncoding.DecodeString(text)) }

func publicPEM(key any) string {
	der := must(x509.MarshalPKIXPublicKey(key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// jwk is the public key as a JWK, with these members changed; nil removes one.
func jwk(t testing.TB, key crypto.Signer, id string, changes object) string {
	t.Helper()
	made, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: id}})
	require.NoError(t, err)
	text, err := json.Marshal(made.Marshal())
	require.NoError(t, err)
	members := object{}
	require.NoError(t, json.Unmarshal(text, &members))
	delete(members, "alg")
	for name, value := range changes {
		members[name] = value
	}
	text, err = json.Marshal(members)
	require.NoError(t, err)
	return string(text)
}

func good() object { return object{"sub": "7", "exp": noon + 60} }

func requireRefused(t testing.TB, err error, why string) {
	t.Helper()
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.ErrorContains(t, err, why)
}

func hs256() session.JWTConfig {
	return session.JWTConfig{Algorithms: []string{"HS256"}, Keys: []session.JWTKey{{Secret: secret}}}
}

// The tokens of RFC 7515 appendix A; RFC 7519 3.1 is A.1, RFC 7519 6.1 is A.5. Their
// keys are those of the RFC, without the private parts.
const (
	a1Secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"
	a1Token  = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9." +
		"eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ." +
		"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	a2Key = `{"kty":"RSA",
		"n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
		"e":"AQAB"}`
	a2Token = "eyJhbGciOiJSUzI1NiJ9." +
		"eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ." +
		"cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
	a3Key   = `{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}`
	a3Token = "eyJhbGciOiJFUzI1NiJ9." +
		"eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ." +
		"DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
	a4Key = `{"kty":"EC","crv":"P-521",
		"x":"AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk",
		"y":"ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2"}`
	a4Token = "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA." +
		"AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn"
	a5Token = "eyJhbGciOiJub25lIn0." +
		"eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."

	// RFC 8037 appendix A.2 and A.4.
	rfc8037Key   = `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	rfc8037Token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc." +
		"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"

	rfcExpiry = 1300819380
)

func TestTheTokensOfTheRFCs(t *testing.T) {
	for _, c := range []struct {
		name, algorithm string
		key             session.JWTKey
		token           string
		isNoClaimsSet   bool // the payload is something else: its signature is good all the same
	}{
		{"RFC 7515 A.1", "HS256", session.JWTKey{Secret: decode(a1Secret)}, a1Token, false},
		{"RFC 7515 A.2", "RS256", session.JWTKey{PublicKey: a2Key}, a2Token, false},
		{"RFC 7515 A.3", "ES256", session.JWTKey{PublicKey: a3Key}, a3Token, false},
		{"RFC 7515 A.4", "ES512", session.JWTKey{PublicKey: a4Key}, a4Token, true},
		{"RFC 8037 A.4", "EdDSA", session.JWTKey{PublicKey: rfc8037Key}, rfc8037Token, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := newClock(rfcExpiry - 1)
			j := newJWT(t, session.JWTConfig{Algorithms: []string{c.algorithm}, Keys: []session.JWTKey{c.key}, UserClaim: "iss"}, now)
			claims, err := j.Verify(t.Context(), c.token)
			if c.isNoClaimsSet {
				requireRefused(t, err, "its claims set is not JSON")
			} else {
				require.NoError(t, err)
				require.Equal(t, session.Claims{UserID: "joe", ExpiresAt: time.Unix(rfcExpiry, 0)}, claims)
			}

			payload := strings.LastIndex(c.token, ".")
			signature := decode(c.token[payload+1:])
			signature[len(signature)/2] ^= 1
			_, err = j.Verify(t.Context(), c.token[:payload+1]+encode(string(signature)))
			requireRefused(t, err, "its signature is not good")

			if !c.isNoClaimsSet {
				now.advance(time.Second)
				_, err = j.Verify(t.Context(), c.token)
				requireRefused(t, err, "expired")
			}
		})
	}
}

func TestAnUnsecuredTokenIsRefused(t *testing.T) {
	for _, alg := range []string{"none", "None", "NONE", "nOnE", "", " none", "none\x00"} {
		token := encode(string(must(json.Marshal(object{"alg": alg})))) + "." + encode(`{"sub":"7","exp":1800000060}`) + "."
		for _, cfg := range everyAlgorithm(t) {
			j := newJWT(t, cfg.config, newClock(noon))
			for _, token := range []string{token, token + "AA", a5Token} {
				_, err := j.Verify(t.Context(), token)
				requireRefused(t, err, "algorithm")
			}
		}
	}
}

type algorithmCase struct {
	algorithm string
	config    session.JWTConfig
	key       any // signs
}

func everyAlgorithm(t testing.TB) []algorithmCase {
	t.Helper()
	var cases []algorithmCase
	for _, algorithm := range []string{"HS256", "HS384", "HS512"} {
		cases = append(cases, algorithmCase{algorithm, session.JWTConfig{Algorithms: []string{algorithm}, Keys: []session.JWTKey{{Secret: secret}}}, secret})
	}
	for algorithm, key := range map[string]crypto.Signer{
		"RS256": rsaKey(), "RS384": rsaKey(), "RS512": rsaKey(), "PS256": rsaKey(), "PS384": rsaKey(), "PS512": rsaKey(),
		"ES256": p256Key(), "ES384": p384Key(), "ES512": p521Key(), "EdDSA": edKey(),
	} {
		for _, text := range []string{publicPEM(key.Public()), certificate(t, key), jwk(t, key, "", nil), jwk(t, key, "", object{"alg": algorithm, "use": "sig", "key_ops": []string{"verify"}})} {
			cases = append(cases, algorithmCase{algorithm, session.JWTConfig{Algorithms: []string{algorithm}, Keys: []session.JWTKey{{PublicKey: text}}}, key})
		}
	}
	pkcs1 := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rsaKey().PublicKey)}))
	return append(cases, algorithmCase{"RS256", session.JWTConfig{Algorithms: []string{"RS256"}, Keys: []session.JWTKey{{PublicKey: pkcs1}}}, rsaKey()})
}

func certificate(t testing.TB, key crypto.Signer) string {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "issuer"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestEveryAlgorithm(t *testing.T) {
	for _, c := range everyAlgorithm(t) {
		j := newJWT(t, c.config, newClock(noon))
		token := sign(t, c.algorithm, c.key, nil, good())
		claims, err := j.Verify(t.Context(), token)
		require.NoError(t, err, c.algorithm)
		require.Equal(t, "7", claims.UserID)

		header, rest, _ := strings.Cut(token, ".")
		_, signature, _ := strings.Cut(rest, ".")
		_, err = j.Verify(t.Context(), header+"."+encode(`{"sub":"8","exp":1800000060}`)+"."+signature)
		requireRefused(t, err, "its signature is not good")
		_, err = j.Verify(t.Context(), header+"."+rest[:len(rest)-len(signature)])
		requireRefused(t, err, "its signature is not good")
	}
}

func TestAPublicKeyIsNoSecret(t *testing.T) {
	public := publicPEM(rsaKey().Public())
	j := newJWT(t, session.JWTConfig{Algorithms: []string{"RS256"}, Keys: []session.JWTKey{{PublicKey: public}}}, newClock(noon))
	for _, key := range [][]byte{[]byte(public), []byte(strings.TrimSpace(public)), x509.MarshalPKCS1PublicKey(&rsaKey().PublicKey), rsaKey().N.Bytes()} {
		_, err := j.Verify(t.Context(), sign(t, "HS256", key, nil, good()))
		requireRefused(t, err, "algorithm is not one of those allowed")
		_, err = j.Verify(t.Context(), sign(t, "HS256", key, object{"alg": "RS256"}, good()))
		requireRefused(t, err, "its signature is not good")
	}
}

func TestTheAlgorithmFitsTheKey(t *testing.T) {
	everything := []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}
	for _, c := range []struct {
		name, algorithm string
		signer          any
		key             string
		why             string
	}{
		{"the JWK is for another algorithm", "PS256", rsaKey(), jwk(t, rsaKey(), "k", object{"alg": "RS256"}), "its algorithm does not fit its key"},
		{"another type", "ES256", p256Key(), jwk(t, rsaKey(), "k", nil), "its algorithm does not fit its key"},
		{"another curve", "ES384", p384Key(), jwk(t, p256Key(), "k", nil), "its algorithm does not fit its key"},
		{"the same type", "PS256", rsaKey(), jwk(t, rsaKey(), "k", nil), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJWT(t, session.JWTConfig{Algorithms: everything, Keys: []session.JWTKey{{PublicKey: c.key}}}, newClock(noon))
			_, err := j.Verify(t.Context(), sign(t, c.algorithm, c.signer, object{"kid": "k"}, good()))
			if c.why == "" {
				require.NoError(t, err)
				return
			}
			requireRefused(t, err, c.why)
			_, err = j.Verify(t.Context(), sign(t, c.algorithm, c.signer, nil, good()))
			requireRefused(t, err, "no key fits its algorithm")
		})
	}
}

func TestTheKeyThatATokenNames(t *testing.T) {
	j := newJWT(t, session.JWTConfig{Algorithms: []string{"EdDSA"}, Keys: []session.JWTKey{
		{ID: "a", PublicKey: publicPEM(edKey().Public())},
		{PublicKey: jwk(t, otherKey(), "b", nil)},
	}}, newClock(noon))
	for _, c := range []struct {
		header object
		key    ed25519.PrivateKey
		why    string
	}{
		{object{"kid": "a"}, edKey(), ""},
		{object{"kid": "b"}, otherKey(), ""},
		{object{"kid": "b"}, edKey(), "its signature is not good"},
		{object{"kid": "c"}, edKey(), "its key is not known"},
		{object{"kid": "A"}, edKey(), "its key is not known"},
		{nil, edKey(), ""},
		{nil, otherKey(), ""},
		{object{"kid": ""}, otherKey(), ""},
		{object{"kid": 1}, edKey(), "its kid is not text"},
		{object{"kid": nil}, edKey(), "its kid is not text"},
		{object{"kid": []string{"a"}}, edKey(), "its kid is not text"},
	} {
		_, err := j.Verify(t.Context(), sign(t, "EdDSA", c.key, c.header, good()))
		if c.why == "" {
			require.NoError(t, err, c.header)
		} else {
			requireRefused(t, err, c.why)
		}
	}
}

func TestAKeyWithoutNameMayBeAnyTokens(t *testing.T) {
	j := newJWT(t, session.JWTConfig{Algorithms: []string{"EdDSA"}, Keys: []session.JWTKey{
		{ID: "a", PublicKey: publicPEM(edKey().Public())},
		{PublicKey: publicPEM(otherKey().Public())},
	}}, newClock(noon))
	_, err := j.Verify(t.Context(), sign(t, "EdDSA", otherKey(), object{"kid": "whatever"}, good()))
	require.NoError(t, err)
	_, err = j.Verify(t.Context(), sign(t, "EdDSA", otherKey(), object{"kid": "a"}, good()))
	requireRefused(t, err, "its signature is not good")
	_, err = j.Verify(t.Context(), sign(t, "EdDSA", edKey(), object{"kid": "whatever"}, good()))
	requireRefused(t, err, "its signature is not good")
}

func TestWhatIsNoToken(t *testing.T) {
	j := newJWT(t, hs256(), newClock(noon))
	header, payload := `{"alg":"HS256"}`, `{"sub":"7","exp":1800000060}`
	fine := signRaw(header, payload)
	_, err := j.Verify(t.Context(), fine)
	require.NoError(t, err)
	padded := signRaw(header, `{"sub":"7","exp":1800000060 }`)
	for name, c := range map[string]struct{ token, why string }{
		"nothing":                  {"", "three segments"},
		"one segment":              {"abc", "three segments"},
		"two segments":             {"a.b", "three segments"},
		"four segments":            {fine + ".", "three segments"},
		"five segments, as JWE":    {"a.b.c.d.e", "three segments"},
		"many segments":            {strings.Repeat(".", 10_000), "three segments"},
		"too long":                 {signRaw(header, `{"sub":"7","exp":1800000060,"x":"`+strings.Repeat("x", 16<<10)+`"}`), "longer"},
		"no header":                {fine[len(strings.Split(fine, ".")[0]):], "its header is not JSON"},
		"padded base64":            {fine + "=", "segment 3 is not base64url"},
		"base64 of the other kind": {strings.Replace(fine, ".", "+.", 1), "segment 1 is not base64url"},
		"a space":                  {fine + " ", "segment 3 is not base64url"},
		"a line break at the end":  {fine + "\n", "line break"},
		"a line break inside":      {fine[:len(fine)-3] + "\r\n" + fine[len(fine)-3:], "line break"},
		"bits that do not count":   {nextSpelling(padded), "segment 3 is not base64url"},
		"header no object":         {signRaw(`["HS256"]`, payload), "its header is not a JSON object"},
		"header null":              {signRaw(`null`, payload), "its header is not a JSON object"},
		"header with a tail":       {signRaw(header+`{}`, payload), "its header is not JSON"},
		"alg twice":                {signRaw(`{"alg":"HS256","alg":"HS256"}`, payload), "its header has a name twice"},
		"alg twice, once escaped":  {signRaw(`{"alg":"none","\u0061lg":"HS256"}`, payload), "its header has a name twice"},
		"alg in another spelling":  {signRaw(`{"Alg":"HS256"}`, payload), "algorithm"},
		"alg in lower case":        {signRaw(`{"alg":"hs256"}`, payload), "algorithm"},
		"alg no text":              {signRaw(`{"alg":["HS256"]}`, payload), "algorithm"},
		"no alg":                   {signRaw(`{}`, payload), "algorithm"},
		"crit":                     {signRaw(`{"alg":"HS256","crit":["exp"],"exp":1800000060}`, payload), "crit"},
		"crit, empty":              {signRaw(`{"alg":"HS256","crit":[]}`, payload), "crit"},
		"crit null":                {signRaw(`{"alg":"HS256","crit":null}`, payload), "crit"},
		"payload empty":            {signRaw(header, ``), "its claims set is not JSON"},
		"payload no object":        {signRaw(header, `"7"`), "its claims set is not a JSON object"},
		"payload null":             {signRaw(header, `null`), "its claims set is not a JSON object"},
		"payload with a tail":      {signRaw(header, payload+"x"), "its claims set is not JSON"},
		"payload cut off":          {signRaw(header, payload[:len(payload)-1]), "its claims set is not JSON"},
		"payload with a comma":     {signRaw(header, `{"sub":"7","exp":1800000060,}`), "its claims set is not JSON"},
		"payload with a BOM":       {signRaw(header, "\ufeff"+payload), "its claims set is not JSON"},
		"payload not UTF-8":        {signRaw(header, "{\"sub\":\"\xff\",\"exp\":1800000060}"), "its claims set is not JSON"},
		"sub twice":                {signRaw(header, `{"sub":"7","sub":"8","exp":1800000060}`), "its claims set has a name twice"},
		"a nested token":           {signRaw(`{"alg":"HS256","cty":"JWT"}`, fine), "its claims set is not JSON"},
		"deep":                     {signRaw(header, `{"a":`+strings.Repeat("[", 11_000)), "its claims set is not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := j.Verify(t.Context(), c.token)
			requireRefused(t, err, c.why)
		})
	}
}

// nextSpelling changes the last bits of a token, which a lenient decoder ignores.
func nextSpelling(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	return token[:len(token)-1] + string(alphabet[last^1])
}

func TestAnErrorQuotesNothing(t *testing.T) {
	j := newJWT(t, hs256(), newClock(noon))
	for _, token := range []string{
		signRaw(`{"alg":"hidden"}`, `{}`), signRaw(`{"alg":"HS256"}`, `{"exp":"hidden","sub":"hidden"}`),
		signRaw(`{"alg":"HS256"}`, `{"exp":1800000060,"sub":"hidden\u0000"}`), signRaw(`{"alg":"HS256","kid":"hidden"}`, `{}`) + "AAAA",
	} {
		_, err := j.Verify(t.Context(), token)
		require.ErrorIs(t, err, gateway.ErrNotFound)
		require.NotContains(t, err.Error(), "hidden")
		require.NotContains(t, err.Error(), token[:10])
	}
}

func TestTheEdgesOfTheClock(t *testing.T) {
	for _, c := range []struct {
		name, payload string
		leeway        time.Duration
		allowNoExpiry bool
		why           string
	}{
		{name: "exp now", payload: `"exp":1800000000`, why: "expired"},
		{name: "exp a second ago", payload: `"exp":1799999999`, why: "expired"},
		{name: "exp in a second", payload: `"exp":1800000001`},
		{name: "exp in half a second", payload: `"exp":1800000000.5`},
		{name: "exp half a second ago", payload: `"exp":1799999999.5`, why: "expired"},
		{name: "exp at the end of the leeway", payload: `"exp":1799999940`, leeway: time.Minute, why: "expired"},
		{name: "exp before the end of the leeway", payload: `"exp":1799999941`, leeway: time.Minute},
		{name: "exp after the end of the leeway", payload: `"exp":1799999939`, leeway: time.Minute, why: "expired"},
		{name: "exp with an exponent", payload: `"exp":18000001e2`},
		{name: "no exp", payload: `"a":1`, why: "exp claim is required"},
		{name: "no exp, allowed", payload: `"a":1`, allowNoExpiry: true},
		{name: "exp past where it may be missing", payload: `"exp":1799999999`, allowNoExpiry: true, why: "expired"},
		{name: "exp 0", payload: `"exp":0`, allowNoExpiry: true, why: "expired"},
		{name: "exp -0", payload: `"exp":-0`, allowNoExpiry: true, why: "expired"},
		{name: "exp negative", payload: `"exp":-1`, why: "exp is not a date"},
		{name: "exp null", payload: `"exp":null`, allowNoExpiry: true, why: "exp is not a date"},
		{name: "exp text", payload: `"exp":"1800000060"`, why: "exp is not a date"},
		{name: "exp true", payload: `"exp":true`, why: "exp is not a date"},
		{name: "exp list", payload: `"exp":[1800000060]`, why: "exp is not a date"},
		{name: "exp huge", payload: `"exp":1e300`, why: "exp is not a date"},
		{name: "exp beyond any float", payload: `"exp":1e99999`, why: "exp is not a date"},
		{name: "exp many digits", payload: `"exp":` + strings.Repeat("9", 400), why: "exp is not a date"},
		{name: "exp beyond int64", payload: `"exp":9223372036854775808`, why: "exp is not a date"},
		{name: "exp in milliseconds", payload: `"exp":1800000060000`, why: "exp is not a date"},
		{name: "exp at the end of time", payload: `"exp":253402300799`},
		{name: "nbf now", payload: `"exp":1800000060,"nbf":1800000000`},
		{name: "nbf in a second", payload: `"exp":1800000060,"nbf":1800000001`, why: "not valid yet"},
		{name: "nbf in a moment", payload: `"exp":1800000060,"nbf":1800000000.25`, why: "not valid yet"},
		{name: "nbf at the end of the leeway", payload: `"exp":1800000100,"nbf":1800000060`, leeway: time.Minute},
		{name: "nbf after the end of the leeway", payload: `"exp":1800000100,"nbf":1800000061`, leeway: time.Minute, why: "not valid yet"},
		{name: "nbf huge", payload: `"exp":1800000060,"nbf":1e300`, why: "nbf is not a date"},
		{name: "nbf negative", payload: `"exp":1800000060,"nbf":-1e300`, why: "nbf is not a date"},
		{name: "nbf null", payload: `"exp":1800000060,"nbf":null`, why: "nbf is not a date"},
		{name: "iat now", payload: `"exp":1800000060,"iat":1800000000`},
		{name: "iat in a second", payload: `"exp":1800000060,"iat":1800000001`, why: "before issued"},
		{name: "iat at the end of the leeway", payload: `"exp":1800000100,"iat":1800000060`, leeway: time.Minute},
		{name: "iat after the end of the leeway", payload: `"exp":1800000100,"iat":1800000061`, leeway: time.Minute, why: "before issued"},
		{name: "iat text", payload: `"exp":1800000060,"iat":"now"`, why: "iat is not a date"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := hs256()
			cfg.Leeway, cfg.AllowNoExpiry = c.leeway, c.allowNoExpiry
			_, err := newJWT(t, cfg, newClock(noon)).Verify(t.Context(), signRaw(`{"alg":"HS256"}`, `{"sub":"7",`+c.payload+`}`))
			if c.why == "" {
				require.NoError(t, err)
			} else {
				requireRefused(t, err, c.why)
			}
		})
	}
}

func TestWhatATokenSays(t *testing.T) {
	const claims = `"exp":1800000060,"iat":1799999000`
	for _, c := range []struct {
		name, payload string
		change        func(*session.JWTConfig)
		want          session.Claims // without times
		why           string
	}{
		{name: "text", payload: `"sub":"joe"`, want: session.Claims{UserID: "joe"}},
		{name: "not ASCII", payload: `"sub":"张三"`, want: session.Claims{UserID: "张三"}},
		{name: "a number", payload: `"sub":7`, want: session.Claims{UserID: "7"}},
		{name: "2^53+1", payload: `"sub":9007199254740993`, want: session.Claims{UserID: "9007199254740993"}},
		{name: "a snowflake", payload: `"sub":1867432098123456789`, want: session.Claims{UserID: "1867432098123456789"}},
		{name: "2^63-1", payload: `"sub":9223372036854775807`, want: session.Claims{UserID: "9223372036854775807"}},
		{name: "2^64-1", payload: `"sub":18446744073709551615`, want: session.Claims{UserID: "18446744073709551615"}},
		{name: "2^64", payload: `"sub":18446744073709551616`, why: "its user id is not a whole number"},
		{name: "a fraction", payload: `"sub":7.5`, why: "its user id is not a whole number"},
		{name: "a fraction of nothing", payload: `"sub":7.0`, why: "its user id is not a whole number"},
		{name: "an exponent", payload: `"sub":1e3`, why: "its user id is not a whole number"},
		{name: "none", payload: `"a":1`, why: "its user id is missing"},
		{name: "null", payload: `"sub":null`, why: "its user id is missing"},
		{name: "empty", payload: `"sub":""`, why: "its user id is empty"},
		{name: "true", payload: `"sub":true`, why: "its user id is neither text nor a number"},
		{name: "an object", payload: `"sub":{"id":7}`, why: "its user id is neither text nor a number"},
		{name: "a header in it", payload: `"sub":"7\r\nX-User-Id: 8"`, why: "its user id contains a control character"},
		{name: "too long", payload: `"sub":"` + strings.Repeat("x", 256) + `"`, why: "its user id is longer"},
		{name: "half a character", payload: `"sub":"\ud800"`, why: "its user id is not valid Unicode"},
		{name: "another claim", payload: `"sub":"joe","http://example.com/user.id":8`, change: func(c *session.JWTConfig) { c.UserClaim = "http://example.com/user.id" }, want: session.Claims{UserID: "8"}},
		{name: "not the other claim", payload: `"sub":"joe"`, change: func(c *session.JWTConfig) { c.UserClaim = "uid" }, why: "its user id is missing"},
		{
			name: "channel and source", payload: `"sub":"joe","ch":"app","src":3`,
			change: func(c *session.JWTConfig) { c.ChannelClaim, c.SourceClaim = "ch", "src" },
			want:   session.Claims{UserID: "joe", Channel: "app", Source: "3"},
		},
		{name: "channel not asked for", payload: `"sub":"joe","":"app","channel":"app"`, want: session.Claims{UserID: "joe"}},
		{name: "no channel", payload: `"sub":"joe"`, change: func(c *session.JWTConfig) { c.ChannelClaim = "ch" }, want: session.Claims{UserID: "joe"}},
		{name: "an empty channel", payload: `"sub":"joe","ch":""`, change: func(c *session.JWTConfig) { c.ChannelClaim = "ch" }, want: session.Claims{UserID: "joe"}},
		{name: "a channel that is a list", payload: `"sub":"joe","ch":["a"]`, change: func(c *session.JWTConfig) { c.ChannelClaim = "ch" }, why: "its channel is neither"},
		{name: "a source with a header in it", payload: `"sub":"joe","src":"a\nb"`, change: func(c *session.JWTConfig) { c.SourceClaim = "src" }, why: "its source cannot be"},
		{name: "iss", payload: `"sub":"joe","iss":"https://a"`, change: issuer, want: session.Claims{UserID: "joe"}},
		{name: "another iss", payload: `"sub":"joe","iss":"https://a/"`, change: issuer, why: "invalid issuer"},
		{name: "no iss", payload: `"sub":"joe"`, change: issuer, why: "iss claim is required"},
		{name: "iss that is a list", payload: `"sub":"joe","iss":["https://a"]`, change: issuer, why: "iss is invalid"},
		{name: "aud as text", payload: `"sub":"joe","aud":"b"`, change: audience, want: session.Claims{UserID: "joe"}},
		{name: "aud as list", payload: `"sub":"joe","aud":["x","a"]`, change: audience, want: session.Claims{UserID: "joe"}},
		{name: "another aud", payload: `"sub":"joe","aud":"x"`, change: audience, why: "invalid audience"},
		{name: "other auds", payload: `"sub":"joe","aud":["x","y"]`, change: audience, why: "invalid audience"},
		{name: "part of aud", payload: `"sub":"joe","aud":"a b"`, change: audience, why: "invalid audience"},
		{name: "no aud", payload: `"sub":"joe"`, change: audience, why: "aud claim is required"},
		{name: "empty aud", payload: `"sub":"joe","aud":[]`, change: audience, why: "aud claim is required"},
		{name: "aud with a number", payload: `"sub":"joe","aud":["a",1]`, change: audience, why: "aud is invalid"},
		{name: "aud that is an object", payload: `"sub":"joe","aud":{"a":"a"}`, change: audience, why: "aud claim is required"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := hs256()
			if c.change != nil {
				c.change(&cfg)
			}
			said, err := newJWT(t, cfg, newClock(noon)).Verify(t.Context(), signRaw(`{"alg":"HS256"}`, `{`+claims+`,`+c.payload+`}`))
			if c.why != "" {
				requireRefused(t, err, c.why)
				return
			}
			require.NoError(t, err)
			c.want.IssuedAt, c.want.ExpiresAt = time.Unix(1799999000, 0), time.Unix(1800000060, 0)
			require.Equal(t, c.want, said)
		})
	}
}

func issuer(c *session.JWTConfig)   { c.Issuer = "https://a" }
func audience(c *session.JWTConfig) { c.Audience = []string{"a", "b"} }

func TestWithoutAKeyServerNothingIsAsked(t *testing.T) {
	j := newJWT(t, hs256(), newClock(noon))
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.NoError(t, j.Run(gone))
	_, err := j.Verify(gone, signRaw(`{"alg":"HS256"}`, `{"sub":"7","exp":1800000060}`))
	require.NoError(t, err)
}

func TestProblemsOfAConfiguration(t *testing.T) {
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(edKey()))}))
	pkcs1 := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey())}))
	sec1 := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(p256Key()))}))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	edPublic := publicPEM(edKey().Public())
	asymmetric := func(keys ...string) session.JWTConfig {
		cfg := session.JWTConfig{Algorithms: []string{"RS256", "ES256", "EdDSA"}}
		for _, key := range keys {
			cfg.Keys = append(cfg.Keys, session.JWTKey{PublicKey: key})
		}
		return cfg
	}
	atURL := func(url string) session.JWTConfig {
		return session.JWTConfig{Algorithms: []string{"RS256"}, JWKSURL: url}
	}
	for _, c := range []struct {
		name string
		cfg  session.JWTConfig
		want []string // the beginning of each problem
	}{
		{"nothing", session.JWTConfig{}, []string{"algorithms: give at least one", "keys: give at least one"}},
		{"none", session.JWTConfig{Algorithms: []string{"none"}, JWKSURL: "https://a/b"}, []string{`algorithms: "none" is none of`}},
		{"lower case", session.JWTConfig{Algorithms: []string{"rs256"}, JWKSURL: "https://a/b"}, []string{`algorithms: "rs256" is none of`}},
		{"mixed", session.JWTConfig{Algorithms: []string{"HS256", "RS256"}, Keys: []session.JWTKey{{Secret: secret}}}, []string{"algorithms: HS* cannot be mixed"}},
		{"short for HS256", session.JWTConfig{Algorithms: []string{"HS256"}, Keys: []session.JWTKey{{Secret: secret[:31]}}}, []string{"keys[0].secret: has 31 bytes: want at least 32"}},
		{"short for HS384", session.JWTConfig{Algorithms: []string{"HS384"}, Keys: []session.JWTKey{{Secret: secret[:47]}}}, []string{"keys[0].secret: has 47 bytes: want at least 48"}},
		{"short for HS512", session.JWTConfig{Algorithms: []string{"HS256", "HS512"}, Keys: []session.JWTKey{{Secret: secret[:63]}}}, []string{"keys[0].secret: has 63 bytes: want at least 64"}},
		{"long enough", session.JWTConfig{Algorithms: []string{"HS256"}, Keys: []session.JWTKey{{Secret: secret[:32]}}}, nil},
		{"a public key as secret", session.JWTConfig{Algorithms: []string{"HS256"}, Keys: []session.JWTKey{{Secret: []byte(edPublic)}}}, []string{"keys[0].secret: is PEM"}},
		{"no secret", session.JWTConfig{Algorithms: []string{"HS256"}, Keys: []session.JWTKey{{}}}, []string{"keys[0].secret: is missing"}},
		{"no public key", session.JWTConfig{Algorithms: []string{"RS256"}, Keys: []session.JWTKey{{}}}, []string{"keys[0].publicKey: is missing"}},
		{"a public key for HS256", session.JWTConfig{Algorithms: []string{"HS256"}, Keys: []session.JWTKey{{PublicKey: edPublic}}}, []string{"keys[0].publicKey: is of no use"}},
		{"a secret for EdDSA", session.JWTConfig{Algorithms: []string{"EdDSA"}, Keys: []session.JWTKey{{Secret: secret}}}, []string{"keys[0].secret: is of no use"}},
		{"both", session.JWTConfig{Algorithms: []string{"EdDSA"}, Keys: []session.JWTKey{{Secret: secret, PublicKey: edPublic}}}, []string{"keys[0].publicKey: is given beside a secret"}},
		{"neither PEM nor JWK", asymmetric("AAAAC3NzaC1lZDI1NTE5"), []string{"keys[0].publicKey: is neither PEM nor a JWK"}},
		{"PEM of nothing", asymmetric("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"), []string{"keys[0].publicKey: cannot be read"}},
		{"PEM of something else", asymmetric("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----"), []string{"keys[0].publicKey: is PEM of something else"}},
		{"two in one", asymmetric(edPublic + edPublic), []string{"keys[0].publicKey: is more than one PEM block"}},
		{"private, PKCS #8", asymmetric(private), []string{"keys[0].publicKey: is a private key"}},
		{"private, PKCS #1", asymmetric(pkcs1), []string{"keys[0].publicKey: is a private key"}},
		{"private, SEC 1", asymmetric(sec1), []string{"keys[0].publicKey: is a private key"}},
		{"private behind a public one", asymmetric(edPublic + private), []string{"keys[0].publicKey: is a private key"}},
		{"private, JWK (RFC 8037 A.1)", asymmetric(`{"kty":"OKP","crv":"Ed25519","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`), []string{"keys[0].publicKey: is a private key"}},
		{"oct, JWK (RFC 7515 A.1)", asymmetric(`{"kty":"oct","k":"` + a1Secret + `"}`), []string{"keys[0].publicKey: is a secret"}},
		{"RSA of 1024 bits", asymmetric(publicPEM(small.Public())), []string{"keys[0].publicKey: is an RSA key of 1024 bits"}},
		{"RSA of 1024 bits, JWK", asymmetric(jwk(t, small, "", nil)), []string{"keys[0].publicKey: is an RSA key of 1024 bits"}},
		{"a curve nobody uses", asymmetric(publicPEM(p224.Public())), []string{"keys[0].publicKey: is on a curve"}},
		{"for encryption", asymmetric(jwk(t, rsaKey(), "", object{"use": "enc"})), []string{"keys[0].publicKey: is not for signatures"}},
		{"not for verifying", asymmetric(jwk(t, rsaKey(), "", object{"key_ops": []string{"encrypt"}})), []string{"keys[0].publicKey: is not for verifying"}},
		{"another algorithm's", asymmetric(jwk(t, rsaKey(), "", object{"alg": "PS256"})), []string{"keys[0].publicKey: fits none of the algorithms"}},
		{"another curve's", asymmetric(publicPEM(p384Key().Public())), []string{"keys[0].publicKey: fits none of the algorithms"}},
		{"a point not on the curve", asymmetric(`{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}`), []string{"keys[0].publicKey: cannot be read"}},
		{"a certificate at an http URL", asymmetric(jwk(t, rsaKey(), "", object{"x5u": "http://a/b"})), []string{"keys[0].publicKey: cannot be read"}},
		{"a set", asymmetric(`{"keys":[]}`), []string{"keys[0].publicKey: cannot be read"}},
		{"broken JSON", asymmetric(`{"kty":`), []string{"keys[0].publicKey: is not a JWK"}},
		{"each has its problem", asymmetric(edPublic, "x", private), []string{"keys[1].publicKey: is neither", "keys[2].publicKey: is a private key"}},
		{"too many", asymmetric(strings.Split(strings.Repeat("x", 17), "")...), []string{"keys: 17 are too many"}},
		{
			"the same id", session.JWTConfig{Algorithms: []string{"EdDSA"}, Keys: []session.JWTKey{{ID: "a", PublicKey: edPublic}, {PublicKey: jwk(t, otherKey(), "a", nil)}}},
			[]string{"keys[1].id: another key has the same"},
		},
		{
			"two ids for one", session.JWTConfig{Algorithms: []string{"EdDSA"}, Keys: []session.JWTKey{{ID: "a", PublicKey: jwk(t, otherKey(), "b", nil)}}},
			[]string{"keys[0].publicKey: has a kid that differs from the id"},
		},
		{"https", atURL("https://issuer.example/jwks.json"), nil},
		{"loopback", atURL("http://127.0.0.1:1/jwks"), nil},
		{"loopback, v6", atURL("http://[::1]/jwks"), nil},
		{"localhost", atURL("http://localhost:8080"), nil},
		{"http", atURL("http://issuer.example/jwks.json"), []string{"jwksUrl: must be https"}},
		{"http to what begins like a loopback", atURL("http://127.0.0.1.example/"), []string{"jwksUrl: must be https"}},
		{"file", atURL("file://localhost/etc/passwd"), []string{"jwksUrl: must be https"}},
		{"no host", atURL("https:///a"), []string{"jwksUrl: is not a URL"}},
		{"no URL", atURL("https://a b"), []string{"jwksUrl: is not a URL"}},
		{"a password", atURL("https://me:hidden@a/b"), []string{"jwksUrl: must not contain a user"}},
		{"secrets at a URL", session.JWTConfig{Algorithms: []string{"HS256"}, JWKSURL: "https://a/b"}, []string{"jwksUrl: HS* needs secrets"}},
		{
			"times", session.JWTConfig{Algorithms: []string{"RS256"}, JWKSURL: "https://a/b", JWKSRefresh: -1, JWKSMaxAge: -1, Leeway: -1},
			[]string{"jwksRefresh: must not be negative", "jwksMaxAge: must not be negative", "leeway: must not be negative"},
		},
		{"older than refreshed", session.JWTConfig{Algorithms: []string{"RS256"}, JWKSURL: "https://a/b", JWKSRefresh: time.Hour, JWKSMaxAge: time.Minute}, []string{"jwksMaxAge: must be at least jwksRefresh"}},
		{"old at once", session.JWTConfig{Algorithms: []string{"RS256"}, JWKSURL: "https://a/b", JWKSRefresh: time.Second, JWKSMaxAge: time.Second}, []string{"jwksMaxAge: must be at least"}},
		{"empty audience", session.JWTConfig{Algorithms: []string{"RS256"}, JWKSURL: "https://a/b", Audience: []string{""}}, []string{"audience: must not contain"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.cfg.Verify()
			_, newErr := session.NewJWT(c.cfg, slog.New(slog.DiscardHandler), time.Now)
			if c.want == nil {
				require.NoError(t, err)
				require.NoError(t, newErr)
				return
			}
			require.Error(t, err)
			require.EqualError(t, newErr, err.Error())
			problems := strings.Split(err.Error(), "\n")
			require.Len(t, problems, len(c.want), err)
			for i, want := range c.want {
				require.True(t, strings.HasPrefix(problems[i], want) || len(c.want) > 1 && strings.Contains(err.Error(), want), "%q in %q", want, err)
			}
			for _, key := range c.cfg.Keys {
				if len(key.Secret) > 0 {
					require.False(t, bytes.Contains([]byte(err.Error()), key.Secret[:8]))
				}
			}
			require.NotContains(t, err.Error(), "hidden")
		})
	}
}
