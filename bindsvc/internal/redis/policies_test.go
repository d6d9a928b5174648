package redis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/internal/testenv"
)

var someTime = time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)

func policy(kind gateway.PolicyKind, id, body string, revision int64) gateway.Policy {
	return gateway.Policy{Kind: kind, ID: id, Body: json.RawMessage(body), Revision: revision, UpdatedAt: someTime}
}

func publish(t *testing.T, store *redis.Store, revision int64, policies ...gateway.Policy) {
	t.Helper()
	require.NoError(t, store.PublishPolicies(t.Context(), policies, revision))
}

func requireServed(t *testing.T, store *redis.Store, revision int64, policies ...gateway.Policy) {
	t.Helper()
	served, servedRevision, err := store.ServedPolicies(t.Context())
	require.NoError(t, err)
	require.Equal(t, policies, served)
	require.Equal(t, revision, servedRevision)
}

func TestPoliciesAreServedAsPublished(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	requireServed(t, store, 0)
	maintenance := policy(gateway.PolicyMaintenance, "维护/a b", `{"message":"<稍后> & \"bye\"","n":9007199254740993}`, 7)
	limits := []gateway.Policy{policy(gateway.PolicyRateLimit, "a", `{}`, 3), policy(gateway.PolicyRateLimit, "b", `{"x":1}`, 9)}
	publish(t, store, 9, limits[1], maintenance, limits[0])
	requireServed(t, store, 9, maintenance, limits[0], limits[1])
	require.Equal(t, map[string]string{
		"a": `{"body":{},"revision":3,"updatedAt":"2024-05-06T07:08:09.123456Z"}`,
		"b": `{"body":{"x":1},"revision":9,"updatedAt":"2024-05-06T07:08:09.123456Z"}`,
	}, client.HGetAll(ctx, "gateway:policy:rate-limit").Val())
	require.Equal(t, "9", client.Get(ctx, "gateway:policy:revision").Val())

	publish(t, store, 10, limits[0])
	requireServed(t, store, 10, limits[0])
	require.Zero(t, client.Exists(ctx, "gateway:policy:maintenance").Val())
	publish(t, store, 9, maintenance)
	requireServed(t, store, 10, limits[0])

	require.NoError(t, client.HSet(ctx, "gateway:policy:rate-limit", "by hand", "{").Err())
	require.NoError(t, client.Set(ctx, "gateway:policy:access", "by hand", 0).Err())
	publish(t, store, 10, limits[0])
	requireServed(t, store, 10, limits[0])

	publish(t, store, 11)
	requireServed(t, store, 11)
	publish(t, store, 12, maintenance)
	require.NoError(t, client.FlushAll(ctx).Err())
	requireServed(t, store, 0)
	publish(t, store, 12, maintenance)
	requireServed(t, store, 12, maintenance)
}

func TestPublishingLeavesWhatItDoesNotKnowAlone(t *testing.T) {
	store := open(t, server.Addr())
	require.NoError(t, store.Client().Set(t.Context(), "gateway:policy:pending", "not ours", 0).Err())
	require.NoError(t, store.Client().Set(t.Context(), "gateway:policy:newer", "not ours", 0).Err())
	publish(t, store, 1, policy("pending", "a", "{}", 1), policy("newer", "b", "{}", 1), policy(gateway.PolicyApps, "c", "{}", 1))
	requireServed(t, store, 1, policy(gateway.PolicyApps, "c", "{}", 1))
	require.Equal(t, "not ours", store.Client().Get(t.Context(), "gateway:policy:pending").Val())
	require.Equal(t, "not ours", store.Client().Get(t.Context(), "gateway:policy:newer").Val())

	err := store.PublishPolicies(t.Context(), []gateway.Policy{policy(gateway.PolicyApps, "broken", "{", 1)}, 2)
	require.ErrorContains(t, err, "apps/broken")
	requireServed(t, store, 1, policy(gateway.PolicyApps, "c", "{}", 1))
}

func TestPoliciesThatCannotBeReadAreErrors(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	good := policy(gateway.PolicyApps, "good", "{}", 1)
	for _, test := range []struct {
		name   string
		spoil  func() error
		naming string
	}{
		{"type of a kind", func() error { return client.Set(ctx, "gateway:policy:guards", "{}", 0).Err() }, "gateway:policy:guards in Redis cannot be read: WRONGTYPE"},
		{"no JSON", func() error { return client.HSet(ctx, "gateway:policy:apps", "a", "off").Err() }, `gateway:policy:apps in Redis cannot be read: field "a"`},
		{"empty", func() error { return client.HSet(ctx, "gateway:policy:apps", "a", "").Err() }, "gateway:policy:apps"},
		{"no body", func() error { return client.HSet(ctx, "gateway:policy:apps", "a", `{"revision":1}`).Err() }, "gateway:policy:apps"},
		{"null", func() error { return client.HSet(ctx, "gateway:policy:apps", "a", `null`).Err() }, "gateway:policy:apps"},
		{"null body", func() error {
			return client.HSet(ctx, "gateway:policy:apps", "a", `{"body":null,"revision":1,"updatedAt":"2024-05-06T07:08:09Z"}`).Err()
		}, "gateway:policy:apps"},
		{"body no object", func() error { return client.HSet(ctx, "gateway:policy:apps", "a", `{"body":[1],"revision":1}`).Err() }, "gateway:policy:apps"},
		{"revision no number", func() error { return client.HSet(ctx, "gateway:policy:apps", "a", `{"body":{},"revision":"1"}`).Err() }, "gateway:policy:apps"},
		{"the revision's type", func() error {
			return client.HSet(ctx, "gateway:policy:revision", "a", 1).Err()
		}, "gateway:policy:revision in Redis cannot be read: WRONGTYPE"},
		{"the revision's value", func() error { return client.Set(ctx, "gateway:policy:revision", "new", 0).Err() }, "gateway:policy:revision"},
		{"a negative revision", func() error { return client.Set(ctx, "gateway:policy:revision", "-1", 0).Err() }, "gateway:policy:revision"},
		{"no revision", func() error { return nil }, "gateway:policy:revision"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, client.FlushDB(ctx).Err())
			publish(t, store, 5, good)
			require.NoError(t, client.Del(ctx, test.naming[:min(len(test.naming), len("gateway:policy:revision"))]).Err())
			require.NoError(t, test.spoil())
			served, _, err := store.ServedPolicies(ctx)
			require.ErrorContains(t, err, test.naming)
			require.Empty(t, served)

			publish(t, store, 5, good)
			requireServed(t, store, 5, good)
		})
	}
}

