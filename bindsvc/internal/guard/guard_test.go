package guard_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

func TestTheCheapestGuardComesFirst(t *testing.T) {
	w := newWorld(t)
	var names []string
	for _, state := range w.chain.States() {
		names = append(names, state.Name)
	}
	require.Equal(t, []string{policy.GuardMaintenance, policy.GuardSignature, policy.GuardIdentity, policy.GuardRateLimit, policy.GuardAccess}, names)
	require.ElementsMatch(t, guard.Names(), names)
}

func TestWithoutPoliciesEverythingPasses(t *testing.T) {
	w := newWorld(t)
	w.sessionErr, w.limiter, w.nonces, w.rolesErr, w.revokedErr = errDown, downLimiter{}, downLimiter{}, errDown, errDown
	require.Empty(t, w.ask(get("/js/a/x")))
	require.Empty(t, w.ask(with(get("/js/a/x"), token("anything"))))
	require.Empty(t, w.ask(gateway.Request{ServiceID: "ai", Method: "POST", Path: "/js/a/x", CanTellMore: true}), "nothing is asked for")
}

func TestMaintenance(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyMaintenance, "main", `{"services":["ai"],"paths":["/js/a/orders/**"],"message":{"zh":"升级中"},"end":"2026-01-02T04:04:05Z",
		"testers":{"addresses":["198.51.100.0/24"],"users":["7","Ann"]}}`)
	refusal, _ := w.check(t.Context(), get("/js/a/orders/1"))
	require.Equal(t, gateway.InMaintenance, refusal.Reason)
	require.Equal(t, time.Hour, refusal.RetryAfter)
	require.Equal(t, "升级中", refusal.Text.ZH)
	require.True(t, refusal.Maintenance.End.Equal(start.Add(time.Hour)))

	require.Empty(t, w.ask(get("/js/a/other")), "another path")
	require.Empty(t, w.ask(with(get("/js/a/orders/1"), func(r *gateway.Request) { r.ServiceID = "docs" })), "another service")
	require.Empty(t, w.ask(with(get("/js/a/orders/1"), token("t7"))), "a tester")
	require.Equal(t, gateway.InMaintenance, w.ask(with(get("/js/a/orders/1"), token("t8"))))
	require.Empty(t, w.ask(with(get("/js/a/orders/1"), func(r *gateway.Request) { r.Address = netip.MustParseAddr("198.51.100.9") })))
	require.Empty(t, w.ask(with(get("/js/a/orders/in"), func(r *gateway.Request) { r.Login, r.Username = true, "aNN" })), "a tester logs in")
	w.sessionErr = errDown
	require.Equal(t, gateway.InMaintenance, w.ask(with(get("/js/a/orders/1"), token("t7"))), "whoever is not known to be a tester is none")

	needs, _ := w.check(t.Context(), with(get("/js/a/orders/1"), func(r *gateway.Request) { r.AddressTold = false }))
	require.Equal(t, gateway.NeedsMore, needs.Reason)
	require.Equal(t, []string{policy.NeedAddress}, needs.Need)

	w.set(gateway.PolicyMaintenance, "main", `{"paths":["/js/a/orders/**"],"start":"2026-01-02T05:00:00Z"}`)
	require.Empty(t, w.ask(get("/js/a/orders/1")), "not begun")
	w.now = start.Add(2 * time.Hour)
	require.Equal(t, gateway.InMaintenance, w.ask(get("/js/a/orders/1")))
	w.set(gateway.PolicyMaintenance, "main", `{"enabled":false}`)
	require.Empty(t, w.ask(get("/js/a/orders/1")))
}

