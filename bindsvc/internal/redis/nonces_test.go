package redis_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/internal/testenv"
)

func TestNonces(t *testing.T) {
	store, other := open(t, server.Addr()), open(t, server.Addr())
	use := func(store *redis.Store, app, nonce string, life time.Duration) bool {
		t.Helper()
		first, err := store.UseNonce(t.Context(), app, nonce, life)
		require.NoError(t, err)
		return first
	}
	require.True(t, use(store, "app", "n", time.Minute))
	require.False(t, use(store, "app", "n", time.Minute))
	require.False(t, use(other, "app", "n", time.Hour))
	require.InDelta(t, time.Minute, store.Client().PTTL(t.Context(), "gateway:nonce:app:n").Val(), float64(time.Second), "a second use prolongs nothing")
	require.True(t, use(store, "other", "n", time.Minute))
	require.True(t, use(store, "app", "m", time.Minute))

	long := strings.Repeat("x", 10_000)
	require.True(t, use(store, "app", long, time.Minute))
	require.False(t, use(store, "app", long, time.Minute))
	require.True(t, use(store, "app", long+"x", time.Minute))

	for _, over := range []time.Duration{0, -1, -time.Hour, 20 * time.Millisecond} { // 0 and -1 mean "for ever" to go-redis
		require.True(t, use(store, "app", over.String(), over))
		require.Eventually(t, func() bool { return use(store, "app", over.String(), time.Minute) }, time.Second, time.Millisecond)
	}

	var firsts atomic.Int64
	var users sync.WaitGroup
	for i := range 20 {
		users.Go(func() {
			first, err := []*redis.Store{store, other}[i%2].UseNonce(t.Context(), "app", "raced", time.Minute)
			if err != nil {
				t.Error(err)
			} else if first {
				firsts.Add(1)
			}
		})
	}
	users.Wait()
	require.EqualValues(t, 1, firsts.Load())
}

func TestNoncesOutliveARestartOfRedis(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	own.Kill()
	start := time.Now()
	first, err := store.UseNonce(t.Context(), "app", "n", time.Minute)
	require.Error(t, err)
	require.False(t, first)
	require.Less(t, time.Since(start), 2*time.Second)
	require.NoError(t, own.Start())
	first, err = store.UseNonce(t.Context(), "app", "n", time.Minute)
	require.NoError(t, err)
	require.True(t, first)
}
