package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/testenv"
)

func TestANodeGoesDownAndComesBack(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		users := s.usersByNode(t, 4)
		broken := s.nodes[0]
		broken.stop()

		// Between the crash and the third failed probe Traefik itself finds the node
		// unreachable; at no time is another node tried.
		require.Eventually(t, func() bool {
			a := s.client.get("/js/a/whoami", tokenOf(users[broken.name][0]))
			require.Empty(t, a.node(), "another node was tried: %s", a)
			require.Contains(t, []int{http.StatusBadGateway, http.StatusServiceUnavailable}, a.status, a)
			require.Contains(t, []string{"NODE_UNREACHABLE", "DEGRADED", "NODE_DOWN"}, a.reason(), a)
			return a.reason() == "NODE_DOWN"
		}, 10*time.Second, 20*time.Millisecond)
		for home, names := range users {
			for _, name := range names {
				a, login := s.client.get("/js/a/whoami", tokenOf(name)), s.client.login(name)
				if home == broken.name {
					for _, refused := range []answer{a, login} {
						require.Equal(t, http.StatusServiceUnavailable, refused.status)
						require.Equal(t, "NODE_DOWN", refused.reason())
						require.NotEmpty(t, refused.header.Get("Retry-After"))
						require.Empty(t, refused.node())
					}
				} else {
					require.Equal(t, home, a.node())
					require.Equal(t, home, login.node())
				}
			}
		}
		for i := range 6 {
			require.NotEqual(t, broken.name, loginOK(t, s.client, fmt.Sprintf("new-%d", i)), "new users are placed on healthy nodes")
			require.NotEqual(t, broken.name, s.client.get("/js/a/whoami", "").node())
		}

		broken.up(t)
		require.Eventually(t, func() bool {
			return s.client.get("/js/a/whoami", tokenOf(users[broken.name][0])).node() == broken.name
		}, 15*time.Second, 20*time.Millisecond)
		require.Eventually(t, func() bool {
			for home, names := range users {
				for _, name := range names {
					if a := s.client.get("/js/a/whoami", tokenOf(name)); a.node() != home {
						require.Empty(t, a.node(), "never another node")
						return false
					}
				}
			}
			return true
		}, 15*time.Second, 50*time.Millisecond, "everybody is home again")
	})
}

func TestAllNodesDown(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	for _, n := range s.nodes {
		n.down.Store(true)
	}
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", "").reason() == "NO_HEALTHY_NODE" }, 10*time.Second, 20*time.Millisecond)
	require.Equal(t, "NO_HEALTHY_NODE", s.client.login("ann").reason())
}

func TestADisabledNode(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	home := loginOK(t, s.client, "ann")
	s.binding.administer(t, http.MethodPut, "/nodes/"+home, map[string]any{"enabled": false})
	a := s.client.get("/js/a/whoami", tokenOf("ann"))
	require.Equal(t, "NODE_DISABLED", a.reason(), a)
	for range 6 {
		require.NotEqual(t, home, s.client.get("/js/a/whoami", "").node())
	}
	s.binding.administer(t, http.MethodPut, "/nodes/"+home, map[string]any{"enabled": true})
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", tokenOf("ann")).node() == home }, 15*time.Second, 50*time.Millisecond)
}

// proxied puts PostgreSQL and Redis behind proxies that a scenario can cut.
func proxied(t *testing.T) (in stores, postgres, redis *testenv.Proxy) {
	t.Helper()
	postgres, err := testenv.NewProxy(programs.postgres.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = postgres.Close() })
	redis, err = testenv.NewProxy(programs.redis.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = redis.Close() })
	return stores{postgres: newDatabase(t, postgres.Addr()), redis: redis.Addr(), database: nextRedisDatabase(t)}, postgres, redis
}