func TestIdentity(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyIdentity, "ai", `{"services":["ai"],"mode":"token","public":["/js/a/pub/**"]}`)
	x, public := get("/js/a/x"), get("/js/a/pub/x")
	require.Empty(t, w.ask(with(x, token("t7"))))
	require.Equal(t, gateway.Unauthenticated, w.ask(x))
	require.Equal(t, gateway.Unauthenticated, w.ask(with(x, token("nobody's"))))
	require.Empty(t, w.ask(public))
	require.Empty(t, w.ask(with(public, token("nobody's"))))
	require.Empty(t, w.ask(with(x, func(r *gateway.Request) { r.Method = "OPTIONS" })), "a preflight has no token")
	require.Empty(t, w.ask(with(x, func(r *gateway.Request) { r.Login = true })))
	require.Empty(t, w.ask(with(x, func(r *gateway.Request) { r.ServiceID = "docs" })))

	w.revoked["t7"] = true
	require.Equal(t, gateway.Unauthenticated, w.ask(with(x, token("t7"))))
	_, q := w.check(t.Context(), with(public, token("t7")))
	_, err := q.Subject(t.Context())
	require.ErrorIs(t, err, gateway.ErrNotFound, "a revoked token is nobody's on a public path")

	w.revokedErr, w.revoked = errDown, nil
	require.Empty(t, w.ask(with(x, token("t7"))), "open by default (seed 004)")
	w.set(gateway.PolicyIdentity, "ai", `{"services":["ai"],"mode":"token","blacklistFailure":"closed"}`)
	require.Equal(t, gateway.StoreUnavailable, w.ask(with(x, token("t7"))))
	w.set(gateway.PolicyIdentity, "ai", `{"services":["ai"],"mode":"token","blacklist":false}`)
	require.Empty(t, w.ask(with(x, token("t7"))), "not asked")

	w.sessionErr = errDown
	require.Equal(t, gateway.StoreUnavailable, w.ask(with(x, token("t9"))), "never anonymous, and never not logged in")
	w.sessionErr = nil
	w.set(gateway.PolicyIdentity, "ai", `{"services":["ai"],"mode":"passthrough"}`)
	require.Empty(t, w.ask(x))
	require.Empty(t, w.ask(with(x, token("nobody's"))), "the node answers")
}

func TestRateLimit(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyRateLimit, "orders", `{"method":"GET","path":"/js/a/orders","rate":10,"burst":2}`)
	w.set(gateway.PolicyRateLimit, "one-order", `{"path":"/js/a/orders/{id}","rate":1,"per":"60s","burst":1,"by":"user"}`)
	w.set(gateway.PolicyRateLimit, "by-address", `{"path":"/js/a/list","rate":1,"burst":1,"by":"address"}`)
	orders := get("/js/a/orders")
	require.Empty(t, w.ask(orders))
	require.Empty(t, w.ask(with(orders, token("t7"))))
	refusal, _ := w.check(t.Context(), orders)
	require.Equal(t, gateway.RateLimited, refusal.Reason)
	require.Equal(t, 100*time.Millisecond, refusal.RetryAfter)
	require.Empty(t, w.ask(with(orders, func(r *gateway.Request) { r.Method = "POST" })), "another method")
	w.now = w.now.Add(100 * time.Millisecond)
	require.Empty(t, w.ask(orders))
	require.Equal(t, gateway.RateLimited, w.ask(orders))

	one := get("/js/a/orders/1")
	require.Empty(t, w.ask(with(one, token("t7"))))
	require.Equal(t, gateway.RateLimited, w.ask(with(get("/js/a/orders/2"), token("t7"))), "the pattern's, not the path's")
	require.Empty(t, w.ask(with(one, token("t8"))), "another user")
	require.Empty(t, w.ask(one), "no user: not counted")

	list := get("/js/a/list")
	v6 := func(address string) gateway.Request {
		return with(list, func(r *gateway.Request) { r.Address = netip.MustParseAddr(address) })
	}
	require.Empty(t, w.ask(list))
	require.Equal(t, gateway.RateLimited, w.ask(list))
	require.Empty(t, w.ask(v6("2001:db8::1")))
	require.Equal(t, gateway.RateLimited, w.ask(v6("2001:db8::ffff")), "one client has all of a /64")
	require.Empty(t, w.ask(v6("2001:db8:0:1::1")))

	w.set(gateway.PolicyGuards, "rate-limit", `{"enabled":false}`)
	require.Empty(t, w.ask(orders), "the master switch")
	w.set(gateway.PolicyGuards, "rate-limit", `{}`)
	require.Equal(t, gateway.RateLimited, w.ask(orders))
	w.limiter = downLimiter{}
	require.Empty(t, w.ask(orders), "a limiter that fails lets pass")
	require.Equal(t, int64(1), w.counts("rate-limit")["unchecked"])
}

