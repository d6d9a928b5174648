package plugin_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRequestWithTokenGoesToItsNode(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)

		r := b.do("GET", "/js/a/%E4%BD%A0/x%2Fy?x-token=other&q=1", nil,
			"X-Token: "+token, "X-Request-Id: id-1", "Accept-Language: en", "X-Forwarded-For: 10.1.1.1", "X-Forwarded-Proto: https")

		require.Equal(t, 200, r.status)
		require.Equal(t, "id-1", r.header.Get("X-Request-Id"))
		got := b.atNode()
		require.Equal(t, "/js/a/%E4%BD%A0/x%2Fy?x-token=other&q=1", got.uri)
		require.Equal(t, []string{"node-1"}, got.header["X-Gateway-Node"])
		require.Equal(t, []string{"1001"}, got.header["X-User-Id"])
		require.Equal(t, []string{"7"}, got.header["X-Binding-Epoch"])
		require.Equal(t, []string{"id-1"}, got.header["X-Request-Id"])

		asked := b.service.questions()
		require.Len(t, asked, 1)
		require.Equal(t, "GET", asked[0].Header.Get("X-Forwarded-Method"))
		require.Equal(t, "https", asked[0].Header.Get("X-Forwarded-Proto"))
		require.Equal(t, "/js/a/%E4%BD%A0/x%2Fy", asked[0].Header.Get("X-Forwarded-Uri"), "the query may carry the token")
		require.Equal(t, strings.TrimPrefix(b.gateway.URL, "http://"), asked[0].Header.Get("X-Forwarded-Host"))
		require.Equal(t, "id-1", asked[0].Header.Get("X-Request-Id"))
		require.Equal(t, "en", asked[0].Header.Get("Accept-Language"))
		require.Equal(t, "ai", asked[0].Header.Get("X-Homenode-Service"))
		require.Equal(t, token, asked[0].Header.Get("X-Homenode-Token"))
		require.Equal(t, "none", asked[0].Header.Get("X-Homenode-Have"))
		for _, name := range []string{"X-Homenode-Username", "X-Homenode-Query", "X-Homenode-Source", "X-Homenode-Form", "X-Forwarded-For"} {
			require.NotContains(t, asked[0].Header, name, "not sent unless it is needed")
		}
	})
}

func TestForgedHeadersDoNotReachTheNode(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"stripHeaders": []string{"X-Tenant", "remote_user", "A"}})
		b.service.onDecide(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X-Gateway-Node", "node-1")
			rw.Header().Set("X-Tenant", "t-1")
			rw.Header().Set("X-Homenode-Pool", "ai")
			rw.Header().Set("X-Other", "no")
		})
		forged := []string{
			"X-Gateway-Node", "x-gateway-node", "X_Gateway_Node", "X.Gateway~Node", "x-gateway_node", "X*GATEWAY*NODE", "X-User-Id",
			"X_User-Id", "X-Channel", "x.channel", "X-Source", "X-Source.", "X-Binding-Epoch", "X_Binding_Epoch", "X-Homenode-Pool",
			"X_Homenode_Pool", "X-Homenode-Client-Status", "x~homenode~anything", "X-Tenant", "X_Tenant", "Remote-User", "REMOTE_USER",
			"a", "X_Request_Id", "X-Request.Id",
		}
		var headers []string
		for _, name := range forged {
			headers = append(headers, name+": forged")
		}
		innocent := []string{
			"X-Gateway", "X-Gateway-Nodes", "X-User-Ids", "X-Real-Ip", "X-Requested-With", "X-Source1", "X-Homenodes",
			"Xx-Channel", "Te-St", "X1Channel",
		}
		for _, name := range innocent {
			headers = append(headers, name+": innocent")
		}

		require.Equal(t, 200, b.get(headers...).status)

		for name, values := range b.atNode().header {
			if name == "X-Source." {
				continue // one more character: no backend folds it into X-Source
			}
			require.NotContains(t, values, "forged", name)
		}
		for _, name := range innocent {
			require.Equal(t, []string{"innocent"}, b.atNode().header[http.CanonicalHeaderKey(name)], name)
		}
		require.Equal(t, []string{"node-1"}, b.atNode().header["X-Gateway-Node"])
		require.Equal(t, []string{"t-1"}, b.atNode().header["X-Tenant"])
		require.NotContains(t, b.atNode().header, "X-Homenode-Pool")
		require.NotContains(t, b.atNode().header, "X-Other")
	})
}

