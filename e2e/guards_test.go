package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGuards runs every scenario on the embedded file, with one gateway, and on PostgreSQL
// and Redis, with two.
func TestGuards(t *testing.T) {
	scenarios := []struct {
		name string
		run  func(*testing.T, *guarded)
	}{
		{"every guard", everyGuard},
		{"maintenance information", maintenanceInformation},
		{"JSON web tokens", jsonWebTokens},
		{"logout", logoutEndsTheToken},
		{"kick-out", kickOut},
		{"signed requests", signedRequests},
		{"nonces", nonceIsGoodOnce},
		{"rotation of a secret", secretIsRotated},
		{"roles", rolesDecide},
		{"grey release", greyRelease},
		{"methods", methodsOfAnInterface},
		{"forged headers", forgedIdentities},
		{"explanations", explanationsOfGuards},
	}
	in := func(t *testing.T, g *guarded) {
		for _, scenario := range scenarios {
			t.Run(scenario.name, func(t *testing.T) {
				g.clear(t)
				scenario.run(t, g)
			})
		}
	}
	t.Run("sqlite", func(t *testing.T) { in(t, startGuarded(t, &guarded{}, 1, "")) })
	t.Run("postgres and redis", func(t *testing.T) { in(t, guardedProduction(t, "")) })
}

// guardCase is one guard with a policy, what that refuses, and what it lets pass.
type guardCase struct {
	name, guard, kind string
	failure           string // what the guard does when it cannot check
	policy, relaxed   map[string]any
	allowed           []call
	refused           call
	spend             bool // the first call of this kind is let pass
	want              refusal
	header, value     string // of the refusal; empty value: any
	broken            string // a body that cannot be used
}