// Of several rules that refuse one, none has been taken from.
func TestBucketsAreAllOrNothing(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyRateLimit, "total", `{"path":"/js/a/x","rate":1,"per":"1h","burst":3}`)
	w.set(gateway.PolicyRateLimit, "user", `{"path":"/js/a/x","rate":1,"per":"1h","burst":1,"by":"user"}`)
	require.Empty(t, w.ask(with(get("/js/a/x"), token("t7"))))
	for range 5 {
		require.Equal(t, gateway.RateLimited, w.ask(with(get("/js/a/x"), token("t7"))))
	}
	require.Empty(t, w.ask(with(get("/js/a/x"), token("t8"))))
	require.Empty(t, w.ask(get("/js/a/x")))
	require.Equal(t, gateway.RateLimited, w.ask(get("/js/a/x")))
}

func TestAccess(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyAccess, "admin", `{"type":"rbac","path":"/js/a/admin/**","roles":["admin","root"]}`)
	w.set(gateway.PolicyAccess, "help", `{"type":"rbac","path":"/js/a/admin/help","roles":["user"]}`)
	w.set(gateway.PolicyAccess, "read-only", `{"type":"method","path":"/js/a/list","methods":["GET","HEAD"]}`)
	w.set(gateway.PolicyAccess, "new", `{"type":"grey","path":"/js/a/new","percent":20,"users":["8"]}`)
	admin := get("/js/a/admin/x")
	require.Equal(t, gateway.Unauthenticated, w.ask(admin))
	require.Equal(t, gateway.Forbidden, w.ask(with(admin, token("t7"))))
	w.roles["7"] = []string{"root"}
	require.Empty(t, w.ask(with(admin, token("t7"))))
	require.Equal(t, gateway.Forbidden, w.ask(with(get("/js/a/admin/help"), token("t7"))), "the rule of the longer path")
	for _, spelled := range []string{"/js/a/admin/x/", "/js/a//admin/x", "/js/a/admin;v=1/x", "/js/a/x/..;/admin/x", "/js/a/./admin/x"} {
		require.Equal(t, gateway.Forbidden, w.ask(with(get(spelled), token("t8"))), spelled)
	}
	w.rolesErr = errDown
	require.Equal(t, gateway.StoreUnavailable, w.ask(with(admin, token("t7"))), "closed")
	w.sessionErr = errDown
	require.Equal(t, gateway.StoreUnavailable, w.ask(with(admin, token("t7"))))
	w.rolesErr, w.sessionErr = nil, nil

	require.Empty(t, w.ask(get("/js/a/list")))
	refusal, _ := w.check(t.Context(), with(get("/js/a/list"), func(r *gateway.Request) { r.Method = "DELETE" }))
	require.Equal(t, gateway.MethodNotAllowed, refusal.Reason)
	require.Equal(t, []string{"GET", "HEAD"}, refusal.Allow)

	require.Equal(t, gateway.NotFound, w.ask(get("/js/a/new")), "hidden from whoever is not known")
	require.Empty(t, w.ask(with(get("/js/a/new"), token("t8"))), "in the list")
	in := 0
	for i := range 2000 {
		user := fmt.Sprintf("user-%d", i)
		w.users[user] = user
		reason := w.ask(with(get("/js/a/new"), token(user)))
		require.Equal(t, reason, w.ask(with(get("/js/a/new"), token(user))), "always the same users")
		if reason == "" {
			in++
		}
	}
	require.InDelta(t, 400, in, 80)
}

func TestShadowModeCountsAndRefusesNothing(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyMaintenance, "m", `{"paths":["/js/a/m"],"shadow":true}`)
	w.set(gateway.PolicyIdentity, "i", `{"mode":"token","public":["/js/a/m","/js/a/r","/js/a/a"],"shadow":true}`)
	w.set(gateway.PolicyRateLimit, "r", `{"path":"/js/a/r","rate":1,"burst":1,"shadow":true}`)
	w.set(gateway.PolicyAccess, "a", `{"type":"method","path":"/js/a/a","methods":["POST"],"shadow":true}`)
	w.set(gateway.PolicySignature, "s", `{"paths":["/js/a/s"],"shadow":true}`)
	for name, path := range map[string]string{"maintenance": "/js/a/m", "identity": "/js/a/x", "access": "/js/a/a", "signature": "/js/a/s"} {
		require.Empty(t, w.ask(get(path)), name)
		require.Positive(t, w.counts(name)["shadow"], name)
		require.Zero(t, w.counts(name)["refused"], name)
	}
	require.Empty(t, w.ask(get("/js/a/r")))
	require.Empty(t, w.ask(get("/js/a/r")))
	require.Equal(t, int64(1), w.counts("rate-limit")["shadow"])

	w.set(gateway.PolicyMaintenance, "m", `{"paths":["/js/a/m"]}`)
	w.set(gateway.PolicyGuards, "maintenance", `{"shadow":true}`)
	require.Empty(t, w.ask(get("/js/a/m")), "all of the guard")
	w.set(gateway.PolicyGuards, "maintenance", `{}`)
	require.Equal(t, gateway.InMaintenance, w.ask(get("/js/a/m")))
}