func TestForgedHeadersAreStrippedFromThePoolToo(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.server.Close()
		require.Equal(t, 200, b.get("X-Gateway-Node: node-2", "X-User-Id: 1", "X-Homenode-Pool: other").status)
		require.NotContains(t, b.atNode().header, "X-Gateway-Node")
		require.NotContains(t, b.atNode().header, "X-User-Id")
		require.Equal(t, []string{"ai"}, b.atNode().header["X-Homenode-Pool"])
	})
}

func TestRequestID(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range map[string]struct {
			sent []string
			kept bool
		}{
			"sane":         {[]string{"aZ0._-"}, true},
			"longest":      {[]string{strings.Repeat("a", 128)}, true},
			"too long":     {[]string{strings.Repeat("a", 129)}, false},
			"two":          {[]string{"a", "b"}, false},
			"empty":        {[]string{""}, false},
			"space within": {[]string{"a b"}, false},
			"not ASCII":    {[]string{"ä"}, false},
			"none":         {nil, false},
		} {
			var headers []string
			for _, id := range c.sent {
				headers = append(headers, "X-Request-Id: "+id)
			}
			r := b.get(headers...)
			require.Len(t, r.header["X-Request-Id"], 1, name)
			id := r.header.Get("X-Request-Id")
			require.Equal(t, []string{id}, b.atNode().header["X-Request-Id"], name)
			if c.kept {
				require.Equal(t, c.sent[0], id, name)
			} else {
				require.Regexp(t, "^[0-9a-f]{32}$", id, name)
			}
		}
	})
}

func TestTokenSources(t *testing.T) {
	long := strings.Repeat("t", 10<<10)
	cases := map[string]struct {
		query   string
		headers []string
		want    string
	}{
		"none":                      {"?q=1", nil, ""},
		"header":                    {"", []string{"X-Token: a"}, "a"},
		"first non-empty header":    {"", []string{"X-Token: ", "X-Token: b", "X-Token: c"}, "b"},
		"header before bearer":      {"", []string{"X-Token: a", "Authorization: Bearer b"}, "a"},
		"bearer":                    {"", []string{"Authorization: Bearer b"}, "b"},
		"bearer, any case":          {"", []string{"Authorization: bEARER   b "}, "b"},
		"basic is no token":         {"", []string{"Authorization: Basic b"}, ""},
		"bearer without a token":    {"", []string{"Authorization: Bearer "}, ""},
		"bearer before cookie":      {"", []string{"Cookie: x-token=c", "Authorization: Bearer b"}, "b"},
		"cookie":                    {"", []string{"Cookie: a=1; x-token=c; b=2"}, "c"},
		"quoted cookie":             {"", []string{`Cookie: x-token="c"`}, "c"},
		"second cookie":             {"", []string{"Cookie: x-token=; x-token=c"}, "c"},
		"cookie of another case":    {"", []string{"Cookie: X-Token=c"}, ""},
		"empty cookie before query": {"?x-token=q", []string{"Cookie: x-token="}, "q"},
		"query":                     {"?a=1&x-token=q%2B1+2", nil, "q+1 2"},
		"encoded query name":        {"?x%2Dtoken=q", nil, "q"},
		"CR, LF and NUL":            {"?x-token=a%0D%0AX-Gateway-Node:%20node-2%00b", nil, "a\r\nX-Gateway-Node: node-2\x00b"},
		"not UTF-8":                 {"?x-token=%FF%FE", nil, "\xff\xfe"},
		"10 KB":                     {"", []string{"X-Token: " + long}, long},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range cases {
			r := b.do("GET", "/js/a"+c.query, nil, c.headers...)
			require.Equal(t, 200, r.status, name)
			asked := b.service.questions()
			values, present := asked[len(asked)-1].Header["X-Homenode-Token"]
			require.Equal(t, c.want != "", present, name)
			if present {
				got, err := url.QueryUnescape(values[0])
				require.NoError(t, err, name)
				require.Equal(t, c.want, got, name)
			}
		}
	})
}

