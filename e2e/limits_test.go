package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/testenv"
)

// ownRedis is a Redis that the scenario may kill, beside a fresh database.
func ownRedis(t *testing.T) (stores, *testenv.Redis) {
	t.Helper()
	redis, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, redis.Close()) })
	return stores{postgres: newDatabase(t, programs.postgres.Addr()), redis: redis.Addr()}, redis
}

// ownStores are servers that the scenario may kill.
func ownStores(t *testing.T) (stores, *testenv.Postgres, *testenv.Redis) {
	t.Helper()
	in, redis := ownRedis(t)
	postgres, err := testenv.StartPostgres("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, postgres.Close()) })
	in.postgres, err = postgres.NewDatabase("own")
	require.NoError(t, err)
	return in, postgres, redis
}

// shot is one request of a load.
type shot struct {
	gateway int
	start   time.Time
	end     time.Time
	answer  answer
}

func (s shot) took() time.Duration { return s.end.Sub(s.start) }

// load is requests at an even rate, however fast the answers come, to the gateways in turn.
type load struct {
	stop  chan struct{}
	done  sync.WaitGroup
	mu    sync.Mutex
	shots []shot
	late  time.Duration // how far the senders have been behind at most
}

// startLoad sends until end is called.
func startLoad(t *testing.T, perSecond int, clients []*client, request func(c *client) answer) *load {
	t.Helper()
	const senders = 128 // so many answers may be awaited at once
	l := &load{stop: make(chan struct{})}
	turns := make(chan int)
	l.done.Go(func() {
		defer close(turns)
		start := time.Now()
		for turn := 0; ; turn++ {
			at := start.Add(time.Duration(turn) * time.Second / time.Duration(perSecond))
			select {
			case <-l.stop:
				return
			case <-time.After(time.Until(at)):
			}
			select {
			case <-l.stop:
				return
			case turns <- turn:
			}
			l.mu.Lock()
			l.late = max(l.late, time.Since(at))
			l.mu.Unlock()
		}
	})
	for range senders {
		l.done.Go(func() {
			for turn := range turns {
				s := shot{gateway: turn % len(clients), start: time.Now()}
				s.answer = request(clients[s.gateway])
				s.end = time.Now()
				l.mu.Lock()
				l.shots = append(l.shots, s)
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

// end waits for the last answers.
func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.done.Wait()
}

// since returns the requests that were sent from then on and are answered, in the order of the answers.
func (l *load) since(then time.Time) []shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	shots := slices.DeleteFunc(slices.Clone(l.shots), func(s shot) bool { return s.start.Before(then) })
	slices.SortFunc(shots, func(a, b shot) int { return a.end.Compare(b.end) })
	return shots
}

// settled waits until the last 100 answers of every gateway are as wanted, and returns for each
// how long after then the last one that was not came.
func (l *load) settled(t *testing.T, then time.Time, gateways int, wanted func(shot) bool) []time.Duration {
	t.Helper()
	const enough = 100
	var took []time.Duration
	require.Eventually(t, func() bool {
		inRow := make([]int, gateways)
		took = make([]time.Duration, gateways)
		for _, s := range l.since(then) {
			inRow[s.gateway]++
			if !wanted(s) {
				inRow[s.gateway], took[s.gateway] = 0, s.end.Sub(then)
			}
		}
		return slices.Min(inRow) >= enough
	}, 20*time.Second, 50*time.Millisecond)
	return took
}

func passed(s shot) bool { return s.answer.status == http.StatusOK && s.answer.node() != "" }

func limited(s shot) bool {
	after, err := strconv.Atoi(s.answer.header.Get("Retry-After"))
	return s.answer.status == http.StatusTooManyRequests && s.answer.reason() == "RATE_LIMITED" && err == nil && after >= 1 && s.answer.node() == ""
}

func count(shots []shot, is func(shot) bool) (n int) {
	for _, s := range shots {
		if is(s) {
			n++
		}
	}
	return n
}

func slowest(shots []shot) (most time.Duration) {
	for _, s := range shots {
		most = max(most, s.took())
	}
	return most
}

// One bucket over two binding services admits what one bucket may, to the request; without
// Redis nobody is refused, and nobody waits.
func TestTheRateLimitIsExact(t *testing.T) {
	const (
		rate, burst = 100, 20
		perSecond   = 5 * rate
		duration    = 30 * time.Second
		refreshed   = 5 * time.Second // spec section 5
	)
	in, redis := ownRedis(t)
	g := twoGateways(t, in)
	token := tokenOf("ann")
	loginOK(t, g.client, "ann")
	request := func(c *client) answer { return c.get("/js/a/limited", token) }
	for _, c := range g.clients { // both know the token, and have connections
		for range 20 {
			require.Equal(t, http.StatusOK, request(c).status)
		}
	}
	limit := func(through *bindsvc, rate float64, burst int) {
		through.administer(t, http.MethodPut, "/policies/rate-limit/one", map[string]any{"path": "/js/a/limited", "rate": rate, "burst": burst})
	}
	limit(g.binding, rate, burst)
	g.everywhere(t, "rate-limit", "one")

	var l *load
	t.Run("exact", func(t *testing.T) {
		l = startLoad(t, perSecond, g.clients, request)
		time.Sleep(duration)
		l.end()
		shots := l.since(time.Time{})
		admitted, refused := count(shots, passed), count(shots, limited)
		span := shots[len(shots)-1].end.Sub(shots[0].end) // Redis has the clock of this machine
		expected := burst + rate*span.Seconds()
		t.Logf("%d requests in %s, %.0f/s, never more than %s late, slowest %s: %d admitted, expected %.0f, %+.2f %%",
			len(shots), span, float64(len(shots))/span.Seconds(), l.late, slowest(shots), admitted, expected, 100*(float64(admitted)/expected-1))
		require.Equal(t, len(shots), admitted+refused, "every other one is refused as agreed: %v", firstNot(shots, func(s shot) bool { return passed(s) || limited(s) }))
		require.InEpsilon(t, expected, admitted, 0.01)
		require.InEpsilon(t, perSecond, float64(len(shots))/span.Seconds(), 0.02, "the load")
	})
	if t.Failed() {
		return
	}

	l = startLoad(t, perSecond, g.clients, request)
	time.Sleep(time.Second)
	for _, outage := range []struct {
		name       string
		begin, end func()
	}{
		{"killed", redis.Kill, func() { require.NoError(t, redis.Start()) }},
		{"hung", redis.Pause, redis.Resume},
	} {
		before := time.Now()
		outage.begin()
		begun := time.Now()
		time.Sleep(4 * time.Second)
		ending := time.Now()
		outage.end()
		ended := time.Now()
		took := l.settled(t, ended, len(g.clients), func(s shot) bool { return true })
		_ = took
		time.Sleep(2 * time.Second)
		during := slices.DeleteFunc(l.since(begun), func(s shot) bool { return !s.end.Before(ending) })
		all := l.since(before)
		t.Logf("Redis %s: %d requests meanwhile (%.0f/s), slowest %s, refused %d; back, first refusal after %s", outage.name, len(during),
			float64(len(during))/ending.Sub(begun).Seconds(), slowest(during), count(during, limited), firstAfter(l, ended, limited))
		require.Zero(t, len(during)-count(during, passed), "%v", firstNot(during, passed))
		require.Equal(t, len(all), count(all, passed)+count(all, limited), "none fails: %v", firstNot(all, func(s shot) bool { return passed(s) || limited(s) }))
		require.Less(t, slowest(all), 2*time.Second)
	}
	_ = refreshed
}

// firstNot is for messages.
func firstNot(shots []shot, is func(shot) bool) string {
	for _, s := range shots {
		if !is(s) {
			return fmt.Sprintf("gateway %d, after %s: %s", s.gateway, s.took(), s.answer)
		}
	}
	return "none"
}

func firstAfter(l *load, then time.Time, is func(shot) bool) string {
	for _, s := range l.since(then) {
		if is(s) {
			return s.end.Sub(then).String()
		}
	}
	return "none"
}

// everywhere waits until both binding services have the policy in force.
func (g *gateways) everywhere(t *testing.T, kind, id string) {
	t.Helper()
	for _, b := range []*bindsvc{g.binding, g.second} {
		require.Eventually(t, func() bool {
			status, answer := b.call(t, http.MethodGet, b.admin+"/gateway/admin/policies", adminToken, nil)
			kinds := answer["data"].(map[string]any)["kinds"].(map[string]any)
			return status == http.StatusOK && kinds[kind].(float64) > 0
		}, 10*time.Second, 20*time.Millisecond, id)
	}
}

var (
	_ = context.Background
	_ = json.Marshal
	_ net.Addr
	_ atomic.Bool
)