func TestRedisCannotBeAsked(t *testing.T) {
	in, _, redis := proxied(t)
	s := startStack(t, in, settings{})
	home := loginOK(t, s.client, "ann")
	// sa-token knows this token, this service has not seen it yet.
	redisDo(t, programs.redis.Addr(), in.database, "SET x-token:login:token:unseen "+userID("ann"))
	redis.Cut()

	for range 5 {
		a := s.client.get("/js/a/whoami", "unseen")
		require.Equal(t, http.StatusServiceUnavailable, a.status, a)
		require.Equal(t, "STORE_UNAVAILABLE", a.reason())
		require.Empty(t, a.node(), "not an anonymous hop")
		require.Equal(t, home, s.client.get("/js/a/whoami", tokenOf("ann")).node(), "a known token goes on")
		require.Equal(t, http.StatusOK, s.client.get("/js/a/whoami", "").status, "anonymous requests go on")
	}
	bob := loginOK(t, s.client, "bob")
	require.Equal(t, bob, s.client.get("/js/a/whoami", tokenOf("bob")).node(), "a login works, and its token")
	require.Equal(t, bob, s.binding.routes(t)["bob"])
	require.Equal(t, home, loginOK(t, s.client, "ann"))

	redis.Restore()
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", "unseen").node() == home }, 10*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		return redisDo(t, programs.redis.Addr(), in.database, "EXISTS gateway:token:ai:"+tokenOf("bob")) != ":0\r\n+OK\r\n"
	}, 10*time.Second, 50*time.Millisecond, "the other instances learn bob's token")
	unknown := s.client.get("/js/a/whoami", "nobody's")
	require.Equal(t, http.StatusOK, unknown.status, "the stores answered: anonymous, the node says 401")
}

func TestAWrongTypeInRedisIsNotUnknown(t *testing.T) {
	in := production(t)
	s := startStack(t, in, settings{})
	redisDo(t, in.redis, in.database, "LPUSH gateway:token:ai:odd 1")
	a := s.client.get("/js/a/whoami", "odd")
	require.Equal(t, "STORE_UNAVAILABLE", a.reason(), a)
}

func TestSQLCannotBeAsked(t *testing.T) {
	in, postgres, _ := proxied(t)
	s := startStack(t, in, settings{})
	home := loginOK(t, s.client, "ann")
	require.Equal(t, home, s.client.get("/js/a/whoami", tokenOf("ann")).node())
	require.Equal(t, home, loginOK(t, s.client, "ann")) // its name is in a cache now
	redisDo(t, in.redis, in.database, "SET x-token:login:token:other 77")
	postgres.Cut()

	for range 5 {
		require.Equal(t, home, s.client.get("/js/a/whoami", tokenOf("ann")).node(), "cached bindings go on")
		require.Equal(t, home, loginOK(t, s.client, "ann"), "a name that a cache knows")
		refused := s.client.login("bob")
		require.Equal(t, "STORE_UNAVAILABLE", refused.reason(), "it may be bound elsewhere: %s", refused)
		require.Equal(t, "STORE_UNAVAILABLE", s.client.get("/js/a/whoami", "other").reason())
		require.Equal(t, http.StatusOK, s.client.get("/js/a/whoami", "").status, "anonymous requests go on")
	}
	postgres.Restore()
	require.Eventually(t, func() bool { return s.client.login("bob").status == http.StatusOK }, 10*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", "other").reason() == "NO_BINDING" }, 10*time.Second, 50*time.Millisecond)
}

// A login that is at its node already when SQL goes away completes, and is bound
// when SQL is back.
func TestALoginOnItsWayWhileSQLGoesAway(t *testing.T) {
	in, postgres, _ := proxied(t)
	s := startStack(t, in, settings{})
	gate := make(chan struct{})
	arrived := make(chan string, 3)
	for _, n := range s.nodes {
		n.holdLogins(func() { arrived <- n.name; <-gate })
	}
	answered := make(chan answer, 1)
	go func() { answered <- s.client.login("ann") }()
	home := <-arrived
	postgres.Cut()
	close(gate)
	a := <-answered
	require.Equal(t, http.StatusOK, a.status, a)
	require.Equal(t, string(loginBody("ann")), string(a.body))
	refused := s.client.get("/js/a/whoami", tokenOf("ann"))
	require.Equal(t, http.StatusServiceUnavailable, refused.status, "not bound yet, and not anonymous: %s", refused)
	postgres.Restore()
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", tokenOf("ann")).node() == home }, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, home, s.binding.routes(t)["ann"])
}

func TestTheBindingServiceIsDown(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		home := loginOK(t, s.client, "ann")
		s.binding.Kill()

		seen := map[string]bool{}
		for range 12 {
			a := s.client.get("/js/a/whoami", "")
			require.Equal(t, http.StatusOK, a.status, a)
			seen[a.node()] = true
			for _, refused := range []answer{s.client.get("/js/a/whoami", tokenOf("ann")), s.client.login("ann"), s.client.login("new")} {
				require.Equal(t, http.StatusServiceUnavailable, refused.status)
				require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", refused.reason())
				require.Equal(t, "1", refused.header.Get("Retry-After"))
				require.Empty(t, refused.node())
			}
		}
		require.Len(t, seen, 3, "anonymous requests share Traefik's own pool")

		s.binding.start(t)
		s.binding.ready(t)
		require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", tokenOf("ann")).node() == home }, 15*time.Second, 50*time.Millisecond)
	})
}