func TestConfiguredTokenSourcesReplaceTheUsualOnes(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"tokenSources": []string{"query:t", "header:my-token"}})
		b.do("GET", "/js/a?t=q", nil, "My-Token: h", "X-Token: x")
		b.do("GET", "/js/a", nil, "My-Token: h", "X-Token: x")
		b.do("GET", "/js/a", nil, "X-Token: x")
		var got []string
		for _, asked := range b.service.questions() {
			got = append(got, asked.Header.Get("X-Homenode-Token"))
		}
		require.Equal(t, []string{"q", "h", ""}, got)
	})
}

func TestTooLongTokenIsUnknownButNotAnonymous(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		header := "X-Token: " + strings.Repeat("t", 64<<10+1)
		require.Equal(t, 200, b.get(header).status)
		require.NotContains(t, b.service.questions()[0].Header, "X-Homenode-Token")
		b.service.server.Close()
		require.Equal(t, 503, b.get(header).status)
	})
}

func TestRejectionReachesTheClient(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range map[string]struct {
			answer http.HandlerFunc
			status int
			reason string
		}{
			"503": {answerStatus(503, "NODE_DOWN"), 503, "NODE_DOWN"},
			"401": {answerStatus(401, "UNAUTHENTICATED"), 401, "UNAUTHENTICATED"},
			"302": {answerStatus(302, "ELSEWHERE"), 302, "ELSEWHERE"},
			"business code in HTTP 200": {func(rw http.ResponseWriter, req *http.Request) {
				rw.Header().Set("X-Homenode-Client-Status", "200")
				answerStatus(401, "UNAUTHENTICATED")(rw, req)
			}, 200, "UNAUTHENTICATED"},
		} {
			b.service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
				rw.Header().Set("Retry-After", "10")
				rw.Header().Set("X-Request-Id", "another")
				rw.Header().Set("Keep-Alive", "timeout=5")
				rw.Header().Set("Connection", "X-Hop")
				rw.Header().Set("X-Hop", "1")
				c.answer(rw, req)
			})
			for _, header := range []string{"X-Token: " + token, "X-Nothing: 1"} {
				r := b.get(header, "X-Request-Id: mine")
				require.Equal(t, c.status, r.status, name)
				require.Equal(t, c.reason, r.reason(t), name)
				require.Equal(t, "10", r.header.Get("Retry-After"), name)
				require.Equal(t, []string{"mine"}, r.header["X-Request-Id"], name)
				for _, gone := range []string{"Keep-Alive", "X-Hop", "X-Homenode-Client-Status"} {
					require.NotContains(t, r.header, gone, name)
				}
			}
		}
		require.Zero(t, b.nodeRequests())
	})
}