func TestManyPoliciesAreReplacedAtOnce(t *testing.T) {
	store, reader := open(t, server.Addr()), open(t, server.Addr())
	const count, revisions = 10_000, 5
	set := func(revision int64) []gateway.Policy {
		policies := make([]gateway.Policy, count)
		for i := range policies {
			policies[i] = policy(gateway.PolicyRateLimit, fmt.Sprintf("rule-%05d", i), `{"rate":1}`, revision)
		}
		return policies
	}
	publish(t, store, 1, set(1)...)
	requireServed(t, store, 1, set(1)...)
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for revision := range int64(revisions) {
			if err := store.PublishPolicies(t.Context(), set(2+revision), 2+revision); err != nil {
				t.Error(err)
			}
		}
	})
	for last := int64(0); last < 1+revisions && !t.Failed(); {
		policies, revision, err := reader.ServedPolicies(t.Context())
		require.NoError(t, err)
		require.Len(t, policies, count)
		require.GreaterOrEqual(t, policies[0].Revision, revision)
		for _, p := range policies {
			require.Equal(t, policies[0].Revision, p.Revision)
		}
		last = revision
	}
	publisher.Wait()
}

// TestTheNewestPublicationWins: instances that have read the durable store at different times publish at once.
func TestTheNewestPublicationWins(t *testing.T) {
	stores := []*redis.Store{open(t, server.Addr()), open(t, server.Addr()), open(t, server.Addr())}
	set := func(revision int64) []gateway.Policy {
		var policies []gateway.Policy
		for _, kind := range []gateway.PolicyKind{gateway.PolicyAccess, gateway.PolicyAnswers, gateway.PolicyGuards} {
			policies = append(policies, policy(kind, fmt.Sprint("of ", revision), "{}", revision))
		}
		return policies
	}
	const newest = 24
	var publishers sync.WaitGroup
	for i := range newest {
		revision := int64((i*7)%newest + 1)
		publishers.Go(func() {
			if err := stores[i%3].PublishPolicies(t.Context(), set(revision), revision); err != nil {
				t.Error(err)
			}
		})
	}
	publishers.Wait()
	requireServed(t, stores[0], newest, set(newest)...)
	require.Zero(t, stores[0].Client().Exists(t.Context(), "gateway:policy:publisher").Val())
}

func TestAPublisherThatDiedIsWaitedFor(t *testing.T) {
	store := open(t, server.Addr())
	require.NoError(t, store.Client().Set(t.Context(), "gateway:policy:publisher", "dead", time.Minute).Err())
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := store.PublishPolicies(short, nil, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "dead", store.Client().Get(t.Context(), "gateway:policy:publisher").Val())
	require.NoError(t, store.Client().PExpire(t.Context(), "gateway:policy:publisher", 100*time.Millisecond).Err())
	publish(t, store, 1, policy(gateway.PolicyApps, "a", "{}", 1))
	requireServed(t, store, 1, policy(gateway.PolicyApps, "a", "{}", 1))
}

func TestPoliciesOutliveARestartOfRedis(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	ctx := t.Context()
	old, now := policy(gateway.PolicyGuards, "limiter", `{"enabled":true}`, 1), policy(gateway.PolicyGuards, "limiter", `{"enabled":false}`, 2)
	publish(t, store, 1, old)
	require.NoError(t, store.AddPending(ctx, pending("a", `{}`, someTime)))
	require.NoError(t, store.Client().Save(ctx).Err())
	publish(t, store, 2, now)
	own.Kill()
	start := time.Now()
	served, _, err := store.ServedPolicies(ctx)
	require.Error(t, err)
	require.Empty(t, served)
	require.Error(t, store.PublishPolicies(ctx, []gateway.Policy{now}, 2))
	_, err = store.PendingPolicies(ctx)
	require.Error(t, err)
	require.Error(t, store.AddPending(ctx, pending("b", `{}`, someTime)))
	require.Error(t, store.RemovePending(ctx, pending("a", `{}`, someTime)))
	require.Less(t, time.Since(start), 5*time.Second)
	require.NoError(t, own.Start())
	requireServed(t, store, 1, old)
	publish(t, store, 2, now)
	requireServed(t, store, 2, now)
	requirePending(t, store, pending("a", `{}`, someTime))
}