func guardCases(end time.Time, ann string) []guardCase {
	ai := []string{"ai"}
	return []guardCase{
		{
			name: "maintenance", guard: "maintenance", kind: "maintenance", failure: "open",
			policy: map[string]any{
				"services": ai, "paths": []string{"/js/a/shop/**"}, "end": end,
				"message": map[string]string{"zh": "商城升级中", "en": "The shop is being upgraded."}, "testers": map[string]any{"users": []string{userID("ann")}},
			},
			relaxed: map[string]any{"services": ai, "paths": []string{"/js/a/shop/**"}, "testers": map[string]any{"addresses": []string{"127.0.0.0/8"}}},
			allowed: []call{{path: "/js/a/whoami"}, {path: "/js/a/shop/1", token: ann}, {path: "/other/shop/1"}},
			refused: call{path: "/js/a/shop/1"},
			want:    refusal{"MAINTENANCE", http.StatusServiceUnavailable, 50300, "商城升级中", "The shop is being upgraded."}, header: "Retry-After",
			broken: `{"services":["ai"],"paths":["?"]}`,
		},
		{
			name: "identity", guard: "identity", kind: "identity", failure: "open",
			policy:  map[string]any{"services": ai, "mode": "token", "public": []string{"/js/a/public/**"}},
			relaxed: map[string]any{"services": ai, "mode": "passthrough"},
			allowed: []call{{path: "/js/a/public/x"}, {path: "/js/a/private", token: ann}, {path: "/other/private"}, {method: http.MethodOptions, path: "/js/a/private"}},
			refused: call{path: "/js/a/private"},
			want:    refusal{"UNAUTHENTICATED", http.StatusUnauthorized, 40100, "未登录或登录已过期", "Not logged in, or the login has expired."},
			broken:  `{"services":["ai"],"mode":"none"}`,
		},
		{
			name: "signature", guard: "signature", kind: "signature", failure: "closed",
			policy:  map[string]any{"services": ai, "paths": []string{"/js/a/open/**"}},
			relaxed: map[string]any{"services": ai, "paths": []string{"/js/a/elsewhere"}},
			allowed: []call{{path: "/js/a/whoami"}, {path: "/other/open/1"}, {method: http.MethodOptions, path: "/js/a/open/1"}},
			refused: call{path: "/js/a/open/1?a=1"},
			want:    refusal{"SIGNATURE_MISSING", http.StatusUnauthorized, 40110, "缺少签名参数", "The request is not signed, or a parameter of the signature is missing."},
			broken:  `{"services":["ai"],"paths":[]}`,
		},
		{
			name: "rate limit", guard: "rate-limit", kind: "rate-limit", failure: "open", spend: true,
			policy:  map[string]any{"services": ai, "method": "GET", "path": "/js/a/orders/{id}", "rate": 1, "per": "1h"},
			relaxed: map[string]any{"services": ai, "method": "GET", "path": "/js/a/orders/{id}", "rate": 1_000_000},
			allowed: []call{{path: "/js/a/orders"}, {method: http.MethodPost, path: "/js/a/orders/7"}, {path: "/other/orders/7"}},
			refused: call{path: "/js/a/orders/7"},
			want:    refusal{"RATE_LIMITED", http.StatusTooManyRequests, 42900, "请求过于频繁，请稍后重试", "Too many requests. Please try again later."}, header: "Retry-After",
			broken: `{"services":["ai"],"path":"/js/a/x","rate":-1}`,
		},
		{
			name: "method", guard: "access", kind: "access", failure: "closed",
			policy:  map[string]any{"services": ai, "type": "method", "path": "/js/a/list", "methods": []string{"GET", "HEAD"}},
			relaxed: map[string]any{"services": ai, "type": "method", "path": "/js/a/list", "methods": []string{"GET", "DELETE"}},
			allowed: []call{{path: "/js/a/list"}, {method: http.MethodDelete, path: "/js/a/list/1"}, {method: http.MethodDelete, path: "/other/list"}},
			refused: call{method: http.MethodDelete, path: "/js/a/list"},
			want:    refusal{"METHOD_NOT_ALLOWED", http.StatusMethodNotAllowed, 40500, "不支持的请求方法", "The interface does not have this method."}, header: "Allow", value: "GET, HEAD",
			broken: `{"services":["ai"],"type":"method","path":"/js/a/list"}`,
		},
		{
			name: "grey", guard: "access", kind: "access", failure: "closed",
			policy:  map[string]any{"services": ai, "type": "grey", "path": "/js/a/new/**", "users": []string{userID("ann")}},
			relaxed: map[string]any{"services": ai, "type": "grey", "path": "/js/a/new/**", "percent": 100},
			allowed: []call{{path: "/js/a/new/1", token: ann}, {path: "/js/a/old"}, {path: "/other/new/1"}},
			refused: call{path: "/js/a/new/1"},
			want:    refusal{"NOT_FOUND", http.StatusNotFound, 40400, "不存在", "Not found."},
			broken:  `{"services":["ai"],"type":"grey","path":"/js/a/new/**","percent":101}`,
		},
		{
			name: "rbac", guard: "access", kind: "access", failure: "closed",
			policy:  map[string]any{"services": ai, "type": "rbac", "path": "/js/a/admin/**", "roles": []string{"operator"}},
			relaxed: map[string]any{"services": ai, "type": "rbac", "path": "/js/a/admin/**", "roles": []string{"operator", "reader"}},
			allowed: []call{{path: "/js/a/whoami"}, {path: "/other/admin/1"}},
			refused: call{path: "/js/a/admin/1", token: ann},
			want:    refusal{"FORBIDDEN", http.StatusForbidden, 40300, "没有权限", "Not permitted."},
			broken:  `{"services":["ai"],"type":"rbac","path":"/js/a/admin/**"}`,
		},
	}
}

