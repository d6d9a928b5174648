package policy_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/policy/policytest"
)

// cache is a gateway.PolicyCache in memory.
type cache struct {
	mu       sync.Mutex
	down     bool
	served   []gateway.Policy
	revision int64
	pending  []gateway.PendingPolicy
}

func (c *cache) do(fn func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return policytest.ErrDown
	}
	fn()
	return nil
}

func (c *cache) PublishPolicies(_ context.Context, policies []gateway.Policy, revision int64) error {
	return c.do(func() {
		if revision >= c.revision {
			c.served, c.revision = policies, revision
		}
	})
}

func (c *cache) ServedPolicies(context.Context) (served []gateway.Policy, revision int64, err error) {
	err = c.do(func() { served, revision = c.served, c.revision })
	return served, revision, err
}

func (c *cache) AddPending(_ context.Context, p gateway.PendingPolicy) error {
	return c.do(func() { c.drop(p); c.pending = append(c.pending, p) })
}

func (c *cache) drop(p gateway.PendingPolicy) {
	var left []gateway.PendingPolicy
	for _, one := range c.pending {
		if one.Kind != p.Kind || one.ID != p.ID {
			left = append(left, one)
		}
	}
	c.pending = left
}

func (c *cache) PendingPolicies(context.Context) (pending []gateway.PendingPolicy, err error) {
	err = c.do(func() { pending = c.pending })
	return pending, err
}

func (c *cache) RemovePending(_ context.Context, p gateway.PendingPolicy) error {
	return c.do(func() { c.drop(p) })
}

