package session_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// keyServer publishes what it is told to.
type keyServer struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[http.HandlerFunc]
}

func newKeyServer(t testing.TB, keys ...string) *keyServer {
	t.Helper()
	s := &keyServer{}
	s.publish(keys...)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		(*s.answer.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *keyServer) do(answer http.HandlerFunc) { s.answer.Store(&answer) }

func (s *keyServer) say(text string) {
	s.do(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}

func (s *keyServer) publish(keys ...string) { s.say(set(keys...)) }

func (s *keyServer) breakDown() {
	s.do(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

func set(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func (s *keyServer) config() session.JWTConfig {
	return session.JWTConfig{Algorithms: []string{"EdDSA", "RS256"}, JWKSURL: s.URL}
}

// token is one whose key has that name.
func token(t testing.TB, key crypto.Signer, id string) string {
	t.Helper()
	header, algorithm := object{}, "EdDSA"
	if id != "" {
		header["kid"] = id
	}
	if key == crypto.Signer(rsaKey()) {
		algorithm = "RS256"
	}
	return sign(t, algorithm, key, header, object{"sub": "7", "exp": noon + 100_000})
}

func requireNotFoundOut(t testing.TB, err error, why string) {
	t.Helper()
	require.ErrorContains(t, err, why)
	require.NotErrorIs(t, err, gateway.ErrNotFound)
}

func TestPublishedKeys(t *testing.T) {
	server := newKeyServer(t, jwk(t, edKey(), "a", nil), jwk(t, rsaKey(), "b", nil))
	j := newJWT(t, server.config(), newClock(noon))
	for _, good := range []string{token(t, edKey(), "a"), token(t, rsaKey(), "b"), token(t, edKey(), ""), token(t, rsaKey(), "")} {
		claims, err := j.Verify(t.Context(), good)
		require.NoError(t, err)
		require.Equal(t, "7", claims.UserID)
	}
	_, err := j.Verify(t.Context(), token(t, otherKey(), "a"))
	requireRefused(t, err, "its signature is not good")
	_, err = j.Verify(t.Context(), token(t, edKey(), "b"))
	requireRefused(t, err, "its algorithm does not fit its key")
	_, err = j.Verify(t.Context(), token(t, otherKey(), ""))
	requireRefused(t, err, "its signature is not good")
	require.EqualValues(t, 1, server.asked.Load())
}

func TestNobodyAsksForATokenThatIsNoneAnyway(t *testing.T) {
	server := newKeyServer(t)
	server.breakDown()
	j := newJWT(t, server.config(), newClock(noon))
	for _, bad := range []string{"", "a.b.c", a5Token, signRaw(`{"alg":"HS256","kid":"a"}`, `{}`)} {
		_, err := j.Verify(t.Context(), bad)
		require.ErrorIs(t, err, gateway.ErrNotFound)
	}
	require.Zero(t, server.asked.Load())
}

func TestConfiguredKeysNeedNoServer(t *testing.T) {
	server := newKeyServer(t)
	server.breakDown()
	cfg := server.config()
	cfg.Keys = []session.JWTKey{{ID: "a", PublicKey: publicPEM(edKey().Public())}}
	j := newJWT(t, cfg, newClock(noon))
	_, err := j.Verify(t.Context(), token(t, edKey(), "a"))
	require.NoError(t, err)
	_, err = j.Verify(t.Context(), token(t, otherKey(), "a"))
	requireRefused(t, err, "its signature is not good")
	require.Zero(t, server.asked.Load())
	_, err = j.Verify(t.Context(), token(t, otherKey(), "b"))
	requireNotFoundOut(t, err, "published keys")
}

func TestTheServerIsDownAtStart(t *testing.T) {
	server := newKeyServer(t)
	server.breakDown()
	now := newClock(noon)
	j := newJWT(t, server.config(), now)
	for range 3 {
		_, err := j.Verify(t.Context(), token(t, edKey(), "a"))
		requireNotFoundOut(t, err, "published keys")
	}
	require.EqualValues(t, 1, server.asked.Load(), "it is left in peace")
	server.publish(jwk(t, edKey(), "a", nil))
	now.advance(9 * time.Second)
	_, err := j.Verify(t.Context(), token(t, edKey(), "a"))
	requireNotFoundOut(t, err, "published keys")
	now.advance(time.Second)
	_, err = j.Verify(t.Context(), token(t, edKey(), "a"))
	require.NoError(t, err)
}

func TestNobodyListens(t *testing.T) {
	server := newKeyServer(t)
	server.Close()
	cfg := server.config()
	cfg.JWKSURL += "/?code=hidden"
	_, err := newJWT(t, cfg, newClock(noon)).Verify(t.Context(), token(t, edKey(), "a"))
	requireNotFoundOut(t, err, "connection refused")
	require.NotContains(t, err.Error(), "hidden")
}

func TestKeysRotate(t *testing.T) {
	for _, id := range []string{"", "new"} {
		server := newKeyServer(t, jwk(t, edKey(), "old", nil))
		now := newClock(noon)
		j := newJWT(t, server.config(), now)
		_, err := j.Verify(t.Context(), token(t, edKey(), "old"))
		require.NoError(t, err)

		server.publish(jwk(t, otherKey(), "new", nil))
		now.advance(10 * time.Second)
		_, err = j.Verify(t.Context(), token(t, edKey(), "old"))
		require.NoError(t, err, "nobody has asked")
		_, err = j.Verify(t.Context(), token(t, otherKey(), id))
		require.NoError(t, err)
		require.EqualValues(t, 2, server.asked.Load())
		_, err = j.Verify(t.Context(), token(t, edKey(), "old"))
		requireRefused(t, err, "its key is not known")
	}
}

func TestAnUnknownKeyIsAskedForOnceInAWhile(t *testing.T) {
	server := newKeyServer(t, jwk(t, edKey(), "a", nil))
	now := newClock(noon)
	j := newJWT(t, server.config(), now)
	unknown := token(t, edKey(), "x")
	for range 5 {
		_, err := j.Verify(t.Context(), unknown)
		requireRefused(t, err, "its key is not known")
		require.ErrorIs(t, err, session.ErrUnknownKey, "it may be published in a moment")
		now.advance(time.Second)
	}
	require.EqualValues(t, 1, server.asked.Load())
	now.advance(5 * time.Second)
	_, err := j.Verify(t.Context(), unknown)
	requireRefused(t, err, "its key is not known")
	require.EqualValues(t, 2, server.asked.Load())

	server.breakDown()
	now.advance(10 * time.Second)
	for range 3 {
		_, err = j.Verify(t.Context(), unknown)
		requireNotFoundOut(t, err, "published keys")
		_, err = j.Verify(t.Context(), token(t, edKey(), "a"))
		require.NoError(t, err, "what is known goes on")
		_, err = j.Verify(t.Context(), token(t, otherKey(), "a"))
		requireRefused(t, err, "its signature is not good")
		require.NotErrorIs(t, err, session.ErrUnknownKey)
	}
	require.EqualValues(t, 3, server.asked.Load())
}

func TestOldKeysAreNotBelieved(t *testing.T) {
	server := newKeyServer(t, jwk(t, edKey(), "a", nil))
	now := newClock(noon)
	cfg := server.config()
	cfg.JWKSMaxAge = 30 * time.Minute
	j := newJWT(t, cfg, now)
	good, bad := token(t, edKey(), "a"), token(t, otherKey(), "a")
	_, err := j.Verify(t.Context(), good)
	require.NoError(t, err)

	server.breakDown()
	now.advance(30 * time.Minute)
	_, err = j.Verify(t.Context(), good)
	require.NoError(t, err)
	require.EqualValues(t, 1, server.asked.Load())
	now.advance(time.Second)
	_, err = j.Verify(t.Context(), good)
	requireNotFoundOut(t, err, "published keys")
	_, err = j.Verify(t.Context(), bad)
	requireNotFoundOut(t, err, "published keys")

	server.publish(jwk(t, edKey(), "a", nil))
	now.advance(10 * time.Second)
	_, err = j.Verify(t.Context(), good)
	require.NoError(t, err)
	_, err = j.Verify(t.Context(), bad)
	requireRefused(t, err, "its signature is not good")
}

func TestAnAnswerThatIsNoKeySetKeepsTheLast(t *testing.T) {
	elsewhere := newKeyServer(t, jwk(t, otherKey(), "new", nil))
	many := make([]string, 17)
	for i := range many {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		many[i] = jwk(t, key, fmt.Sprint(i), nil)
	}
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	private := `{"kty":"OKP","crv":"Ed25519","kid":"new","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		why    string
	}{
		{"an error", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(set(jwk(t, otherKey(), "new", nil))))
		}, "status 500"},
		{"not found", http.NotFound, "status 404"},
		{"no content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "status 204"},
		{"nothing", says(""), "not a JWK Set"},
		{"HTML", says("<html>Log in, please</html>"), "not a JWK Set"},
		{"null", says("null"), "no key that can be used"},
		{"no keys", says("{}"), "no key that can be used"},
		{"an empty set", says(set()), "no key that can be used"},
		{"keys no list", says(`{"keys":{}}`), "not a JWK Set"},
		{"a list", says(`[]`), "not a JWK Set"},
		{"cut off", says(set(jwk(t, otherKey(), "new", nil))[:50]), "not a JWK Set"},
		{"too much", says(set(jwk(t, otherKey(), "new", nil)) + strings.Repeat(" ", 1<<20)), "longer than 1048576 bytes"},
		{"too many", says(set(many...)), "more than 16 keys"},
		{"only secrets", says(set(`{"kty":"oct","kid":"new","k":"` + a1Secret + `"}`)), "no key that can be used"},
		{"only private keys", says(set(private)), "no key that can be used"},
		{"only for encryption", says(set(jwk(t, otherKey(), "new", object{"use": "enc"}))), "no key that can be used"},
		{"only for signing", says(set(jwk(t, otherKey(), "new", object{"key_ops": []string{"sign"}}))), "no key that can be used"},
		{"only another algorithm's", says(set(jwk(t, p256Key(), "new", nil))), "no key that can be used"},
		{"only nonsense", says(set(`1`, `null`, `"a"`, `{}`, `{"kty":"EC"}`, `{"kty":"RSA","n":"AQ","e":"AQAB"}`, `{"kty":"RSA","n":"!","e":"AQAB"}`)), "no key that can be used"},
		{"a redirect elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		}, "redirects to another server"},
		{"a redirect to another scheme", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+r.Host, http.StatusFound)
		}, "redirects to another server"},
		{"a redirect without end", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again", http.StatusFound)
		}, "too many redirects"},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"keys":[`))
		}, "broke off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newKeyServer(t, jwk(t, edKey(), "a", nil))
			now := newClock(noon)
			j := newJWT(t, server.config(), now)
			_, err := j.Verify(t.Context(), token(t, edKey(), "a"))
			require.NoError(t, err)

			server.do(c.answer)
			now.advance(10 * time.Second)
			_, err = j.Verify(t.Context(), token(t, otherKey(), "new"))
			requireNotFoundOut(t, err, c.why)
			_, err = j.Verify(t.Context(), token(t, edKey(), "a"))
			require.NoError(t, err)
		})
	}
	require.Zero(t, elsewhere.asked.Load())
}

