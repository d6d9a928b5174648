package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/testenv"
	"github.com/homenode/homenode/internal/traefikproc"
)

// patience is what a request may take while a store hangs on a loaded machine: the plugin
// waits 2 s for each of at most two answers.
const patience = 6 * time.Second

// desk is a node that keeps what reaches it, so that a scenario can say what did not.
// Each login that it answers gives another token.
type desk struct {
	*node
	logins   atomic.Int64
	tokenFor atomic.Pointer[func(username string) string] // instead of the desk's own tokens
	onLogout atomic.Pointer[string]                       // answers a logout instead of {"code":200}
	arrivals chan string                                  // request ids of /early/ paths, before their body is read

	mu   sync.Mutex
	seen map[string]received // by request id
}

// received is a request as a node got it.
type received struct {
	node, method, uri string
	header            http.Header
	body              []byte
}

func startDesk(t *testing.T, name string) *desk {
	t.Helper()
	d := &desk{node: &node{name: name, addr: freeAddr(t)}, seen: map[string]received{}, arrivals: make(chan string, 16)}
	listener, err := net.Listen("tcp", d.addr)
	require.NoError(t, err)
	server := &http.Server{Handler: d, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return d
}

func (d *desk) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		return
	}
	if strings.Contains(r.URL.Path, "/early/") {
		d.arrivals <- r.Header.Get("X-Request-Id")
	}
	body, _ := io.ReadAll(r.Body)
	d.mu.Lock()
	d.seen[r.Header.Get("X-Request-Id")] = received{d.name, r.Method, r.RequestURI, r.Header.Clone(), body}
	d.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case strings.HasSuffix(r.URL.Path, "/sys/login"):
		rw.Header().Set("X-Real-Node", d.name)
		d.login(rw, body)
	case strings.HasSuffix(r.URL.Path, "/sys/logout"):
		rw.Header().Set("X-Real-Node", d.name)
		answer := `{"code":200,"message":"bye"}`
		if given := d.onLogout.Load(); given != nil {
			answer = *given
		}
		_, _ = io.WriteString(rw, answer)
	default:
		d.handler().ServeHTTP(rw, r)
	}
}

func (d *desk) login(rw http.ResponseWriter, body []byte) {
	var request struct {
		Username string `json:"username"`
	}
	_ = json.Unmarshal(body, &request)
	token := fmt.Sprintf("tok-%s-%s-%d", request.Username, d.name, d.logins.Add(1))
	if tokenFor := d.tokenFor.Load(); tokenFor != nil {
		token = (*tokenFor)(request.Username)
	}
	_, _ = fmt.Fprintf(rw, `{"code":200,"data":{"token":%q,"userId":%q,"username":%q}}`, token, userID(request.Username), request.Username)
}

// guarded are gateways, each a Traefik and a binding service, on one pair of stores,
// before nodes that keep what they get. In the embedded mode there is one gateway.
//
// Service ai is at /js/a, its users without a binding go to node-1; service other is at /other.
type guarded struct {
	in              stores // as the gateways reach them
	direct          stores // as an administrator does, whatever is cut off
	postgres, redis *testenv.Proxy
	desks           []*desk
	services        []*bindsvc
	traefiks        []*traefikproc.Process
	clients         []*client
	requests        atomic.Int64
}

// clear deletes every policy and makes the nodes ordinary again.
func (g *guarded) clear(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"guards", "maintenance", "identity", "signature", "apps", "rate-limit", "access", "degradation", "answers"} {
		g.services[0].administer(t, http.MethodPost, "/policies/"+kind, map[string]any{"policies": []any{}, "replace": true})
	}
	for _, d := range g.desks {
		d.tokenFor.Store(nil)
		d.onLogout.Store(nil)
	}
	g.settle(t)
}

// guardedProduction is two gateways on PostgreSQL and Redis, which can be cut off.
func guardedProduction(t *testing.T, settings string) *guarded {
	t.Helper()
	g := &guarded{}
	g.in, g.postgres, g.redis = proxied(t)
	database := g.in.postgres[strings.LastIndex(g.in.postgres, "/")+1:]
	g.direct = stores{
		postgres: programs.postgres.URLOf(programs.postgres.Addr(), strings.TrimSuffix(database, "?sslmode=disable")),
		redis:    programs.redis.Addr(), database: g.in.database,
	}
	return startGuarded(t, g, 2, settings)
}

