package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/testenv"
	"github.com/homenode/homenode/internal/traefikproc"
)

func TestFiftyClientsStayOnTheirNodes(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		const clients, rounds = 50, 20
		homes := make([]string, clients)
		var wrong, requests atomic.Int64
		var wait sync.WaitGroup
		for i := range clients {
			wait.Go(func() {
				name := fmt.Sprintf("user-%d", i)
				c := newClient(s.traefik.URL("web"))
				first := patient(func() answer { return c.login(name) })
				homes[i] = first.node()
				check := func(a answer) {
					requests.Add(1)
					if a.status != http.StatusOK || a.node() != homes[i] || a.header.Get("X-Gateway-Node") != homes[i] {
						wrong.Add(1)
						t.Errorf("%s of %s: %s", name, homes[i], a)
					}
				}
				check(first)
				for round := range rounds {
					if (i+round)%4 == 0 {
						again := patient(func() answer { return c.login(name) })
						check(again)
						if string(again.body) != string(loginBody(name)) {
							t.Errorf("login response changed: %q", again.body)
						}
					} else {
						check(patient(func() answer { return c.get(fmt.Sprintf("/js/a/whoami?round=%d", round), tokenOf(name)) }))
					}
				}
			})
		}
		wait.Wait()
		require.Zero(t, wrong.Load(), "of %d requests", requests.Load())
		perNode := map[string]int{}
		for _, home := range homes {
			perNode[home]++
		}
		require.Len(t, perNode, 3, "users are spread")
		bound := s.binding.routes(t)
		require.Len(t, bound, clients)
		for i, home := range homes {
			require.Equal(t, home, bound[fmt.Sprintf("user-%d", i)])
		}
	})
}

// patient does as a refusal says: fifty clients at once, with the race detector in
// the binding service, can be more than a small machine answers in time. No
// refusal reaches a node, and what reaches one has to be right the first time.
func patient(send func() answer) answer {
	a := send()
	for range 10 {
		if a.status != http.StatusServiceUnavailable || a.node() != "" || a.header.Get("Retry-After") == "" {
			break
		}
		time.Sleep(time.Second)
		a = send()
	}
	return a
}

func TestTheNodesUserHeaderAndRequestID(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	at := loginOK(t, s.client, "ann")
	a := s.client.do(http.MethodGet, "/js/a/whoami", tokenOf("ann"), nil, func(r *http.Request) { r.Header.Set("X-Request-Id", "mine-1") })
	got := decodeEcho(t, a)
	require.Equal(t, []string{at}, got.Header["X-Gateway-Node"])
	require.Equal(t, []string{userID("ann")}, got.Header["X-User-Id"])
	require.Equal(t, []string{"1"}, got.Header["X-Binding-Epoch"])
	require.Equal(t, []string{"mine-1"}, got.Header["X-Request-Id"])
	require.Equal(t, "mine-1", a.header.Get("X-Request-Id"))
	anonymous := decodeEcho(t, s.client.get("/js/a/whoami", ""))
	require.Empty(t, anonymous.Header["X-User-Id"])
	require.Empty(t, anonymous.Header["X-Binding-Epoch"])
}

func TestEveryTokenSource(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	users := s.usersByNode(t, 2)
	for home, names := range users {
		token := tokenOf(names[0])
		for source, change := range map[string]func(*http.Request){
			"header": func(r *http.Request) { r.Header.Set("X-Token", token) },
			"bearer": func(r *http.Request) { r.Header.Set("Authorization", "bearer "+token) },
			"cookie": func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "x-token", Value: token}) },
			"query":  func(r *http.Request) { r.URL.RawQuery = "a=b&x-token=" + token },
			"first non-empty": func(r *http.Request) {
				r.Header["X-Token"] = []string{"", token}
				r.Header.Set("Authorization", "Bearer somebody-else")
			},
		} {
			a := s.client.do(http.MethodGet, "/js/a/whoami", "", nil, change)
			require.Equal(t, home, a.node(), source)
		}
	}
}

