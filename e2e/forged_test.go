package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// folded is a header's name as the least careful backend reads it.
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
}

// trusted are the headers of a request that a node may trust, in every spelling.
func trusted(header http.Header) http.Header {
	found := http.Header{}
	for name, values := range header {
		f := folded(name)
		if strings.HasPrefix(f, "x-homenode-") || slices.ContainsFunc(guardedNames, func(guarded string) bool { return f == folded(guarded) }) {
			found[name] = values
		}
	}
	return found
}

// forgeries are what a client would like a node, a router or the gateway to believe.
var forgeries = map[string]string{
	"X-Gateway-Node": "node-2", "X-User-Id": "1", "X-Channel": "forged", "X-Source": "forged", "X-Binding-Epoch": "99",
	"X-Homenode-Pool": "ai", "X-Homenode-Service": "other", "X-Homenode-App": "partner", "X-Homenode-Client": "1", "X-Homenode-Fallback": "ai;core",
	"X-Homenode-Token": "tok-forged", "X-Homenode-Username": "bob", "X-Homenode-Need": "form", "X-Homenode-Have": "none", "X-Homenode-Query": "client-id=partner", "X-Homenode-Source": "app",
	"X-Homenode-Form": "too-large", "X-Homenode-Client-Status": "200", "X-Homenode-Anything": "1",
}

// forged adds every forgery in every spelling, or in one.
func (c call) forged(names ...string) call {
	return c.changed(func(r *http.Request) {
		for name, value := range forgeries {
			for _, spelling := range spellings(name) {
				if len(names) == 0 || slices.Contains(names, spelling) {
					r.Header[spelling] = []string{value, value}
				}
			}
		}
	})
}

func (c call) changed(change func(*http.Request)) call {
	before := c.change
	c.change = func(r *http.Request) {
		if before != nil {
			before(r)
		}
		change(r)
	}
	return c
}

// allPolicies puts every guard to work on service ai, and returns a user's JSON Web Token.
//
// Public are /js/a/public and what needs no user, signed /js/a/open, counted /js/a/limited,
// for operators /js/a/admin, hidden /js/a/new, for GET only /js/a/list, in maintenance /js/a/shop.
func allPolicies(t *testing.T, g *guarded) (token string) {
	t.Helper()
	hmac := []byte("a-secret-for-HS256-of-over-32-bytes")
	number := 0
	tokenFor := func(username string) string {
		number++
		return issue(t, jwt.SigningMethodHS256, "", hmac, claims(userID(username), map[string]any{"jti": fmt.Sprint(number)}))
	}
	for _, d := range g.desks {
		d.tokenFor.Store(&tokenFor)
	}
	ai := []string{"ai"}
	identity := jwtPolicy(map[string]any{"algorithms": []string{"HS256"}, "keys": []map[string]any{{"value": string(hmac)}}})
	identity["public"] = []string{"/js/a/public/**", "/js/a/shop/**", "/js/a/limited", "/js/a/new", "/js/a/list", "/js/a/admin"}
	answers := maps.Clone(answersPolicy)
	answers["messages"] = map[string]any{"FORBIDDEN": map[string]string{"zh": "请联系管理员", "en": "Ask the administrator."}}
	g.set(t, 0, "answers", "ai", answers)
	g.set(t, 0, "degradation", "ai", map[string]any{"services": ai, "core": []string{"^/js/a/pay/"}, "coreCode": 60001, "code": 60000})
	g.set(t, 0, "identity", "ai", identity)
	g.set(t, 0, "apps", "partner", map[string]any{"services": ai, "secrets": []map[string]any{{"value": partnerSecret}}})
	g.set(t, 0, "signature", "open", map[string]any{"services": ai, "paths": []string{"/js/a/open/**"}})
	g.set(t, 0, "rate-limit", "limited", map[string]any{"services": ai, "path": "/js/a/limited", "rate": 1, "per": "1h", "burst": 1})
	g.set(t, 0, "access", "admin", map[string]any{"services": ai, "type": "rbac", "path": "/js/a/admin", "roles": []string{"operator"}})
	g.set(t, 0, "access", "new", map[string]any{"services": ai, "type": "grey", "path": "/js/a/new", "users": []string{userID("ann")}})
	g.set(t, 0, "access", "list", map[string]any{"services": ai, "type": "method", "path": "/js/a/list", "methods": []string{"GET"}})
	g.set(t, 0, "maintenance", "shop", map[string]any{"services": ai, "paths": []string{"/js/a/shop/**"}, "testers": map[string]any{"users": []string{userID("ann")}}})
	for user, roles := range map[string][]string{"ann": {"operator"}, "bob": {}} {
		g.services[0].administer(t, http.MethodPut, "/roles/ai/"+userID(user), map[string]any{"roles": roles})
	}
	g.settle(t)
	return g.signIn(t, 0, "/js/a", "ann")
}

// partnerCall is a call that partner has signed.
func partnerCall(t *testing.T, path string) call {
	t.Helper()
	return call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, {"timestamp", fmt.Sprint(time.Now().Unix())}})}
}

