package redis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/internal/testenv"
)

// server is the package's Redis; a test that breaks one starts its own.
var server *testenv.Redis

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if server, err = testenv.StartRedis(""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	return m.Run()
}

// open returns a Store that trusts its cache, on an empty database.
func open(t *testing.T, addr string, change ...func(*redis.Config)) *redis.Store {
	t.Helper()
	cfg := redis.Config{URL: "redis://" + addr}
	for _, c := range change {
		c(&cfg)
	}
	store, err := redis.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	requireTrusted(t, store)
	require.NoError(t, store.Client().FlushDB(t.Context()).Err())
	return store
}

func requireTrusted(t *testing.T, store *redis.Store) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := store.RouteByUser(t.Context(), "ai", "asked by nobody else")
		return errors.Is(err, gateway.ErrNotFound)
	}, 10*time.Second, 10*time.Millisecond)
}

func byUser(userID string) []gateway.Change {
	return []gateway.Change{{Kind: gateway.ChangeUser, ServiceID: "ai", UserID: userID}}
}

func TestTokens(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	_, err := store.UserByToken(ctx, "ai", "t")
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.NoError(t, store.PutToken(ctx, "ai", "t", "9007199254740993"))
	userID, err := store.UserByToken(ctx, "ai", "t")
	require.NoError(t, err)
	require.Equal(t, "9007199254740993", userID)

	client := store.Client()
	require.Equal(t, "9007199254740993", client.Get(ctx, "gateway:token:ai:t").Val(), "the seed's key")
	require.InDelta(t, 24*time.Hour, client.TTL(ctx, "gateway:token:ai:t").Val(), float64(time.Minute))

	require.NoError(t, client.Set(ctx, "gateway:token:ai:empty", "", 0).Err())
	_, err = store.UserByToken(ctx, "ai", "empty")
	require.ErrorIs(t, err, gateway.ErrNotFound)

	require.NoError(t, client.LPush(ctx, "gateway:token:ai:list", "1").Err())
	_, err = store.UserByToken(ctx, "ai", "list")
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NotErrorIs(t, err, gateway.ErrNotFound)
}

func TestSlidingTokens(t *testing.T) {
	for sliding, want := range map[bool]time.Duration{false: time.Minute, true: time.Hour} {
		store := open(t, server.Addr(), func(c *redis.Config) { c.SlidingTokens, c.TokenTTL = sliding, time.Hour })
		ctx := t.Context()
		require.NoError(t, store.PutToken(ctx, "ai", "t", "1"))
		require.NoError(t, store.Client().Expire(ctx, "gateway:token:ai:t", time.Minute).Err())
		explained, _ := gateway.WithTrace(ctx)
		_, err := store.UserByToken(explained, "ai", "t")
		require.NoError(t, err)
		require.LessOrEqual(t, store.Client().TTL(ctx, "gateway:token:ai:t").Val(), time.Minute, "an explanation prolongs nothing")
		_, err = store.UserByToken(ctx, "ai", "t")
		require.NoError(t, err)
		require.InDelta(t, want, store.Client().TTL(ctx, "gateway:token:ai:t").Val(), float64(5*time.Second))
	}
}

// TestAnErrorOfTheServerDoesNotQuoteTheToken: Redis before 6.2 repeats the arguments of GETEX, which it does not know.
func TestAnErrorOfTheServerDoesNotQuoteTheToken(t *testing.T) {
	own, err := testenv.StartRedis("", testenv.RedisOptions{Args: []string{"--rename-command", "GETEX", ""}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr(), func(c *redis.Config) { c.SlidingTokens = true })
	_, err = store.UserByToken(t.Context(), "ai", "s3cret")
	require.ErrorContains(t, err, "ERR")
	require.NotContains(t, err.Error(), "s3cret")
}

func TestSaToken(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()
	now := time.UnixMilli(1_700_000_000_500)
	set := func(key, value string) { require.NoError(t, client.Set(ctx, "x-token:login:"+key, value, 0).Err()) }
	plain := redis.NewSaToken(client, redis.SaTokenConfig{TokenName: "x-token"})
	active := redis.NewSaToken(client, redis.SaTokenConfig{TokenName: "x-token", ActiveTimeout: time.Minute, Now: func() time.Time { return now }})

	const none = ""
	for _, test := range []struct{ name, login, lastActive, plain, active string }{
		{"unknown", "", "", none, none},
		{"used just now", "42", "1700000000000", "42", "42"},
		{"used 60 s ago", "42", "1699999940500", "42", "42"},
		{"used 61 s ago", "42", "1699999939500", "42", none},
		{"own timeout, in it", "42", "1699999900000,120", "42", "42"},
		{"own timeout, over", "42", "1699999990000,5", "42", none},
		{"never frozen", "42", "1,-1", "42", "42"},
		{"no last use", "42", "", "42", none},
		{"expired", "-3", "1700000000000", none, none},
		{"replaced", "-4", "1700000000000", none, none},
		{"kicked out", "-5", "1700000000000", none, none},
		{"frozen", "-6", "1700000000000", none, none},
		{"a negative id that is none of these", "-8", "1700000000000", "-8", "-8"},
		{"uuid", "0b0c-uuid", "1700000000000", "0b0c-uuid", "0b0c-uuid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			token := strings.ReplaceAll(test.name, " ", "-")
			if test.login != "" {
				set("token:"+token, test.login)
			}
			if test.lastActive != "" {
				set("last-active:"+token, test.lastActive)
			}
			for want, sessions := range map[*redis.SaToken]string{plain: test.plain, active: test.active} {
				userID, err := want.UserByToken(ctx, "any", token)
				require.Equal(t, sessions, userID)
				if sessions == none {
					require.ErrorIs(t, err, gateway.ErrNotFound)
				} else {
					require.NoError(t, err)
				}
			}
		})
	}

	set("token:bad", "42")
	for _, value := range []string{"yesterday", "1,never", ","} {
		set("last-active:bad", value)
		_, err := active.UserByToken(ctx, "any", "bad")
		require.Error(t, err)
		require.NotErrorIs(t, err, gateway.ErrNotFound)
	}
	require.NoError(t, client.HSet(ctx, "x-token:login:token:hash", "a", "b").Err())
	_, err := plain.UserByToken(ctx, "any", "hash")
	require.ErrorContains(t, err, "WRONGTYPE")
}