// What the node gets and the client gets is what a route without any plugin would
// give them.
func TestForwardingIsThatOfABareRoute(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	at := s.node(loginOK(t, s.client, "ann"))
	bare := startTraefik(t, s.binding, traefikproc.Options{DynamicFile: bareRoute(at)})
	bareClient := newClient(bare.URL("web"))
	s.waitRouted(t, bareClient)

	paths := []string{
		"/js/a/echo/%E4?%E4=%e4", "/js/a/echo/%2F%2f%7E~", "/js/a/echo/a%20b+c?q=a%20b+c&x;y", "/js/a/echo/%E4%B8%AD?名=值",
		"/js/a/echo/?", "/js/a/echo/;v=1/x", "/js/a/echo/%25E4", "/js/a/echo/a?u=http://x/../y&&=&", "/js/a", "/js/a/",
	}
	for _, path := range paths {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete, http.MethodOptions, "PROPFIND"} {
			raw := func(r *http.Request) { r.URL.Opaque = "//" + r.URL.Host + path }
			body := []byte(nil)
			if method == http.MethodPost {
				body = []byte("body of " + path)
			}
			through, direct := s.client.do(method, "/", tokenOf("ann"), body, raw), bareClient.do(method, "/", tokenOf("ann"), body, raw)
			require.NoError(t, through.err, path)
			require.Equal(t, direct.status, through.status, path)
			got, want := decodeEcho(t, through), decodeEcho(t, direct)
			require.Equal(t, want.URI, got.URI)
			require.Equal(t, want.Method, got.Method)
			require.Equal(t, want.Body, got.Body)
			for _, added := range []string{"X-Gateway-Node", "X-User-Id", "X-Binding-Epoch", "X-Request-Id"} {
				got.Header.Del(added)
			}
			for _, ofTheListener := range []string{"X-Forwarded-Host", "X-Forwarded-Port"} {
				got.Header.Del(ofTheListener)
				want.Header.Del(ofTheListener)
			}
			require.Equal(t, want.Header, got.Header, path)
		}
	}
	for _, code := range []int{200, 201, 204, 301, 304, 400, 401, 404, 418, 500, 501} {
		path := fmt.Sprintf("/js/a/status/%d", code)
		through, direct := s.client.get(path, tokenOf("ann")), bareClient.get(path, tokenOf("ann"))
		require.Equal(t, code, through.status)
		require.Equal(t, direct.body, through.body)
		require.Equal(t, direct.header.Get("Content-Type"), through.header.Get("Content-Type"))
		require.Empty(t, through.reason(), "the node's own answer")
	}
}

func TestFailedLoginBindsNothing(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	a := s.client.login("nobody")
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, `{"code":500,"message":"用户名或密码错误","data":null}`, string(a.body))
	require.Empty(t, s.binding.routes(t))
}

func TestANameTypedAtLoginLeadsToTheSameNode(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		first := s.client.loginAs("13800000000", "ann")
		require.Equal(t, http.StatusOK, first.status)
		for range 6 {
			require.Equal(t, first.node(), s.client.loginAs("13800000000", "ann").node(), "the alias leads there")
			require.Equal(t, first.node(), loginOK(t, s.client, "ann"), "so does the name")
		}
		bound := s.binding.routes(t)
		require.Len(t, bound, 1)
	})
}

// The answer of a login is held until the binding is committed, so that the very
// next request finds it, however slow the store is.
func TestTheNextRequestAfterALogin(t *testing.T) {
	postgres, err := testenv.NewProxy(programs.postgres.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = postgres.Close() })
	redis, err := testenv.NewProxy(programs.redis.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = redis.Close() })
	in := stores{postgres: newDatabase(t, postgres.Addr()), redis: redis.Addr(), database: nextRedisDatabase(t)}
	s := startStack(t, in, settings{})
	postgres.SetDelay(50 * time.Millisecond)
	redis.SetDelay(50 * time.Millisecond)

	const logins, clients = 1000, 20
	var right atomic.Int64
	var wait sync.WaitGroup
	next := make(chan int)
	for range clients {
		wait.Go(func() {
			c := newClient(s.traefik.URL("web"))
			for i := range next {
				name := fmt.Sprintf("user-%d", i)
				login := c.login(name)
				after := c.get("/js/a/whoami", tokenOf(name))
				if login.status == http.StatusOK && after.status == http.StatusOK && after.node() == login.node() && string(login.body) == string(loginBody(name)) {
					right.Add(1)
				} else {
					t.Errorf("%s: login %s, then %s", name, login, after)
				}
			}
		})
	}
	for i := range logins {
		next <- i
	}
	close(next)
	wait.Wait()
	require.EqualValues(t, logins, right.Load())
	t.Logf("%d of %d requests right after a login reached the bound node", right.Load(), logins)
}

func TestARaceOfFirstLoginsThroughTwoGateways(t *testing.T) {
	in := production(t)
	first := startStack(t, in, settings{})
	second := &stack{nodes: first.nodes, binding: startHomenode(t, in, first.nodes, settings{})}
	second.traefik = startTraefik(t, second.binding, traefikproc.Options{})
	second.client = newClient(second.traefik.URL("web"))
	second.waitRouted(t, second.client)

	for round := range 5 {
		name := fmt.Sprintf("racer-%d", round)
		var wait sync.WaitGroup
		start := make(chan struct{})
		for i := range 40 {
			wait.Go(func() {
				c := newClient([]*stack{first, second}[i%2].traefik.URL("web"))
				<-start
				if a := c.login(name); a.status != http.StatusOK || string(a.body) != string(loginBody(name)) {
					t.Errorf("login: %s", a)
				}
			})
		}
		close(start)
		wait.Wait()
		home := first.binding.routes(t)[name]
		require.NotEmpty(t, home)
		for range 10 {
			for _, gateway := range []*stack{first, second} {
				require.Equal(t, home, gateway.client.get("/js/a/whoami", tokenOf(name)).node())
				require.Equal(t, home, loginOK(t, gateway.client, name))
			}
		}
	}
}