// Every guard lets pass and refuses as its policy says, on every instance, and follows a
// change of it at once where it is made and soon elsewhere.
func everyGuard(t *testing.T, g *guarded) {
	g.set(t, 0, "answers", "ai", answersPolicy)
	ann := g.signIn(t, 0, "/js/a", "ann")
	g.services[0].administer(t, http.MethodPut, "/roles/ai/"+userID("ann"), map[string]any{"roles": []string{"reader"}})
	last := g.last()
	for _, c := range guardCases(time.Now().Add(time.Hour).UTC().Truncate(time.Second), ann) {
		t.Run(c.name, func(t *testing.T) {
			refused, reason := c.refused, c.want.reason
			g.set(t, 0, c.kind, "case", c.policy)
			if c.spend {
				g.pass(t, 0, refused)
			}
			g.refusedWith(t, 0, reason, refused)
			took := []time.Duration{g.within(t, last, refused, reason)}
			for via := range g.clients {
				for _, allowed := range c.allowed {
					g.pass(t, via, allowed)
				}
				a := g.refused(t, via, refused, c.want)
				if c.header != "" {
					require.NotEmpty(t, a.header.Get(c.header))
				}
				if c.value != "" {
					require.Equal(t, c.value, a.header.Get(c.header))
				}
			}

			g.set(t, last, c.kind, "case", c.relaxed)
			g.pass(t, last, refused)
			took = append(took, g.within(t, 0, refused, ""))
			t.Logf("in force on the other instance after %s", took)

			if g.postgres != nil {
				g.set(t, 0, c.kind, "case", c.policy)
				g.settle(t)
				if c.spend {
					g.within(t, 0, refused, reason)
				}
				guardWithBrokenPolicies(t, g, c)
			}
			g.remove(t, c.kind, "case")
		})
	}
}

// guardWithBrokenPolicies writes policies that cannot be used at the SQL prompt. Policy
// case is in force.
func guardWithBrokenPolicies(t *testing.T, g *guarded, c guardCase) {
	t.Helper()
	problem := func(b *bindsvc, id string) map[string]any {
		for _, p := range b.administer(t, http.MethodGet, "/policies", nil).(map[string]any)["problems"].([]any) {
			if p := p.(map[string]any); p["kind"] == c.kind && p["id"] == id {
				return p
			}
		}
		return nil
	}
	isBroken := func(b *bindsvc) bool {
		for _, state := range b.administer(t, http.MethodGet, "/status", nil).(map[string]any)["guards"].([]any) {
			if state := state.(map[string]any); state["name"] == c.guard {
				return state["broken"].(bool)
			}
		}
		return false
	}
	shown := func(id string, lastGoodHolds bool) {
		t.Helper()
		for _, b := range g.services {
			var found map[string]any
			require.Eventually(t, func() bool { found = problem(b, id); return found != nil }, 10*time.Second, 10*time.Millisecond)
			require.Equal(t, lastGoodHolds, found["lastGoodHolds"], found)
			require.NotEmpty(t, found["error"])
			require.Equal(t, !lastGoodHolds, isBroken(b))
		}
	}

	sql(t, g.direct, fmt.Sprintf(`UPDATE gateway_policy SET body = '%s' WHERE kind = '%s' AND id = 'case'`, c.broken, c.kind))
	shown("case", true)
	for via := range g.clients {
		g.refusedWith(t, via, c.want.reason, c.refused)
		for _, allowed := range c.allowed {
			g.pass(t, via, allowed)
		}
	}

	g.remove(t, c.kind, "case")
	sql(t, g.direct, fmt.Sprintf(`INSERT INTO gateway_policy (kind, id, body) VALUES ('%s', 'never-good', '%s')`, c.kind, c.broken))
	shown("never-good", false)
	for via := range g.clients {
		g.pass(t, via, call{path: "/other/whoami"})
		if c.failure == "open" {
			g.pass(t, via, c.refused)
			continue
		}
		for _, path := range []string{c.refused.path, "/js/a/whoami"} {
			g.refused(t, via, call{path: path}, refusal{
				"POLICY_INVALID", http.StatusServiceUnavailable, 50301, "网关策略配置有误，请联系管理员", "A policy of the gateway cannot be used. Please contact the administrator.",
			})
		}
	}
	// A policy that can be used puts an end to it, and so does the deletion.
	g.set(t, 0, c.kind, "never-good", c.policy)
	g.settle(t)
	g.within(t, 1, c.refused, c.want.reason)
	g.remove(t, c.kind, "never-good")
	g.set(t, 0, c.kind, "case", c.relaxed)
	g.settle(t)
}

