package redis_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/internal/testenv"
)

// slow gains so little that a test does not see it.
func slow(key string, burst float64) gateway.Bucket {
	return gateway.Bucket{Key: key, Rate: 0.001, Burst: burst}
}

func take(t *testing.T, store *redis.Store, buckets ...gateway.Bucket) gateway.Admission {
	t.Helper()
	admission, err := store.Take(t.Context(), "ai", buckets)
	require.NoError(t, err)
	return admission
}

func peek(t *testing.T, store *redis.Store, buckets ...gateway.Bucket) gateway.Admission {
	t.Helper()
	admission, err := store.Peek(t.Context(), "ai", buckets)
	require.NoError(t, err)
	return admission
}

// redisTime is the clock that buckets go by.
func redisTime(t *testing.T, store *redis.Store) time.Time {
	t.Helper()
	now, err := store.Client().Time(t.Context()).Result()
	require.NoError(t, err)
	return now
}

func TestLimiterHoldsTheRateAcrossInstances(t *testing.T) {
	first, second := open(t, server.Addr()), open(t, server.Addr())
	bucket := gateway.Bucket{Key: "GET /x", Rate: 100, Burst: 20}
	var admitted atomic.Int64
	var takers sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	start := redisTime(t, first)
	for i := range 8 {
		store := []*redis.Store{first, second}[i%2]
		takers.Go(func() {
			for ctx.Err() == nil {
				// Not under ctx: an answer that it cuts off would have taken one unseen.
				admission, err := store.Take(t.Context(), "ai", []gateway.Bucket{bucket})
				switch {
				case err != nil:
					t.Error(err)
					return
				case admission.Allowed:
					admitted.Add(1)
				}
			}
		})
	}
	takers.Wait()
	for take(t, second, bucket).Allowed { // what came after the last asked
		admitted.Add(1)
	}
	seconds := redisTime(t, first).Sub(start).Seconds()
	require.LessOrEqual(t, float64(admitted.Load()), 20+100*seconds)
	require.InDelta(t, 20+100*seconds, float64(admitted.Load()), 3, "one token, and what the questions took")
}

// TestLimiterIsExactOverMinutes sets the time of the last admission back instead of waiting.
func TestLimiterIsExactOverMinutes(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	const key, step, steps = "gateway:limit:{ai}:k", 137_003 * time.Microsecond, 440 // a minute in all
	start := redisTime(t, store)
	admitted := 0
	for range steps {
		for take(t, store, gateway.Bucket{Key: "k", Rate: 100, Burst: 20}).Allowed {
			admitted++
		}
		level, at, _ := strings.Cut(client.Get(ctx, key).Val(), " ")
		micros, err := strconv.ParseInt(at, 10, 64)
		require.NoError(t, err)
		require.NoError(t, client.Set(ctx, key, fmt.Sprint(level, " ", micros-step.Microseconds()), time.Minute).Err())
	}
	seconds := redisTime(t, store).Sub(start).Seconds() + (steps-1)*step.Seconds()
	require.InDelta(t, 20+100*seconds, float64(admitted), 2, "one token, and what the questions took")
}

func TestLimiterTakesAllOrNothing(t *testing.T) {
	store := open(t, server.Addr())
	total, user := slow("total", 3), slow("user:7", 1)
	require.Equal(t, gateway.Admission{Allowed: true}, take(t, store, total, user))
	for range 5 {
		admission := take(t, store, total, user)
		require.False(t, admission.Allowed)
		require.Equal(t, 1, admission.Refused)
		require.InDelta(t, 1000*time.Second, admission.RetryAfter, float64(10*time.Second))
	}
	require.True(t, take(t, store, total).Allowed)
	require.True(t, take(t, store, total).Allowed, "the refused took none of the total")
	require.False(t, take(t, store, total).Allowed)

	fast := gateway.Bucket{Key: "fast", Rate: 0.1, Burst: 1}
	require.True(t, take(t, store, fast).Allowed)
	admission := take(t, store, fast, slow("other", 1), user)
	require.Equal(t, 2, admission.Refused, "the one that stays empty longest")
	require.Equal(t, gateway.Admission{Allowed: true}, take(t, store), "no bucket refuses nobody")

	elsewhere, err := store.Take(t.Context(), "other", []gateway.Bucket{total})
	require.NoError(t, err)
	require.True(t, elsewhere.Allowed, "a key is its service's own")
}

func TestLimiterPeekTakesAndWritesNothing(t *testing.T) {
	store := open(t, server.Addr())
	bucket := slow("k", 1)
	for range 3 {
		require.True(t, peek(t, store, bucket).Allowed)
	}
	require.Zero(t, store.Client().DBSize(t.Context()).Val())
	require.True(t, take(t, store, bucket).Allowed)
	before := store.Client().Dump(t.Context(), "gateway:limit:{ai}:k").Val()
	admission := peek(t, store, bucket)
	require.False(t, admission.Allowed)
	require.InDelta(t, 1000*time.Second, admission.RetryAfter, float64(10*time.Second))
	require.False(t, take(t, store, bucket).Allowed)
	require.Equal(t, before, store.Client().Dump(t.Context(), "gateway:limit:{ai}:k").Val(), "nor does a refusal write")
}