// A policy on trial must not open what another one closes, by being about less or by
// allowing more.
func TestShadowModeTakesNothingsPlace(t *testing.T) {
	w := newWorld(t)
	w.roles["8"] = []string{"user"}
	w.set(gateway.PolicyAccess, "rbac", `{"type":"rbac","path":"/js/a/admin/**","roles":["admin"]}`)
	w.set(gateway.PolicyAccess, "rbac-less", `{"type":"rbac","path":"/js/a/admin/x","roles":["user"],"shadow":true}`)
	w.set(gateway.PolicyAccess, "rbac-more", `{"type":"rbac","path":"/js/a/admin/**","roles":["user"],"shadow":true}`)
	w.set(gateway.PolicyAccess, "method", `{"type":"method","path":"/js/a/m","methods":["GET"]}`)
	w.set(gateway.PolicyAccess, "method-more", `{"type":"method","path":"/js/a/m","methods":["PUT"],"shadow":true}`)
	w.set(gateway.PolicyAccess, "grey", `{"type":"grey","path":"/js/a/g","users":["7"]}`)
	w.set(gateway.PolicyAccess, "grey-more", `{"type":"grey","path":"/js/a/g","percent":100,"shadow":true}`)
	w.set(gateway.PolicyRateLimit, "limit", `{"path":"/js/a/r/**","rate":1,"per":"1h","burst":1}`)
	w.set(gateway.PolicyRateLimit, "limit-less", `{"path":"/js/a/r/x","rate":100,"shadow":true}`)
	w.set(gateway.PolicySignature, "sign", `{"paths":["/js/a/open/**"]}`)
	w.set(gateway.PolicySignature, "sign-less", `{"paths":["/js/a/open/x"],"shadow":true}`)
	for _, path := range []string{"/js/a/admin/x", "/js/a/admin/y"} {
		require.Equal(t, gateway.Forbidden, w.ask(with(get(path), token("t8"))), path)
	}
	require.Equal(t, gateway.MethodNotAllowed, w.ask(with(get("/js/a/m"), func(r *gateway.Request) { r.Method = "PUT" })))
	require.Equal(t, gateway.NotFound, w.ask(with(get("/js/a/g"), token("t8"))))
	require.Empty(t, w.ask(get("/js/a/r/x")))
	require.Equal(t, gateway.RateLimited, w.ask(get("/js/a/r/x")))
	require.Equal(t, gateway.SignatureMissing, w.ask(get("/js/a/open/x")))

	w.set(gateway.PolicyAccess, "rbac-less", `{"type":"rbac","path":"/js/a/admin/x","roles":["super"],"shadow":true}`)
	w.roles["7"] = []string{"admin"}
	require.Empty(t, w.ask(with(get("/js/a/admin/x"), token("t7"))))
	require.Equal(t, int64(1), w.counts("access")["shadow"], "what it would refuse is counted")
	w.set(gateway.PolicyAccess, "rbac", `{"type":"rbac","path":"/js/a/admin/**","roles":["admin"],"enabled":false}`)
	w.rolesErr = errDown
	require.Empty(t, w.ask(with(get("/js/a/admin/x"), token("t7"))), "it refuses nothing, also when the roles cannot be asked")
}

