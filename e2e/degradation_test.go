package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/traefikproc"
)

// recorder stands in front of the binding service, for Traefik, and keeps what it is
// asked as the fallback.
type recorder struct {
	server *httptest.Server
	target atomic.Pointer[url.URL]

	mu        sync.Mutex
	fallbacks []string // whole requests
}

func startRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(r.target.Load())
		for name, values := range p.In.Header {
			p.Out.Header[name] = values // X-Forwarded-* too, which ReverseProxy takes away
		}
	}}
	r.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
		if strings.HasPrefix(request.URL.Path, "/v1/fallback") {
			dump, err := httputil.DumpRequest(request, true)
			if err != nil {
				dump = []byte(err.Error())
			}
			r.mu.Lock()
			r.fallbacks = append(r.fallbacks, string(dump))
			r.mu.Unlock()
		}
		proxy.ServeHTTP(rw, request)
	}))
	t.Cleanup(r.server.Close)
	return r
}

func (r *recorder) recorded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.fallbacks...)
}

// degradationStack is a whole gateway under a degradation and an answers policy, with a
// recorder between Traefik and the binding service.
func degradationStack(t *testing.T) (*stack, *recorder) {
	t.Helper()
	r := startRecorder(t)
	s := &stack{}
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		s.nodes = append(s.nodes, startNode(t, name))
	}
	s.binding = startHomenode(t, stores{}, s.nodes, settings{extra: fmt.Sprintf("traefik: {pollInterval: 500ms, endpoint: %q}\n", r.server.URL)})
	target, err := url.Parse(s.binding.internal)
	require.NoError(t, err)
	r.target.Store(target)
	s.traefik = startTraefik(t, s.binding, traefikproc.Options{})
	s.client = newClient(s.traefik.URL("web"))
	s.waitRouted(t, s.client)

	s.binding.administer(t, http.MethodPut, "/policies/degradation/main", map[string]any{
		"services": []string{"ai"}, "core": []string{"^/js/a/orders(/|$)"},
		"coreCode": 70001, "coreMessage": map[string]string{"zh": "订单请重试", "en": "Try the order again"},
		"code": 70002, "message": map[string]string{"zh": "服务繁忙中", "en": "Busy"},
		"breaker": "ResponseCodeRatio(500, 600, 0, 600) > 0.30",
	})
	s.binding.administer(t, http.MethodPut, "/policies/answers/main", map[string]any{
		"services": []string{"ai"}, "sourceHeader": "X-Client", "clientSources": []string{"app"},
	})
	require.Eventually(t, func() bool {
		for _, router := range listRouters(t, s.traefik) {
			if strings.HasPrefix(router.Name, "ai-node-1~client@") && router.Status == "enabled" {
				return true
			}
		}
		return false
	}, 30*time.Second, 50*time.Millisecond, "Traefik knows the clients of business codes")
	return s, r
}

// asking is one request of a client that tells what it is and reads.
type asking struct {
	path, language, source, token string
	change                        func(*http.Request)
}

func (s *stack) ask(a asking) answer {
	return s.client.do(http.MethodGet, a.path+"?x-token="+a.token+"&q=private", a.token, nil, func(r *http.Request) {
		r.Header.Set("Accept-Language", a.language)
		r.Header.Set("Cookie", "x-token="+a.token)
		r.Header.Set("Authorization", "Bearer "+a.token)
		if a.source != "" {
			r.Header.Set("X-Client", a.source)
		}
		if a.change != nil {
			a.change(r)
		}
	})
}

// askUntil asks until the gateway itself refuses with one of the reasons. Until then
// only the node's own answers arrive, as they are.
func (s *stack) askUntil(t *testing.T, home string, a asking, reasons ...string) answer {
	t.Helper()
	var last answer
	require.Eventually(t, func() bool {
		last = s.ask(a)
		if last.reason() == "" {
			require.Equal(t, home, last.node(), "%s", last)
			require.Contains(t, []int{http.StatusOK, http.StatusInternalServerError}, last.status, last)
			if last.status == http.StatusInternalServerError {
				require.Equal(t, string(ownErrorBody(500)), string(last.body))
			}
		}
		for _, reason := range reasons {
			if last.reason() == reason {
				return true
			}
		}
		return false
	}, 20*time.Second, 5*time.Millisecond)
	return last
}

// requireDegraded wants what was agreed for the request.
func requireDegraded(t *testing.T, a answer, asked asking) {
	t.Helper()
	core := strings.HasPrefix(asked.path, "/js/a/orders")
	code, message := 70002, map[string]string{"zh": "服务繁忙中", "en": "Busy"}
	if core {
		code, message = 70001, map[string]string{"zh": "订单请重试", "en": "Try the order again"}
	}
	status := http.StatusServiceUnavailable
	if a.reason() == "NODE_UNREACHABLE" {
		status = http.StatusBadGateway
	}
	if asked.source == "app" {
		status = http.StatusOK
	}
	require.Equal(t, status, a.status, "%+v: %s", asked, a)
	require.NotEmpty(t, a.header.Get("Retry-After"), a)
	require.Empty(t, a.node(), a)
	var body struct {
		Code    int
		Message string
		Data    struct{ Reason, RequestID string }
	}
	require.NoError(t, json.Unmarshal(a.body, &body), a)
	require.Equal(t, code, body.Code, "%+v: %s", asked, a)
	require.Equal(t, message[asked.language], body.Message)
	require.Equal(t, a.reason(), body.Data.Reason)
	require.Equal(t, a.header.Get("X-Request-Id"), body.Data.RequestID)
}

