package plugin_test

import (
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

const logoutPath = "/js/a/sys/logout"

func (b *bundle) logout(headers ...string) response {
	b.t.Helper()
	return b.do(http.MethodPost, logoutPath, nil, headers...)
}

func TestALogoutIsReportedBeforeItIsAnswered(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		var noted atomic.Bool
		b.service.onLogout(func(rw http.ResponseWriter, _ *http.Request) {
			time.Sleep(100 * time.Millisecond)
			noted.Store(true)
			rw.WriteHeader(http.StatusNoContent)
		})
		b.onNode(respondWith(200, `{"code":200,"message":"bye"}`))
		r := b.logout("X-Token: "+token, "X-Request-Id: id-1", "Accept-Encoding: gzip")
		require.True(t, noted.Load())
		require.Equal(t, `{"code":200,"message":"bye"}`, r.body)
		require.Equal(t, "1", r.header.Get("X-Of-The-Node"))
		require.Equal(t, "id-1", r.header.Get("X-Request-Id"))
		require.Equal(t, []string{"identity"}, b.atNode().header["Accept-Encoding"])
		require.Equal(t, []string{"node-1"}, b.atNode().header["X-Gateway-Node"])

		posts := b.service.logouts()
		require.Len(t, posts, 1)
		require.NotEmpty(t, posts[0].header.Get("Idempotency-Key"))
		require.Equal(t, map[string]string{"service": "ai", "token": token, "requestId": "id-1"}, posts[0].body)
		require.Empty(t, b.service.logins())
	})
}

func TestWhichRequestsAreLogouts(t *testing.T) {
	cases := map[string]struct {
		method, uri string
		headers     []string
		logout      bool
	}{
		"POST":             {"POST", logoutPath, []string{"X-Token: t"}, true},
		"GET":              {"GET", logoutPath + "?all=1", []string{"X-Token: t"}, true},
		"DELETE, a cookie": {"DELETE", logoutPath, []string{"Cookie: x-token=t"}, true},
		"OPTIONS":          {"OPTIONS", logoutPath, []string{"X-Token: t"}, false},
		"HEAD":             {"HEAD", logoutPath, []string{"X-Token: t"}, false},
		"no token":         {"POST", logoutPath, nil, false},
		"token too long":   {"POST", logoutPath, []string{"X-Token: " + strings.Repeat("t", 64<<10+1)}, false},
		"token not UTF-8":  {"POST", logoutPath + "?x-token=%FF", nil, false},
		"another path":     {"POST", logoutPath + "/", []string{"X-Token: t"}, false},
		"a longer path":    {"POST", logoutPath + "s", []string{"X-Token: t"}, false},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		none := setup(t, build, settings{"logoutPath": ""})
		for name, c := range cases {
			before := len(b.service.logouts())
			require.Equal(t, 200, b.do(c.method, c.uri, nil, append(c.headers, "Accept-Encoding: br")...).status, name)
			held := b.atNode().header.Get("Accept-Encoding") == "identity"
			require.Equal(t, c.logout, held, name)
			require.Equal(t, c.logout, len(b.service.logouts()) == before+1, name)

			require.Equal(t, 200, none.do(c.method, c.uri, nil, c.headers...).status, name)
			require.Empty(t, none.service.logouts(), name)
		}
		before := b.nodeRequests()
		b.service.onDecide(answerStatus(503, "NODE_DOWN"))
		require.Equal(t, 503, b.logout("X-Token: refused").status)
		b.service.server.Close()
		require.Equal(t, 503, b.logout("X-Token: undecided").status)
		require.Equal(t, before, b.nodeRequests())
		for _, post := range b.service.logouts() {
			require.Equal(t, "t", post.body["token"])
		}
	})
}

func TestALogoutReachesTheClientUnchanged(t *testing.T) {
	encoded := func(encoding, text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Encoding", encoding)
			_, _ = io.WriteString(rw, text)
		}
	}
	failure := `{"code":500}`
	cases := map[string]struct {
		respond http.HandlerFunc
		success bool
	}{
		"code":                     {respondWith(200, `{"code":200}`), true},
		"code as text":             {respondWith(201, `{"code":"200"}`), true},
		"no code":                  {respondWith(200, `{"message":"bye"}`), true},
		"another code":             {respondWith(200, failure), false},
		"code null":                {respondWith(200, `{"code":null}`), false},
		"code an object":           {respondWith(200, `{"code":{}}`), false},
		"empty":                    {respondWith(200, ""), true},
		"204":                      {respondWith(204, ""), true},
		"HTML":                     {respondWith(200, "<html>bye"), true},
		"a list":                   {respondWith(200, "["+failure+"]"), true},
		"two objects":              {respondWith(200, failure+failure), true},
		"not UTF-8":                {respondWith(200, "\xff\xfe"), true},
		"302":                      {respondWith(302, ""), false},
		"401":                      {respondWith(401, `{"code":200}`), false},
		"500":                      {respondWith(500, ""), false},
		"exactly 256 KiB":          {respondWith(200, failure+strings.Repeat(" ", 256<<10-len(failure))), false},
		"too large":                {respondWith(200, failure+strings.Repeat(" ", 256<<10)), true},
		"too large, and a failure": {respondWith(500, failure+strings.Repeat(" ", 256<<10)), false},
		"gzip":                     {encoded("gzip", zip(failure)), false},
		"gzip of too much":         {encoded("gzip", zip(failure+strings.Repeat(" ", 256<<10))), true},
		"broken gzip":              {encoded("gzip", zip(failure)[:15]), true},
		"another encoding":         {encoded("br", failure), true},
		"in pieces": {func(rw http.ResponseWriter, _ *http.Request) {
			for _, piece := range []string{`{"co`, `de":`, `500}`} {
				_, _ = io.WriteString(rw, piece)
				rw.(http.Flusher).Flush()
			}
		}, false},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range cases {
			b.onNode(c.respond)
			want, err := send(context.Background(), b.bare.URL, http.MethodPost, logoutPath, nil)
			require.NoError(t, err, name)
			before := len(b.service.logouts())
			got := b.logout("X-Token: t", "X-Request-Id: id-1")
			delete(got.header, "X-Request-Id")
			delete(got.header, "Date")
			delete(want.header, "Date")
			if want.header.Get("Content-Length") == "" {
				delete(got.header, "Content-Length") // what came in chunks may leave in one piece
			}
			require.True(t, want.body == got.body, "%s: %d bytes of the node, %d through the gateway", name, len(want.body), len(got.body))
			want.body, got.body = "", ""
			require.Equal(t, want, got, name)
			require.Equal(t, c.success, len(b.service.logouts()) == before+1, name)
		}
	})
}