// Servers run what answers GET for HEAD too.
func TestHEADIsGuardedAsGETIs(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyAccess, "rbac", `{"type":"rbac","method":"GET","path":"/js/a/admin","roles":["admin"]}`)
	w.set(gateway.PolicyRateLimit, "limit", `{"method":"GET","path":"/js/a/r","rate":1,"per":"1h","burst":1}`)
	w.set(gateway.PolicyRateLimit, "any", `{"path":"/js/a/r","rate":100}`)
	w.set(gateway.PolicyRateLimit, "own", `{"method":"HEAD","path":"/js/a/h","rate":100}`)
	w.set(gateway.PolicyRateLimit, "own-get", `{"method":"GET","path":"/js/a/h","rate":1,"per":"1h","burst":1}`)
	w.set(gateway.PolicySignature, "sign", `{"paths":["/js/a/open"],"methods":["GET"]}`)
	head := func(path string) gateway.Request {
		return with(get(path), func(r *gateway.Request) { r.Method = "HEAD" })
	}
	require.Equal(t, gateway.Forbidden, w.ask(with(head("/js/a/admin"), token("t7"))))
	require.Empty(t, w.ask(head("/js/a/r")))
	require.Equal(t, gateway.RateLimited, w.ask(get("/js/a/r")), "one bucket")
	require.Empty(t, w.ask(head("/js/a/h")))
	require.Empty(t, w.ask(head("/js/a/h")), "a rule of its own")
	require.Equal(t, gateway.SignatureMissing, w.ask(head("/js/a/open")))
}

// A policy that has never been good: what it guards is refused where the guard fails
// closed, and the guard's other policies hold where it fails open.
func TestAPolicyThatCannotBeUsed(t *testing.T) {
	w := newWorld(t)
	w.store.Put(gateway.PolicyAccess, "bad", `{"services":["ai"],"type":"rbac"}`)
	w.store.Put(gateway.PolicyMaintenance, "bad", `{"paths":["?"]}`)
	w.set(gateway.PolicyMaintenance, "good", `{"paths":["/js/a/m"]}`)
	require.Equal(t, gateway.PolicyInvalid, w.ask(get("/js/a/x")))
	require.Empty(t, w.ask(with(get("/js/a/x"), func(r *gateway.Request) { r.ServiceID = "docs" })))
	require.Equal(t, gateway.InMaintenance, w.ask(get("/js/a/m")))
	for _, state := range w.chain.States() {
		require.Equal(t, state.Name == "access" || state.Name == "maintenance", state.Broken, state.Name)
	}
}

// A valid user of a service whose identity policy cannot be used (another sealing key,
// say) must not pass for an anonymous one.
func TestAnIdentityPolicyThatCannotBeUsedClosesItsServices(t *testing.T) {
	w := newWorld(t)
	const broken = `"mode":"jwt","jwt":{"algorithms":["HS256"],"keys":[{"sealed":"v1.of.another"}]}}`
	w.store.Put(gateway.PolicyIdentity, "broken", `{"services":["ai"],`+broken)
	require.NoError(t, w.policies.Refresh(t.Context()))
	require.Equal(t, gateway.PolicyInvalid, w.ask(with(get("/js/a/x"), token("a.b.c"))))
	require.Empty(t, w.ask(with(get("/js/a/x"), func(r *gateway.Request) { r.ServiceID = "docs" })))

	w.store.Put(gateway.PolicyIdentity, "broken", `{"services":["ai"],"enabled":false,`+broken)
	require.NoError(t, w.policies.Refresh(t.Context()))
	require.Empty(t, w.ask(get("/js/a/x")), "it is not in force")

	w.store.Put(gateway.PolicyIdentity, "broken", `{`+broken)
	w.set(gateway.PolicyIdentity, "own", `{"services":["ai"],"mode":"token"}`)
	require.Empty(t, w.ask(with(get("/js/a/x"), token("t7"))), "the service has a policy of its own")
	require.Equal(t, gateway.Unauthenticated, w.ask(get("/js/a/x")))
}

func TestAnAppThatCannotBeUsedIsUnknown(t *testing.T) {
	w := newWorld(t)
	w.store.Put(gateway.PolicyApps, "partner", `{"secrets":[{"sealed":"v1.of.another"}]}`)
	w.set(gateway.PolicySignature, "s", `{"paths":["/js/a/open/**"]}`)
	require.Empty(t, w.ask(get("/js/a/x")), "all others go on")
	require.Equal(t, gateway.SignatureUnknownApp, w.ask(with(get("/js/a/open/x"), func(r *gateway.Request) {
		r.Query = "client-id=partner&timestamp=1&sign=1"
	})))
}