func startGuarded(t *testing.T, g *guarded, gateways int, extra string) *guarded {
	t.Helper()
	var nodes []*node
	for _, name := range []string{"node-1", "node-2"} {
		d := startDesk(t, name)
		g.desks, nodes = append(g.desks, d), append(nodes, d.node)
	}
	other := startDesk(t, "other-1")
	g.desks = append(g.desks, other)
	for i := range gateways {
		b := startHomenode(t, g.in, nodes, settings{defaultTo: "node-1", extra: extra})
		g.services = append(g.services, b)
		if i > 0 {
			continue
		}
		b.administer(t, http.MethodPut, "/services/ai", map[string]any{"logoutPath": "/sys/logout"})
		b.administer(t, http.MethodPost, "/services", map[string]any{"id": "other", "pathPrefix": "/other", "loginPath": "/sys/login", "healthPath": "/health"})
		b.administer(t, http.MethodPost, "/services/other/nodes", map[string]any{"id": "other-1", "baseUrl": other.url()})
		b.administer(t, http.MethodPut, "/services/other", map[string]any{"defaultNodeId": "other-1"})
		b.Kill() // a node that it finds at its start gets users at once
		b.start(t)
		b.ready(t)
	}
	for _, b := range g.services {
		g.traefiks = append(g.traefiks, startTraefik(t, b, traefikproc.Options{AliasHeaders: "keep"}))
		c := newClient(g.traefiks[len(g.traefiks)-1].URL("web"))
		t.Cleanup(c.http.CloseIdleConnections)
		g.clients = append(g.clients, c)
	}
	for _, c := range g.clients {
		for _, path := range []string{"/js/a/whoami", "/other/whoami"} {
			require.Eventually(t, func() bool { return c.get(path, "").status == http.StatusOK }, 30*time.Second, 50*time.Millisecond)
		}
	}
	return g
}

// last is the other gateway, or the only one.
func (g *guarded) last() int { return len(g.clients) - 1 }

// call is a client's request.
type call struct {
	method, path, token string // GET if no method is given
	body                []byte
	header              map[string]string
	change              func(*http.Request)
}

func (c call) with(name, value string) call {
	header := map[string]string{name: value}
	for n, v := range c.header {
		header[n] = v
	}
	c.header = header
	return c
}

// send sends a call through one of the gateways. It returns the answer and what a node
// got of it, nil if nothing.
func (g *guarded) send(t *testing.T, via int, c call) (answer, *received) {
	t.Helper()
	if c.method == "" {
		c.method = http.MethodGet
	}
	id := fmt.Sprintf("call-%d", g.requests.Add(1))
	start := time.Now()
	a := g.clients[via].do(c.method, c.path, c.token, c.body, func(r *http.Request) {
		r.Header.Set("X-Request-Id", id)
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		if c.change != nil {
			c.change(r)
		}
	})
	require.Less(t, time.Since(start), patience, "%s %s: %s", c.method, c.path, a)
	require.NoError(t, a.err)
	return a, g.reached(id)
}

// reached is what a node got of the request with that id, nil if nothing.
func (g *guarded) reached(id string) *received {
	for _, d := range g.desks {
		d.mu.Lock()
		got, ok := d.seen[id]
		d.mu.Unlock()
		if ok {
			return &got
		}
	}
	return nil
}

// pass sends a call that must reach a node and returns what the node got.
func (g *guarded) pass(t *testing.T, via int, c call) *received {
	t.Helper()
	a, got := g.send(t, via, c)
	require.Equal(t, http.StatusOK, a.status, "%s %s via %d: %s", c.method, c.path, via, a)
	require.NotNil(t, got, "%s %s: %s", c.method, c.path, a)
	return got
}

// refusal is how a client is refused.
type refusal struct {
	reason       string
	status, code int
	zh, en       string
}

type refusalBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    struct {
		Reason      string `json:"reason"`
		RequestID   string `json:"requestId"`
		Maintenance *struct {
			Message string    `json:"message"`
			End     time.Time `json:"end"`
		} `json:"maintenance"`
	} `json:"data"`
}

// refused sends a call that must be refused, in Chinese, in English, and from a client
// that reads business codes, and returns the first answer. Nothing reaches a node.
func (g *guarded) refused(t *testing.T, via int, c call, want refusal) answer {
	t.Helper()
	var first answer
	for i, variant := range []struct {
		call    call
		status  int
		message string
	}{
		{c, want.status, want.zh},
		{c.with("Accept-Language", "en-GB,en;q=0.9"), want.status, want.en},
		{c.with("X-Client-Source", "app"), http.StatusOK, want.zh},
	} {
		a, got := g.send(t, via, variant.call)
		require.Nil(t, got, "%s %s reached a node: %s", c.method, c.path, a)
		var body refusalBody
		require.NoError(t, json.Unmarshal(a.body, &body), "%s %s: %s", c.method, c.path, a)
		require.Equal(t, want.reason, a.reason(), "%s %s via %d: %s", c.method, c.path, via, a)
		require.Equal(t, variant.status, a.status, a)
		require.Equal(t, want.code, body.Code, a)
		require.Equal(t, variant.message, body.Message)
		require.Equal(t, want.reason, body.Data.Reason)
		require.Equal(t, a.header.Get("X-Request-Id"), body.Data.RequestID)
		require.Contains(t, a.header.Get("Content-Type"), "application/json")
		for name := range a.header {
			require.False(t, strings.HasPrefix(name, "X-Homenode-"), "%s is between the plugin and its service", name)
		}
		if i == 0 {
			first = a
		}
	}
	return first
}

