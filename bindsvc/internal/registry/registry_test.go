package registry_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is a registry store in memory.
type table struct {
	gateway.RegistryStore
	mu       sync.Mutex
	services []gateway.Service
	nodes    []gateway.Node
	bound    map[string]int64
	err      error
}

func (s *table) CountBindings(context.Context) (map[string]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.bound), s.err
}

func (s *table) LoadRegistry(context.Context) ([]gateway.Service, []gateway.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]gateway.Service(nil), s.services...), append([]gateway.Node(nil), s.nodes...), s.err
}

func (s *table) SeedRegistry(_ context.Context, services []gateway.Service, nodes []gateway.Node) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || len(s.services) > 0 {
		return false, s.err
	}
	s.services, s.nodes = services, nodes
	return true, nil
}

func (s *table) change(f func(*table)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// backend is a node whose health the test decides.
type backend struct {
	*httptest.Server
	ill atomic.Bool
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" || b.ill.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func service(id, prefix string) gateway.Service {
	return gateway.Service{ID: id, PathPrefix: prefix, HealthPath: "/health", Enabled: true}
}

func node(id, serviceID, url string) gateway.Node {
	return gateway.Node{ID: id, ServiceID: serviceID, BaseURL: url, Enabled: true}
}

func run(t *testing.T, store *table, change func(*registry.Options)) *registry.Registry {
	t.Helper()
	options := registry.Options{
		PollInterval: 20 * time.Millisecond,
		Health:       registry.HealthOptions{Interval: 20 * time.Millisecond, Timeout: time.Second, Failures: 3, Successes: 1},
	}
	if change != nil {
		change(&options)
	}
	r := registry.New(store, options, slog.New(slog.DiscardHandler), time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return r
}

func ready(t *testing.T, r *registry.Registry) {
	t.Helper()
	select {
	case <-r.Ready():
	case <-time.After(10 * time.Second):
		require.Fail(t, "not ready")
	}
}

func requireReason(t *testing.T, want gateway.Reason, err error) {
	t.Helper()
	var refusal *gateway.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, want, refusal.Reason)
}

func TestReadyMeansThatEveryNodeIsJudged(t *testing.T) {
	up, down := newBackend(t), newBackend(t)
	down.ill.Store(true)
	r := run(t, &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", up.URL), node("n2", "ai", down.URL)}}, nil)
	ready(t, r)
	require.NoError(t, r.Usable(t.Context(), "ai", "n1"))
	requireReason(t, gateway.NodeDown, r.Usable(t.Context(), "ai", "n2"))
	requireReason(t, gateway.NodeUnknown, r.Usable(t.Context(), "ai", "n3"))
	requireReason(t, gateway.NodeUnknown, r.Usable(t.Context(), "other", "n1"))
}

func TestItWaitsForTheStoreAndSeedsAnEmptyOne(t *testing.T) {
	up := newBackend(t)
	store := &table{err: errors.New("down")}
	r := run(t, store, func(o *registry.Options) {
		o.Seed = func() ([]gateway.Service, []gateway.Node) {
			return []gateway.Service{service("ai", "/js/a")}, []gateway.Node{node("n1", "ai", up.URL)}
		}
	})
	require.False(t, r.IsReady())
	_, err := r.PlaceUser(t.Context(), "ai")
	requireReason(t, gateway.NoHealthyNode, err)
	store.change(func(s *table) { s.err = nil })
	ready(t, r)
	require.NoError(t, r.Usable(t.Context(), "ai", "n1"))
}

func TestDownAfterThreeFailuresUpAfterOneSuccess(t *testing.T) {
	b := newBackend(t)
	r := run(t, &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", b.URL)}}, func(o *registry.Options) {
		o.Health.Interval = time.Hour // the test probes
	})
	ready(t, r)
	b.ill.Store(true)
	for _, want := range []registry.State{registry.Up, registry.Up, registry.Down} {
		health, err := r.Probe(t.Context(), "n1")
		require.NoError(t, err)
		require.Equal(t, want, health.State)
	}
	b.ill.Store(false)
	health, err := r.Probe(t.Context(), "n1")
	require.NoError(t, err)
	require.Equal(t, registry.Up, health.State)
	_, err = r.Probe(t.Context(), "n9")
	require.ErrorIs(t, err, gateway.ErrNotFound)
}

func TestPlacementGoesRoundTheUsableNodes(t *testing.T) {
	b, ill := newBackend(t), newBackend(t)
	ill.ill.Store(true)
	off := node("n4", "ai", b.URL)
	off.Enabled = false
	r := run(t, &table{
		services: []gateway.Service{service("ai", "/js/a"), service("other", "/o")},
		nodes: []gateway.Node{
			node("n1", "ai", b.URL), node("n2", "ai", b.URL), node("n3", "ai", ill.URL), off, node("n5", "other", b.URL),
		},
	}, nil)
	ready(t, r)
	placed := map[string]int{}
	for range 100 {
		id, err := r.PlaceUser(t.Context(), "ai")
		require.NoError(t, err)
		placed[id]++
	}
	require.Equal(t, map[string]int{"n1": 50, "n2": 50}, placed)
	_, err := r.PlaceUser(t.Context(), "none")
	requireReason(t, gateway.NoHealthyNode, err)
}

func TestPlacementsOfAService(t *testing.T) {
	b := newBackend(t)
	weigh := func(id string, weight int) gateway.Node {
		n := node(id, "ai", b.URL)
		n.Weight = weight
		return n
	}
	draining := weigh("n9", 1000)
	draining.Draining = true
	nodes := []gateway.Node{weigh("n1", 5), weigh("n2", 1), weigh("n3", 0), draining}
	for placement, want := range map[gateway.Placement]map[string]int{
		"":                     {"n1": 7, "n2": 7, "n3": 7},
		gateway.RoundRobin:     {"n1": 7, "n2": 7, "n3": 7},
		gateway.Weighted:       {"n1": 15, "n2": 3, "n3": 3},
		gateway.FewestBindings: {"n1": 3, "n2": 13, "n3": 5}, // n1 has 10, n3 8
	} {
		t.Run(string(placement), func(t *testing.T) {
			ai := service("ai", "/js/a")
			ai.Placement = placement
			r := run(t, &table{services: []gateway.Service{ai}, nodes: nodes, bound: map[string]int64{"n1": 10, "n3": 8}}, func(o *registry.Options) { o.PollInterval = time.Hour })
			ready(t, r)
			placed, longest, last, row := map[string]int{}, 0, "", 0
			for range 21 {
				explained, trace := gateway.WithTrace(t.Context())
				foretold, err := r.PlaceUser(explained, "ai")
				require.NoError(t, err)
				require.Len(t, trace.Steps(), 1)
				id, err := r.PlaceUser(t.Context(), "ai")
				require.NoError(t, err)
				require.Equal(t, foretold, id, "an explanation takes nobody's turn")
				placed[id]++
				if row++; id != last {
					last, row = id, 1
				}
				longest = max(longest, row)
			}
			require.Equal(t, want, placed)
			if placement == gateway.Weighted {
				require.LessOrEqual(t, longest, 4, "a heavy node's turns are spread")
			}
		})
	}
}

func TestAnonymousRequestsAreNoBindings(t *testing.T) {
	b := newBackend(t)
	ai := service("ai", "/js/a")
	ai.Placement = gateway.FewestBindings
	r := run(t, &table{services: []gateway.Service{ai}, nodes: []gateway.Node{node("n1", "ai", b.URL), node("n2", "ai", b.URL)}, bound: map[string]int64{"n1": 5}},
		func(o *registry.Options) { o.PollInterval = time.Hour })
	ready(t, r)
	placed := map[string]int{}
	for range 10 {
		id, err := r.PlaceAnonymous(t.Context(), "ai")
		require.NoError(t, err)
		placed[id]++
	}
	require.Equal(t, map[string]int{"n1": 5, "n2": 5}, placed)
	id, err := r.PlaceUser(t.Context(), "ai")
	require.NoError(t, err)
	require.Equal(t, "n2", id)
}

// A browser asks for the login page before each login.
func TestAnonymousRequestsTakeNoUsersTurn(t *testing.T) {
	b := newBackend(t)
	for _, placement := range []gateway.Placement{gateway.RoundRobin, gateway.Weighted} {
		ai := service("ai", "/js/a")
		ai.Placement = placement
		r := run(t, &table{services: []gateway.Service{ai}, nodes: []gateway.Node{node("n1", "ai", b.URL), node("n2", "ai", b.URL)}}, nil)
		ready(t, r)
		placed := map[string]int{}
		for range 10 {
			_, err := r.PlaceAnonymous(t.Context(), "ai")
			require.NoError(t, err)
			id, err := r.PlaceUser(t.Context(), "ai")
			require.NoError(t, err)
			placed[id]++
		}
		require.Equal(t, map[string]int{"n1": 5, "n2": 5}, placed, placement)
	}
}

func TestWeightsThatBecomeSmallStarveNobody(t *testing.T) {
	b := newBackend(t)
	ai := service("ai", "/js/a")
	ai.Placement = gateway.Weighted
	n1, n2 := node("n1", "ai", b.URL), node("n2", "ai", b.URL)
	n1.Weight, n2.Weight = 1000, 999
	store := &table{services: []gateway.Service{ai}, nodes: []gateway.Node{n1, n2}}
	r := run(t, store, nil)
	ready(t, r)
	place := func(times int) map[string]int {
		placed := map[string]int{}
		for range times {
			id, err := r.PlaceUser(t.Context(), "ai")
			require.NoError(t, err)
			placed[id]++
		}
		return placed
	}
	place(999)
	store.change(func(s *table) { s.nodes[0].Weight, s.nodes[1].Weight = 1, 1 })
	require.NoError(t, r.Refresh(t.Context()))
	placed := place(20)
	require.InDelta(t, 10, placed["n1"], 2)
}

func TestWhereNoNodeTakesNewUsersAnonymousRequestsGoOn(t *testing.T) {
	b := newBackend(t)
	n1 := node("n1", "ai", b.URL)
	n1.Draining = true
	r := run(t, &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{n1}}, nil)
	ready(t, r)
	id, err := r.PlaceAnonymous(t.Context(), "ai")
	require.NoError(t, err)
	require.Equal(t, "n1", id)
	_, err = r.PlaceUser(t.Context(), "ai")
	requireReason(t, gateway.NoHealthyNode, err)
}