// A binding service that hangs is not waited for by every request.
func TestTheBindingServiceHangs(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	home := loginOK(t, s.client, "ann")
	require.NoError(t, syscall.Kill(s.binding.Pid(), syscall.SIGSTOP))
	// The signal stops a process of many threads a moment after it was sent.
	require.Eventually(t, func() bool {
		return s.client.get("/js/a/whoami", tokenOf("ann")).reason() == "BINDING_SERVICE_UNAVAILABLE"
	}, 15*time.Second, 10*time.Millisecond)
	require.NoError(t, syscall.Kill(s.binding.Pid(), syscall.SIGCONT))
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", tokenOf("ann")).node() == home }, 15*time.Second, 50*time.Millisecond)
}

// SIGTERM under load: what has been asked is answered.
func TestShutdownDropsNoRequest(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	name := "ann"
	home := loginOK(t, s.client, name)
	var served, refused atomic.Int64
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			c := newClient(s.traefik.URL("web"))
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch a := c.get("/js/a/whoami", tokenOf(name)); {
				case a.status == http.StatusOK && a.node() == home:
					served.Add(1)
				case a.reason() == "BINDING_SERVICE_UNAVAILABLE": // not asked any more: refused, not dropped
					refused.Add(1)
				default:
					t.Errorf("during a shutdown: %s", a)
					return
				}
			}
		})
	}
	require.Eventually(t, func() bool { return served.Load() > 100 }, 20*time.Second, time.Millisecond)
	require.NoError(t, s.binding.Stop(20*time.Second), "SIGTERM ends with exit status 0")
	s.binding.start(t)
	s.binding.ready(t)
	before := served.Load()
	require.Eventually(t, func() bool { return served.Load() > before+100 }, 20*time.Second, time.Millisecond)
	close(stop)
	wait.Wait()
}

// What was acknowledged is there after a kill -9, in the embedded file too.
func TestKillLosesNothing(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		homes := map[string]string{}
		for round := range 5 {
			for i := range 5 {
				name := fmt.Sprintf("user-%d-%d", round, i)
				homes[name] = loginOK(t, s.client, name)
			}
			s.binding.Kill()
			s.binding.start(t)
			s.binding.ready(t)
			require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", tokenOf("user-0-0")).status == http.StatusOK }, 15*time.Second, 20*time.Millisecond)
			for name, home := range homes {
				require.Equal(t, home, s.client.get("/js/a/whoami", tokenOf(name)).node(), "%s, by token", name)
			}
		}
		for name, home := range homes {
			require.Equal(t, home, loginOK(t, s.client, name), "%s, by name", name)
		}
	})
}

func TestItStartsWhileTheStoresAreDown(t *testing.T) {
	in, postgres, redis := proxied(t)
	postgres.Cut()
	redis.Cut()
	b := startHomenodeUnready(t, in, []*node{startNode(t, "node-1")}, settings{})
	require.Eventually(t, func() bool { return statusOf(b.internal+"/healthz") == http.StatusOK }, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, statusOf(b.internal+"/readyz"))
	status, _ := b.call(t, http.MethodGet, b.internal+"/v1/traefik", secret, nil)
	require.Equal(t, http.StatusServiceUnavailable, status, "200 without routes would wipe Traefik's")
	postgres.Restore()
	redis.Restore()
	b.ready(t)
	status, _ = b.call(t, http.MethodGet, b.internal+"/v1/traefik", secret, nil)
	require.Equal(t, http.StatusOK, status)
}