func TestRoutes(t *testing.T) {
	store := open(t, server.Addr())
	ctx, client := t.Context(), store.Client()

	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n1", Epoch: 1}))
	require.NoError(t, store.FillUsername(ctx, "ai", "张三", gateway.Route{NodeID: "n2", Epoch: 7}))
	require.Equal(t, "n1", client.Get(ctx, "gateway:route:user:ai:1").Val(), "the seed's key and value")
	require.Equal(t, "n2#7", client.Get(ctx, "gateway:route:name:ai:张三").Val())
	require.Equal(t, time.Duration(-1), client.TTL(ctx, "gateway:route:user:ai:1").Val(), "no TTL")
	route, err := store.RouteByUser(ctx, "ai", "1")
	require.NoError(t, err)
	require.Equal(t, gateway.Route{NodeID: "n1", Epoch: 1}, route)
	route, err = store.RouteByUsername(ctx, "ai", "张三")
	require.NoError(t, err)
	require.Equal(t, gateway.Route{NodeID: "n2", Epoch: 7}, route)

	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n3", Epoch: 1}))
	route, err = store.RouteByUser(ctx, "ai", "1")
	require.NoError(t, err)
	require.Equal(t, "n1", route.NodeID, "a fill does not replace what is there")

	// An instance that read the durable store before the change must not bring the old answer back.
	require.NoError(t, store.Invalidate(ctx, byUser("1")))
	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n1", Epoch: 1}))
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.NoError(t, store.Flush(ctx), "nor after a flush")
	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n1", Epoch: 1}))
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.InDelta(t, 10*time.Second, client.TTL(ctx, "gateway:route:user:ai:1").Val(), float64(2*time.Second))
	require.NoError(t, client.Del(ctx, "gateway:route:user:ai:1").Err()) // as its expiry does
	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n3", Epoch: 2}))
	route, err = store.RouteByUser(ctx, "ai", "1")
	require.NoError(t, err)
	require.Equal(t, gateway.Route{NodeID: "n3", Epoch: 2}, route)

	for _, value := range []string{"n1#", "n1#x", "n1#0", "#2", "n1#2#3"} {
		require.NoError(t, client.Set(ctx, "gateway:route:user:ai:1", value, 0).Err())
		_, err = store.RouteByUser(ctx, "ai", "1")
		require.Error(t, err, value)
		require.NotErrorIs(t, err, gateway.ErrNotFound, value)
	}
	require.NoError(t, client.Del(ctx, "gateway:route:user:ai:1").Err())
	require.NoError(t, client.SAdd(ctx, "gateway:route:user:ai:1", "n1").Err())
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NoError(t, store.Invalidate(ctx, byUser("1")), "an invalidation replaces anything")
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.ErrorIs(t, err, gateway.ErrNotFound)
}