// A guard whose switch is in shadow mode refuses nothing, also if it cannot check.
func TestAGuardInShadowModeFailsOpen(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyAccess, "a", `{"type":"rbac","path":"/js/a/x","roles":["admin"]}`)
	w.rolesErr = errDown
	require.Equal(t, gateway.StoreUnavailable, w.ask(with(get("/js/a/x"), token("t7"))))
	w.set(gateway.PolicyGuards, "access", `{"shadow":true}`)
	require.Empty(t, w.ask(with(get("/js/a/x"), token("t7"))))
}

func TestAMistakeInAGuardIsNoWorseThanAStoreThatIsDown(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyRateLimit, "r", `{"path":"/js/a/r","rate":1}`)
	w.set(gateway.PolicyAccess, "a", `{"type":"rbac","path":"/js/a/x","roles":["admin"]}`)
	w.limiter, w.roles = nil, nil // the call of a method of nil panics
	require.Empty(t, w.ask(get("/js/a/r")), "the limiter fails open")
	require.Equal(t, int64(1), w.counts("rate-limit")["unchecked"])
}

func TestAnExplanationTakesAndCountsNothing(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyRateLimit, "r", `{"path":"/js/a/r","rate":1,"per":"1h","burst":1}`)
	for range 5 {
		ctx, trace := gateway.WithTrace(t.Context())
		refusal, _ := w.check(ctx, get("/js/a/r"))
		require.Nil(t, refusal)
		require.Len(t, trace.Steps(), len(guard.Names()))
	}
	require.Empty(t, w.counts("rate-limit"))
	require.Empty(t, w.ask(get("/js/a/r")))
	ctx, trace := gateway.WithTrace(t.Context())
	refusal, _ := w.check(ctx, get("/js/a/r"))
	require.Equal(t, gateway.RateLimited, refusal.Reason)
	require.Contains(t, trace.Steps()[3].Detail, "revision 1")
}

func TestWhatThePoliciesWouldHaveDone(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyAccess, "old", `{"type":"method","path":"/js/a/list","methods":["GET"]}`)
	for range 10 {
		w.ask(with(get("/js/a/orders"), token("t7")))
		w.now = w.now.Add(100 * time.Millisecond)
	}
	w.ask(with(get("/js/a/list"), func(r *gateway.Request) { r.Method = "PUT" }))
	would := func(changes ...gateway.PolicyChange) guard.Replayed {
		return w.chain.Replay(t.Context(), w.policies.Snapshot(), w.policies.Would(changes))
	}
	limit := would(gateway.PolicyChange{Kind: gateway.PolicyRateLimit, ID: "new", Body: []byte(`{"path":"/js/a/orders","rate":5,"burst":1,"shadow":true}`)})
	require.Equal(t, 11, limit.Requests)
	require.Equal(t, 5, limit.Refused, "every other one")
	require.Equal(t, map[gateway.Reason]int{gateway.RateLimited: 5}, limit.Reasons)
	require.Equal(t, "7", limit.Samples[0].User)
	require.True(t, limit.Since.Equal(start))
	none := would()
	require.Zero(t, none.Refused, none)
	require.Equal(t, 1, would(gateway.PolicyChange{Kind: gateway.PolicyAccess, ID: "old"}).Admitted)
	require.Equal(t, int64(1), w.counts("access")["refused"], "nothing is counted")
}

// Clients choose how long their paths are.
func TestWhatIsUnreasonablyLongIsNotRemembered(t *testing.T) {
	w := newWorld(t)
	for _, long := range []func(*gateway.Request){
		func(r *gateway.Request) { r.Path += strings.Repeat("a", 5000) },
		func(r *gateway.Request) { r.Method = strings.Repeat("A", 5000) },
		func(r *gateway.Request) { r.Source = strings.Repeat("a", 5000) },
	} {
		w.ask(with(get("/js/a/"), long))
	}
	w.ask(get("/js/a/x"))
	require.Equal(t, 1, w.chain.Replay(t.Context(), w.policies.Snapshot(), w.policies.Snapshot()).Requests)
}