func TestSixteenKeysCountAndARedirectWithinTheServerIsFollowed(t *testing.T) {
	keys := []string{jwk(t, rsaKey(), "enc", object{"use": "enc"})}
	var last ed25519.PrivateKey
	for i := range 16 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		keys, last = append(keys, jwk(t, key, fmt.Sprint(i), nil)), key
	}
	server := newKeyServer(t)
	server.do(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/keys", http.StatusMovedPermanently)
			return
		}
		_, _ = w.Write([]byte(set(keys...)))
	})
	j := newJWT(t, server.config(), newClock(noon))
	for _, id := range []string{"15", ""} {
		_, err := j.Verify(t.Context(), token(t, last, id))
		require.NoError(t, err)
	}
}

func TestAKeyThatCannotBeUsedIsSkippedAndLoggedOnce(t *testing.T) {
	server := newKeyServer(t, jwk(t, rsaKey(), "enc", object{"use": "enc"}), `{"kty":"new"}`, jwk(t, edKey(), "a", nil))
	var logged lockedBuffer
	now := newClock(noon)
	j, err := session.NewJWT(server.config(), slog.New(slog.NewTextHandler(&logged, nil)), now.Now)
	require.NoError(t, err)
	for range 3 {
		_, err := j.Verify(t.Context(), token(t, edKey(), "a"))
		require.NoError(t, err)
		_, err = j.Verify(t.Context(), token(t, edKey(), "x"))
		requireRefused(t, err, "its key is not known")
		now.advance(10 * time.Second)
	}
	require.EqualValues(t, 3, server.asked.Load())
	require.Equal(t, 2, strings.Count(logged.String(), "published key skipped"), logged.String())
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestManyWaitForOneAnswer(t *testing.T) {
	server := newKeyServer(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	server.do(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		_, _ = w.Write([]byte(set(jwk(t, edKey(), "a", nil))))
	})
	j := newJWT(t, server.config(), newClock(noon))
	good := token(t, edKey(), "a")

	// The first to ask goes away; the others get their answer all the same.
	gone, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := j.Verify(gone, good)
		left <- err
	}()
	<-asked
	leave()
	err := <-left
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, gateway.ErrNotFound)

	errs := make(chan error)
	for range 30 {
		go func() {
			_, err := j.Verify(t.Context(), good)
			errs <- err
		}()
	}
	close(answer)
	for range 30 {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, 1, server.asked.Load())
}