func TestFlushReachesEveryRouteAndNothingElse(t *testing.T) {
	store := open(t, server.Addr())
	ctx := t.Context()
	const users = 3000
	for i := range users {
		require.NoError(t, store.FillUser(ctx, "ai", fmt.Sprint(i), gateway.Route{NodeID: "n1", Epoch: 1}))
	}
	require.NoError(t, store.PutToken(ctx, "ai", "t", "1"))
	require.NoError(t, store.Invalidate(ctx, []gateway.Change{{Kind: gateway.ChangeBindings}}))
	requireTrusted(t, store) // the flush that follows is over
	for i := range users {
		_, err := store.RouteByUser(ctx, "ai", fmt.Sprint(i))
		require.ErrorIs(t, err, gateway.ErrNotFound)
	}
	_, err := store.UserByToken(ctx, "ai", "t")
	require.NoError(t, err)
}

func TestARestartFromAnOldSnapshotIsNotBelieved(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	ctx := t.Context()
	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n1", Epoch: 1}))
	require.NoError(t, store.Client().Save(ctx).Err())
	require.NoError(t, store.Invalidate(ctx, byUser("1"))) // the user moved

	own.Kill()
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.Error(t, err)
	require.NoError(t, own.Start())
	raw := goredis.NewClient(&goredis.Options{Addr: own.Addr()})
	defer raw.Close()
	require.NoError(t, raw.Ping(ctx).Err())
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		route, err := store.RouteByUser(ctx, "ai", "1")
		require.Error(t, err, "the old snapshot says %v", route)
	}
	requireTrusted(t, store)
	require.Equal(t, "-", raw.Get(ctx, "gateway:route:user:ai:1").Val())
}

