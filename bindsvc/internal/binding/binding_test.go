package binding_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/homenode/homenode/bindsvc/internal/binding"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("store is down")

// durable is a durable store of one user's binding whose reads can be held.
type durable struct {
	gateway.Bindings
	mu     sync.Mutex
	route  gateway.Route // NodeID empty = no binding
	err    error
	reads  int
	onBind func()        // called between the commit of a bind and its return
	hold   chan struct{} // when set, a read that has its answer waits here before it returns
	held   chan struct{}
}

func (s *durable) read() (gateway.Binding, error) {
	s.mu.Lock()
	s.reads++
	route, err, hold, held := s.route, s.err, s.hold, s.held
	s.mu.Unlock()
	if hold != nil {
		held <- struct{}{}
		<-hold
	}
	if err == nil && route.NodeID == "" {
		err = gateway.ErrNotFound
	}
	return gateway.Binding{NodeID: route.NodeID, Epoch: route.Epoch}, err
}

func (s *durable) BindingByUser(context.Context, string, string) (gateway.Binding, error) {
	return s.read()
}

func (s *durable) BindingByUsername(context.Context, string, gateway.UsernameKey) (gateway.Binding, error) {
	return s.read()
}

func (s *durable) Bind(_ context.Context, want gateway.Assignment) (gateway.BindResult, error) {
	s.mu.Lock()
	s.route = gateway.Route{NodeID: want.NodeID, Epoch: s.route.Epoch + 1}
	bound := s.route
	s.mu.Unlock()
	if s.onBind != nil {
		s.onBind()
	}
	return gateway.BindResult{
		Binding: gateway.Binding{NodeID: bound.NodeID, Epoch: bound.Epoch},
		Changes: []gateway.Change{{Kind: gateway.ChangeUser, ServiceID: want.ServiceID, UserID: want.UserID}},
	}, nil
}

func (s *durable) BindIfAbsent(_ context.Context, login gateway.Login) (gateway.BindResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return gateway.BindResult{Binding: gateway.Binding{NodeID: login.NodeID, Epoch: 1}, Created: true}, s.err
}

func (s *durable) readCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *durable) set(change func(*durable)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// sharedCache is a RouteCache in memory with the tombstone rule.
type sharedCache struct {
	mu      sync.Mutex
	routes  map[string]gateway.Route
	graves  map[string]bool
	err     error
	flushes int
}

func newSharedCache() *sharedCache {
	return &sharedCache{routes: map[string]gateway.Route{}, graves: map[string]bool{}}
}

func (c *sharedCache) get(key string) (gateway.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return gateway.Route{}, c.err
	}
	if route, ok := c.routes[key]; ok {
		return route, nil
	}
	return gateway.Route{}, gateway.ErrNotFound
}

func (c *sharedCache) fill(key string, route gateway.Route) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !c.graves[key] {
		c.routes[key] = route
	}
	return c.err
}

func (c *sharedCache) RouteByUser(_ context.Context, svc, user string) (gateway.Route, error) {
	return c.get("user:" + svc + user)
}

func (c *sharedCache) RouteByUsername(_ context.Context, svc string, key gateway.UsernameKey) (gateway.Route, error) {
	return c.get("name:" + svc + string(key))
}

func (c *sharedCache) FillUser(_ context.Context, svc, user string, r gateway.Route) error {
	return c.fill("user:"+svc+user, r)
}

func (c *sharedCache) FillUsername(_ context.Context, svc string, key gateway.UsernameKey, r gateway.Route) error {
	return c.fill("name:"+svc+string(key), r)
}

func (c *sharedCache) Invalidate(_ context.Context, changes []gateway.Change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		key := "user:" + change.ServiceID + change.UserID
		delete(c.routes, key)
		c.graves[key] = true
	}
	return c.err
}

func (c *sharedCache) Flush(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushes++
	clear(c.routes)
	return c.err
}

func gates() binding.Gates {
	gate := func() *outage.Gate { return &outage.Gate{Limit: 5 * time.Second, Pause: 0} }
	return binding.Gates{Read: gate(), Write: gate(), Shared: gate()}
}

func setup(t *testing.T) (*binding.Directory, *durable, *sharedCache) {
	t.Helper()
	store, shared := &durable{route: gateway.Route{NodeID: "node-1", Epoch: 1}}, newSharedCache()
	directory := binding.NewDirectory(store, shared, gates(), slog.New(slog.DiscardHandler))
	t.Cleanup(directory.Close)
	directory.Live(t.Context(), true)
	return directory, store, shared
}

func requireNode(t *testing.T, directory *binding.Directory, want string) {
	t.Helper()
	route, err := directory.ByUser(t.Context(), "ai", "7")
	require.NoError(t, err)
	require.Equal(t, want, route.NodeID)
}

func TestTheStoreIsAskedOnceWhileTheFeedIsLive(t *testing.T) {
	directory, store, shared := setup(t)
	for range 3 {
		requireNode(t, directory, "node-1")
	}
	require.Equal(t, 1, store.readCount())
	require.Contains(t, shared.routes, "user:ai7")
}