func TestTheCodeOfALogoutIsWhereThatOfALoginIs(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"login": settings{"code": "result.state", "success": []string{"ok", "fine"}}})
		for text, success := range map[string]bool{
			`{"result":{"state":"fine"}}`: true, `{"result":{"state":"no"}}`: false, `{"result":"no"}`: true, `{"code":500}`: true, `{"result":{}}`: true,
		} {
			b.onNode(respondWith(200, text))
			before := len(b.service.logouts())
			require.Equal(t, text, b.logout("X-Token: t").body)
			require.Equal(t, success, len(b.service.logouts()) == before+1, text)
		}
	})
}

func TestALogoutDoesNotWaitForeverForTheBindingService(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"bindTimeout": "50ms"})
		answer := make(chan struct{})
		b.service.onLogout(func(http.ResponseWriter, *http.Request) { <-answer })
		require.Equal(t, "node", b.logout("X-Token: t").body)
		require.Equal(t, "node", b.get("X-Token: t").body, "no other request waits for it")
		require.Len(t, b.service.logouts(), 1)
		close(answer)
	})
}

func TestALogoutIsRetriedUntilItIsTaken(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"bindTimeout": "20ms"})
		var taken atomic.Bool
		var attempts atomic.Int64
		b.service.onLogout(func(rw http.ResponseWriter, req *http.Request) {
			if attempts.Add(1) < 3 {
				answerStatus(503, "STORE_UNAVAILABLE")(rw, req)
				return
			}
			taken.Store(true)
		})
		require.Equal(t, "node", b.logout("X-Token: t", "X-Request-Id: id-1").body)
		require.Eventually(t, taken.Load, 10*time.Second, 5*time.Millisecond)
		posts := b.service.logouts()
		require.Len(t, posts, 3)
		for _, post := range posts {
			require.Equal(t, posts[0], post)
		}

		b.service.onLogout(answerStatus(404, "NOT_FOUND"))
		require.Equal(t, "node", b.logout("X-Token: t", "X-Request-Id: refused").body)
		require.Eventually(t, func() bool {
			return strings.Contains(logs.String(), "request refused: logout not noted: refused: status 404")
		}, 5*time.Second, 5*time.Millisecond)
		require.Len(t, b.service.logouts(), 4)
	})
}

func TestAClientThatLeavesDoesNotCancelItsLogout(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		noted := make(chan error, 1)
		b.service.onLogout(func(_ http.ResponseWriter, req *http.Request) {
			leave()
			select {
			case <-req.Context().Done():
				noted <- req.Context().Err()
			case <-time.After(200 * time.Millisecond):
				noted <- nil
			}
		})
		_, err := send(ctx, b.gateway.URL, http.MethodPost, logoutPath, nil, "X-Token: t")
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, <-noted)
	})
}

func TestALogoutThatBreaksOffBreaksOffForTheClientToo(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(rw, `{"code":200`)
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		r := b.logout("X-Token: t")
		require.Equal(t, 200, r.status)
		require.Equal(t, `{"code":200`, r.body)
		require.True(t, r.readError)
		require.Equal(t, []any{http.ErrAbortHandler}, b.causes(), "Traefik must recognise the abort")
		require.Empty(t, b.service.logouts())
	})
}

// Of more logins and logouts than may wait, the first ones do; logouts leave room for logins.
func TestTooManyReportsOnTheirWay(t *testing.T) {
	b := setup(t, compiled, settings{"bindTimeout": "1ms"})
	var down atomic.Bool
	down.Store(true)
	taken := make(chan string, 1100)
	take := func(rw http.ResponseWriter, req *http.Request) {
		if down.Load() {
			answerStatus(503, "STORE_UNAVAILABLE")(rw, req)
			return
		}
		taken <- req.Header.Get("X-Request-Id")
	}
	b.service.onLogin(take)
	b.service.onLogout(take)
	b.onNode(respondWith(200, aliceResponse))
	for n := 1; n <= 501; n++ {
		require.Equal(t, aliceResponse, b.logout(fmt.Sprintf("X-Request-Id: out-%d", n), "X-Token: t").body)
	}
	for n := 1; n <= 501; n++ {
		require.Equal(t, aliceResponse, b.login("{}", fmt.Sprintf("X-Request-Id: in-%d", n)).body)
	}
	down.Store(false)
	for range 1000 {
		select {
		case id := <-taken:
			require.NotContains(t, []string{"out-501", "in-501"}, id)
		case <-time.After(20 * time.Second):
			t.Fatal("a report was not delivered")
		}
	}
	for _, report := range []string{"out-501: too many reports wait for the binding service, this logout", "in-501: too many reports wait for the binding service, this login"} {
		require.Contains(t, logs.String(), report+" is tried only once")
	}
}
