package decide_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/decide"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/policy/policytest"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

var errStore = errors.New("store cannot be asked")

// world is everything a decision depends on, as plain values.
type world struct {
	service  gateway.Service
	up       map[string]bool // nodes, by id
	tokens   map[string]string
	tokenErr error
	users    map[string]string // user id -> node
	names    map[string]string // username -> node
	bindErr  error             // of look-ups
	writeErr error             // of bindIfAbsent
	bound    []gateway.Login
	pending  map[string]gateway.Login // logins that could not be stored, by user
}

func newWorld() *world {
	return &world{
		service: gateway.Service{ID: "ai", PathPrefix: "/js/a", LoginPath: "/sys/login", HealthPath: "/h", Enabled: true, Login: gateway.DefaultLoginFields()},
		up:      map[string]bool{"n1": true, "n2": true},
		tokens:  map[string]string{"t1": "1", "t2": "2", "t3": "3"},
		users:   map[string]string{"1": "n1", "2": "n2"},
		names:   map[string]string{"ann": "n2"},
	}
}

// decider decides in this world, with these policies.
func (w *world) decider(t *testing.T, policies ...func(*policy.Keeper)) *decide.Decider {
	t.Helper()
	keeper := policytest.NewKeeper(t, &policytest.Memory{}, nil, time.Now)
	for _, set := range policies {
		set(keeper)
	}
	log := slog.New(slog.DiscardHandler)
	subjects := guard.NewDirectory(w, log, time.Now)
	subjects.Follow(keeper.Snapshot())
	t.Cleanup(subjects.Close)
	return decide.New(w, guard.NewChain(guard.Parts{Subjects: subjects}, keeper.Snapshot, log, time.Now), w)
}

func (w *world) Snapshot() *registry.Snapshot {
	return registry.NewSnapshot([]gateway.Service{w.service}, nil)
}

func (w *world) Usable(_ context.Context, _, nodeID string) error {
	if up, known := w.up[nodeID]; !known {
		return &gateway.Error{Reason: gateway.NodeUnknown}
	} else if !up {
		return &gateway.Error{Reason: gateway.NodeDown, RetryAfter: 10 * time.Second}
	}
	return nil
}

func (w *world) PlaceAnonymous(ctx context.Context, serviceID string) (string, error) {
	return w.PlaceUser(ctx, serviceID)
}

func (w *world) PlaceUser(context.Context, string) (string, error) {
	for _, id := range []string{"n1", "n2"} {
		if w.up[id] {
			return id, nil
		}
	}
	return "", &gateway.Error{Reason: gateway.NoHealthyNode}
}

func (w *world) UserByToken(_ context.Context, _, token string) (string, error) {
	if w.tokenErr != nil {
		return "", w.tokenErr
	}
	if user, ok := w.tokens[token]; ok {
		return user, nil
	}
	return "", gateway.ErrNotFound
}

func (w *world) find(in map[string]string, key string) (gateway.Route, error) {
	if w.bindErr != nil {
		return gateway.Route{}, w.bindErr
	}
	if node, ok := in[key]; ok {
		return gateway.Route{NodeID: node, Epoch: 3}, nil
	}
	return gateway.Route{}, gateway.ErrNotFound
}

func (w *world) ByUser(_ context.Context, _, user string) (gateway.Route, error) {
	return w.find(w.users, user)
}

func (w *world) ByUsername(_ context.Context, _, name string) (gateway.Route, error) {
	return w.find(w.names, name)
}

func (w *world) Unwritten(_, userID string) (gateway.Login, bool) {
	login, ok := w.pending[userID]
	return login, ok
}

func (w *world) BindIfAbsent(_ context.Context, login gateway.Login) (gateway.BindResult, error) {
	w.bound = append(w.bound, login)
	return gateway.BindResult{Binding: gateway.Binding{NodeID: login.NodeID, Epoch: 1}, Created: true}, w.writeErr
}