func TestAnotherInstanceFindsItInTheSharedCache(t *testing.T) {
	_, store, shared := setup(t)
	require.NoError(t, shared.FillUser(t.Context(), "ai", "7", gateway.Route{NodeID: "node-1", Epoch: 1}))
	other := binding.NewDirectory(store, shared, gates(), slog.New(slog.DiscardHandler))
	defer other.Close()
	other.Live(t.Context(), true)
	require.Empty(t, shared.routes, "becoming live forgets what may be stale")
	require.NoError(t, shared.FillUser(t.Context(), "ai", "7", gateway.Route{NodeID: "node-1", Epoch: 1}))
	requireNode(t, other, "node-1")
	require.Zero(t, store.readCount())
}

func TestARebindIsSeenAtOnceByTheInstanceThatDidIt(t *testing.T) {
	directory, _, _ := setup(t)
	requireNode(t, directory, "node-1")
	_, err := directory.Bind(t.Context(), gateway.Assignment{ServiceID: "ai", UserID: "7", NodeID: "node-2"})
	require.NoError(t, err)
	requireNode(t, directory, "node-2")
}

// Otherwise a user whose binding was just written would be refused when the store
// goes away before the next request.
func TestAWriteAndAChangeHeardLeaveTheUserKnown(t *testing.T) {
	directory, store, _ := setup(t)
	bind := func() {
		_, err := directory.Bind(t.Context(), gateway.Assignment{ServiceID: "ai", UserID: "7", NodeID: "node-2"})
		require.NoError(t, err)
	}
	bind()
	require.Zero(t, store.readCount())
	directory.Changed(t.Context(), gateway.Change{Kind: gateway.ChangeUser, ServiceID: "ai", UserID: "7"}) // its own echo
	require.Eventually(t, func() bool { return store.readCount() == 1 }, 5*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		store.set(func(s *durable) { s.err = errDown })
		route, err := directory.ByUser(t.Context(), "ai", "7")
		store.set(func(s *durable) { s.err = nil })
		return err == nil && route.NodeID == "node-2"
	}, 5*time.Second, time.Millisecond)
}

// A change that was heard while a write was on its way may be newer than the write.
func TestAWriteDoesNotOverruleAChangeHeardMeanwhile(t *testing.T) {
	directory, store, shared := setup(t)
	store.onBind = func() {
		// Another instance rebinds right after this write's commit, and is heard first.
		store.set(func(s *durable) { s.route = gateway.Route{NodeID: "node-3", Epoch: 9} })
		directory.Changed(t.Context(), gateway.Change{Kind: gateway.ChangeUser, ServiceID: "ai", UserID: "7"})
	}
	_, err := directory.Bind(t.Context(), gateway.Assignment{ServiceID: "ai", UserID: "7", NodeID: "node-2"})
	require.NoError(t, err)
	requireNode(t, directory, "node-3")
	require.NotEqual(t, "node-2", shared.routes["user:ai7"].NodeID)
}

func TestAChangeHeardIsAChangeSeen(t *testing.T) {
	changes := map[string]gateway.Change{
		"of the user": {Kind: gateway.ChangeUser, ServiceID: "ai", UserID: "7"},
		"of anything": {Kind: gateway.ChangeBindings},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			directory, store, shared := setup(t)
			requireNode(t, directory, "node-1")
			store.set(func(s *durable) { s.route.NodeID = "node-2" })
			if change.Kind == gateway.ChangeBindings {
				require.NoError(t, shared.Flush(t.Context()))
			}
			directory.Changed(t.Context(), change)
			requireNode(t, directory, "node-2")
		})
	}
}

func TestAReadFromBeforeAChangeIsNotKept(t *testing.T) {
	directory, store, shared := setup(t)
	hold, held := make(chan struct{}), make(chan struct{}, 8)
	store.set(func(s *durable) { s.hold, s.held = hold, held })
	answered := make(chan gateway.Route)
	go func() {
		route, _ := directory.ByUser(t.Context(), "ai", "7")
		answered <- route
	}()
	<-held // the read has its (old) answer
	store.set(func(s *durable) { s.route.NodeID, s.hold = "node-2", nil })
	directory.Changed(t.Context(), gateway.Change{Kind: gateway.ChangeUser, ServiceID: "ai", UserID: "7"})

	requireNode(t, directory, "node-2") // asked after the change: must not join the load from before
	close(hold)
	<-answered
	requireNode(t, directory, "node-2")
	require.NotEqual(t, gateway.Route{NodeID: "node-1", Epoch: 1}, shared.routes["user:ai7"])
}

func TestADeafInstanceAsksTheStoreFirst(t *testing.T) {
	directory, store, _ := setup(t)
	requireNode(t, directory, "node-1")
	directory.Live(t.Context(), false)
	store.set(func(s *durable) { s.route.NodeID = "node-2" })
	requireNode(t, directory, "node-2")

	store.set(func(s *durable) { s.err = errDown })
	requireNode(t, directory, "node-1") // nobody can be asked: the last that was heard

	store.set(func(s *durable) { s.err, s.route.NodeID = nil, "" })
	_, err := directory.ByUser(t.Context(), "ai", "7")
	require.ErrorIs(t, err, gateway.ErrNotFound, "the store's no outweighs a copy")
}

