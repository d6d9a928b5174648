package redis_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"

	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/internal/testenv"
)

// noTime is the issue time of a token that does not tell.
var noTime time.Time

func requireRevoked(t *testing.T, store *redis.Store, want bool, token, userID string, issuedAt time.Time) {
	t.Helper()
	revoked, err := store.Revoked(t.Context(), "ai", token, userID, issuedAt)
	require.NoError(t, err)
	require.Equal(t, want, revoked)
}

func TestLogout(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	requireRevoked(t, store, false, "t", "7", noTime)
	before := redisTime(t, store)
	require.NoError(t, store.RevokeToken(ctx, "ai", "t", time.Hour))
	requireRevoked(t, store, true, "t", "7", noTime)
	requireRevoked(t, store, true, "t", "7", before.Add(time.Minute))
	requireRevoked(t, store, true, "t", "", noTime)
	requireRevoked(t, store, false, "other", "7", noTime)
	elsewhere, err := store.Revoked(ctx, "other", "t", "7", noTime)
	require.NoError(t, err)
	require.False(t, elsewhere)

	millis, err := client.Get(ctx, "gateway:logout:ai:t").Int64()
	require.NoError(t, err)
	require.InDelta(t, before.UnixMilli(), millis, 1000)
	require.InDelta(t, time.Hour, client.PTTL(ctx, "gateway:logout:ai:t").Val(), float64(time.Second))
	require.NoError(t, store.RevokeToken(ctx, "ai", "t", time.Minute))
	require.InDelta(t, time.Hour, client.PTTL(ctx, "gateway:logout:ai:t").Val(), float64(time.Second), "never shortened")
	require.NoError(t, store.RevokeToken(ctx, "ai", "t", 2*time.Hour))
	require.InDelta(t, 2*time.Hour, client.PTTL(ctx, "gateway:logout:ai:t").Val(), float64(time.Second))

	require.NoError(t, store.Admit(ctx, "ai", "t", "7"))
	requireRevoked(t, store, false, "t", "7", noTime)
	require.Zero(t, client.DBSize(ctx).Val(), "a login that nothing stands against leaves nothing behind")
}

func TestMarksEndWithTheirLife(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	require.NoError(t, store.RevokeToken(ctx, "ai", "t", 50*time.Millisecond))
	require.NoError(t, store.RevokeUser(ctx, "ai", "8", 50*time.Millisecond))
	for _, over := range []time.Duration{0, -time.Hour} {
		require.NoError(t, store.RevokeToken(ctx, "ai", fmt.Sprint("over ", over), over))
		require.NoError(t, store.RevokeUser(ctx, "ai", fmt.Sprint("over ", over), over))
	}
	require.Eventually(t, func() bool { return store.Client().DBSize(ctx).Val() == 0 }, 5*time.Second, 5*time.Millisecond)
	requireRevoked(t, store, false, "t", "8", noTime)
}

func TestKick(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	const key = "gateway:kick:ai:7"
	require.NoError(t, store.RevokeUser(ctx, "ai", "7", time.Hour))
	at, err := client.HGet(ctx, key, "at").Int64()
	require.NoError(t, err)
	kicked := time.UnixMilli(at)
	require.WithinDuration(t, redisTime(t, store), kicked, time.Second)
	require.InDelta(t, time.Hour, client.PTTL(ctx, key).Val(), float64(time.Second))

	for _, test := range []struct {
		name     string
		issuedAt time.Time
		revoked  bool
	}{
		{"does not tell", noTime, true},
		{"before", kicked.Add(-time.Second), true},
		{"in the same millisecond", kicked.Add(999 * time.Microsecond), true},
		{"after", kicked.Add(time.Millisecond), false},
		{"beginning of time", time.Unix(0, 0), true},
	} {
		t.Run(test.name, func(t *testing.T) { requireRevoked(t, store, test.revoked, "old", "7", test.issuedAt) })
	}
	requireRevoked(t, store, false, "old", "8", noTime)
	requireRevoked(t, store, false, "old", "", noTime)

	require.NoError(t, store.Admit(ctx, "ai", "new", "7"))
	requireRevoked(t, store, false, "new", "7", noTime)
	requireRevoked(t, store, false, "new", "7", kicked.Add(-time.Second))
	requireRevoked(t, store, true, "old", "7", noTime)
	hash := sha256.Sum256([]byte("new"))
	require.True(t, client.HExists(ctx, key, hex.EncodeToString(hash[:])).Val())
	require.InDelta(t, time.Hour, client.PTTL(ctx, key).Val(), float64(time.Second))

	require.NoError(t, store.RevokeToken(ctx, "ai", "new", time.Hour))
	requireRevoked(t, store, true, "new", "7", noTime)
	require.NoError(t, store.Admit(ctx, "ai", "new", "7"), "the node gave out the same token again")
	requireRevoked(t, store, false, "new", "7", noTime)

	require.Eventually(t, func() bool { return redisTime(t, store).UnixMilli() > at }, time.Second, time.Millisecond)
	require.NoError(t, store.RevokeUser(ctx, "ai", "7", time.Minute))
	requireRevoked(t, store, true, "new", "7", noTime)
	requireRevoked(t, store, true, "new", "7", kicked)
	again, err := client.HGet(ctx, key, "at").Int64()
	require.NoError(t, err)
	require.Greater(t, again, at)
	require.EqualValues(t, 1, client.HLen(ctx, key).Val())
	require.InDelta(t, time.Hour, client.PTTL(ctx, key).Val(), float64(time.Second), "what the first refused stays refused as long")
}

