package redis_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/redis"
)

// pending is a change of a maintenance policy; an empty body stands for none.
func pending(id, body string, at time.Time) gateway.PendingPolicy {
	p := gateway.PendingPolicy{
		PolicyChange: gateway.PolicyChange{Kind: gateway.PolicyMaintenance, ID: id},
		Actor:        gateway.Actor{Name: "user:7", Address: "10.0.0.1", RequestID: "r-1"},
		At:           at,
	}
	if body != "" {
		p.Body = json.RawMessage(body)
	}
	return p
}

func requirePending(t *testing.T, store *redis.Store, want ...gateway.PendingPolicy) {
	t.Helper()
	all, err := store.PendingPolicies(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, all)
}

func TestPendingPolicies(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	requirePending(t, store)
	second := pending("a/b", `{"on":"<now>"}`, someTime.Add(time.Second))
	first := pending("z", "", someTime)
	require.NoError(t, store.AddPending(ctx, second))
	require.NoError(t, store.AddPending(ctx, first))
	requirePending(t, store, first, second)
	require.Equal(t, map[string]string{
		"maintenance/a/b": `{"body":{"on":"<now>"},"actor":{"name":"user:7","address":"10.0.0.1","requestId":"r-1"},"at":"2024-05-06T07:08:10.123456Z"}`,
		"maintenance/z":   `{"body":null,"actor":{"name":"user:7","address":"10.0.0.1","requestId":"r-1"},"at":"2024-05-06T07:08:09.123456Z"}`,
	}, store.Client().HGetAll(ctx, "gateway:policy:pending").Val())

	replaced := pending("z", `{}`, someTime.Add(time.Minute))
	require.NoError(t, store.AddPending(ctx, replaced))
	requirePending(t, store, second, replaced)
	require.NoError(t, store.RemovePending(ctx, first))
	requirePending(t, store, second, replaced)
	require.NoError(t, store.RemovePending(ctx, replaced))
	require.NoError(t, store.RemovePending(ctx, replaced))
	requirePending(t, store, second)
	require.Error(t, store.AddPending(ctx, pending("broken", "{", someTime)))
	requirePending(t, store, second)
}

func TestOnlyTheSamePendingPolicyIsRemoved(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	now := time.Now() // with what the monotonic clock adds
	stored := pending("a", `{"x": 1}`, now)
	other := stored
	other.Actor.Name = "admin-token"
	for _, different := range []gateway.PendingPolicy{
		pending("a", `{"x":2}`, now), pending("a", "", now), pending("a", `{"x":1}`, now.Add(1)), pending("b", `{"x":1}`, now), other,
	} {
		require.NoError(t, store.AddPending(ctx, stored))
		require.NoError(t, store.RemovePending(ctx, different))
		require.EqualValues(t, 1, store.Client().HLen(ctx, "gateway:policy:pending").Val())
	}
	require.NoError(t, store.RemovePending(ctx, stored))
	requirePending(t, store)

	require.NoError(t, store.Client().HSet(ctx, "gateway:policy:pending", "guards/a", ` { "body" : { "x" : [ 1 ] }, "by": "hand" } `).Err())
	all, err := store.PendingPolicies(ctx)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, store.RemovePending(ctx, all[0]))
	requirePending(t, store)
}

func TestPendingPoliciesThatCannotBeReadAreErrors(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	const key = "gateway:policy:pending"
	for field, value := range map[string]string{
		"guards": `{"body":{}}`, "guards/a": "", "guards/b": "off", "guards/c": "{}", "guards/d": `{"body":"off"}`, "guards/e": `{"body":{},"at":"now"}`,
	} {
		require.NoError(t, client.Del(ctx, key).Err())
		require.NoError(t, client.HSet(ctx, key, field, value).Err())
		_, err := store.PendingPolicies(ctx)
		require.ErrorContains(t, err, key+` in Redis cannot be read: field "`+field+`"`)
	}
	require.NoError(t, client.Del(ctx, key).Err())
	require.NoError(t, client.HSet(ctx, key, "maintenance/a", "off").Err())
	require.ErrorContains(t, store.RemovePending(ctx, pending("a", `{}`, someTime)), key)
	require.NoError(t, store.AddPending(ctx, pending("a", `{}`, someTime)), "a new change replaces anything")
	requirePending(t, store, pending("a", `{}`, someTime))

	require.NoError(t, client.Del(ctx, key).Err())
	require.NoError(t, client.Set(ctx, key, "off", 0).Err())
	_, err := store.PendingPolicies(ctx)
	require.ErrorContains(t, err, key+" in Redis cannot be read: WRONGTYPE")
	require.ErrorContains(t, store.RemovePending(ctx, pending("a", `{}`, someTime)), key)
	require.ErrorContains(t, store.AddPending(ctx, pending("a", `{}`, someTime)), "WRONGTYPE")
}