func TestARateNearZeroHasAWait(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyRateLimit, "r", `{"path":"/js/a/r","rate":1e-300,"burst":1}`)
	require.Empty(t, w.ask(get("/js/a/r")))
	refusal, _ := w.check(t.Context(), get("/js/a/r"))
	require.Positive(t, refusal.RetryAfter)
}

// A request that began under the policies of before still asks what they want.
func TestAVerifierOutlivesItsPolicyByOneSnapshot(t *testing.T) {
	w := newWorld(t)
	directory := guard.NewDirectory(w, discard, time.Now)
	defer directory.Close()
	w.set(gateway.PolicyIdentity, "i", `{"mode":"jwt","jwt":{"algorithms":["HS256"],"keys":[{"value":"0123456789abcdef0123456789abcdef"}]}}`)
	before := w.policies.Snapshot().Identity("ai")
	directory.Follow(w.policies.Snapshot())
	for range 2 {
		_, err := directory.Subject(t.Context(), "ai", "no.good.token", before)
		require.ErrorIs(t, err, gateway.ErrNotFound)
		directory.Follow(policy.Empty())
	}
	_, err := directory.Subject(t.Context(), "ai", "no.good.token", before)
	require.NotErrorIs(t, err, gateway.ErrNotFound)
	require.Error(t, err)
}

func TestAnAmbiguousPathIsRefusedOnlyByRulesInForce(t *testing.T) {
	ambiguous := with(get("/js/a/orders/1"), func(r *gateway.Request) { r.Ambiguous = true })
	const limit = `"path":"/js/a/orders/{id}","rate":5`
	w := newWorld(t)
	require.Empty(t, w.ask(ambiguous))

	w.set(gateway.PolicyRateLimit, "orders", `{"shadow":true,`+limit+`}`)
	require.Empty(t, w.ask(ambiguous), "what is on trial refuses nothing")

	w.set(gateway.PolicyRateLimit, "orders", `{`+limit+`}`)
	require.Equal(t, gateway.Validation, w.ask(ambiguous))
	require.Empty(t, w.ask(with(ambiguous, func(r *gateway.Request) { r.Ambiguous = false })))

	w.set(gateway.PolicyGuards, "rate-limit", `{"shadow":true}`)
	require.Empty(t, w.ask(ambiguous))
	w.set(gateway.PolicyGuards, "rate-limit", `{"enabled":false}`)
	require.Empty(t, w.ask(ambiguous))

	w.set(gateway.PolicyMaintenance, "orders", `{"paths":["/js/a/admin/**"]}`)
	require.Equal(t, gateway.Validation, w.ask(ambiguous), "another guard is in force")
}

func TestAMethodInSmallLettersIsTheSame(t *testing.T) {
	w := newWorld(t)
	w.roles["7"] = []string{"reader"}
	w.set(gateway.PolicyAccess, "orders", `{"type":"rbac","method":"POST","path":"/js/a/orders","roles":["writer"]}`)
	for _, method := range []string{"POST", "post", "Post"} {
		refused := with(with(get("/js/a/orders"), token("t7")), func(r *gateway.Request) { r.Method = method })
		require.Equal(t, gateway.Forbidden, w.ask(refused), method)
	}
	require.Empty(t, w.ask(with(get("/js/a/orders"), token("t7"))))
}

// A node of the time before the JWTs may still know the token: its user is nobody else's guest.
func TestAnOpaqueTokenWhereJWTsAreWanted(t *testing.T) {
	w := newWorld(t)
	w.set(gateway.PolicyIdentity, "ai", `{"mode":"jwt","public":["/js/a/pub/**"],"jwt":{"algorithms":["HS256"],"keys":[{"value":"a secret of thirty-two characters"}]}}`)
	require.Equal(t, gateway.Unauthenticated, w.ask(with(get("/js/a/x"), token("t7"))))
	refusal, q := w.check(t.Context(), with(get("/js/a/pub/x"), token("t7")))
	require.Nil(t, refusal)
	subject, err := q.Subject(t.Context())
	require.NoError(t, err)
	require.Equal(t, "7", subject.UserID, "not anonymous: any node could be another's")
	w.sessionErr = errDown
	require.Equal(t, gateway.StoreUnavailable, w.ask(with(get("/js/a/pub/x"), token("t7"))))
}