func TestNoRouteAndDisabledService(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	for _, path := range []string{"/", "/js/apple", "/js", "/other?x=1"} {
		a := s.client.get(path, "")
		require.Equal(t, http.StatusNotFound, a.status, path)
		require.Equal(t, "NO_ROUTE", a.reason(), path)
	}
	english := s.client.do(http.MethodGet, "/", "", nil, func(r *http.Request) { r.Header.Set("Accept-Language", "fr, en;q=0.8, zh;q=0.2") })
	require.Contains(t, string(english.body), "No service")
	chinese := s.client.get("/", "")
	require.Contains(t, string(chinese.body), "不存在")
	s.binding.administer(t, http.MethodPut, "/services/ai", map[string]any{"enabled": 0})
	a := s.client.get("/js/a/whoami", "")
	require.Equal(t, http.StatusNotFound, a.status)
	require.Equal(t, "NO_ROUTE", a.reason())
}

func TestANodeAddedWhileTrafficRuns(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		fourth := startNode(t, "node-4")
		stop := make(chan struct{})
		var wait sync.WaitGroup
		seen := make([]sync.Map, 4)
		for i := range seen {
			wait.Go(func() {
				c := newClient(s.traefik.URL("web"))
				for {
					select {
					case <-stop:
						return
					default:
					}
					a := c.get("/js/a/whoami", "")
					if a.status != http.StatusOK {
						t.Errorf("while a node was added: %s", a)
						return
					}
					seen[i].Store(a.node(), true)
				}
			})
		}
		s.binding.administer(t, http.MethodPost, "/services/ai/nodes", map[string]any{"id": "node-4", "name": "fourth", "baseUrl": fourth.url(), "enabled": true})
		require.Eventually(t, func() bool {
			for i := range seen {
				if _, ok := seen[i].Load("node-4"); ok {
					return true
				}
			}
			return false
		}, 30*time.Second, 50*time.Millisecond, "the new node gets requests")
		close(stop)
		wait.Wait()

		s.binding.administer(t, http.MethodPost, "/routes/bind", map[string]any{"serviceId": "ai", "username": "ann", "nodeId": "node-4"})
		require.Equal(t, "node-4", loginOK(t, s.client, "ann"), "bound in advance by name")
		require.Equal(t, "node-4", s.client.get("/js/a/whoami", tokenOf("ann")).node())
	})
}

func TestRebindAndUnbind(t *testing.T) {
	in := production(t)
	first := startStack(t, in, settings{})
	other := startHomenode(t, in, first.nodes, settings{})
	second := startTraefik(t, other, traefikproc.Options{})
	secondClient := newClient(second.URL("web"))
	first.waitRouted(t, secondClient)
	home := loginOK(t, first.client, "ann")
	require.Equal(t, home, secondClient.get("/js/a/whoami", tokenOf("ann")).node())
	for i := range 20 {
		to := first.nodes[i%3].name
		first.binding.administer(t, http.MethodPost, "/routes/bind", map[string]any{"serviceId": "ai", "userId": userID("ann"), "nodeId": to})
		require.Equal(t, to, first.client.get("/js/a/whoami", tokenOf("ann")).node(), "at once where it was done")
		require.Eventually(t, func() bool { return secondClient.get("/js/a/whoami", tokenOf("ann")).node() == to }, time.Second, time.Millisecond)
	}
	data := first.binding.administer(t, http.MethodGet, "/routes?keyword=ANN", nil).(map[string]any)
	require.EqualValues(t, 1, data["total"])
	id := data["records"].([]any)[0].(map[string]any)["id"]
	first.binding.administer(t, http.MethodDelete, fmt.Sprintf("/routes/%.0f", id), nil)
	require.Equal(t, "NO_BINDING", first.client.get("/js/a/whoami", tokenOf("ann")).reason())
	require.Eventually(t, func() bool {
		return secondClient.get("/js/a/whoami", tokenOf("ann")).reason() == "NO_BINDING"
	}, time.Second, time.Millisecond)
}

func TestAdminThroughTraefik(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	a := s.client.get("/gateway/admin/status", "")
	require.Equal(t, http.StatusUnauthorized, a.status)
	require.Equal(t, "UNAUTHENTICATED", a.reason())
	a = s.client.get("/gateway/admin/status", adminToken)
	require.Equal(t, http.StatusOK, a.status, a)
	require.Contains(t, string(a.body), `"node-3"`)
	for _, path := range []string{"/v1/decide", "/v1/traefik", "/metrics", "/v1/logins"} {
		require.Equal(t, http.StatusNotFound, s.client.get(path, adminToken).status, "%s is not reachable from outside", path)
	}
	require.NotContains(t, strings.ToLower(string(a.body)), "secret")
}