// What a client is told of a maintenance.
func maintenanceInformation(t *testing.T, g *guarded) {
	end := time.Now().Add(90 * time.Minute).UTC().Truncate(time.Second)
	g.set(t, 0, "maintenance", "all", map[string]any{"end": end, "testers": map[string]any{"users": []string{"tess"}}})
	for _, path := range []string{"/js/a/whoami", "/other/whoami"} {
		a := g.refusedWith(t, 0, "MAINTENANCE", call{path: path})
		var body refusalBody
		unmarshal(t, a.body, &body)
		require.NotNil(t, body.Data.Maintenance)
		require.Equal(t, body.Message, body.Data.Maintenance.Message)
		require.True(t, end.Equal(body.Data.Maintenance.End))
		var seconds int
		_, err := fmt.Sscan(a.header.Get("Retry-After"), &seconds)
		require.NoError(t, err)
		require.InDelta(t, time.Until(end).Seconds(), seconds, 30)
	}
	login := func(name string) call {
		return call{method: http.MethodPost, path: "/js/a/sys/login", body: fmt.Appendf(nil, `{"username":%q}`, name)}
	}
	g.refusedWith(t, 0, "MAINTENANCE", login("ann"))
	g.pass(t, 0, login("Tess"))
	g.set(t, 0, "guards", "maintenance", map[string]any{"enabled": false})
	g.pass(t, 0, call{path: "/js/a/whoami"})
	g.set(t, 0, "guards", "maintenance", map[string]any{"shadow": true})
	g.pass(t, 0, call{path: "/js/a/whoami"})
}