func TestLimiterHonoursChangedParametersAtOnce(t *testing.T) {
	store := open(t, server.Addr())
	require.True(t, take(t, store, slow("burst", 100)).Allowed)
	require.True(t, take(t, store, slow("burst", 2)).Allowed, "99 become 2")
	require.True(t, take(t, store, slow("burst", 2)).Allowed)
	require.False(t, take(t, store, slow("burst", 2)).Allowed)
	require.False(t, take(t, store, slow("burst", 100)).Allowed, "a greater burst is no present")

	require.True(t, take(t, store, slow("rate", 1)).Allowed)
	require.False(t, take(t, store, slow("rate", 1)).Allowed)
	require.Eventually(t, func() bool {
		return take(t, store, gateway.Bucket{Key: "rate", Rate: 50, Burst: 1}).Allowed
	}, time.Second, time.Millisecond)
	require.InDelta(t, 1000*time.Second, take(t, store, slow("rate", 1)).RetryAfter, float64(100*time.Second))
}

func TestLimiterForgetsFullBuckets(t *testing.T) {
	store := open(t, server.Addr())
	for _, test := range []struct {
		bucket gateway.Bucket
		life   time.Duration
	}{
		{gateway.Bucket{Key: "quick", Rate: 1000, Burst: 5}, time.Second},
		{gateway.Bucket{Key: "minute", Rate: 1.0 / 60, Burst: 5}, 61 * time.Second},
		{gateway.Bucket{Key: "never", Rate: 1e-300, Burst: 5}, 1e12 * time.Millisecond},
	} {
		require.True(t, take(t, store, test.bucket).Allowed)
		life, err := store.Client().PTTL(t.Context(), "gateway:limit:{ai}:"+test.bucket.Key).Result()
		require.NoError(t, err)
		require.InDelta(t, test.life, life, float64(1100*time.Millisecond), test.bucket.Key)
	}
}

// TestLimiterSurvivesAClockThatWasSetBack: the bucket was last written an hour from now.
func TestLimiterSurvivesAClockThatWasSetBack(t *testing.T) {
	store := open(t, server.Addr())
	bucket := gateway.Bucket{Key: "k", Rate: 20, Burst: 3}
	ahead := redisTime(t, store).Add(time.Hour).UnixMicro()
	require.NoError(t, store.Client().Set(t.Context(), "gateway:limit:{ai}:k", fmt.Sprint("0.5 ", ahead), time.Minute).Err())
	admission := take(t, store, bucket)
	require.False(t, admission.Allowed, "nothing is gained by it")
	require.Equal(t, 25*time.Millisecond, admission.RetryAfter, "and nothing lost")
	require.Eventually(t, func() bool { return take(t, store, bucket).Allowed }, time.Second, time.Millisecond)
	require.False(t, take(t, store, bucket).Allowed)
}

func TestLimiterGoesOnWithoutItsStateOrScripts(t *testing.T) {
	store := open(t, server.Addr())
	bucket := slow("k", 1)
	require.True(t, take(t, store, bucket).Allowed)
	require.NoError(t, store.Client().ScriptFlush(t.Context()).Err())
	require.False(t, take(t, store, bucket).Allowed)
	require.NoError(t, store.Client().FlushAll(t.Context()).Err())
	require.True(t, take(t, store, bucket).Allowed)
	require.False(t, take(t, store, bucket).Allowed)
}

func TestLimiterDoesNotAdmitWhatItCannotCount(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	good, bad := slow("good", 1), slow("bad", 1)
	fails := func(want string) {
		t.Helper()
		for _, ask := range []func(context.Context, string, []gateway.Bucket) (gateway.Admission, error){store.Take, store.Peek} {
			admission, err := ask(ctx, "ai", []gateway.Bucket{good, bad})
			require.ErrorContains(t, err, want)
			require.False(t, admission.Allowed)
		}
		require.True(t, peek(t, store, good).Allowed, "none taken of the other")
	}
	require.NoError(t, store.Client().LPush(ctx, "gateway:limit:{ai}:bad", "1").Err())
	fails("WRONGTYPE")
	for _, value := range []string{"", "1", "many 1", "nan 1", "1 -1", "1 2 3"} {
		require.NoError(t, store.Client().Del(ctx, "gateway:limit:{ai}:bad").Err())
		require.NoError(t, store.Client().Set(ctx, "gateway:limit:{ai}:bad", value, 0).Err())
		fails("BADBUCKET")
	}
	for _, b := range []gateway.Bucket{{Key: "k", Burst: 1}, {Key: "k", Rate: 1}, {Key: "k", Rate: -1, Burst: 1}, {Key: "k", Rate: math.Inf(1), Burst: 1}, {Key: "k", Rate: 1, Burst: math.NaN()}} {
		_, err := store.Take(ctx, "ai", []gateway.Bucket{b})
		require.Error(t, err, "%v", b)
	}
}

func TestLimiterKeysAreBounded(t *testing.T) {
	store := open(t, server.Addr())
	long := strings.Repeat("x", 129)
	require.True(t, take(t, store, slow(long+"a", 1)).Allowed)
	require.True(t, take(t, store, slow(long+"b", 1)).Allowed, "another key")
	require.False(t, take(t, store, slow(long+"a", 1)).Allowed)
	require.True(t, take(t, store, slow(long[:128], 1)).Allowed)
	keys, err := store.Client().Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, keys, 3)
	require.Contains(t, keys, "gateway:limit:{ai}:"+long[:128])
	for _, key := range keys {
		require.LessOrEqual(t, len(key), len("gateway:limit:{ai}:")+128)
	}
}

func TestLimiterOutlivesARestartOfRedis(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	bucket := slow("k", 1)
	require.True(t, take(t, store, bucket).Allowed)
	own.Kill()
	start := time.Now()
	admission, err := store.Take(t.Context(), "ai", []gateway.Bucket{bucket})
	require.Error(t, err)
	require.False(t, admission.Allowed)
	require.Less(t, time.Since(start), 2*time.Second)
	require.NoError(t, own.Start())
	require.True(t, take(t, store, bucket).Allowed, "what Redis has forgotten begins full")
	require.False(t, take(t, store, bucket).Allowed)
}