func TestAChangedHealthPathTakesNobodysNodeAway(t *testing.T) {
	b := newBackend(t)
	store := &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", b.URL)}}
	r := run(t, store, nil)
	ready(t, r)
	store.change(func(s *table) { s.services[0].HealthPath = "/health?v=2" })
	require.NoError(t, r.Refresh(t.Context()))
	require.NoError(t, r.Usable(t.Context(), "ai", "n1"))
	store.change(func(s *table) { s.services[0].HealthPath = "/ill" })
	require.NoError(t, r.Refresh(t.Context()))
	require.Eventually(t, func() bool { return r.Usable(t.Context(), "ai", "n1") != nil }, 5*time.Second, time.Millisecond, "the first probe there decides")
}

func TestANewNodeIsChosenOnlyWhenTraefikCanKnowIt(t *testing.T) {
	b := newBackend(t)
	store := &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", b.URL)}}
	r := run(t, store, func(o *registry.Options) { o.Propagation = time.Hour })
	ready(t, r)
	store.change(func(s *table) { s.nodes = append(s.nodes, node("n2", "ai", b.URL)) })
	require.NoError(t, r.Refresh(t.Context()))
	require.Eventually(t, func() bool { return r.Usable(t.Context(), "ai", "n2") == nil }, 5*time.Second, time.Millisecond)
	for range 10 {
		id, err := r.PlaceUser(t.Context(), "ai")
		require.NoError(t, err)
		require.Equal(t, "n1", id)
	}
}