func TestALoginThatCannotBeStoredIsRemembered(t *testing.T) {
	directory, store, _ := setup(t)
	login := gateway.Login{ServiceID: "ai", NodeID: "node-2", UserID: "7"}
	store.set(func(s *durable) { s.err = errDown })
	_, err := directory.LoggedIn(t.Context(), login)
	require.ErrorIs(t, err, errDown)
	kept, ok := directory.Unwritten("ai", "7")
	require.True(t, ok)
	require.Equal(t, login, kept)
	_, ok = directory.Unwritten("ai", "8")
	require.False(t, ok)

	for _, answer := range []error{nil, gateway.Conflictf("there is no such node")} {
		store.set(func(s *durable) { s.err = errDown })
		_, _ = directory.LoggedIn(t.Context(), login)
		store.set(func(s *durable) { s.err = answer })
		_, err = directory.LoggedIn(t.Context(), login)
		require.ErrorIs(t, err, answer)
		_, ok = directory.Unwritten("ai", "7")
		require.False(t, ok, "%v: it has been told", answer)
	}
}

func TestTheStoreDownIsNotUnknown(t *testing.T) {
	directory, store, _ := setup(t)
	store.set(func(s *durable) { s.err = errDown })
	for _, live := range []bool{true, false} {
		directory.Live(t.Context(), live)
		_, err := directory.ByUser(t.Context(), "ai", "7")
		require.ErrorIs(t, err, errDown)
		_, err = directory.ByUsername(t.Context(), "ai", "Ann")
		require.ErrorIs(t, err, errDown)
	}
}

func TestTheSharedCacheDownFallsThroughToTheStore(t *testing.T) {
	directory, _, shared := setup(t)
	shared.err = errDown
	requireNode(t, directory, "node-1")
	_, err := directory.Bind(t.Context(), gateway.Assignment{ServiceID: "ai", UserID: "7", NodeID: "node-2"})
	require.NoError(t, err)
	requireNode(t, directory, "node-2")
}

// PostgreSQL is back for a moment, and gone again before anybody has asked.
func TestBecomingLiveTakesNobodysNodeAway(t *testing.T) {
	directory, store, shared := setup(t)
	requireNode(t, directory, "node-1")
	directory.Live(t.Context(), false)
	directory.Live(t.Context(), true)
	shared.err = errDown
	store.set(func(s *durable) { s.err = errDown })
	requireNode(t, directory, "node-1")
	store.set(func(s *durable) { s.err, s.route = nil, gateway.Route{NodeID: "node-2", Epoch: 2} })
	requireNode(t, directory, "node-2")
	store.set(func(s *durable) { s.err = errDown })
	directory.Changed(t.Context(), gateway.Change{Kind: gateway.ChangeBindings})
	_, err := directory.ByUser(t.Context(), "ai", "7")
	require.ErrorIs(t, err, errDown, "a change was heard: no copy from before it may serve")
}

// Who asks after a change must not be answered by a read from before it.
func TestNobodyJoinsALoadFromBeforeAChange(t *testing.T) {
	for name, change := range map[string]gateway.Change{
		"of the user": {Kind: gateway.ChangeUser, ServiceID: "ai", UserID: "7"}, "of anything": {Kind: gateway.ChangeBindings},
	} {
		t.Run(name, func(t *testing.T) {
			directory, store, _ := setup(t)
			store.set(func(s *durable) { s.hold, s.held = make(chan struct{}), make(chan struct{}, 1) })
			first := make(chan error, 1)
			go func() {
				_, err := directory.ByUser(t.Context(), "ai", "7")
				first <- err
			}()
			<-store.held
			hold := store.hold
			store.set(func(s *durable) { s.route, s.hold = gateway.Route{NodeID: "node-2", Epoch: 2}, nil })
			directory.Changed(t.Context(), change)
			requireNode(t, directory, "node-2")
			close(hold)
			require.NoError(t, <-first)
			requireNode(t, directory, "node-2")
		})
	}
}

func TestBecomingLiveForgetsEverything(t *testing.T) {
	directory, store, shared := setup(t)
	requireNode(t, directory, "node-1")
	directory.Live(t.Context(), false)
	store.set(func(s *durable) { s.route.NodeID = "node-2" }) // missed
	directory.Live(t.Context(), true)
	requireNode(t, directory, "node-2")
	require.Equal(t, 2, shared.flushes)
}

func TestOneLoadForConcurrentMisses(t *testing.T) {
	directory, store, _ := setup(t)
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	store.set(func(s *durable) { s.hold, s.held = hold, held })
	leaving, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { _, err := directory.ByUser(leaving, "ai", "7"); left <- err }()
	<-held
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() { requireNode(t, directory, "node-1") })
	}
	leave() // the first to ask goes away: the others still get the answer
	require.ErrorIs(t, <-left, context.Canceled)
	close(hold)
	wait.Wait()
	require.LessOrEqual(t, store.readCount(), 21)
	requireNode(t, directory, "node-1")
}