// No header that a node may trust is ever the client's, whatever becomes of the request.
func forgedIdentities(t *testing.T, g *guarded) {
	ann := allPolicies(t, g)
	bob := g.signIn(t, 0, "/js/a", "bob")
	login := call{method: http.MethodPost, path: "/js/a/sys/login", body: []byte(`{"username":"ann"}`)}
	passing := map[string]call{
		"a user's":            {path: "/js/a/whoami", token: ann},
		"anonymous":           {path: "/js/a/public/x"},
		"a token nobody has":  {path: "/js/a/public/x", token: "nobody's"},
		"a preflight":         {method: http.MethodOptions, path: "/js/a/admin"},
		"a login":             login,
		"a login nobody's":    {method: http.MethodPost, path: "/js/a/sys/login", body: []byte(`{"username":""}`)},
		"signed":              partnerCall(t, "/js/a/open/x"),
		"signed with a user":  {path: partnerCall(t, "/js/a/open/x").path, token: ann},
		"of a client":         call{path: "/js/a/whoami", token: ann}.with("X-Client-Source", "app"),
		"of another service":  {path: "/other/whoami"},
		"an operator's":       {path: "/js/a/admin", token: ann},
		"a tester's":          {path: "/js/a/shop/x", token: ann},
		"a form to be signed": call{path: "/js/a/open/x"}.form(strings.SplitN(partnerCall(t, "/").path, "?", 2)[1]),
	}
	for name, c := range passing {
		t.Run(name, func(t *testing.T) {
			want := trusted(g.pass(t, 0, c).header)
			placed := want.Get("X-Binding-Epoch") == "" // wherever it is placed
			for via := range g.clients {
				got := g.pass(t, via, c.forged())
				headers := trusted(got.header)
				require.Equal(t, []string{got.node}, headers["X-Gateway-Node"])
				if placed {
					want["X-Gateway-Node"] = headers["X-Gateway-Node"]
				}
				require.Equal(t, want, headers)
			}
		})
	}
	t.Run("one spelling after the other", func(t *testing.T) {
		want := trusted(g.pass(t, 0, passing["a user's"]).header)
		require.Equal(t, []string{userID("ann")}, want["X-User-Id"])
		require.Equal(t, []string{"wechat"}, want["X-Channel"])
		require.Equal(t, []string{"mini-program"}, want["X-Source"])
		for name := range forgeries {
			for _, spelling := range spellings(name) {
				require.Equal(t, want, trusted(g.pass(t, 0, passing["a user's"].forged(spelling)).header), spelling)
			}
		}
	})
	t.Run("a logout", func(t *testing.T) {
		token := g.signIn(t, 0, "/js/a", "ann")
		got := g.pass(t, 0, call{path: "/js/a/sys/logout", token: token}.forged())
		require.Equal(t, []string{userID("ann")}, got.header.Values("X-User-Id"))
		require.Empty(t, slices.DeleteFunc(slices.Collect(maps.Keys(trusted(got.header))), func(name string) bool {
			return slices.Contains([]string{"X-Gateway-Node", "X-User-Id", "X-Channel", "X-Source", "X-Binding-Epoch", "X-Homenode-Fallback"}, name)
		}))
		g.refusedWith(t, 0, "UNAUTHENTICATED", call{path: "/js/a/whoami", token: token}.forged())
	})

	g.pass(t, 0, call{path: "/js/a/limited"}.forged())
	for reason, c := range map[string]call{
		"MAINTENANCE":        {path: "/js/a/shop/x"},
		"SIGNATURE_MISSING":  {path: "/js/a/open/x"},
		"SIGNATURE_INVALID":  {path: partnerCall(t, "/js/a/open/x").path + "&a=1"},
		"UNAUTHENTICATED":    {path: "/js/a/whoami"},
		"RATE_LIMITED":       {path: "/js/a/limited"},
		"FORBIDDEN":          {path: "/js/a/admin", token: bob},
		"NOT_FOUND":          {path: "/js/a/new", token: bob},
		"METHOD_NOT_ALLOWED": {method: http.MethodPost, path: "/js/a/list"},
	} {
		t.Run(reason, func(t *testing.T) {
			want := g.refusedWith(t, 0, reason, c)
			for via := range g.clients {
				require.Equal(t, want.status, g.refusedWith(t, via, reason, c.forged()).status)
			}
		})
	}

	t.Run("what the gateway answers for a node", func(t *testing.T) {
		for _, path := range []string{"/js/a/status/503", "/js/a/status/502"} {
			var want, got refusalBody
			plain, atNode := g.send(t, 0, call{path: path, token: ann})
			require.NotNil(t, atNode)
			forged, forgedAtNode := g.send(t, 0, call{path: path, token: ann}.forged())
			unmarshal(t, plain.body, &want)
			unmarshal(t, forged.body, &got)
			require.Equal(t, 60000, want.Code, "not a core interface")
			require.Equal(t, want.Code, got.Code)
			require.Equal(t, plain.status, forged.status)
			require.GreaterOrEqual(t, forged.status, 500, "it does not say that it is a client that reads codes")
			require.Equal(t, trusted(atNode.header), trusted(forgedAtNode.header))
		}
	})
}