func TestDecide(t *testing.T) {
	tests := map[string]struct {
		change func(*world)
		req    gateway.Request
		node   string
		user   string
		reason gateway.Reason
	}{
		"a known user":                          {req: gateway.Request{Token: "t2"}, node: "n2", user: "2"},
		"no token":                              {req: gateway.Request{}, node: "n1"},
		"an unknown token is anonymous":         {req: gateway.Request{Token: "nobody's"}, node: "n1"},
		"anonymous goes to a healthy node":      {change: func(w *world) { w.up["n1"] = false }, req: gateway.Request{}, node: "n2"},
		"no healthy node":                       {change: func(w *world) { w.up = nil }, req: gateway.Request{}, reason: gateway.NoHealthyNode},
		"sessions cannot be asked":              {change: func(w *world) { w.tokenErr = errStore }, req: gateway.Request{Token: "nobody's"}, reason: gateway.StoreUnavailable},
		"bindings cannot be asked":              {change: func(w *world) { w.bindErr = errStore }, req: gateway.Request{Token: "t1"}, reason: gateway.StoreUnavailable},
		"the node is down: no other":            {change: func(w *world) { w.up["n1"] = false }, req: gateway.Request{Token: "t1"}, reason: gateway.NodeDown},
		"others go on":                          {change: func(w *world) { w.up["n1"] = false }, req: gateway.Request{Token: "t2"}, node: "n2", user: "2"},
		"the node is gone":                      {change: func(w *world) { delete(w.up, "n1") }, req: gateway.Request{Token: "t1"}, reason: gateway.NodeUnknown},
		"no binding, no default":                {req: gateway.Request{Token: "t3"}, reason: gateway.NoBinding},
		"no binding, a default":                 {change: func(w *world) { w.service.DefaultNodeID = "n2" }, req: gateway.Request{Token: "t3"}, node: "n2", user: "3"},
		"the default is down":                   {change: func(w *world) { w.service.DefaultNodeID, w.up["n2"] = "n2", false }, req: gateway.Request{Token: "t3"}, reason: gateway.NodeDown},
		"the default cannot be written":         {change: func(w *world) { w.service.DefaultNodeID, w.writeErr = "n2", errStore }, req: gateway.Request{Token: "t3"}, reason: gateway.StoreUnavailable},
		"the default was deleted":               {change: func(w *world) { w.service.DefaultNodeID, w.writeErr = "n2", gateway.Conflictf("no node") }, req: gateway.Request{Token: "t3"}, reason: gateway.NoBinding},
		"a login of a known name":               {req: gateway.Request{Login: true, Username: "ann"}, node: "n2"},
		"a login of a new name":                 {req: gateway.Request{Login: true, Username: "bob"}, node: "n1"},
		"a login without name":                  {req: gateway.Request{Login: true}, node: "n1"},
		"a login is not its old token's":        {req: gateway.Request{Login: true, Username: "ann", Token: "t1"}, node: "n2"},
		"a login to a node that is down":        {change: func(w *world) { w.up["n2"] = false }, req: gateway.Request{Login: true, Username: "ann"}, reason: gateway.NodeDown},
		"a login while bindings cannot be read": {change: func(w *world) { w.bindErr = errStore }, req: gateway.Request{Login: true, Username: "bob"}, reason: gateway.StoreUnavailable},
		"a token near the login path":           {req: gateway.Request{Path: "/js/a/sys/login", Token: "t2"}, node: "n2", user: "2"},
		"found by path":                         {req: gateway.Request{ServiceID: "-", Path: "/js/a/x", Token: "t2"}, node: "n2", user: "2"},
		"no service there":                      {req: gateway.Request{ServiceID: "-", Path: "/js/apple", Token: "t2"}, reason: gateway.NoRoute},
		"an unknown service":                    {req: gateway.Request{ServiceID: "x", Token: "t2"}, reason: gateway.NoRoute},
		"a disabled service":                    {change: func(w *world) { w.service.Enabled = false }, req: gateway.Request{Token: "t2"}, reason: gateway.NoRoute},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if test.change != nil {
				test.change(w)
			}
			switch test.req.ServiceID {
			case "":
				test.req.ServiceID = "ai"
			case "-":
				test.req.ServiceID = ""
			}
			decision, err := w.decider(t).Decide(t.Context(), test.req)
			if test.reason != "" {
				var refusal *gateway.Error
				require.ErrorAs(t, err, &refusal)
				require.Equal(t, test.reason, refusal.Reason)
				require.Empty(t, decision.NodeID, "a refusal names no node")
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.node, decision.NodeID)
			require.Equal(t, test.user, decision.UserID)
			require.Equal(t, test.user != "", decision.Cacheable)
		})
	}
}

