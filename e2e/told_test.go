package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wiretap is between the plugin and its binding service and keeps every question.
type wiretap struct {
	addr string
	mu   sync.Mutex
	kept []*http.Request // with the body read
}

func startWiretap(t *testing.T, target func() string) *wiretap {
	t.Helper()
	r := &wiretap{addr: freeAddr(t)}
	listener, err := net.Listen("tcp", r.addr)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		to, _ := url.Parse(target())
		p.SetURL(to)
		p.Out.Header = p.In.Header.Clone() // the forwarding headers too
	}}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/v1/decide" {
			body, _ := io.ReadAll(req.Body)
			kept := req.Clone(req.Context())
			kept.Body = io.NopCloser(bytes.NewReader(body))
			req.Body = io.NopCloser(bytes.NewReader(body))
			r.mu.Lock()
			r.kept = append(r.kept, kept)
			r.mu.Unlock()
		}
		proxy.ServeHTTP(rw, req)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return r
}

// questions returns what was asked since the last call.
func (r *wiretap) questions() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.kept
	r.kept = nil
	return asked
}

// told is what a question says beyond what every question says.
func told(t *testing.T, q *http.Request) map[string]string {
	t.Helper()
	said := map[string]string{}
	for _, name := range []string{"X-Forwarded-For", "X-Homenode-Query", "X-Homenode-Source", "X-Homenode-Form"} {
		if values, ok := q.Header[name]; ok {
			said[name] = strings.Join(values, "|")
		}
	}
	body, err := io.ReadAll(q.Body)
	require.NoError(t, err)
	if q.Method != http.MethodGet || len(body) > 0 {
		said["body"] = string(body)
	}
	usual := []string{
		"Authorization", "User-Agent", "X-Forwarded-Method", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Uri", "Accept-Language",
		"X-Request-Id", "X-Homenode-Service", "X-Homenode-Have", "X-Homenode-Token", "X-Homenode-Username", "X-Forwarded-For", "X-Homenode-Query", "X-Homenode-Source", "X-Homenode-Form",
	}
	if q.Method == http.MethodPost {
		usual = append(usual, "Content-Type", "Content-Length")
	}
	for name := range q.Header {
		require.Contains(t, usual, name, "a header that no question has")
	}
	require.NotContains(t, q.Header.Get("X-Forwarded-Uri"), "?")
	require.Empty(t, q.URL.RawQuery)
	return said
}

