package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Roles decide, whatever the spelling of the path, and a change of them counts everywhere.
func rolesDecide(t *testing.T, g *guarded) {
	g.set(t, 0, "answers", "ai", answersPolicy)
	g.set(t, 0, "access", "admin", map[string]any{"services": []string{"ai"}, "type": "rbac", "path": "/js/a/admin/**", "roles": []string{"operator", "root"}})
	g.set(t, 0, "access", "write", map[string]any{"services": []string{"ai"}, "type": "rbac", "path": "/js/a/admin/{id}", "method": "DELETE", "roles": []string{"root"}})
	ann, bob := g.signIn(t, 0, "/js/a", "ann"), g.signIn(t, 0, "/js/a", "bob")
	roles := func(via int, user string, roles ...string) {
		t.Helper()
		g.services[via].administer(t, http.MethodPut, "/roles/ai/"+userID(user), map[string]any{"roles": append([]string{}, roles...)})
	}
	last := g.last()
	g.settle(t)
	forbidden := refusal{"FORBIDDEN", http.StatusForbidden, 40300, "没有权限", "Not permitted."}
	admin, remove := call{path: "/js/a/admin/7", token: ann}, call{method: http.MethodDelete, path: "/js/a/admin/7", token: ann}

	for via := range g.clients { // both have asked: none
		g.refused(t, via, admin, forbidden)
		g.refused(t, via, call{path: "/js/a/admin/7"}, notLoggedIn)
		g.refusedWith(t, via, "UNAUTHENTICATED", call{path: "/js/a/admin/7", token: "nobody's"})
		g.pass(t, via, call{method: http.MethodOptions, path: "/js/a/admin/7"})
	}
	roles(0, "ann", "operator")
	took := []time.Duration{g.within(t, 0, admin, ""), g.within(t, last, admin, "")}
	for via := range g.clients {
		g.refusedWith(t, via, "FORBIDDEN", remove)
		g.refusedWith(t, via, "FORBIDDEN", call{path: "/js/a/admin/7", token: bob})
		for _, spelled := range []string{
			"/js/a/admin", "/js/a/admin/", "/js/a//admin/7", "/js/a/./admin/7", "/js/a/x/../admin/7", "/js/a/%61dmin/7", "/js/a/admin;v=1/7", "/js/a/admin/7;jsessionid=1",
			"/js/a/x/%2e%2e/admin/7", "/js/a/admin/7?x=/js/a/whoami",
		} {
			g.refusedWith(t, via, "FORBIDDEN", call{path: spelled, token: bob})
		}
		g.refusedWith(t, via, "VALIDATION", call{path: "/js/a/x/..;/admin/7", token: bob})
	}
	roles(last, "ann", "reader", "root")
	g.within(t, last, remove, "")
	took = append(took, g.within(t, 0, remove, ""))
	roles(0, "ann")
	g.within(t, 0, admin, "FORBIDDEN")
	took = append(took, g.within(t, last, admin, "FORBIDDEN"))
	t.Logf("roles are known after %s", took)
	if g.postgres != nil {
		sql(t, g.direct, fmt.Sprintf(`INSERT INTO gateway_user_role (service_id, user_id, role) VALUES ('ai', '%s', 'root')`, userID("bob")))
		for via := range g.clients {
			g.within(t, via, call{path: "/js/a/admin/7", token: bob}, "")
		}
	}
}

// A grey release: the same users on every gateway, who keep it while it grows.
func greyRelease(t *testing.T, g *guarded) {
	const users = 40
	var tokens []string
	for i := range users {
		tokens = append(tokens, g.signIn(t, 0, "/js/a", fmt.Sprint("user-", i)))
	}
	has := func(via, i int) bool {
		a, got := g.send(t, via, call{path: "/js/a/new/x", token: tokens[i]})
		if got == nil {
			require.Equal(t, "NOT_FOUND", a.reason(), a)
		}
		return got != nil
	}
	before := map[int]bool{}
	var counts []int
	for _, percent := range []float64{0, 10, 50, 90, 100} {
		g.set(t, 0, "access", "new", map[string]any{"services": []string{"ai"}, "type": "grey", "path": "/js/a/new/**", "percent": percent, "users": []string{userID("user-0")}})
		g.settle(t)
		now := map[int]bool{}
		for i := range users {
			now[i] = has(0, i)
			require.Equal(t, now[i], has(g.last(), i), "the same on every gateway")
			require.False(t, before[i] && !now[i], "nobody loses it while it grows")
		}
		require.True(t, now[0], "by name")
		a, got := g.send(t, 0, call{path: "/js/a/new/x"})
		require.Equal(t, percent == 100, got != nil, "whoever is not known: %s", a)
		count := 0
		for _, in := range now {
			if in {
				count++
			}
		}
		counts, before = append(counts, count), now
	}
	require.Equal(t, 1, counts[0])
	require.Equal(t, users, counts[4])
	require.Greater(t, counts[2], counts[0])
	require.Less(t, counts[2], users)
	t.Logf("of %d users %v have it", users, counts)
}

// The methods of an interface.
func methodsOfAnInterface(t *testing.T, g *guarded) {
	g.set(t, 0, "access", "list", map[string]any{"services": []string{"ai"}, "type": "method", "path": "/js/a/list", "methods": []string{"GET", "HEAD", "OPTIONS"}})
	g.set(t, 0, "access", "one", map[string]any{"services": []string{"ai"}, "type": "method", "path": "/js/a/list/{id}", "methods": []string{"DELETE"}})
	g.settle(t)
	for via := range g.clients {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			g.pass(t, via, call{method: method, path: "/js/a/list"})
		}
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "TRACE", "PURGE", "get"} {
			a := g.refusedWith(t, via, "METHOD_NOT_ALLOWED", call{method: method, path: "/js/a/list"})
			require.Equal(t, http.StatusMethodNotAllowed, a.status)
			require.Equal(t, "GET, HEAD, OPTIONS", a.header.Get("Allow"))
		}
		g.pass(t, via, call{method: "DELETE", path: "/js/a/list/7"})
		require.Equal(t, "DELETE", g.refusedWith(t, via, "METHOD_NOT_ALLOWED", call{path: "/js/a/list/7"}).header.Get("Allow"))
		g.refusedWith(t, via, "METHOD_NOT_ALLOWED", call{method: "POST", path: "/js/a//list/"}.with("X-Http-Method-Override", "GET"))
	}
}