// The database was away when the user logged in at n1, and is back before the report of it.
func TestALoginThatIsNotStoredYetOutranksTheDefaultNode(t *testing.T) {
	for _, byDefault := range []string{"n2", ""} {
		w := newWorld()
		w.service.DefaultNodeID = byDefault
		login := gateway.Login{ServiceID: "ai", NodeID: "n1", UserID: "3", Username: "cid"}
		w.pending = map[string]gateway.Login{"3": login}
		decision, err := w.decider(t).Decide(t.Context(), gateway.Request{ServiceID: "ai", Token: "t3"})
		require.NoError(t, err)
		require.Equal(t, "n1", decision.NodeID)
		require.Equal(t, []gateway.Login{login}, w.bound)
	}
}

func TestALoginWritesNothing(t *testing.T) {
	w := newWorld()
	_, err := w.decider(t).Decide(t.Context(), gateway.Request{ServiceID: "ai", Login: true, Username: "bob"})
	require.NoError(t, err)
	require.Empty(t, w.bound)
}

func TestTheDefaultNodeTakesOnlyUsersWithoutABinding(t *testing.T) {
	w := newWorld()
	w.service.DefaultNodeID = "n2"
	_, err := w.decider(t).Decide(t.Context(), gateway.Request{ServiceID: "ai", Token: "t1"})
	require.NoError(t, err)
	require.Empty(t, w.bound)
	_, err = w.decider(t).Decide(t.Context(), gateway.Request{ServiceID: "ai", Token: "t3"})
	require.NoError(t, err)
	require.Equal(t, []gateway.Login{{ServiceID: "ai", NodeID: "n2", UserID: "3"}}, w.bound)
}

func TestAGuardRefusesBeforeANodeIsChosen(t *testing.T) {
	w := newWorld()
	decider := w.decider(t, func(k *policy.Keeper) {
		policytest.Set(t, k, gateway.PolicyMaintenance, "main", `{"paths":["/js/a/orders/**"]}`)
	})
	w.tokenErr, w.bindErr = errStore, errStore // nobody is asked
	decision, err := decider.Decide(t.Context(), gateway.Request{ServiceID: "ai", Path: "/js/a/orders/1", Token: "t1"})
	var refusal *gateway.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, gateway.InMaintenance, refusal.Reason)
	require.Equal(t, "ai", decision.ServiceID)

	w.tokenErr, w.bindErr = nil, nil
	decision, err = decider.Decide(t.Context(), gateway.Request{ServiceID: "ai", Path: "/js/a/x", Token: "t1"})
	require.NoError(t, err)
	require.Equal(t, "n1", decision.NodeID)
	require.False(t, decision.Cacheable, "the next request may be one that is refused")
}

func TestATokenTellsWhoItsUserIs(t *testing.T) {
	w := newWorld()
	decider := w.decider(t, func(k *policy.Keeper) {
		policytest.Set(t, k, gateway.PolicyIdentity, "ai", `{"services":["ai"],"mode":"jwt","blacklist":false,"jwt":{"algorithms":["HS256"],
			"keys":[{"value":"a secret of thirty-two characters"}],"channelClaim":"channel","sourceClaim":"from"}}`)
	})
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": "2", "channel": "web", "from": "app", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte("a secret of thirty-two characters"))
	require.NoError(t, err)
	decision, err := decider.Decide(t.Context(), gateway.Request{ServiceID: "ai", Path: "/js/a/x", Token: token})
	require.NoError(t, err)
	require.Equal(t, gateway.Decision{ServiceID: "ai", NodeID: "n2", UserID: "2", Channel: "web", Source: "app", Epoch: 3}, decision)
	_, err = decider.Decide(t.Context(), gateway.Request{ServiceID: "ai", Path: "/js/a/x", Token: token + "x"})
	var refusal *gateway.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, gateway.Unauthenticated, refusal.Reason)
}
