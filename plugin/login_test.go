package plugin_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	aliceRequest  = `{"username":"alice","password":"p"}`
	aliceResponse = "{ \"code\":200,\"data\":{\"token\":\"tok-a\",\"userId\":9223372036854775807,\"username\":\"Alice\"} }\n"
)

func respondWith(status int, body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("X-Of-The-Node", "1")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	}
}

func TestALoginIsReportedBeforeItIsAnswered(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(respondWith(200, aliceResponse))
		var taken atomic.Bool
		b.service.onLogin(func(rw http.ResponseWriter, _ *http.Request) {
			time.Sleep(100 * time.Millisecond)
			taken.Store(true)
		})
		r := b.login(aliceRequest, "X-Request-Id: id-1", "Accept-Encoding: gzip")
		require.True(t, taken.Load())
		require.Equal(t, aliceResponse, r.body)
		require.Equal(t, "1", r.header.Get("X-Of-The-Node"))
		require.Equal(t, "id-1", r.header.Get("X-Request-Id"))
		require.Equal(t, aliceRequest, b.atNode().body)
		require.Equal(t, []string{"identity"}, b.atNode().header["Accept-Encoding"])

		posts := b.service.logins()
		require.Len(t, posts, 1)
		require.NotEmpty(t, posts[0].header.Get("Idempotency-Key"))
		require.Equal(t, map[string]string{
			"service": "ai", "node": "node-1", "username": "Alice", "token": "tok-a", "userId": "9223372036854775807",
			"loginUsername": "alice", "requestId": "id-1",
		}, posts[0].body)
		asked := b.service.questions()
		require.Equal(t, []string{"alice"}, asked[0].Header["X-Homenode-Username"])
		require.Empty(t, asked[0].Header["X-Homenode-Token"])
	})
}

func TestWhatIsNoLoginReportsNothing(t *testing.T) {
	zipped := func(text string) string {
		var buffer bytes.Buffer
		writer := gzip.NewWriter(&buffer)
		_, _ = io.WriteString(writer, text)
		_ = writer.Close()
		return buffer.String()
	}
	tests := map[string]http.HandlerFunc{
		"a failure":         respondWith(200, `{"code":500,"data":null}`),
		"not JSON":          respondWith(200, "<html>"),
		"status 401":        respondWith(401, aliceResponse),
		"no token":          respondWith(200, `{"code":200,"data":{"userId":1}}`),
		"token a number":    respondWith(200, `{"code":200,"data":{"token":1,"userId":1}}`),
		"userId null":       respondWith(200, `{"code":200,"data":{"token":"t","userId":null}}`),
		"userId an object":  respondWith(200, `{"code":200,"data":{"token":"t","userId":{}}}`),
		"userId with CR LF": respondWith(200, `{"code":200,"data":{"token":"t","userId":"a\r\nb"}}`),
		"204":               respondWith(204, ""),
		"too large":         respondWith(200, aliceResponse+strings.Repeat(" ", 256<<10)),
		"zipped too large": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(rw, zipped(aliceResponse+strings.Repeat(" ", 256<<10)))
		},
		"another encoding": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(rw, aliceResponse)
		},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, respond := range tests {
			t.Run(name, func(t *testing.T) {
				b.onNode(respond)
				want, err := send(context.Background(), b.bare.URL, http.MethodPost, "/js/a/sys/login", strings.NewReader(aliceRequest))
				require.NoError(t, err)
				got := b.login(aliceRequest)
				require.Equal(t, want.status, got.status)
				require.True(t, want.body == got.body, "%d bytes of the node, %d through the gateway", len(want.body), len(got.body))
				require.Empty(t, b.service.logins())
			})
		}
	})
}

func TestTheResponseIsReleasedAfterTheBound(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"bindTimeout": "50ms", "timeout": "200ms"})
		b.onNode(respondWith(200, aliceResponse))
		answer := make(chan struct{})
		b.service.onLogin(func(http.ResponseWriter, *http.Request) { <-answer })
		b.service.onDecide(placedUntilBound(nil))
		require.Equal(t, aliceResponse, b.login(aliceRequest).body)

		// Its token and its name must not be placed anywhere while the login is on its way.
		before := b.nodeRequests()
		for _, r := range []response{b.get("X-Token: tok-a"), b.login(`{"username":"ALICE"}`)} {
			require.Equal(t, http.StatusServiceUnavailable, r.status)
			require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", r.reason(t))
		}
		require.Equal(t, before, b.nodeRequests())
		require.Equal(t, "node-1", placed(t, b, "X-Token: somebody-else"), "others go on")

		close(answer)
		require.Eventually(t, func() bool { return b.get("X-Token: tok-a").status == http.StatusOK }, 5*time.Second, 10*time.Millisecond)
	})
}

// placedUntilBound knows no user before bound is true; nil is never.
func placedUntilBound(bound *atomic.Bool) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("X-Gateway-Node", "node-1")
		if bound != nil && bound.Load() {
			rw.Header().Set("X-Gateway-Node", "node-2")
			rw.Header().Set("X-Binding-Epoch", "1")
		}
	}
}

func placed(t *testing.T, b *bundle, header string) string {
	t.Helper()
	require.Equal(t, http.StatusOK, b.get(header).status)
	return b.atNode().header.Get("X-Gateway-Node")
}