func TestAnswersOfOthersAreNoDecisions(t *testing.T) {
	status := func(status int) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(status) }
	}
	cases := map[string]http.HandlerFunc{
		"401 for a wrong secret": status(401),
		"502 of a proxy":         status(502),
		"404 of another server":  status(404),
		"login page":             func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Location", "/"); rw.WriteHeader(302) },
		"200 without a node":     status(200),
		"200 with an empty node": func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("X-Gateway-Node", "") },
		"200 with two nodes": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["X-Gateway-Node"] = []string{"node-1", "node-2"}
		},
		"endless rejection": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X-Gateway-Reason", "NODE_DOWN")
			rw.WriteHeader(503)
			io.WriteString(rw, strings.Repeat("x", 64<<10+1))
		},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		for name, answer := range cases {
			b := setup(t, build, nil)
			b.service.onDecide(answer)
			before := b.nodeRequests()
			r := b.get("X-Token: " + token)
			require.Equal(t, 503, r.status, name)
			require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", r.reason(t), name)
			require.Equal(t, before, b.nodeRequests(), name)
			require.Equal(t, 200, b.get().status, name)
			require.Equal(t, []string{"ai"}, b.atNode().header["X-Homenode-Pool"], name)
			require.NotContains(t, b.atNode().header, "X-Gateway-Node", name)
			require.Len(t, b.service.questions(), 2, "who answers is asked again")
		}
	})
	require.Contains(t, logs.String(), "status 401 without X-Gateway-Reason")
}

func TestServiceDown(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"messages": "en"})
		b.service.server.Close()

		r := b.get("X-Token: "+token, "X-Request-Id: id-2")
		require.Equal(t, 503, r.status)
		require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", r.reason(t))
		require.Contains(t, r.body, `"code":503`)
		require.Contains(t, r.body, `"requestId":"id-2"`)
		require.Contains(t, r.body, "temporarily unavailable")
		require.Equal(t, "application/json; charset=utf-8", r.header.Get("Content-Type"))
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.Equal(t, "no-store", r.header.Get("Cache-Control"))

		require.Equal(t, 503, b.login(`{"username":"alice"}`).status, "a login is never anonymous")
		require.Equal(t, 503, b.login(`not JSON`).status)
		require.Zero(t, b.nodeRequests())

		require.Equal(t, 200, b.get().status)
		require.Equal(t, []string{"ai"}, b.atNode().header["X-Homenode-Pool"])
	})
}

func TestAClosedServiceHasNoPool(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"closed": true})
		require.Equal(t, 200, b.get().status)
		b.service.server.Close()
		before := b.nodeRequests()
		r := b.get()
		require.Equal(t, 503, r.status, "nobody can say whether it may pass")
		require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", r.reason(t))
		require.Equal(t, before, b.nodeRequests())
	})
}

func TestLanguage(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.server.Close()
		for accept, chinese := range map[string]bool{
			"": true, "zh-CN,zh;q=0.9,en;q=0.8": true, "en-US,en;q=0.9": false, "en;q=0.5, zh;q=0.8": true, "fr, en;q=0.1": false,
			"de": true, "*": true, "zh;q=0, *": false, "en;q=0,*;q=0.5": true, "EN": false, "en;q=oops": true, "en,zh": false,
			"zh;q=0,en;q=0": true, "english": true,
		} {
			r := b.get("X-Token: "+token, "Accept-Language: "+accept)
			require.Equal(t, chinese, strings.Contains(r.body, "暂时不可用"), "%q: %s", accept, r.body)
		}
	})
}

func TestHangingServiceIsLeftAloneForASecond(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"timeout": "100ms"})
		usual := b.service.decide
		b.service.onDecide(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })

		require.Equal(t, 503, b.get("X-Token: "+token).status)
		require.Equal(t, 503, b.get("X-Token: "+token).status)
		require.Equal(t, 200, b.get().status)
		require.Len(t, b.service.questions(), 1, "only the first request waits")

		b.service.onDecide(usual)
		require.Eventually(t, func() bool { return b.get("X-Token: "+token).status == 200 }, 5*time.Second, 20*time.Millisecond)
		require.Equal(t, 200, b.get("X-Token: "+token).status)
	})
}

func TestAfterTheRestOneRequestIsTheProbe(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"timeout": "300ms"})
		b.service.onDecide(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
		require.Equal(t, 503, b.get("X-Token: "+token).status)
		require.Eventually(t, func() bool {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { b.get("X-Token: " + token) })
			}
			all.Wait()
			return len(b.service.questions()) > 1
		}, 5*time.Second, 20*time.Millisecond)
		require.Len(t, b.service.questions(), 2)
	})
}

