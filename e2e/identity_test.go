package e2e

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// keyRing is a server of public keys that a scenario can change and stop.
type keyRing struct {
	*httptest.Server
	set  atomic.Pointer[string]
	down atomic.Bool
}

func startKeyRing(t *testing.T) *keyRing {
	t.Helper()
	k := &keyRing{}
	k.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if k.down.Load() {
			rw.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = rw.Write([]byte(*k.set.Load()))
	}))
	t.Cleanup(k.Close)
	return k
}

// publish replaces what is published by RSA keys, each under its kid.
func (k *keyRing) publish(keys map[string]*rsa.PrivateKey) {
	var jwks []map[string]string
	for kid, key := range keys {
		encode := base64.RawURLEncoding.EncodeToString
		jwks = append(jwks, map[string]string{
			"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes()),
		})
	}
	set, _ := json.Marshal(map[string]any{"keys": jwks})
	text := string(set)
	k.set.Store(&text)
}

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return key
}

func publicPEM(t *testing.T, key crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// claims of a good token of the user, with what differs.
func claims(user string, changes map[string]any) jwt.MapClaims {
	c := jwt.MapClaims{"sub": user, "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "iss": "https://login.example", "aud": "ai", "ch": "wechat", "from": "mini-program"}
	maps.Copy(c, changes)
	return c
}

// issue signs a token.
func issue(t *testing.T, method jwt.SigningMethod, kid string, key any, c jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	if kid != "" {
		token.Header["kid"] = kid
	}
	signed, err := token.SignedString(key)
	require.NoError(t, err)
	return signed
}

// twin is the token with the other signature that is good for ECDSA: (r, n-s) for (r, s).
func twin(t *testing.T, token string) string {
	t.Helper()
	end := strings.LastIndexByte(token, '.')
	signature, err := base64.RawURLEncoding.DecodeString(token[end+1:])
	require.NoError(t, err)
	s := new(big.Int).SetBytes(signature[32:])
	s.Sub(elliptic.P256().Params().N, s).FillBytes(signature[32:])
	return token[:end+1] + base64.RawURLEncoding.EncodeToString(signature)
}

var notLoggedIn = refusal{"UNAUTHENTICATED", http.StatusUnauthorized, 40100, "未登录或登录已过期", "Not logged in, or the login has expired."}

// jwtPolicy is an identity policy in mode jwt for service ai.
func jwtPolicy(changes map[string]any) map[string]any {
	settings := map[string]any{"issuer": "https://login.example", "audience": []string{"ai"}, "leeway": "1s", "channelClaim": "ch", "sourceClaim": "from"}
	maps.Copy(settings, changes)
	return map[string]any{"services": []string{"ai"}, "mode": "jwt", "public": []string{"/js/a/public/**"}, "jwt": settings}
}

// Whose a request is: the modes, every family of algorithms, and what no token may do.
func jsonWebTokens(t *testing.T, g *guarded) {
	g.set(t, 0, "answers", "ai", answersPolicy)
	ring := startKeyRing(t)
	first, second, stranger := rsaKey(t), rsaKey(t), rsaKey(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	edPublic, ed, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	hmac := []byte("a-secret-for-HS256-of-over-32-bytes")
	const path = "/js/a/whoami"
	var used []string
	good := func(t *testing.T, token, user string) {
		t.Helper()
		used = append(used, token)
		for via := range g.clients {
			for _, c := range []call{
				{path: path, token: token},
				call{path: path}.with("Authorization", "Bearer "+token),
				{path: "/js/a/public/x", token: token},
			} {
				got := g.pass(t, via, c)
				require.Equal(t, "node-1", got.node)
				require.Equal(t, []string{user}, got.header.Values("X-User-Id"))
				require.Equal(t, []string{"wechat"}, got.header.Values("X-Channel"))
				require.Equal(t, []string{"mini-program"}, got.header.Values("X-Source"))
			}
		}
	}
	bad := func(t *testing.T, why, token string) {
		t.Helper()
		used = append(used, token)
		g.refused(t, 0, call{path: path, token: token}, notLoggedIn)
		got := g.pass(t, 0, call{path: "/js/a/public/x", token: token})
		for _, name := range []string{"X-User-Id", "X-Channel", "X-Source"} {
			require.Empty(t, got.header.Values(name), "%s: nobody's", why)
		}
	}

	t.Run("passthrough", func(t *testing.T) {
		g.set(t, 0, "identity", "ai", map[string]any{"services": []string{"ai"}, "mode": "passthrough"})
		g.settle(t)
		got := g.pass(t, g.last(), call{path: path, token: "nobody's"})
		require.Empty(t, got.header.Values("X-User-Id"), "the node answers it")
	})
	t.Run("token", func(t *testing.T) {
		g.set(t, 0, "identity", "ai", map[string]any{"services": []string{"ai"}, "mode": "token"})
		g.settle(t)
		token := g.signIn(t, 0, "/js/a", "ann")
		for via := range g.clients {
			require.Equal(t, userID("ann"), g.pass(t, via, call{path: path, token: token}).header.Get("X-User-Id"))
			g.refused(t, via, call{path: path, token: "nobody's"}, notLoggedIn)
			g.refused(t, via, call{path: path}, notLoggedIn)
		}
	})
	t.Run("RS256 with published keys", func(t *testing.T) {
		ring.publish(map[string]*rsa.PrivateKey{"2025": first})
		g.set(t, 0, "identity", "ai", jwtPolicy(map[string]any{"algorithms": []string{"RS256"}, "jwksUrl": ring.URL, "jwksRefresh": "10s"}))
		g.settle(t)
		good(t, issue(t, jwt.SigningMethodRS256, "2025", first, claims("9007199254740993", nil)), "9007199254740993")
		good(t, issue(t, jwt.SigningMethodRS256, "", first, claims("no kid", nil)), "no kid")
		g.refused(t, 0, call{path: path}, notLoggedIn)
		g.pass(t, 0, call{method: http.MethodOptions, path: path})
		for why, changes := range map[string]map[string]any{
			"expired": {"exp": time.Now().Add(-10 * time.Second).Unix()}, "not yet": {"nbf": time.Now().Add(time.Minute).Unix()}, "without an end": {"exp": nil},
			"for others": {"aud": "billing"}, "by others": {"iss": "https://evil.example"}, "from the future": {"iat": time.Now().Add(time.Minute).Unix()},
			"nobody": {"sub": ""}, "with a line break": {"sub": "7\r\nX-Gateway-Node: node-2"},
		} {
			bad(t, why, issue(t, jwt.SigningMethodRS256, "2025", first, claims("7", changes)))
		}
		bad(t, "a stranger's key", issue(t, jwt.SigningMethodRS256, "2025", stranger, claims("7", nil)))
		bad(t, "alg none", issue(t, jwt.SigningMethodNone, "", jwt.UnsafeAllowNoneSignatureType, claims("7", nil)))
		bad(t, "another RSA algorithm", issue(t, jwt.SigningMethodPS256, "2025", first, claims("7", nil)))
		for _, secret := range []string{publicPEM(t, &first.PublicKey), strings.TrimSpace(publicPEM(t, &first.PublicKey)), *ring.set.Load()} {
			bad(t, "the public key as a secret", issue(t, jwt.SigningMethodHS256, "2025", []byte(secret), claims("7", nil)))
		}
		unsigned := issue(t, jwt.SigningMethodRS256, "2025", first, claims("7", nil))
		bad(t, "no signature", unsigned[:strings.LastIndexByte(unsigned, '.')+1])
		opaque := g.signIn(t, 0, "/js/a", "ann")
		for via := range g.clients {
			g.refused(t, via, call{path: "/js/a/whoami", token: opaque}, notLoggedIn)
			require.Equal(t, userID("ann"), g.pass(t, via, call{path: "/js/a/public", token: opaque}).header.Get("X-User-Id"), "not taken for nobody: the node may know it")
		}
	})
	rotated := func(t *testing.T) {
		ring.publish(map[string]*rsa.PrivateKey{"2025": first, "2026": second})
		fresh := issue(t, jwt.SigningMethodRS256, "2026", second, claims("7", nil))
		for via := range g.clients { // an unknown kid may ask once in 10 s
			require.Eventually(t, func() bool {
				a, _ := g.send(t, via, call{path: path, token: fresh})
				return a.status == http.StatusOK
			}, 25*time.Second, 100*time.Millisecond)
		}
		good(t, fresh, "7")
		good(t, issue(t, jwt.SigningMethodRS256, "2025", first, claims("8", nil)), "8")
		ring.down.Store(true)
		good(t, issue(t, jwt.SigningMethodRS256, "2025", first, claims("9", nil)), "9")
		good(t, issue(t, jwt.SigningMethodRS256, "2026", second, claims("9", nil)), "9")

		// Where no key is known yet, nobody can be told from nobody: 503, not 401.
		ring.Close()
		g.set(t, 0, "identity", "ai", jwtPolicy(map[string]any{"algorithms": []string{"RS256"}, "jwksUrl": ring.URL + "/moved"}))
		g.settle(t)
		for via := range g.clients {
			a := g.refusedWith(t, via, "STORE_UNAVAILABLE", call{path: path, token: fresh})
			require.Equal(t, http.StatusServiceUnavailable, a.status)
			g.refusedWith(t, via, "UNAUTHENTICATED", call{path: path})
			g.pass(t, via, call{path: "/js/a/public/x"})
		}
	}
	if g.last() > 0 { // it takes as long as an unknown key is not asked for again: once is enough
		t.Run("the published key is rotated, and its server stops", rotated)
	}
	t.Run("ES256 and EdDSA", func(t *testing.T) {
		g.set(t, 0, "identity", "ai", jwtPolicy(map[string]any{"algorithms": []string{"ES256", "EdDSA"}, "keys": []map[string]any{
			{"id": "ec", "publicKey": publicPEM(t, &ec.PublicKey)}, {"id": "ed", "publicKey": publicPEM(t, edPublic)},
		}}))
		g.settle(t)
		good(t, issue(t, jwt.SigningMethodES256, "ec", ec, claims("7", nil)), "7")
		good(t, issue(t, jwt.SigningMethodEdDSA, "ed", ed, claims("8", nil)), "8")
		bad(t, "the key of another algorithm", issue(t, jwt.SigningMethodEdDSA, "ec", ed, claims("7", nil)))
		bad(t, "RS256", issue(t, jwt.SigningMethodRS256, "2025", first, claims("7", nil)))

		// With the logout of one spelling of a token all are void.
		token := issue(t, jwt.SigningMethodES256, "ec", ec, claims("7", nil))
		good(t, twin(t, token), "7")
		g.pass(t, 0, call{path: "/js/a/sys/logout", token: token})
		bad(t, "logged out", token)
		bad(t, "its twin", twin(t, token))
		g.refused(t, g.last(), call{path: path, token: twin(t, token)}, notLoggedIn)
		other := issue(t, jwt.SigningMethodES256, "ec", ec, claims("7", map[string]any{"jti": "2"}))
		good(t, other, "7")
		g.pass(t, 0, call{path: "/js/a/sys/logout", token: twin(t, other)})
		g.refused(t, g.last(), call{path: path, token: other}, notLoggedIn)
	})
	t.Run("HS256", func(t *testing.T) {
		policy := jwtPolicy(map[string]any{"algorithms": []string{"HS256"}, "keys": []map[string]any{{"id": "one", "value": string(hmac)}}})
		g.set(t, 0, "identity", "ai", policy)
		g.settle(t)
		token := issue(t, jwt.SigningMethodHS256, "one", hmac, claims("7", nil))
		good(t, token, "7")
		bad(t, "another secret", issue(t, jwt.SigningMethodHS256, "one", append(hmac, '!'), claims("7", nil)))
		bad(t, "no secret", issue(t, jwt.SigningMethodHS256, "one", []byte{}, claims("7", nil)))
		bad(t, "alg none", issue(t, jwt.SigningMethodNone, "one", jwt.UnsafeAllowNoneSignatureType, claims("7", nil)))
		shown, err := json.Marshal(g.services[0].administer(t, http.MethodGet, "/policies/identity/ai", nil))
		require.NoError(t, err)
		require.NotContains(t, string(shown), string(hmac))

		// The mark of a logout lives about as long as the token would have.
		short := issue(t, jwt.SigningMethodHS256, "one", hmac, claims("7", map[string]any{"exp": time.Now().Add(5 * time.Minute).Unix(), "jti": "short"}))
		good(t, short, "7")
		g.pass(t, g.last(), call{method: http.MethodPost, path: "/js/a/sys/logout", token: short})
		for via := range g.clients {
			g.refused(t, via, call{path: path, token: short}, notLoggedIn)
			g.pass(t, via, call{path: path, token: token})
		}
		if g.redis != nil {
			require.InDelta(t, 5*60, logoutMark(t, g, "ai", short).Seconds(), 15)
		}
	})
	g.silent(t, append(used, string(hmac))...)
}

// logoutMark is how long the mark of a token that was logged out still lives; less than 0: there is none.
func logoutMark(t *testing.T, g *guarded, service, token string) time.Duration {
	t.Helper()
	var milliseconds int64
	answer := redisDo(t, g.direct.redis, g.direct.database, "PTTL gateway:logout:"+service+":"+token)
	_, err := fmt.Sscanf(answer, ":%d", &milliseconds)
	require.NoError(t, err, answer)
	return time.Duration(milliseconds) * time.Millisecond
}

// A logout that the node confirms voids the token at once and everywhere; one that it does not, nothing.
func logoutEndsTheToken(t *testing.T, g *guarded) {
	g.set(t, 0, "answers", "ai", answersPolicy)
	g.set(t, 0, "identity", "ai", map[string]any{"services": []string{"ai"}, "mode": "token", "public": []string{"/js/a/public"}})
	g.settle(t)
	const logout = "/js/a/sys/logout"
	last := g.last()
	failed, succeeded := `{"code":500,"message":"later"}`, `{"code":200}`
	answer := func(body *string) {
		for _, d := range g.desks {
			d.onLogout.Store(body)
		}
	}
	for _, how := range []struct {
		name string
		call call
		end  bool
	}{
		{"GET", call{path: logout}, true},
		{"POST", call{method: http.MethodPost, path: logout, body: []byte(`{}`)}, true},
		{"as a bearer", call{path: logout}, true},
		{"HEAD only asks", call{method: http.MethodHead, path: logout}, false},
		{"OPTIONS only asks", call{method: http.MethodOptions, path: logout}, false},
		{"another path", call{path: logout + "/all"}, false},
	} {
		token, kept := g.signIn(t, 0, "/js/a", "ann"), g.signIn(t, 0, "/js/a", "ann")
		how.call.token = token
		if how.name == "as a bearer" {
			how.call.token = ""
			how.call = how.call.with("Authorization", "Bearer "+token)
		}
		answer(&failed)
		g.pass(t, 0, how.call)
		g.pass(t, last, call{path: "/js/a/whoami", token: token})
		g.pass(t, 0, call{path: "/js/a/whoami", token: token})
		answer(&succeeded)
		g.pass(t, 0, how.call)
		for via := range g.clients {
			if how.end {
				g.refused(t, via, call{path: "/js/a/whoami", token: token}, notLoggedIn)
				require.Empty(t, g.pass(t, via, call{path: "/js/a/public", token: token}).header.Values("X-User-Id"), "nobody's")
			} else {
				g.pass(t, via, call{path: "/js/a/whoami", token: token})
			}
			g.pass(t, via, call{path: "/js/a/whoami", token: kept})
		}
		if g.redis != nil {
			require.Equal(t, how.end, logoutMark(t, g, "ai", token) > 24*time.Hour, how.name)
			require.Negative(t, logoutMark(t, g, "ai", kept))
		}
	}
}

// A kick-out ends what a user has, and nothing that begins after it.
func kickOut(t *testing.T, g *guarded) {
	g.set(t, 0, "answers", "ai", answersPolicy)
	g.set(t, 0, "identity", "all", map[string]any{"mode": "token"})
	g.settle(t)
	last := g.last()
	kick := func(via int) {
		t.Helper()
		data := g.services[via].administer(t, http.MethodPost, "/sessions/kick-out", map[string]any{"serviceId": "ai", "userId": userID("ann")}).(map[string]any)
		require.Equal(t, true, data["enforced"])
	}
	bob, elsewhere := g.signIn(t, 0, "/js/a", "bob"), g.signIn(t, 0, "/other", "ann")
	var old []string
	for round := range 4 { // several in one second
		for via := range g.clients {
			token := g.signIn(t, via, "/js/a", "ann")
			old = append(old, token)
			g.pass(t, last-via, call{path: "/js/a/whoami", token: token})
		}
		kick(round % len(g.services))
		fresh := g.signIn(t, 0, "/js/a", "ann")
		for via := range g.clients {
			g.pass(t, via, call{path: "/js/a/whoami", token: fresh})
			for _, token := range old {
				g.refusedWith(t, via, "UNAUTHENTICATED", call{path: "/js/a/whoami", token: token})
			}
			g.pass(t, via, call{path: "/js/a/whoami", token: bob})
			g.pass(t, via, call{path: "/other/whoami", token: elsewhere})
		}
		old = append(old, fresh)
	}
	g.refused(t, last, call{path: "/js/a/whoami", token: old[0]}, notLoggedIn)

	// Tokens that tell when they were issued: in seconds, which is coarser than a kick.
	hmac := []byte("a-secret-for-HS256-of-over-32-bytes")
	number := 0
	tokenFor := func(username string) string {
		number++
		return issue(t, jwt.SigningMethodHS256, "", hmac, claims(userID(username), map[string]any{"jti": fmt.Sprint(number)}))
	}
	for _, d := range g.desks {
		d.tokenFor.Store(&tokenFor)
	}
	g.remove(t, "identity", "all")
	g.set(t, 0, "identity", "ai", jwtPolicy(map[string]any{"algorithms": []string{"HS256"}, "keys": []map[string]any{{"value": string(hmac)}}}))
	g.settle(t)
	old = nil
	for range 3 {
		old = append(old, g.signIn(t, 0, "/js/a", "ann"))
		g.pass(t, last, call{path: "/js/a/whoami", token: old[len(old)-1]})
		kick(last)
		fresh := g.signIn(t, 0, "/js/a", "ann")
		for via := range g.clients {
			g.pass(t, via, call{path: "/js/a/whoami", token: fresh})
			for _, token := range old {
				g.refusedWith(t, via, "UNAUTHENTICATED", call{path: "/js/a/whoami", token: token})
			}
		}
		old = append(old, fresh)
	}
	g.silent(t, append(old, string(hmac))...)
}