// refusedWith sends a call that must be refused with the reason before it reaches a node.
func (g *guarded) refusedWith(t *testing.T, via int, reason string, c call) answer {
	t.Helper()
	a, got := g.send(t, via, c)
	require.Equal(t, reason, a.reason(), "%s %s via %d: %s", c.method, c.path, via, a)
	require.Nil(t, got, "it reached a node: %s", a)
	return a
}

// set makes a policy through one of the gateways.
func (g *guarded) set(t *testing.T, via int, kind, id string, body any) {
	t.Helper()
	g.services[via].administer(t, http.MethodPut, "/policies/"+kind+"/"+id, body)
}

func (g *guarded) remove(t *testing.T, kind, id string) {
	t.Helper()
	g.services[0].administer(t, http.MethodDelete, "/policies/"+kind+"/"+id, nil)
	g.settle(t)
}

// settle waits until every gateway has the policies of the newest revision.
func (g *guarded) settle(t *testing.T) {
	t.Helper()
	newest := 0.0
	revision := func(b *bindsvc) float64 {
		return b.administer(t, http.MethodGet, "/policies", nil).(map[string]any)["revision"].(float64)
	}
	for _, b := range g.services {
		newest = max(newest, revision(b))
	}
	for _, b := range g.services {
		require.Eventually(t, func() bool { return revision(b) >= newest }, 10*time.Second, 5*time.Millisecond)
	}
}

// within waits until the gateway answers as wanted, for at most 5 s, and returns how long it took.
func (g *guarded) within(t *testing.T, via int, c call, reason string) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		a, _ := g.send(t, via, c)
		took := time.Since(start)
		if a.reason() == reason {
			return took
		}
		require.Less(t, took, 5*time.Second, "%s %s via %d: want %q: %s", c.method, c.path, via, reason, a)
	}
}

// signIn logs a user in and returns the token.
func (g *guarded) signIn(t *testing.T, via int, prefix, username string) string {
	t.Helper()
	token, _ := g.signInAt(t, via, prefix, username)
	return token
}

// signInAt logs a user in and returns the token, and the node that gave it.
func (g *guarded) signInAt(t *testing.T, via int, prefix, username string) (token, node string) {
	t.Helper()
	a, got := g.send(t, via, call{method: http.MethodPost, path: prefix + "/sys/login", body: fmt.Appendf(nil, `{"username":%q}`, username)})
	require.NotNil(t, got, a)
	var body struct {
		Data struct {
			Token string `json:"token"`
		} `json:"data"`
	}
	require.NoError(t, json.Unmarshal(a.body, &body), a)
	require.NotEmpty(t, body.Data.Token, a)
	return body.Data.Token, got.node
}

// silent requires that none of the texts is in a log of the gateways.
func (g *guarded) silent(t *testing.T, texts ...string) {
	t.Helper()
	var files []string
	for i := range g.services {
		files = append(files, g.services[i].command.LogFile, g.traefiks[i].LogFile())
	}
	for _, file := range files {
		log, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotEmpty(t, log, file)
		for _, text := range texts {
			require.NotEmpty(t, text)
			require.NotContains(t, string(log), text, "in %s", file)
		}
	}
}

// hang makes a store keep its connections and answer nothing, until the function that is returned is called.
func hang(store *testenv.Proxy) (end func()) {
	store.SetDelay(4 * time.Second) // longer than anybody waits
	return func() {
		store.Cut() // whoever waits for an answer gets none
		store.SetDelay(0)
		store.Restore()
	}
}

// answersPolicy gives every guard a business code, and the app HTTP 200.
var answersPolicy = map[string]any{
	"services": []string{"ai"}, "sourceHeader": "X-Client-Source", "clientSources": []string{"app"},
	"codes": map[string]int{
		"MAINTENANCE": 50300, "UNAUTHENTICATED": 40100, "SIGNATURE_MISSING": 40110, "SIGNATURE_INVALID": 40111, "RATE_LIMITED": 42900,
		"FORBIDDEN": 40300, "NOT_FOUND": 40400, "METHOD_NOT_ALLOWED": 40500, "POLICY_INVALID": 50301,
	},
}