func TestClientThatGoesAwayDoesNotMarkTheServiceDown(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		usual := b.service.decide
		asked := make(chan struct{})
		b.service.onDecide(func(_ http.ResponseWriter, req *http.Request) {
			close(asked)
			<-req.Context().Done()
		})
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() {
			_, err := send(ctx, b.gateway.URL, "GET", "/js/a", nil, "X-Token: "+token)
			gone <- err
		}()
		<-asked
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		b.service.onDecide(usual)
		require.Equal(t, 200, b.get("X-Token: "+token).status)
	})
}

func TestHugeRequestDoesNotMarkTheServiceDown(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		require.Equal(t, 503, b.get("X-Token: "+token, "Accept-Language: "+strings.Repeat("a", 600<<10)).status)
		require.Equal(t, 200, b.get("X-Token: "+token).status)
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
			http.Redirect(rw, req, "/v1/decide?again", http.StatusTemporaryRedirect)
		})
		require.Equal(t, 503, b.get("X-Token: "+token).status)
		require.Len(t, b.service.questions(), 1)
	})
}

func TestEndpoints(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		service := newBindingService(t)
		next := http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			io.WriteString(rw, req.Header.Get("X-Gateway-Node"))
		})
		serve := func(endpoint string) *httptest.ResponseRecorder {
			handler, err := build(next, settings{"service": "ai", "endpoint": endpoint, "secret": secret})
			require.NoError(t, err)
			rw := httptest.NewRecorder()
			handler.ServeHTTP(rw, httptest.NewRequest("GET", "/js/a", nil))
			return rw
		}

		under := httptest.NewServer(http.StripPrefix("/base", service))
		defer under.Close()
		require.Equal(t, "node-1", serve(under.URL+"/base/").Body.String())

		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		require.NoError(t, err)
		server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: service}}
		server.Start()
		defer server.Close()
		require.Equal(t, "node-1", serve("unix://"+socket).Body.String())
	})
}

func TestStreamsArePassedOnAsTheyCome(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		proceed := make(chan struct{})
		b.onNode(func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(rw, "data: 1\n\n")
			rw.(http.Flusher).Flush()
			<-proceed
			io.WriteString(rw, "data: 2\n\n")
		})
		resp, err := http.Get(b.gateway.URL + "/js/a/events?x-token=" + token)
		require.NoError(t, err)
		defer resp.Body.Close()
		first := make([]byte, len("data: 1\n\n"))
		_, err = io.ReadFull(resp.Body, first)
		require.NoError(t, err)
		close(proceed)
		rest, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "data: 2\n\n", string(rest))
	})
	http.DefaultClient.CloseIdleConnections()
}

func TestReloadsShareOneClient(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		next := http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			fmt.Fprint(rw, req.Header.Get("X-User-Id"))
		})
		const reloads, parallel = 200, 10
		before := runtime.NumGoroutine()
		for reload := 0; reload < reloads; reload++ {
			handler, err := build(next, b.settings(nil))
			require.NoError(t, err)
			if reload%20 != 0 {
				continue
			}
			var all sync.WaitGroup
			for range parallel {
				all.Go(func() {
					rw := httptest.NewRecorder()
					req := httptest.NewRequest("GET", "/js/a", nil)
					req.Header.Set("X-Token", token)
					handler.ServeHTTP(rw, req)
					if rw.Body.String() != "1001" {
						t.Errorf("got %d %s", rw.Code, rw.Body)
					}
				})
			}
			all.Wait()
		}
		require.LessOrEqual(t, b.service.connections.Load(), int64(2*parallel))
		b.service.server.CloseClientConnections()
		require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 5*time.Second, 10*time.Millisecond)
	})
}