func TestAKickMarkDoesNotGrowForEver(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	require.NoError(t, store.RevokeUser(ctx, "ai", "7", time.Hour))
	at := redisTime(t, store)
	for i := range 1000 {
		require.NoError(t, store.Admit(ctx, "ai", strconv.Itoa(i), "7"))
	}
	require.NoError(t, store.RevokeToken(ctx, "ai", "one more", time.Hour))
	require.ErrorIs(t, store.Admit(ctx, "ai", "one more", "7"), gateway.ErrTooManyAdmitted)
	require.NoError(t, store.Admit(ctx, "ai", "999", "7"), "is there already")
	requireRevoked(t, store, true, "one more", "7", noTime)
	requireRevoked(t, store, false, "one more", "7", at.Add(time.Second))
	requireRevoked(t, store, false, "999", "7", noTime)
	require.EqualValues(t, 1001, store.Client().HLen(ctx, "gateway:kick:ai:7").Val())

	require.NoError(t, store.RevokeUser(ctx, "ai", "7", time.Hour))
	require.NoError(t, store.Admit(ctx, "ai", "one more", "7"))
	requireRevoked(t, store, false, "one more", "7", noTime)
}

func TestMarksThatCannotBeReadAreErrors(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	require.NoError(t, client.Set(ctx, "gateway:kick:ai:7", "yes", 0).Err())
	_, err := store.Revoked(ctx, "ai", "s3cret", "7", noTime)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.ErrorContains(t, store.Admit(ctx, "ai", "s3cret", "7"), "WRONGTYPE")
	require.NoError(t, store.RevokeToken(ctx, "ai", "s3cret", time.Hour))
	requireRevoked(t, store, true, "s3cret", "7", noTime) // whatever the other mark is
	require.NoError(t, store.RevokeUser(ctx, "ai", "7", time.Hour), "a kick replaces anything")
	requireRevoked(t, store, true, "t", "7", noTime)

	require.NoError(t, client.HSet(ctx, "gateway:kick:ai:7", "at", "yesterday").Err())
	_, err = store.Revoked(ctx, "ai", "t", "7", noTime)
	require.ErrorContains(t, err, "gateway:kick:")

	require.NoError(t, client.LPush(ctx, "gateway:logout:ai:list", "1").Err())
	requireRevoked(t, store, true, "list", "", noTime)
}

func TestRevocationsOutliveARestartOfRedis(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	ctx := t.Context()
	require.NoError(t, store.RevokeToken(ctx, "ai", "s3cret", time.Hour))
	require.NoError(t, store.RevokeUser(ctx, "ai", "7", time.Hour))
	require.NoError(t, store.Client().Save(ctx).Err())
	own.Kill()
	start := time.Now()
	_, err = store.Revoked(ctx, "ai", "s3cret", "7", noTime)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
	require.Error(t, store.RevokeToken(ctx, "ai", "s3cret", time.Hour))
	require.Error(t, store.RevokeUser(ctx, "ai", "7", time.Hour))
	require.Error(t, store.Admit(ctx, "ai", "s3cret", "7"))
	require.Less(t, time.Since(start), 4*time.Second)
	require.NoError(t, own.Start())
	requireRevoked(t, store, true, "s3cret", "", noTime)
	requireRevoked(t, store, true, "other", "7", noTime)
	require.NoError(t, store.Admit(ctx, "ai", "s3cret", "7"), "the scripts are sent again")
	requireRevoked(t, store, false, "s3cret", "7", noTime)
}