// While a store is down each guard does what it declares, and nobody waits long.
func TestGuardsWhileTheirStoreIsDown(t *testing.T) {
	g := guardedProduction(t, "")
	ai := []string{"ai"}
	ann, bob := g.signIn(t, 0, "/js/a", "ann"), g.signIn(t, 0, "/js/a", "bob")
	for _, name := range []string{"ann", "bob"} {
		g.services[0].administer(t, http.MethodPut, "/roles/ai/"+userID(name), map[string]any{"roles": []string{"operator"}})
	}
	secret := strings.Repeat("s", 32)
	g.set(t, 0, "apps", "partner", map[string]any{"services": ai, "secrets": []map[string]any{{"value": secret}}})
	g.set(t, 0, "signature", "once", map[string]any{"services": ai, "paths": []string{"/js/a/once/**"}, "nonce": true})
	g.set(t, 0, "signature", "often", map[string]any{"services": ai, "paths": []string{"/js/a/often/**"}})
	g.set(t, 0, "rate-limit", "one", map[string]any{"services": ai, "path": "/js/a/one", "rate": 1, "per": "1h"})
	g.set(t, 0, "access", "admin", map[string]any{"services": ai, "type": "rbac", "path": "/js/a/admin", "roles": []string{"operator"}})
	g.set(t, 0, "access", "read", map[string]any{"services": ai, "type": "method", "path": "/js/a/read", "methods": []string{"GET"}})
	g.set(t, 0, "maintenance", "shop", map[string]any{"services": ai, "paths": []string{"/js/a/shop"}})
	g.set(t, 0, "identity", "ai", map[string]any{"services": ai, "mode": "token", "public": []string{"/js/a/one", "/js/a/shop", "/js/a/read"}})
	signed := func(path, nonce string) call {
		return call{path: path + "?" + signQuery(t, secret, pairs{{"client-id", "partner"}, {"timestamp", fmt.Sprint(time.Now().Unix())}, {"nonce", nonce}})}
	}
	g.settle(t)
	for via := range g.clients { // both know both users, and ann's roles
		g.pass(t, via, call{path: "/js/a/whoami", token: ann})
		g.pass(t, via, call{path: "/js/a/whoami", token: bob})
		g.pass(t, via, call{path: "/js/a/admin", token: ann})
	}
	g.pass(t, 0, call{path: "/js/a/one"})
	g.refusedWith(t, 1, "RATE_LIMITED", call{path: "/js/a/one"})
	g.pass(t, 0, signed("/js/a/once/x", "first"))
	gone := g.signIn(t, 0, "/js/a", "ann")
	g.pass(t, 0, call{path: "/js/a/sys/logout", token: gone})

	nonce := 0
	whatNoStoreIsAskedFor := func(t *testing.T, via int) {
		t.Helper()
		g.refusedWith(t, via, "MAINTENANCE", call{path: "/js/a/shop"})
		g.refusedWith(t, via, "UNAUTHENTICATED", call{path: "/js/a/whoami"})
		g.refusedWith(t, via, "METHOD_NOT_ALLOWED", call{method: http.MethodPost, path: "/js/a/read"})
		g.refusedWith(t, via, "SIGNATURE_MISSING", call{path: "/js/a/often/x"})
		g.pass(t, via, signed("/js/a/often/x", ""))
	}
	withoutRedis := func(t *testing.T) {
		t.Helper()
		for via := range g.clients {
			whatNoStoreIsAskedFor(t, via)
			g.pass(t, via, call{path: "/js/a/whoami", token: ann}) // the blacklist: open
			for range 3 {
				g.pass(t, via, call{path: "/js/a/one"}) // the limiter: open
			}
			nonce++
			a := g.refusedWith(t, via, "STORE_UNAVAILABLE", signed("/js/a/once/x", fmt.Sprint("n", nonce))) // nonces: closed
			require.Equal(t, http.StatusServiceUnavailable, a.status)
			require.Equal(t, "1", a.header.Get("Retry-After"))
			g.pass(t, via, call{path: "/js/a/admin", token: ann})
			g.pass(t, via, call{path: "/other/whoami"})
		}
	}
	withRedis := func(t *testing.T) {
		t.Helper()
		var fresh call
		for via := range g.clients {
			require.Eventually(t, func() bool {
				nonce++
				fresh = signed("/js/a/once/x", fmt.Sprint("n", nonce))
				a, _ := g.send(t, via, fresh)
				return a.status == http.StatusOK
			}, 15*time.Second, 20*time.Millisecond)
		}
		for via := range g.clients {
			g.refusedWith(t, via, "SIGNATURE_REPLAYED", fresh)
			g.within(t, via, call{path: "/js/a/one"}, "RATE_LIMITED")
			g.within(t, via, call{path: "/js/a/whoami", token: gone}, "UNAUTHENTICATED")
		}
	}
	t.Run("Redis is down", func(t *testing.T) {
		g.redis.Cut()
		withoutRedis(t)
		g.redis.Restore()
		withRedis(t)
	})
	t.Run("logins and logouts while Redis is down", func(t *testing.T) {
		leaving := g.signIn(t, 0, "/js/a", "ann")
		g.redis.Cut()
		homes := map[string]string{}
		for i := range 4 { // not all of them where users without a binding go
			name := fmt.Sprint("new-", i)
			token, home := g.signInAt(t, i%2, "/js/a", name)
			homes[name] = home
			require.Equal(t, home, g.pass(t, i%2, call{path: "/js/a/whoami", token: token}).node, "where the login took place")
		}
		g.pass(t, 0, call{path: "/js/a/sys/logout", token: leaving})
		status, refused := g.services[0].call(t, http.MethodPost, g.services[0].admin+"/gateway/admin/sessions/kick-out", adminToken, map[string]any{"serviceId": "ai", "userId": userID("bob")})
		require.Equal(t, http.StatusServiceUnavailable, status, refused)
		bound := g.services[0].routes(t)
		for name, home := range homes {
			require.Equal(t, home, bound[name], name)
		}
		// Policies are told of by the durable store too.
		g.set(t, 0, "access", "write", map[string]any{"services": ai, "type": "method", "path": "/js/a/write", "methods": []string{"POST"}})
		g.refusedWith(t, 0, "METHOD_NOT_ALLOWED", call{path: "/js/a/write", token: ann})
		t.Logf("in force on the other instance after %s, without Redis", g.within(t, 1, call{path: "/js/a/write", token: ann}, "METHOD_NOT_ALLOWED"))
		g.redis.Restore()
		withRedis(t)
		for via := range g.clients { // the plugin has kept it
			require.Eventually(t, func() bool {
				a, _ := g.send(t, via, call{path: "/js/a/whoami", token: leaving})
				return a.reason() == "UNAUTHENTICATED"
			}, 15*time.Second, 50*time.Millisecond)
		}
		g.pass(t, 0, call{path: "/js/a/whoami", token: bob})
	})
	t.Run("Redis hangs", func(t *testing.T) {
		end := hang(g.redis)
		withoutRedis(t)
		end()
		withRedis(t)
	})
	t.Run("the blacklist fails closed where a policy says so", func(t *testing.T) {
		g.set(t, 0, "identity", "ai", map[string]any{"services": ai, "mode": "token", "blacklistFailure": "closed", "public": []string{"/js/a/one", "/js/a/shop", "/js/a/read"}})
		g.settle(t)
		g.redis.Cut()
		for via := range g.clients {
			a := g.refusedWith(t, via, "STORE_UNAVAILABLE", call{path: "/js/a/whoami", token: ann})
			require.Equal(t, http.StatusServiceUnavailable, a.status)
			whatNoStoreIsAskedFor(t, via)
			g.pass(t, via, call{path: "/js/a/one"})
		}
		g.redis.Restore()
		withRedis(t)
		g.pass(t, 0, call{path: "/js/a/whoami", token: ann})
	})
	withoutSQL := func(t *testing.T) {
		t.Helper()
		for via := range g.clients {
			whatNoStoreIsAskedFor(t, via)
			g.pass(t, via, call{path: "/js/a/admin", token: ann})                             // roles that are known
			g.refusedWith(t, via, "STORE_UNAVAILABLE", call{path: "/js/a/admin", token: bob}) // roles that are not: closed
			g.pass(t, via, call{path: "/js/a/whoami", token: bob})
			g.refusedWith(t, via, "RATE_LIMITED", call{path: "/js/a/one"})
			g.refusedWith(t, via, "UNAUTHENTICATED", call{path: "/js/a/whoami", token: gone})
		}
	}
	withSQL := func(t *testing.T) {
		t.Helper()
		for via := range g.clients {
			require.Eventually(t, func() bool {
				a, _ := g.send(t, via, call{path: "/js/a/admin", token: ann})
				return a.status == http.StatusOK
			}, 15*time.Second, 50*time.Millisecond)
		}
	}
	t.Run("SQL hangs", func(t *testing.T) {
		end := hang(g.postgres)
		withoutSQL(t)
		end()
		withSQL(t)
	})
	t.Run("SQL is down", func(t *testing.T) {
		g.postgres.Cut()
		withoutSQL(t)
		status, refused := g.services[0].call(t, http.MethodPut, g.services[0].admin+"/gateway/admin/policies/access/admin", adminToken, map[string]any{"services": ai, "type": "rbac", "path": "/js/a/admin", "roles": []string{"root"}})
		require.Equal(t, http.StatusServiceUnavailable, status, "not a switch: %v", refused)
		g.pass(t, 0, call{path: "/js/a/admin", token: ann})
		g.redis.Cut() // and everything else
		for via := range g.clients {
			whatNoStoreIsAskedFor(t, via)
		}
		g.redis.Restore()
		g.postgres.Restore()
		withSQL(t)
		g.pass(t, 0, call{path: "/js/a/admin", token: bob})
	})
	g.silent(t, secret, ann, bob, gone)
}