func TestALoginIsRetriedUntilItIsTaken(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("the service knows the token meanwhile: %v", known), func(t *testing.T) {
			onEachBuild(t, func(t *testing.T, build build) {
				b := setup(t, build, settings{"bindTimeout": "20ms"})
				b.onNode(respondWith(200, aliceResponse))
				var down, bound, taken atomic.Bool
				down.Store(true)
				bound.Store(known)
				b.service.onDecide(placedUntilBound(&bound))
				b.service.onLogin(func(rw http.ResponseWriter, req *http.Request) {
					if down.Load() {
						answerStatus(503, "STORE_UNAVAILABLE")(rw, req)
						return
					}
					bound.Store(true)
					taken.Store(true)
				})
				require.Equal(t, aliceResponse, b.login(aliceRequest).body)
				require.Eventually(t, func() bool { return len(b.service.logins()) >= 2 }, 5*time.Second, 5*time.Millisecond)
				if known {
					require.Equal(t, "node-2", placed(t, b, "X-Token: tok-a"), "an answer that names the binding counts at once")
				}
				time.AfterFunc(50*time.Millisecond, func() { down.Store(false) })
				require.Equal(t, "node-2", placed(t, b, "X-Token: tok-a"), "any other is waited for")
				require.Eventually(t, taken.Load, 10*time.Second, 5*time.Millisecond)
				keys := map[string]bool{}
				for _, post := range b.service.logins() {
					keys[post.header.Get("Idempotency-Key")] = true
				}
				require.Len(t, keys, 1)
			})
		})
	}
}

func TestATokenIsNotRefusedBeforeItsLoginIsTaken(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"bindTimeout": "20ms"})
		b.onNode(respondWith(200, aliceResponse))
		var taken atomic.Bool
		b.service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
			if req.Header.Get("X-Homenode-Token") != "" && !taken.Load() {
				answerStatus(401, "UNAUTHENTICATED")(rw, req)
				return
			}
			placedUntilBound(&taken)(rw, req)
		})
		b.service.onLogin(func(rw http.ResponseWriter, req *http.Request) {
			if len(b.service.logins()) < 3 {
				answerStatus(503, "STORE_UNAVAILABLE")(rw, req)
				return
			}
			taken.Store(true)
		})
		require.Equal(t, aliceResponse, b.login(aliceRequest).body)
		require.Equal(t, 401, b.get("X-Token: another").status)
		require.Equal(t, "node-2", placed(t, b, "X-Token: tok-a"))
	})
}

func TestARefusedLoginIsNotRetried(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(respondWith(200, aliceResponse))
		b.service.onLogin(answerStatus(400, "VALIDATION"))
		require.Equal(t, aliceResponse, b.login(aliceRequest).body)
		require.Len(t, b.service.logins(), 1)
	})
}

func TestAClientThatLeavesDoesNotCancelItsLogin(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		ctx, leave := context.WithCancel(context.Background())
		taken := make(chan error, 1)
		b.onNode(respondWith(200, aliceResponse))
		b.service.onLogin(func(_ http.ResponseWriter, req *http.Request) {
			leave()
			select {
			case <-req.Context().Done():
				taken <- req.Context().Err()
			case <-time.After(200 * time.Millisecond):
				taken <- nil
			}
		})
		_, err := send(ctx, b.gateway.URL, http.MethodPost, "/js/a/sys/login", strings.NewReader(aliceRequest))
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, <-taken)
	})
}

func TestInformationalAnswersTrailersAndAborts(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Link", "</x>")
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Set("Trailer", "X-Sum")
			rw.WriteHeader(200)
			_, _ = io.WriteString(rw, aliceResponse)
			rw.Header().Set("X-Sum", "42")
		})
		r := b.login(aliceRequest)
		require.Equal(t, 200, r.status)
		require.Equal(t, aliceResponse, r.body)
		require.Equal(t, "42", r.trailer.Get("X-Sum"))
		require.NotEmpty(t, r.header.Get("X-Request-Id"))
		require.Len(t, b.service.logins(), 1)

		b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", fmt.Sprint(len(aliceResponse)))
			_, _ = io.WriteString(rw, aliceResponse[:20])
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		r = b.login(aliceRequest)
		require.Equal(t, 200, r.status)
		require.True(t, r.readError, "the client sees that it was cut")
		require.Equal(t, aliceResponse[:20], r.body)
		require.Len(t, b.service.logins(), 1)
		require.Equal(t, []any{http.ErrAbortHandler}, b.causes(), "Traefik must recognise the abort")
	})
}

func TestTheBodyArrivesAsItWasSent(t *testing.T) {
	bodies := map[string]string{
		"empty": "", "JSON": aliceRequest, "64 KiB": strings.Repeat("x", 64<<10), "64 KiB + 1": strings.Repeat("x", 64<<10+1), "1 MB": strings.Repeat("y", 1<<20),
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, body := range bodies {
			for _, chunked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, chunked %v", name, chunked), func(t *testing.T) {
					var reader io.Reader = strings.NewReader(body)
					if chunked {
						reader = io.MultiReader(reader)
					}
					b.do(http.MethodPost, "/js/a/sys/login", reader, "Expect: 100-continue")
					got := b.atNode()
					require.Equal(t, body, got.body)
					require.False(t, got.bodyError)
					if !chunked {
						require.EqualValues(t, len(body), got.length)
					}
				})
			}
		}
	})
}