func TestAServerThatHangs(t *testing.T) {
	t.Parallel() // it takes as long as such a server is waited for
	server := newKeyServer(t)
	release := make(chan struct{})
	server.do(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	defer close(release)
	_, err := newJWT(t, server.config(), newClock(noon)).Verify(t.Context(), token(t, edKey(), "a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, gateway.ErrNotFound)
}

func TestRunRefreshesInTheBackground(t *testing.T) {
	server := newKeyServer(t)
	server.breakDown()
	cfg := server.config()
	cfg.JWKSRefresh = time.Millisecond
	j := newJWT(t, cfg, newClock(noon))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error)
	go func() { ended <- j.Run(ctx) }()

	isGood := func(key crypto.Signer, id string) func() bool {
		return func() bool {
			_, err := j.Verify(ctx, token(t, key, id))
			return err == nil
		}
	}
	server.publish(jwk(t, edKey(), "a", nil))
	require.Eventually(t, isGood(edKey(), "a"), 10*time.Second, time.Millisecond)
	server.publish(jwk(t, otherKey(), "b", nil))
	require.Eventually(t, isGood(otherKey(), "b"), 10*time.Second, time.Millisecond)
	require.False(t, isGood(edKey(), "a")(), "it was withdrawn")
	end()
	require.NoError(t, <-ended)
}

func TestRunEndsWhileTheServerHangs(t *testing.T) {
	server := newKeyServer(t)
	asked, release := make(chan struct{}, 1), make(chan struct{})
	server.do(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	})
	defer close(release)
	j := newJWT(t, server.config(), newClock(noon))
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- j.Run(ctx) }()
	<-asked
	end()
	require.NoError(t, <-ended)
}