// The binding service is told what a policy needs of a request, and nothing else.
func TestTheBindingServiceIsToldWhatAPolicyNeeds(t *testing.T) {
	g := &guarded{}
	r := startWiretap(t, func() string { return g.services[0].internal })
	startGuarded(t, g, 1, "traefik: {pollInterval: 500ms, endpoint: \"http://"+r.addr+"\"}\n")
	ann := g.signIn(t, 0, "/js/a", "ann")
	secretly := func(c call) call {
		return c.with("X-Client-Source", "app").with("Cookie", "private=1").with("Referer", "http://private.example/").with("X-Private", "private")
	}
	get := secretly(call{path: "/js/a/open/x?a=private", token: ann})
	post := secretly(call{path: "/js/a/open/x?a=1", token: ann}.form("b=private"))
	elsewhere := secretly(call{path: "/js/a/elsewhere?a=1", token: ann}.form("b=private"))
	upload := secretly(call{method: http.MethodPut, path: "/js/a/open/x", token: ann, body: bytes.Repeat([]byte("private"), 20_000)}.with("Content-Type", "application/octet-stream"))
	// settled is what is told when the plugin has heard what is needed.
	settled := func(t *testing.T, c call) map[string]string {
		t.Helper()
		lastQuestion(t, g, r, c)
		q := lastQuestion(t, g, r, c)
		require.NotContains(t, fmt.Sprint(q.Header), "private")
		return told(t, q)
	}
	nothing := map[string]string{}

	t.Run("no policies", func(t *testing.T) {
		for _, c := range []call{get, post, elsewhere, upload} {
			require.Equal(t, nothing, settled(t, c))
		}
	})
	t.Run("the source", func(t *testing.T) {
		g.set(t, 0, "answers", "ai", answersPolicy)
		for _, c := range []call{get, post, upload} {
			require.Equal(t, map[string]string{"X-Homenode-Source": "app"}, settled(t, c))
		}
		require.Equal(t, nothing, told(t, lastQuestion(t, g, r, secretly(call{path: "/other/x?a=private"}))), "another service's")
		g.clear(t)
		require.Equal(t, nothing, settled(t, secretly(call{path: "/js/a/open/x"})))
	})
	t.Run("the address", func(t *testing.T) {
		g.set(t, 0, "maintenance", "shop", map[string]any{"services": []string{"ai"}, "paths": []string{"/js/a/shop"}, "testers": map[string]any{"addresses": []string{"192.0.2.1"}}})
		forged := secretly(call{path: "/js/a/open/x"}).with("X-Forwarded-For", "192.0.2.1")
		require.Equal(t, map[string]string{"X-Forwarded-For": "127.0.0.1"}, settled(t, forged))
		g.refusedWith(t, 0, "MAINTENANCE", call{path: "/js/a/shop"}.with("X-Forwarded-For", "192.0.2.1").with("X-Real-Ip", "192.0.2.1"))
		g.clear(t)
		require.Equal(t, nothing, settled(t, forged))
	})
	t.Run("query and form", func(t *testing.T) {
		g.set(t, 0, "signature", "open", map[string]any{"services": []string{"ai"}, "paths": []string{"/js/a/open/**"}, "shadow": true})
		require.Equal(t, map[string]string{"X-Homenode-Query": "a=private"}, told(t, lastQuestion(t, g, r, get)))
		require.Equal(t, map[string]string{"X-Homenode-Query": "a=1", "body": "b=private"}, told(t, lastQuestion(t, g, r, post)))
		require.Equal(t, map[string]string{"X-Homenode-Query": "a=1"}, told(t, lastQuestion(t, g, r, elsewhere)), "no signature there")
		require.Equal(t, map[string]string{"X-Homenode-Query": ""}, told(t, lastQuestion(t, g, r, upload)), "no form")
		large := call{path: "/js/a/open/x"}.form(strings.Repeat("x", 64<<10+1))
		require.Equal(t, map[string]string{"X-Homenode-Query": "", "X-Homenode-Form": "too-large"}, told(t, lastQuestion(t, g, r, large)))
	})
	t.Run("other bodies are not read before their node reads them", func(t *testing.T) {
		for name, c := range map[string]call{
			"no form":         call{method: http.MethodPost, path: "/js/a/open/early/x", token: ann}.with("Content-Type", "application/json"),
			"a form unsigned": call{method: http.MethodPost, path: "/js/a/early/x", token: ann}.with("Content-Type", "application/x-www-form-urlencoded"),
		} {
			reader, writer := io.Pipe()
			c = c.changed(func(request *http.Request) { request.Body, request.ContentLength = reader, -1 })
			answered := make(chan answer, 1)
			go func() {
				answered <- g.clients[0].do(c.method, c.path, c.token, nil, func(request *http.Request) {
					request.Header.Set("X-Request-Id", "early-"+strings.Fields(name)[0])
					request.Header.Set("Content-Type", c.header["Content-Type"])
					c.change(request)
				})
			}()
			select {
			case id := <-arrivals(g):
				require.Equal(t, "early-"+strings.Fields(name)[0], id)
			case a := <-answered:
				require.Fail(t, "answered before its body was sent", "%s: %s", name, a)
			case <-time.After(patience):
				require.Fail(t, "somebody before the node waits for the body", name)
			}
			_, err := writer.Write([]byte("late"))
			require.NoError(t, err)
			require.NoError(t, writer.Close())
			require.Equal(t, http.StatusOK, (<-answered).status)
		}
	})
	g.silent(t, ann, "private")
}

// lastQuestion sends a call and returns what was asked about it in the end.
func lastQuestion(t *testing.T, g *guarded, r *wiretap, c call) *http.Request {
	t.Helper()
	r.questions()
	if a, got := g.send(t, 0, c); got != nil {
		require.True(t, bytes.Equal(c.body, got.body), "the body arrived byte for byte: %s", a)
	}
	asked := r.questions()
	require.NotEmpty(t, asked)
	require.LessOrEqual(t, len(asked), 2, "asked back once at most")
	return asked[len(asked)-1]
}

// arrivals is where ann's node tells of what has begun to arrive.
func arrivals(g *guarded) <-chan string {
	merged := make(chan string, 1)
	for _, d := range g.desks {
		go func() {
			select {
			case id := <-d.arrivals:
				merged <- id
			case <-time.After(patience):
			}
		}()
	}
	return merged
}