func TestAFailingNodeDegrades(t *testing.T) {
	s, recorded := degradationStack(t)
	users := s.usersByNode(t, 2)
	broken := s.nodes[0]
	token := tokenOf(users[broken.name][0])
	everyAsking := func(each func(asking)) {
		for _, path := range []string{"/js/a/orders/7", "/js/a/list"} {
			for _, language := range []string{"zh", "en"} {
				for _, source := range []string{"app", "web", ""} {
					each(asking{path: path, language: language, source: source, token: token})
				}
			}
		}
	}
	othersAreServed := func() {
		for home, names := range users {
			if home == broken.name {
				continue
			}
			for _, name := range names {
				for _, source := range []string{"app", "web"} {
					a := s.ask(asking{path: "/js/a/orders/7", token: tokenOf(name), source: source})
					require.Equal(t, http.StatusOK, a.status, a)
					require.Equal(t, home, a.node(), a)
				}
			}
		}
	}
	stream := s.follow(t, token)

	// One failure among many answers: the breaker stays closed, and the node's own
	// errors pass byte for byte, for every client.
	for range 10 {
		for _, source := range []string{"app", "web"} {
			require.Equal(t, http.StatusOK, s.ask(asking{path: "/js/a/list", source: source, token: token}).status)
		}
	}
	for _, source := range []string{"app", "web"} {
		for _, code := range []int{http.StatusNotFound, http.StatusInternalServerError} {
			a := s.ask(asking{path: fmt.Sprintf("/js/a/error/%d", code), source: source, token: token})
			require.Equal(t, code, a.status, a)
			require.Equal(t, string(ownErrorBody(code)), string(a.body))
			require.Equal(t, "application/json;charset=UTF-8", a.header.Get("Content-Type"))
			require.Equal(t, broken.name, a.node())
			require.Empty(t, a.reason())
		}
	}
	require.Empty(t, recorded.recorded(), "nothing was answered for the node")

	broken.failing.Store(true)
	everyAsking(func(asked asking) {
		requireDegraded(t, s.askUntil(t, broken.name, asked, "DEGRADED"), asked)
	})
	othersAreServed()
	for name, value := range map[string]string{"X-Homenode-Fallback": "ai;core", "X-Homenode-Client": "1"} {
		for _, spelling := range spellings(name) {
			forge := func(r *http.Request) { r.Header[spelling] = []string{value} }
			asked := asking{path: "/js/a/list", language: "en", source: "web", token: token, change: forge}
			requireDegraded(t, s.askUntil(t, broken.name, asked, "DEGRADED"), asked)

			asked.token = tokenOf(users["node-2"][0])
			a := s.ask(asked)
			require.Equal(t, "node-2", a.node(), a)
			for got, values := range decodeEcho(t, a).Header {
				if strings.Contains(strings.ToLower(got), "homenode") {
					require.Equal(t, "X-Homenode-Fallback", got, "%s is forged", spelling)
					require.Equal(t, []string{"ai"}, values, "%s is forged", spelling)
				}
			}
		}
	}

	broken.failing.Store(false)
	require.Eventually(t, func() bool {
		for range 10 {
			for _, source := range []string{"app", "web"} {
				if s.ask(asking{path: "/js/a/list", source: source, token: token}).node() != broken.name {
					return false
				}
			}
		}
		return true
	}, 20*time.Second, 50*time.Millisecond, "the breaker closes again")
	stream.requireAlive(t)

	broken.stop()
	for _, reasons := range [][]string{{"NODE_UNREACHABLE", "DEGRADED"}, {"NODE_DOWN"}} {
		everyAsking(func(asked asking) {
			requireDegraded(t, s.askUntil(t, broken.name, asked, append(reasons, "NODE_DOWN")...), asked)
		})
		othersAreServed()
		require.Eventually(t, func() bool { return s.ask(asking{path: "/js/a/list", token: token}).reason() == "NODE_DOWN" }, 20*time.Second, 20*time.Millisecond)
	}

	fallbacks := recorded.recorded()
	require.NotEmpty(t, fallbacks)
	for _, request := range fallbacks {
		line, _, _ := strings.Cut(request, "\r\n")
		require.Regexp(t, `^GET /v1/fallback\?status=50[23] HTTP/1\.1$`, line)
		require.Contains(t, request, "X-Homenode-Fallback: ai")
		for _, private := range []string{"tok-", "private", "orders", "list", "cookie", "authorization", "x-client"} {
			require.NotContains(t, strings.ToLower(request), private)
		}
	}
}

// stream is a stream of events that a node sends.
type stream struct {
	events atomic.Int64
	ended  chan error
}

// follow opens a stream that outlasts the scenario, and waits for its first event.
func (s *stack) follow(t *testing.T, token string) *stream {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.client.base+"/js/a/events?count=3000&x-token="+token, nil)
	require.NoError(t, err)
	response, err := (&http.Client{}).Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	followed := &stream{ended: make(chan error, 1)}
	go func() { // ends with the response
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), fmt.Sprintf("data: %d from ", followed.events.Load())) {
				followed.events.Add(1)
			}
		}
		followed.ended <- lines.Err()
	}()
	require.Eventually(t, func() bool { return followed.events.Load() > 0 }, 10*time.Second, 10*time.Millisecond)
	return followed
}

// requireAlive wants the next event, with no one lost before it.
func (f *stream) requireAlive(t *testing.T) {
	t.Helper()
	before := f.events.Load()
	require.Eventually(t, func() bool { return f.events.Load() > before }, 10*time.Second, 10*time.Millisecond, "the stream was cut")
	select {
	case err := <-f.ended:
		t.Fatalf("the stream ended: %v", err)
	default:
	}
}