func (c *cache) FollowPolicies(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func isInMaintenance(k *policy.Keeper) bool {
	found := false
	k.Snapshot().At("/js/a/x").Maintenance("ai", time.Now(), func(*policy.MaintenanceRule) bool { found = true; return true })
	return found
}

const everything = `{"message":{"zh":"维护","en":"maintenance"}}`

func TestASwitchWorksWhileTheDurableStoreIsDown(t *testing.T) {
	store, shared := &policytest.Memory{}, &cache{}
	one := policytest.NewKeeper(t, store, shared, time.Now)
	other := policytest.NewKeeper(t, store, shared, time.Now)
	policytest.Set(t, one, gateway.PolicyRateLimit, "orders", `{"path":"/js/a/orders","rate":5}`)

	store.SetDown(true)
	_, err := one.Change(t.Context(), []policy.Wish{{Kind: gateway.PolicyRateLimit, ID: "x", Body: json.RawMessage(`{"path":"/x","rate":1}`)}})
	var refusal *gateway.Error
	require.ErrorAs(t, err, &refusal, "only switches go through the cache")
	require.Equal(t, gateway.StoreUnavailable, refusal.Reason)
	require.Contains(t, refusal.Detail, "only guards and maintenance")

	ctx := gateway.WithActor(t.Context(), gateway.Actor{Name: "user:7"})
	done, err := one.Change(ctx, []policy.Wish{{Kind: gateway.PolicyMaintenance, ID: "main", Body: json.RawMessage(everything)}})
	require.NoError(t, err)
	require.True(t, done.Pending)
	require.True(t, isInMaintenance(one), "at once where it was changed")
	require.NoError(t, other.Refresh(t.Context()))
	require.True(t, isInMaintenance(other))
	require.NotEmpty(t, limits(other.Snapshot(), "/js/a/orders"), "the others hold")

	shared.down = true
	_, err = one.Change(ctx, []policy.Wish{{Kind: gateway.PolicyMaintenance, ID: "main"}})
	require.ErrorAs(t, err, &refusal)
	require.Contains(t, refusal.Detail, "neither the database nor Redis")
	shared.down = false

	store.SetDown(false)
	require.NoError(t, other.Refresh(t.Context()))
	require.True(t, isInMaintenance(other))
	require.Zero(t, other.Snapshot().Pending, "handed on")
	history, err := store.PolicyHistory(t.Context(), gateway.PolicyMaintenance, 0, 10)
	require.NoError(t, err)
	require.Len(t, history, 1)
	require.Equal(t, "user:7", history[0].Actor.Name)

	shared.down = true
	_, err = one.Change(ctx, []policy.Wish{{Kind: gateway.PolicyMaintenance, ID: "main"}})
	require.NoError(t, err)
	require.False(t, isInMaintenance(one))
}

// The durable store comes back, and the cache with the switch goes away.
func TestAPendingSwitchIsNotLostWithTheCache(t *testing.T) {
	store, shared := &policytest.Memory{}, &cache{}
	k := policytest.NewKeeper(t, store, shared, time.Now)
	store.SetDown(true)
	_, err := k.Change(t.Context(), []policy.Wish{{Kind: gateway.PolicyMaintenance, ID: "main", Body: json.RawMessage(everything)}})
	require.NoError(t, err)
	require.True(t, isInMaintenance(k), "on an installation without any policy too")
	shared.down = true
	store.SetDown(false)
	require.NoError(t, k.Refresh(t.Context()))
	require.True(t, isInMaintenance(k))
	history, err := store.PolicyHistory(t.Context(), gateway.PolicyMaintenance, 0, 10)
	require.NoError(t, err)
	require.Len(t, history, 1, "handed on from memory")

	shared.down = false
	require.Len(t, shared.pending, 1)
	policytest.Set(t, k, gateway.PolicyMaintenance, "main", `{"enabled":false}`)
	require.NoError(t, k.Refresh(t.Context()))
	require.Empty(t, shared.pending)
	require.False(t, isInMaintenance(k))
}

// An instance that has never read the policies does not take an empty cache for none.
func TestNothingIsReadyWithoutPolicies(t *testing.T) {
	store, shared := &policytest.Memory{}, &cache{}
	store.SetDown(true)
	sealer, err := policy.NewSealer("a key of the tests' policies")
	require.NoError(t, err)
	k := policy.NewKeeper(policy.Parts{Store: store, Cache: shared, Sealer: sealer, Log: discard, Now: time.Now})
	require.Error(t, k.Refresh(t.Context()))
	require.False(t, k.IsReady())
}

func TestWhatHoldsWhileNoStoreCanBeAsked(t *testing.T) {
	store, shared := &policytest.Memory{}, &cache{}
	k := policytest.NewKeeper(t, store, shared, time.Now)
	policytest.Set(t, k, gateway.PolicyMaintenance, "main", everything)
	store.SetDown(true)
	shared.down = true
	require.Error(t, k.Refresh(t.Context()))
	require.True(t, isInMaintenance(k))

	shared.down, shared.served = false, nil // evicted, but for the revision
	require.NoError(t, k.Refresh(t.Context()))
	require.True(t, isInMaintenance(k))
	shared.revision = 0 // emptied
	require.NoError(t, k.Refresh(t.Context()))
	require.True(t, isInMaintenance(k), "a cache that was emptied knows less than this instance")
	store.SetDown(false)
	require.NoError(t, k.Refresh(t.Context()))
	require.NotEmpty(t, shared.served)
}

// Nothing may pass between "ready" and the policies.
func TestItIsReadyOnceThePoliciesAreInForce(t *testing.T) {
	store := &policytest.Memory{}
	store.Put(gateway.PolicyMaintenance, "all", everything)
	var k *policy.Keeper
	readyBefore := true
	sealer, err := policy.NewSealer("a key of the tests' policies")
	require.NoError(t, err)
	k = policy.NewKeeper(policy.Parts{
		Store: store, Sealer: sealer, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Changed: func(*policy.Snapshot) { readyBefore = k.IsReady() },
	})
	require.False(t, k.IsReady())
	require.NoError(t, k.Refresh(t.Context()))
	require.False(t, readyBefore, "before those who follow the policies have them")
	require.True(t, k.IsReady())
	require.True(t, isInMaintenance(k))
}

func TestALaterChangeOutranksAPendingOne(t *testing.T) {
	store, shared := &policytest.Memory{}, &cache{}
	k := policytest.NewKeeper(t, store, shared, time.Now)
	require.NoError(t, shared.AddPending(t.Context(), gateway.PendingPolicy{
		PolicyChange: gateway.PolicyChange{Kind: gateway.PolicyMaintenance, ID: "main", Body: json.RawMessage(everything)}, At: time.Now().Add(-time.Hour),
	}))
	policytest.Set(t, k, gateway.PolicyMaintenance, "main", `{"enabled":false}`)
	require.NoError(t, k.Refresh(t.Context()))
	require.False(t, isInMaintenance(k))
}

func TestAnInvalidPolicy(t *testing.T) {
	store := &policytest.Memory{}
	k := policytest.NewKeeper(t, store, nil, time.Now)
	policytest.Set(t, k, gateway.PolicyAccess, "admin", `{"type":"rbac","path":"/js/a/admin/**","roles":["admin"]}`)
	store.Put(gateway.PolicyAccess, "admin", `{"type":"rbac","path":"/js/a/admin/**","roles":"admin"}`)
	require.NoError(t, k.Refresh(t.Context()))
	s := k.Snapshot()
	require.Len(t, s.Problems, 1)
	require.True(t, s.Problems[0].Kept)
	inForce, _ := s.At("/js/a/admin/x").Access(policy.AccessRBAC, "ai", "GET")
	require.NotEmpty(t, inForce, "the last good version holds")
	require.False(t, s.IsBroken(policy.GuardAccess, "ai"))

	store.Put(gateway.PolicyAccess, "other", `{"services":["docs"],"type":"?"}`)
	require.NoError(t, k.Refresh(t.Context()))
	s = k.Snapshot()
	require.True(t, s.IsBroken(policy.GuardAccess, "docs"), "never good: what it guards is not open")
	require.False(t, s.IsBroken(policy.GuardAccess, "ai"))
}

func TestSecretsAreSealed(t *testing.T) {
	const first, second = "the first secret of an app", "the second secret of an app"
	store := &policytest.Memory{}
	k := policytest.NewKeeper(t, store, nil, time.Now)
	policytest.Set(t, k, gateway.PolicyApps, "partner", `{"secrets":[{"id":"a","value":"`+first+`"}]}`)
	policytest.Set(t, k, gateway.PolicyApps, "partner", `{"name":"kept","secrets":[{"id":"a"},{"id":"b","value":"`+second+`"}]}`)
	require.Equal(t, []string{first, second}, k.Snapshot().App("ai", "partner").GoodSecrets(time.Now()))

	stored, _, err := store.LoadPolicies(t.Context())
	require.NoError(t, err)
	for _, body := range []string{string(stored[0].Body), string(policy.View(gateway.PolicyApps, stored[0].Body))} {
		require.NotContains(t, body, first)
		require.NotContains(t, body, second)
		require.Contains(t, body, `"id":"b"`)
	}
	require.NotContains(t, string(policy.View(gateway.PolicyApps, stored[0].Body)), "sealed")

	// What is sealed for one app is no other's.
	store.Put(gateway.PolicyApps, "thief", string(stored[0].Body))
	require.NoError(t, k.Refresh(t.Context()))
	require.Nil(t, k.Snapshot().App("ai", "thief"))

	for name, body := range map[string]string{
		"no value":     `{"secrets":[{"id":"new"}]}`,
		"sealed given": `{"secrets":[{"id":"a","sealed":"v1.x.y"}]}`,
		"too short":    `{"secrets":[{"id":"a","value":"short"}]}`,
		"three":        `{"secrets":[{"id":"a"},{"id":"b"},{"id":"c","value":"` + first + `"}]}`,
		"twice":        `{"secrets":[{"id":"a"},{"id":"a","value":"` + first + `"}]}`,
	} {
		_, err := k.Change(t.Context(), []policy.Wish{{Kind: gateway.PolicyApps, ID: "partner", Body: json.RawMessage(body)}})
		var invalid *policy.InvalidError
		require.ErrorAs(t, err, &invalid, name)
		require.NotContains(t, err.Error(), first)
	}
}

func TestAnotherKeyOpensAfterItsRotation(t *testing.T) {
	store := &policytest.Memory{}
	old, err := policy.NewSealer("the key of last year")
	require.NoError(t, err)
	body, err := old.Prepare(gateway.PolicyApps, "partner", []byte(`{"secrets":[{"value":"the secret of an app"}]}`), nil, time.Now())
	require.NoError(t, err)
	store.Put(gateway.PolicyApps, "partner", string(body))
	for _, keys := range [][]string{{"the key of this year"}, {"the key of this year", "the key of last year"}} {
		sealer, err := policy.NewSealer(keys...)
		require.NoError(t, err)
		k := policy.NewKeeper(policy.Parts{Store: store, Sealer: sealer, Log: discard, Now: time.Now})
		require.NoError(t, k.Refresh(t.Context()))
		if len(keys) == 1 {
			require.ErrorContains(t, k.Snapshot().Problems[0].Err, "HOMENODE_POLICY_KEY")
			require.Nil(t, k.Snapshot().App("ai", "partner"))
		} else {
			require.Empty(t, k.Snapshot().Problems)
		}
	}
}

func TestRollback(t *testing.T) {
	store := &policytest.Memory{}
	k := policytest.NewKeeper(t, store, nil, time.Now)
	policytest.Set(t, k, gateway.PolicyRateLimit, "a", `{"path":"/a","rate":1}`)
	policytest.Set(t, k, gateway.PolicyRateLimit, "b", `{"path":"/b","rate":1}`)
	good := k.Snapshot().Revision
	policytest.Set(t, k, gateway.PolicyMaintenance, "main", everything)
	policytest.Set(t, k, gateway.PolicyRateLimit, "a", `{"path":"/a","rate":2}`)
	policytest.Set(t, k, gateway.PolicyRateLimit, "a", `{"path":"/a","rate":3}`)
	policytest.Set(t, k, gateway.PolicyRateLimit, "c", `{"path":"/c","rate":1}`)
	_, err := k.Change(t.Context(), []policy.Wish{{Kind: gateway.PolicyRateLimit, ID: "b"}})
	require.NoError(t, err)

	done, err := k.Rollback(t.Context(), gateway.PolicyRateLimit, good)
	require.NoError(t, err)
	require.Len(t, done.Changes, 3)
	s := k.Snapshot()
	require.InDelta(t, 1, limits(s, "/a")[0].Rate, 0)
	require.NotEmpty(t, limits(s, "/b"))
	require.Empty(t, limits(s, "/c"))
	require.True(t, isInMaintenance(k), "other kinds stay")

	_, err = k.Rollback(t.Context(), gateway.PolicyRateLimit, 1000)
	var invalid *policy.InvalidError
	require.ErrorAs(t, err, &invalid)
}

func TestBadPoliciesAreRefusedByField(t *testing.T) {
	k := policytest.NewKeeper(t, &policytest.Memory{}, nil, time.Now)
	policytest.Set(t, k, gateway.PolicyIdentity, "all", `{"mode":"token"}`)
	for _, bad := range []struct {
		kind           gateway.PolicyKind
		id, body, says string
	}{
		{"guards", "limiter", `{"on":true}`, "on"},
		{"maintenance", "m", `{"paths":["a"]}`, "paths[0]:"},
		{"maintenance", "m", `{"testers":{"addresses":["10.0.0"]}}`, "testers.addresses[0]:"},
		{"maintenance", "m", `{"start":"2026-01-02T00:00:00Z","end":"2026-01-01T00:00:00Z"}`, "end:"},
		{"maintenance", "m", `{"end":"tomorrow"}`, "tomorrow"},
		{"identity", "i", `{"mode":"magic"}`, "mode:"},
		{"identity", "i", `{"mode":"jwt"}`, "jwt: is needed"},
		{"identity", "i", `{"services":["ai"],"mode":"jwt","jwt":{"algorithms":["none"]}}`, "jwt.algorithms"},
		{"identity", "i", `{"services":["ai"],"mode":"jwt","jwt":{"algorithms":["HS256"],"keys":[{"value":"sixteen letters!"}]}}`, "jwt.keys[0]"},
		{"identity", "i", `{"mode":"token"}`, "services: another policy"},
		{"apps", "a", `{"secrets":[]}`, "secrets:"},
		{"apps", "with space", `{}`, "id:"},
		{"signature", "s", `{}`, "paths: want at least one"},
		{"signature", "s", `{"paths":["/a"],"signParam":"timestamp"}`, "signParam: is the timestampParam"},
		{"signature", "s", `{"paths":["/a"],"ttl":"5"}`, "a duration is a text"},
		{"rate-limit", "r", `{"path":"/a"}`, "rate:"},
		{"rate-limit", "r", `{"path":"/a","rate":-1}`, "rate:"},
		{"rate-limit", "r", `{"path":"/a","rate":"5"}`, "rate: want a value of another type"},
		{"rate-limit", "r", `{"path":"/a","rate":5,"by":"moon"}`, "by:"},
		{"rate-limit", "r", `{"path":"/a","rate":5,"brust":5}`, "brust"},
		{"access", "a", `{"type":"rbac","path":"/a"}`, "roles:"},
		{"access", "a", `{"type":"grey","path":"/a","percent":101}`, "percent:"},
		{"access", "a", `{"type":"grey","path":"/a","roles":["x"]}`, "roles: has no meaning"},
		{"access", "a", `{"type":"method","path":"/a","methods":["get"]}`, "methods[0]:"},
		{"degradation", "d", `{"core":["("]}`, "core[0]:"},
		{"degradation", "d", `{"breaker":"LatencyAtQuantileMS(50.0) > 100"}`, "breaker:"},
		{"answers", "a", `{"clientSources":["app"]}`, "sourceHeader: is needed"},
		{"answers", "a", `{"sourceHeader":"X-Token","clientSources":["app"]}`, "sourceHeader: is a header"},
		{"answers", "a", `{"codes":{"MADE_UP":1}}`, "codes.MADE_UP"},
		{"answers", "a", `[]`, "want a value of another type"},
		{"moon", "a", `{}`, "no kind"},
	} {
		_, err := k.Change(t.Context(), []policy.Wish{{Kind: bad.kind, ID: bad.id, Body: json.RawMessage(bad.body)}})
		var invalid *policy.InvalidError
		require.ErrorAs(t, err, &invalid, bad.body)
		require.Contains(t, err.Error(), bad.says, bad.body)
	}
	require.Equal(t, int64(1), k.Snapshot().Revision, "nothing was stored")
}

func TestAConditionAborts(t *testing.T) {
	k := policytest.NewKeeper(t, &policytest.Memory{}, nil, time.Now)
	errOther := errors.New("another one is there")
	_, err := k.Change(t.Context(), []policy.Wish{{Kind: gateway.PolicyMaintenance, ID: "main", Body: json.RawMessage(everything), Match: func(*gateway.Policy) error { return errOther }}})
	require.ErrorIs(t, err, errOther)
	require.False(t, isInMaintenance(k))
}

func TestManyPoliciesAtOnce(t *testing.T) {
	k := policytest.NewKeeper(t, &policytest.Memory{}, nil, time.Now)
	wishes := make([]policy.Wish, 10_001)
	for i := range wishes {
		wishes[i] = policy.Wish{Kind: gateway.PolicyRateLimit, ID: "r" + strings.Repeat("x", i%3), Body: json.RawMessage(`{"path":"/a","rate":1}`)}
	}
	_, err := k.Change(t.Context(), wishes)
	var invalid *policy.InvalidError
	require.ErrorAs(t, err, &invalid)
}

func limits(s *policy.Snapshot, path string) []*policy.LimitRule {
	inForce, _ := s.At(path).Limits("ai", "GET")
	return inForce
}

func TestAPublicKeyTakesThePlaceOfASecret(t *testing.T) {
	k := policytest.NewKeeper(t, &policytest.Memory{}, nil, time.Now)
	set := func(jwt string) error {
		_, err := k.Change(t.Context(), []policy.Wish{{Kind: gateway.PolicyIdentity, ID: "i", Body: []byte(`{"mode":"jwt","jwt":` + jwt + `}`)}})
		return err
	}
	const public = `{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}` // RFC 8037 A.2
	require.NoError(t, set(`{"algorithms":["HS256"],"keys":[{"id":"a","value":"`+strings.Repeat("s", 32)+`"}]}`))
	require.NoError(t, set(`{"algorithms":["EdDSA"],"keys":[{"id":"a","publicKey":"`+public+`"}]}`))
	require.NotContains(t, string(k.Snapshot().Of(gateway.PolicyIdentity)[0].Body), "sealed")
}