// explanationsOfGuards: explain foretells what Traefik then does, guard by guard.
func explanationsOfGuards(t *testing.T, g *guarded) {
	ann := allPolicies(t, g)
	bob := g.signIn(t, 0, "/js/a", "bob")
	gone := g.signIn(t, 0, "/js/a", "ann")
	g.pass(t, 0, call{path: "/js/a/sys/logout", token: gone})
	revision := g.services[0].administer(t, http.MethodGet, "/policies", nil).(map[string]any)["revision"]
	failures := [][2]string{{"maintenance", "open"}, {"signature", "closed"}, {"identity", "open"}, {"rate-limit", "open"}, {"access", "closed"}}
	bad := partnerCall(t, "/js/a/open/x").path + "&a=1"
	limited := call{path: "/js/a/limited"}
	app := func(c call) call { return c.with("X-Client-Source", "app") }
	verdicts := map[string]int{}
	for i, c := range []call{
		{path: "/js/a/whoami"}, {path: "/js/a/whoami", token: ann}, {path: "/js/a/whoami", token: gone}, {path: "/js/a/whoami", token: "nobody's"},
		{path: "/js/a/public/x"}, {path: "/js/a/public/x", token: ann}, {path: "/js/a/public/x", token: gone},
		{path: "/js/a/shop/x"}, {path: "/js/a/shop/x", token: ann}, {path: "/js/a/shop/x", token: bob}, {path: "/js/a/shop"}, {path: "/js/a/shopping", token: bob},
		{path: "/js/a/open/x"}, partnerCall(t, "/js/a/open/x"), {path: bad}, {path: bad, token: ann}, {method: http.MethodOptions, path: "/js/a/open/x"},
		{path: "/js/a/admin"}, {path: "/js/a/admin", token: ann}, {path: "/js/a/admin", token: bob}, {path: "/js/a//admin/", token: bob}, {method: http.MethodOptions, path: "/js/a/admin"},
		{path: "/js/a/new"}, {path: "/js/a/new", token: ann}, {path: "/js/a/new", token: bob},
		{path: "/js/a/list"}, {method: http.MethodPost, path: "/js/a/list"}, {method: http.MethodOptions, path: "/js/a/list"},
		app(call{path: "/js/a/whoami"}), app(call{path: "/js/a/admin", token: bob}), app(call{path: "/js/a/shop/x"}), app(call{path: "/js/a/whoami", token: ann}), app(call{path: "/js/apple"}),
		limited, limited, limited, app(limited), {path: "/other/limited"}, {path: "/other/open/x"}, {path: "/js/apple"},
	} {
		query := url.Values{"method": {orGet(c.method)}, "path": {c.path}, "address": {"127.0.0.1"}}
		if source := c.header["X-Client-Source"]; source != "" {
			query.Set("source", source)
		}
		request, err := http.NewRequest(http.MethodGet, g.services[0].admin+"/gateway/admin/explain?"+query.Encode(), nil)
		require.NoError(t, err)
		request.Header.Set("x-token", adminToken)
		request.Header.Set("X-Explain-Token", c.token)
		var answered struct {
			Data struct {
				Steps   []struct{ Step, Source, Outcome, Detail string } `json:"steps"`
				Verdict struct {
					Forward                bool
					NodeID, UserID, Reason *string
					Status                 int
					Message                string
				} `json:"verdict"`
			} `json:"data"`
		}
		for range 3 { // it takes nothing from a bucket
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.NoError(t, json.NewDecoder(response.Body).Decode(&answered))
			_ = response.Body.Close()
			require.Equal(t, http.StatusOK, response.StatusCode)
		}
		verdict := answered.Data.Verdict
		a, got := g.send(t, 0, c)
		about := fmt.Sprintf("case %d: %s %s: %+v\n%s", i, c.method, c.path, answered.Data, a)

		var guards []string
		for _, step := range answered.Data.Steps {
			if step.Step != "guard" {
				continue
			}
			want := failures[len(guards)]
			guards = append(guards, step.Source)
			require.Equal(t, want[0], step.Source, about)
			require.Contains(t, step.Detail, fmt.Sprintf("policies of revision %.0f, fails %s", revision, want[1]), about)
		}
		if verdict.Forward {
			require.NotNil(t, got, about)
			require.Len(t, guards, len(failures), about)
			require.Equal(t, *verdict.NodeID, got.node, about)
			user := ""
			if verdict.UserID != nil {
				user = *verdict.UserID
			}
			require.Equal(t, user, got.header.Get("X-User-Id"), about)
			verdicts["forward"]++
			continue
		}
		require.Nil(t, got, about)
		require.Equal(t, *verdict.Reason, a.reason(), about)
		require.Equal(t, verdict.Status, a.status, about)
		var body refusalBody
		unmarshal(t, a.body, &body)
		require.Equal(t, verdict.Message, body.Message, about)
		verdicts[*verdict.Reason]++
	}
	t.Logf("foretold: %v", verdicts)
	for _, verdict := range []string{"forward", "MAINTENANCE", "SIGNATURE_MISSING", "SIGNATURE_INVALID", "UNAUTHENTICATED", "RATE_LIMITED", "FORBIDDEN", "NOT_FOUND", "METHOD_NOT_ALLOWED", "NO_ROUTE"} {
		require.NotZero(t, verdicts[verdict], verdict)
	}
}

func orGet(method string) string {
	if method == "" {
		return http.MethodGet
	}
	return method
}
