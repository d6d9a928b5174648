package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/internal/testenv"
)

// follow returns what FollowPolicies hears, and a function that ends it.
func follow(t *testing.T, store *redis.Store) (heard chan struct{}, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	heard, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- store.FollowPolicies(ctx, func() { heard <- struct{}{} }) }()
	return heard, func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(2 * time.Second):
			require.Fail(t, "FollowPolicies goes on after its context")
		}
	}
}

func requireHeard(t *testing.T, heard chan struct{}, limit time.Duration) {
	t.Helper()
	select {
	case <-heard:
	case <-time.After(limit):
		require.Fail(t, "nothing was heard")
	}
}

func TestPoliciesAreFollowed(t *testing.T) {
	store, writer := open(t, server.Addr()), open(t, server.Addr())
	ctx := t.Context()
	before := goleak.IgnoreCurrent()
	heard, end := follow(t, store)
	requireHeard(t, heard, time.Second)

	publish(t, writer, 1, policy(gateway.PolicyApps, "a", "{}", 1))
	requireHeard(t, heard, time.Second)
	publish(t, writer, 1, policy(gateway.PolicyApps, "a", "{}", 1))
	publish(t, writer, 0)
	require.NoError(t, writer.AddPending(ctx, pending("a", `{}`, someTime)))
	requireHeard(t, heard, time.Second)
	require.Empty(t, heard, "what changes nothing is not announced: instances that publish what they hear of would never stop")
	publish(t, writer, 1, policy(gateway.PolicyApps, "a", `{"other":1}`, 1))
	requireHeard(t, heard, time.Second)
	publish(t, writer, 2, policy(gateway.PolicyApps, "a", `{"other":1}`, 1))
	requireHeard(t, heard, time.Second)

	end()
	require.Empty(t, heard)
	require.Eventually(t, func() bool {
		return store.Client().PubSubNumSub(ctx, "gateway:policy:changed").Val()["gateway:policy:changed"] == 0
	}, time.Second, 10*time.Millisecond)
	require.NoError(t, goleak.Find(before))
}

func TestFollowingSurvivesRedis(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	ctx := t.Context()
	before := goleak.IgnoreCurrent()
	heard, end := follow(t, store)
	requireHeard(t, heard, time.Second)

	own.Kill()
	require.NoError(t, own.Start())
	requireHeard(t, heard, 5*time.Second) // connected again
	require.NoError(t, store.AddPending(ctx, pending("a", `{}`, someTime)))
	requireHeard(t, heard, time.Second)

	require.NoError(t, store.Client().ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
	requireHeard(t, heard, 5*time.Second)

	own.Kill()
	end() // while it cannot connect
	require.NoError(t, goleak.Find(before))
}

// TestASilentConnectionIsGivenUp: nobody closes a connection to a machine that has vanished.
func TestASilentConnectionIsGivenUp(t *testing.T) {
	proxy, err := testenv.NewProxy(server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	store := open(t, proxy.Addr())
	heard, end := follow(t, store)
	requireHeard(t, heard, time.Second)
	require.Never(t, func() bool { return len(heard) > 0 }, 5*time.Second, 100*time.Millisecond, "a connection that answers is kept")
	proxy.SetDelay(5 * time.Second) // for what is connected now
	require.Never(t, func() bool { return len(heard) > 0 }, 3*time.Second, 100*time.Millisecond)
	proxy.SetDelay(0)
	requireHeard(t, heard, 3*time.Second)
	end()
}
