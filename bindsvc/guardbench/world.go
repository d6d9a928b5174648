package guardbench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/decide"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/outage"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/registry"
	"github.com/homenode/homenode/bindsvc/internal/sqlite"
)

const (
	serviceID   = "ai"
	requests    = 10_000 // different ones, in every world: only the rules are to differ
	users       = 1000
	kindsOfRule = 10 // rule i is of kind i % kindsOfRule
	appSecret   = "a-secret-of-an-app-of-the-bench"
)

// start is the time in a world: it stands still.
var start = time.Unix(1_800_000_000, 0)

// size says how much there is in a world.
type size struct {
	rules    int
	roles    int  // that there are
	allRoles bool // every user has every role, instead of a few
}

// world is everything that decides, with its rules in force. Sessions, bindings, nodes
// and revoked tokens are answered from memory: what stores take would hide what rules do.
type world struct {
	size     size
	store    *sqlite.Store
	buckets  *guard.Buckets
	roles    *guard.Roles
	subjects *guard.Directory
	policies *policy.Keeper
	chain    *guard.Chain
	decider  *decide.Decider
	requests []gateway.Request // about every rule, all of which pass
}

func newWorld(ctx context.Context, dir string, of size) (*world, error) {
	store, err := sqlite.Open(ctx, filepath.Join(dir, "homenode.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	log, now := slog.New(slog.DiscardHandler), func() time.Time { return start }
	w := &world{size: of, store: store, buckets: guard.NewBuckets(now), subjects: guard.NewDirectory(memory{}, log, now)}
	w.roles = guard.NewRoles(roleList{of}, &outage.Gate{Limit: time.Second, Pause: time.Second}, now)
	sealer, err := policy.NewSealer("a key of the bench's policies")
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	w.policies = policy.NewKeeper(policy.Parts{Store: store, Sealer: sealer, Changed: w.subjects.Follow, Log: log, Now: now})
	chain := guard.NewChain(guard.Parts{
		Subjects: w.subjects, Revocations: memory{}, Nonces: w.buckets, Limiter: w.buckets, Roles: w.roles,
	}, w.policies.Snapshot, log, now)
	w.chain, w.decider = chain, decide.New(memory{}, chain, memory{})
	if err := w.makeRules(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	for i := range requests {
		w.requests = append(w.requests, requestFor(i, i%of.rules))
	}
	random := rand.New(rand.NewPCG(1, 2)) // the order in which rules were made is not that of the requests
	random.Shuffle(len(w.requests), func(i, j int) { w.requests[i], w.requests[j] = w.requests[j], w.requests[i] })
	return w, w.warm(ctx)
}

func (w *world) close() error {
	w.subjects.Close()
	w.roles.Close()
	w.buckets.Close()
	return w.store.Close()
}

// warm makes every decision once, and that all pass certain.
func (w *world) warm(ctx context.Context) error {
	if problems := w.policies.Snapshot().Problems; len(problems) > 0 {
		return fmt.Errorf("policy %s: %w", problems[0].ID, problems[0].Err)
	}
	for _, request := range w.requests {
		if _, err := w.decider.Decide(ctx, request); err != nil {
			return fmt.Errorf("%s: %w", request.Path, err)
		}
	}
	return nil
}

// makeRules stores as many rules as the world has, the public paths of its one identity
// policy among them.
func (w *world) makeRules(ctx context.Context) error {
	var wishes []policy.Wish
	var public []string
	wish := func(kind gateway.PolicyKind, id string, body map[string]any) error {
		encoded, err := json.Marshal(body)
		wishes = append(wishes, policy.Wish{Kind: kind, ID: id, Body: encoded})
		return err
	}
	err := wish(gateway.PolicyApps, "app", map[string]any{"secrets": []any{map[string]any{"value": appSecret}}})
	for i := range w.size.rules {
		kind, body := ruleOf(i, w.size.roles)
		if kind == gateway.PolicyIdentity {
			public = append(public, modulePath(i)+"/public/**")
			continue
		}
		err = errors.Join(err, wish(kind, fmt.Sprintf("rule-%d", i), body))
	}
	err = errors.Join(err, wish(gateway.PolicyIdentity, "users", map[string]any{"mode": policy.ModeToken, "public": public}))
	if err != nil {
		return err
	}
	_, err = w.policies.Change(ctx, wishes)
	return err
}

func modulePath(i int) string { return fmt.Sprintf("/js/a/module-%d", i) }

// ruleOf is rule i: a mixture of what installations have.
func ruleOf(i, roles int) (gateway.PolicyKind, map[string]any) {
	at := modulePath(i)
	limit := func(path, by string) (gateway.PolicyKind, map[string]any) {
		return gateway.PolicyRateLimit, map[string]any{"path": path, "method": "GET", "rate": 1e6, "burst": 1_000_000, "by": by}
	}
	access := func(kind, path, field string, value any) (gateway.PolicyKind, map[string]any) {
		return gateway.PolicyAccess, map[string]any{"type": kind, "path": path, field: value}
	}
	switch i % kindsOfRule {
	case 0:
		return limit(at+"/orders/{id}", policy.ByUser)
	case 1:
		return limit(at+"/search", policy.ByTotal)
	case 2:
		return limit(at+"/{kind}/files/**", policy.ByAddress)
	case 3, 4:
		return access(policy.AccessRBAC, at+"/reports/{year}/**", "roles", rolesOfRule(i, roles))
	case 5:
		return access(policy.AccessGrey, at+"/beta/**", "percent", 100)
	case 6:
		return access(policy.AccessMethod, at+"/items/{id}", "methods", []string{"GET", "PUT"})
	case 7:
		return gateway.PolicyMaintenance, map[string]any{"paths": []string{at + "/**"}, "testers": map[string]any{"addresses": []string{"10.0.0.0/8"}}}
	case 8:
		return gateway.PolicySignature, map[string]any{"paths": []string{at + "/open/**"}}
	}
	return gateway.PolicyIdentity, nil // a public path
}

// requestFor is request i, which the rule is about, and lets pass.
func requestFor(i, rule int) gateway.Request {
	tail := [kindsOfRule]string{
		fmt.Sprintf("/orders/%d", i), "/search", "/images/files/2027/a.png", "/reports/2027/q1", "/reports/2027/q2/all", "/beta/new", "/items/9", "/any/where", "/open/orders", "/public/help",
	}[rule%kindsOfRule]
	req := gateway.Request{
		ServiceID: serviceID, Method: "GET", Path: modulePath(rule) + tail, Token: "token-of-" + userID(i), ID: "0123456789abcdef",
		Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Form: gateway.Form{State: gateway.FormNone},
		CanTellMore: true, AddressTold: true, QueryTold: true, SourceTold: true,
	}
	if rule%kindsOfRule == 8 {
		timestamp := strconv.FormatInt(start.Unix(), 10)
		sum := sha256.Sum256([]byte("app" + "7" + timestamp + appSecret)) // of client-id, order, timestamp
		req.Query = "client-id=app&order=7&timestamp=" + timestamp + "&sign=" + hex.EncodeToString(sum[:])
	}
	return req
}

func userID(i int) string { return strconv.Itoa(i % users) }

// rolesOfRule are those that rule i names, the one that lets its requests pass at last.
func rolesOfRule(i, roles int) []string {
	return []string{roleName((i + 1) % roles), roleName((i + 2) % roles), commonRole(i, roles)}
}

// rolesOfUser are those of user i, in order, as the store has them.
func rolesOfUser(i, roles int) []string {
	return slices.Sorted(slices.Values([]string{commonRole(i, roles), roleName((i + 3) % roles), roleName((i + 4) % roles)}))
}

// commonRole is a role of each tenth rule and user.
func commonRole(i, roles int) string { return roleName(i % 10 * (roles / 10)) }

func roleName(n int) string { return fmt.Sprintf("role-%04d", n) }

// roleList is the store of roles.
type roleList struct{ size }

func (l roleList) RolesOf(_ context.Context, _, user string) ([]string, error) {
	i, err := strconv.Atoi(user)
	if !l.allRoles {
		return rolesOfUser(i, l.roles), err
	}
	var all []string
	for n := range l.roles {
		all = append(all, roleName(n))
	}
	return all, err
}

// memory is every store that is not measured: each token is its user's, each user is
// bound to one node, which is UP.
type memory struct{ gateway.Revocations }

var nodes = registry.NewSnapshot(
	[]gateway.Service{{ID: serviceID, Name: "AI", PathPrefix: "/js/a", LoginPath: "/sys/login", HealthPath: "/health", Enabled: true}},
	[]gateway.Node{{ID: "node-1", ServiceID: serviceID, Name: "first", BaseURL: "http://127.0.0.1:8981", Enabled: true}},
)

func (memory) UserByToken(_ context.Context, _, token string) (string, error) {
	return token[len("token-of-"):], nil
}

func (memory) Revoked(context.Context, string, string, string, time.Time) (bool, error) {
	return false, nil
}

func (memory) Snapshot() *registry.Snapshot                           { return nodes }
func (memory) Usable(context.Context, string, string) error           { return nil }
func (memory) PlaceUser(context.Context, string) (string, error)      { return "node-1", nil }
func (memory) PlaceAnonymous(context.Context, string) (string, error) { return "node-1", nil }

func (memory) ByUser(context.Context, string, string) (gateway.Route, error) {
	return gateway.Route{NodeID: "node-1", Epoch: 1}, nil
}

func (m memory) ByUsername(ctx context.Context, service, name string) (gateway.Route, error) {
	return m.ByUser(ctx, service, name)
}

func (memory) Unwritten(string, string) (gateway.Login, bool) { return gateway.Login{}, false }

func (memory) BindIfAbsent(context.Context, gateway.Login) (gateway.BindResult, error) {
	return gateway.BindResult{}, errors.New("nobody logs in here")
}