// A master that was a replica for a while is the process that it was, but may lack
// what was written elsewhere meanwhile.
func TestAFormerMasterIsNotBelieved(t *testing.T) {
	former, err := testenv.StartRedis("")
	require.NoError(t, err)
	defer former.Close()
	other, err := testenv.StartRedis("")
	require.NoError(t, err)
	defer other.Close()
	ctx := t.Context()
	store := open(t, former.Addr())
	require.NoError(t, store.FillUser(ctx, "ai", "7", gateway.Route{NodeID: "old", Epoch: 1}))

	host, port, err := net.SplitHostPort(other.Addr())
	require.NoError(t, err)
	require.NoError(t, store.Client().Do(ctx, "REPLICAOF", host, port).Err())
	require.Eventually(t, func() bool {
		info, err := store.Client().Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	}, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, store.Client().Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	require.NoError(t, store.Client().Set(ctx, "gateway:route:user:ai:7", "outdated", 0).Err()) // as if it had been there all the time
	require.Equal(t, "outdated", store.Client().Get(ctx, "gateway:route:user:ai:7").Val())
	_ = store.Client().Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no").Err() // Sentinel closes the connections too
	require.Eventually(t, func() bool {
		_, err := store.RouteByUser(ctx, "ai", "7")
		return errors.Is(err, gateway.ErrNotFound)
	}, 10*time.Second, 10*time.Millisecond)
}

func TestAnInvalidationThatFailedIsMadeUpFor(t *testing.T) {
	proxy, err := testenv.NewProxy(server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	store := open(t, proxy.Addr())
	ctx := t.Context()
	require.NoError(t, store.FillUser(ctx, "ai", "1", gateway.Route{NodeID: "n1", Epoch: 1}))

	proxy.Cut()
	require.Error(t, store.Invalidate(ctx, byUser("1")))
	require.Error(t, store.Flush(ctx))
	proxy.Restore()
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.Error(t, err, "the same Redis process, but the cache missed a change")
	requireTrusted(t, store)
	_, err = store.RouteByUser(ctx, "ai", "1")
	require.ErrorIs(t, err, gateway.ErrNotFound)
}

func TestDownIsAnErrorWithinASecond(t *testing.T) {
	own, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	store := open(t, own.Addr())
	fails := func(what string, limit time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := store.UserByToken(ctx, "ai", "s3cret")
		require.Error(t, err, what)
		require.NotErrorIs(t, err, gateway.ErrNotFound, what)
		require.NotContains(t, err.Error(), "s3cret")
		require.Error(t, store.Ping(ctx), what)
		require.Less(t, time.Since(start), limit, what)
	}
	own.Pause()
	fails("frozen", 1500*time.Millisecond)
	own.Resume()
	require.Eventually(t, func() bool { return store.Ping(t.Context()) == nil }, 5*time.Second, 10*time.Millisecond)
	require.NoError(t, own.Stop())
	fails("stopped", time.Second)
	require.NoError(t, own.Start())
	require.NoError(t, store.Ping(t.Context()))
	requireTrusted(t, store)
}

func TestPasswordAndDatabase(t *testing.T) {
	own, err := testenv.StartRedis("", testenv.RedisOptions{Password: "pass word/:@"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	host, port, err := net.SplitHostPort(own.Addr())
	require.NoError(t, err)
	var number int
	_, err = fmt.Sscan(port, &number)
	require.NoError(t, err)
	for _, cfg := range []redis.Config{
		{URL: "redis://:pass%20word%2F%3A%40@" + own.Addr() + "/3"},
		{URL: "redis://" + own.Addr(), Password: "pass word/:@", Database: 3},
		{Host: host, Port: number, Password: "pass word/:@", Database: 3},
	} {
		store, err := redis.Open(cfg)
		require.NoError(t, err)
		require.NoError(t, store.PutToken(t.Context(), "ai", "t", "1"))
		require.EqualValues(t, 3, store.Client().ClientInfo(t.Context()).Val().DB)
		require.NoError(t, store.Close())
	}
	store, err := redis.Open(redis.Config{URL: "redis://:hidden@" + own.Addr()})
	require.NoError(t, err)
	err = store.Ping(t.Context())
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hidden")
	require.NoError(t, store.Close())
}

func TestOpenRefusesWithoutShowingThePassword(t *testing.T) {
	for _, cfg := range []redis.Config{
		{},
		{URL: "redis://:hidden@db:6379", Host: "db"},
		{URL: "http://:hidden@db"}, {URL: "redis://:hidden@db:port"}, {URL: "redis://:hidden%zz@db"}, {URL: "redis://:hidden@db/x"}, {URL: "unix:///hidden"},
		{SentinelMaster: "m"}, {SentinelAddrs: []string{"db:1"}}, {ClusterAddrs: []string{"db:1"}, Database: 1},
	} {
		_, err := redis.Open(cfg)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hidden")
	}
}

// openCluster returns a Store of a cluster of its own: of one server, which is as strict
// about keys in different slots as one of many.
func openCluster(t *testing.T) *redis.Store {
	t.Helper()
	own, err := testenv.StartRedis("", testenv.RedisOptions{Args: []string{"--cluster-enabled", "yes"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	admin := goredis.NewClient(&goredis.Options{Addr: own.Addr()})
	defer admin.Close()
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())

	store, err := redis.Open(redis.Config{ClusterAddrs: []string{own.Addr()}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	requireTrusted(t, store)
	return store
}

func TestCluster(t *testing.T) {
	store := openCluster(t)
	ctx := t.Context()
	for i := range 50 {
		require.NoError(t, store.FillUser(ctx, "ai", fmt.Sprint(i), gateway.Route{NodeID: "n1", Epoch: 1}))
	}
	require.NoError(t, store.Invalidate(ctx, append(byUser("1"), byUser("2")...)))
	_, err := store.RouteByUser(ctx, "ai", "1")
	require.ErrorIs(t, err, gateway.ErrNotFound)
	_, err = store.RouteByUser(ctx, "ai", "3")
	require.NoError(t, err)
	require.NoError(t, store.Flush(ctx))
	_, err = store.RouteByUser(ctx, "ai", "3")
	require.ErrorIs(t, err, gateway.ErrNotFound)
}

func TestCloseEndsAStoreThatNeverConnected(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := nobody.Addr().String()
	require.NoError(t, nobody.Close())
	store, err := redis.Open(redis.Config{URL: "redis://" + addr, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	require.Error(t, store.Ping(t.Context()))
	require.NoError(t, store.Close())
}

func TestGuardsInACluster(t *testing.T) {
	store := openCluster(t)
	ctx := t.Context()

	require.True(t, take(t, store, slow("a", 1), slow("b", 2), slow("c", 3)).Allowed)
	require.False(t, take(t, store, slow("c", 3), slow("a", 1)).Allowed)

	for i := range 20 { // in as many slots
		token, userID := fmt.Sprint("t", i), fmt.Sprint(i)
		require.NoError(t, store.RevokeToken(ctx, "ai", token, time.Hour))
		requireRevoked(t, store, true, token, userID, noTime)
		require.NoError(t, store.RevokeUser(ctx, "ai", userID, time.Hour))
		require.NoError(t, store.Admit(ctx, "ai", token, userID))
		requireRevoked(t, store, false, token, userID, noTime)
		requireRevoked(t, store, true, "other", userID, noTime)
		first, err := store.UseNonce(ctx, "app", token, time.Minute)
		require.NoError(t, err)
		require.True(t, first)
	}

	heard, end := follow(t, store)
	requireHeard(t, heard, time.Second)
	policies := []gateway.Policy{policy(gateway.PolicyApps, "a", "{}", 1), policy(gateway.PolicyGuards, "b", "{}", 2), policy(gateway.PolicyRateLimit, "c", "{}", 3)}
	publish(t, store, 3, policies...)
	requireHeard(t, heard, time.Second)
	requireServed(t, store, 3, policies...)
	require.NoError(t, store.AddPending(ctx, pending("a", "{}", someTime)))
	requireHeard(t, heard, time.Second)
	requirePending(t, store, pending("a", "{}", someTime))
	require.NoError(t, store.RemovePending(ctx, pending("a", "{}", someTime)))
	requirePending(t, store)
	end()
}