func TestANodeAddedLaterIsChosenAfterThePropagation(t *testing.T) {
	b := newBackend(t)
	store := &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", b.URL)}}
	r := run(t, store, func(o *registry.Options) { o.Propagation = 50 * time.Millisecond })
	ready(t, r)
	store.change(func(s *table) { s.nodes = append(s.nodes, node("n2", "ai", b.URL)) })
	require.Eventually(t, func() bool { id, err := r.PlaceUser(t.Context(), "ai"); return err == nil && id == "n2" }, 5*time.Second, time.Millisecond)
}

func TestANodeThatIsDisabledOrMovedIsFollowed(t *testing.T) {
	first, second := newBackend(t), newBackend(t)
	second.ill.Store(true)
	store := &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", first.URL)}}
	r := run(t, store, nil)
	ready(t, r)
	store.change(func(s *table) { s.nodes[0].BaseURL = second.URL })
	require.NoError(t, r.Refresh(t.Context()))
	requireReason(t, gateway.NodeDown, r.Usable(t.Context(), "ai", "n1")) // not believed before it is probed at its new place
	store.change(func(s *table) { s.nodes[0].Enabled = false })
	require.NoError(t, r.Refresh(t.Context()))
	requireReason(t, gateway.NodeDisabled, r.Usable(t.Context(), "ai", "n1"))
}

func TestAnInvalidRowIsLeftOut(t *testing.T) {
	b := newBackend(t)
	r := run(t, &table{
		services: []gateway.Service{service("ai", "/js/a"), service("b`ad", "/x"), service("bad", "no-slash")},
		nodes:    []gateway.Node{node("n1", "ai", b.URL), node("n2`)", "ai", b.URL), node("n3", "ai", "ftp://x")},
	}, nil)
	ready(t, r)
	require.Len(t, r.Snapshot().Services, 1)
	require.Len(t, r.Snapshot().NodesOf("ai"), 1)
}

func TestTheLastRegistryHoldsWhileTheStoreIsDown(t *testing.T) {
	b := newBackend(t)
	store := &table{services: []gateway.Service{service("ai", "/js/a")}, nodes: []gateway.Node{node("n1", "ai", b.URL)}}
	r := run(t, store, nil)
	ready(t, r)
	store.change(func(s *table) { s.err = errors.New("down") })
	require.Error(t, r.Refresh(t.Context()))
	require.NoError(t, r.Usable(t.Context(), "ai", "n1"))
}

func TestServiceAt(t *testing.T) {
	off := service("off", "/js/a/off")
	off.Enabled = false
	s := registry.NewSnapshot([]gateway.Service{service("js", "/js"), service("a", "/js/a"), off}, nil)
	for path, want := range map[string]string{
		"/js": "js", "/js/": "js", "/js/b": "js", "/js/a": "a", "/js/a/": "a", "/js/a/x": "a",
		"/js/apple": "js", "/jsx": "", "/": "", "/js/a/off/x": "off",
	} {
		found, _ := s.ServiceAt(path)
		require.Equal(t, want, found.ID, path)
	}
	root := registry.NewSnapshot([]gateway.Service{service("root", "/")}, nil)
	found, ok := root.ServiceAt("/anything")
	require.True(t, ok)
	require.Equal(t, "root", found.ID)
}
