// Package registry holds the services and nodes as every request needs them: a
// snapshot of the durable store, the health of each node, and the placement of
// users who have no node yet.
package registry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Options are the settings of a Registry.
type Options struct {
	PollInterval time.Duration // how often the store is read when nothing tells of a change
	Health       HealthOptions
	// Propagation is how long a new node waits before placement chooses it, so
	// that every Traefik has fetched the configuration that names it.
	Propagation time.Duration
	// Seed fills an empty registry.
	Seed func() ([]gateway.Service, []gateway.Node)
}

// HealthOptions are the settings of the probes.
type HealthOptions struct {
	Interval  time.Duration
	Timeout   time.Duration
	Failures  int // consecutive ones that make a node DOWN
	Successes int // consecutive ones that make it UP
}

// Store is what a Registry reads.
type Store interface {
	gateway.RegistryStore
	CountBindings(ctx context.Context) (map[string]int64, error)
}

// Registry is safe for concurrent use.
type Registry struct {
	store  Store
	opts   Options
	log    *slog.Logger
	now    func() time.Time
	client *http.Client

	snapshot  atomic.Pointer[Snapshot]
	ready     chan struct{} // closed when loaded and every node has been probed once
	kick      chan struct{} // asks Run to refresh
	users     *placer
	anonymous *placer // apart: a login page before every login must not take every other turn

	refreshing sync.Mutex // one Refresh at a time, so that an older read never replaces a newer one

	mu        sync.RWMutex
	probers   map[string]*prober   // by node id; enabled nodes only
	published map[string]time.Time // by node id: from when on placement may choose it
	probing   sync.WaitGroup
	runCtx    context.Context //nolint:containedctx // of Run, owns the probers; nothing is loaded before Run
}

// New makes a Registry. Nothing is read before Run.
func New(store Store, opts Options, log *slog.Logger, now func() time.Time) *Registry {
	return &Registry{
		store: store, opts: opts, log: log, now: now,
		client: &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: true}, // no proxy: a node is reached the way Traefik reaches it
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		ready: make(chan struct{}), kick: make(chan struct{}, 1),
		probers: map[string]*prober{}, published: map[string]time.Time{},
		users: newPlacer(), anonymous: newPlacer(),
	}
}

// Ready is closed once the registry is loaded and every node has been probed.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// IsReady reports whether Ready is closed.
func (r *Registry) IsReady() bool {
	select {
	case <-r.ready:
		return true
	default:
		return false
	}
}

// Snapshot returns the current registry; an empty one before it is loaded.
func (r *Registry) Snapshot() *Snapshot {
	if s := r.snapshot.Load(); s != nil {
		return s
	}
	return NewSnapshot(nil, nil)
}

// Run seeds and loads the registry, waiting for the store as long as it takes,
// then refreshes it and probes the nodes until ctx ends. It returns when all its
// goroutines have.
func (r *Registry) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.probing.Wait()
	defer cancel()
	r.mu.Lock()
	r.runCtx = ctx
	r.mu.Unlock()

	if err := r.loadFirst(ctx); err != nil {
		return nil // ctx ended while the store was down: a normal end
	}
	go r.becomeReady(ctx)

	ticker := time.NewTicker(r.opts.PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.kick:
		}
		if err := r.Refresh(ctx); err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "registry not refreshed, the last one holds", "error", err)
		}
	}
}

func (r *Registry) loadFirst(ctx context.Context) error {
	ctx = gateway.WithActor(ctx, gateway.Actor{Name: gateway.ActorConfiguration})
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if r.opts.Seed != nil {
			services, nodes := r.opts.Seed()
			if len(services) > 0 {
				seeded, err := r.store.SeedRegistry(attempt, services, nodes)
				if err != nil {
					return struct{}{}, err
				}
				if seeded {
					r.log.InfoContext(ctx, "empty registry seeded from the configuration", "services", len(services), "nodes", len(nodes))
				}
			}
		}
		return struct{}{}, r.Refresh(attempt)
	}, backoff.WithBackOff(&backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, Multiplier: 2, RandomizationFactor: 0.2, MaxInterval: 2 * time.Second,
	}), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, next time.Duration) {
		r.log.WarnContext(ctx, "waiting for the store", "error", err, "again_in", next)
	}))
	return err
}

func (r *Registry) becomeReady(ctx context.Context) {
	r.mu.RLock()
	first := make([]*prober, 0, len(r.probers))
	for _, p := range r.probers {
		first = append(first, p)
	}
	r.mu.RUnlock()
	for _, p := range first {
		select {
		case <-p.decided:
		case <-p.ended:
		case <-ctx.Done():
			return
		}
	}
	close(r.ready)
}

// RefreshSoon asks Run to refresh, without waiting for it.
func (r *Registry) RefreshSoon() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Refresh reads the store now. On an error the last snapshot holds. Only while Run runs.
func (r *Registry) Refresh(ctx context.Context) error {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	services, nodes, err := r.store.LoadRegistry(ctx)
	if err != nil {
		return err
	}
	snapshot, problems := newSnapshot(services, nodes)
	for _, problem := range problems {
		r.log.ErrorContext(ctx, "invalid row in the registry", "error", problem)
	}
	first := r.snapshot.Load() == nil
	r.follow(snapshot, first)
	r.snapshot.Store(snapshot)
	if err := r.count(ctx, snapshot); err != nil {
		r.log.WarnContext(ctx, "bindings not counted, the last counts hold", "error", err)
	}
	return nil
}

// count counts the bindings of every node where a placement goes by them.
func (r *Registry) count(ctx context.Context, snapshot *Snapshot) error {
	if !slices.ContainsFunc(snapshot.Services, func(s gateway.Service) bool { return s.Placement == gateway.FewestBindings }) {
		return nil
	}
	bound, err := r.store.CountBindings(ctx)
	if err != nil {
		return err
	}
	r.users.counted(bound)
	return nil
}

// follow starts and ends probers so that every enabled node has one, and notes
// from when on a new node may be chosen. What was there at the first load is
// known to Traefik already, or will be before a request can arrive through it.
func (r *Registry) follow(snapshot *Snapshot, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := map[string]target{}
	for _, service := range snapshot.Services {
		for _, node := range snapshot.NodesOf(service.ID) {
			if node.Enabled && service.Enabled {
				wanted[node.ID] = target{node.BaseURL, service.HealthPath}
			}
		}
	}
	known := map[string]Health{} // of nodes that are probed at another path from now on
	for id, p := range r.probers {
		if wanted[id] != p.target {
			p.cancel()
			delete(r.probers, id)
			if wanted[id].base == p.target.base {
				known[id] = *p.health.Load()
			}
		}
	}
	for id := range r.published {
		if _, ok := wanted[id]; !ok {
			delete(r.published, id)
		}
	}
	for id, t := range wanted {
		if _, ok := r.published[id]; !ok {
			r.published[id] = r.now()
			if !first {
				r.published[id] = r.now().Add(r.opts.Propagation)
			}
		}
		if r.probers[id] == nil {
			r.probers[id] = r.startProber(id, t, known[id])
		}
	}
}

// Usable returns nil when the node exists, belongs to the service, is enabled
// and UP, else why it cannot serve.
func (r *Registry) Usable(ctx context.Context, serviceID, nodeID string) error {
	step := gateway.TraceOf(ctx).Begin("node", "registry")
	refuse := func(reason gateway.Reason, retryAfter time.Duration, why string) error {
		step.End(gateway.Refused, nodeID+" "+why)
		return &gateway.Error{Reason: reason, RetryAfter: retryAfter, Cause: errors.New("node " + nodeID + " " + why)}
	}
	node, ok := r.Snapshot().Node(nodeID)
	switch {
	case !ok || node.ServiceID != serviceID:
		return refuse(gateway.NodeUnknown, 0, "is not in the registry")
	case !node.Enabled:
		return refuse(gateway.NodeDisabled, 0, "is disabled")
	case r.Health(nodeID).State != Up:
		return refuse(gateway.NodeDown, r.opts.Health.Interval, "is not UP")
	}
	step.End(gateway.Found, nodeID+" is enabled and UP")
	return nil
}

// Health returns the health of a node; Unknown for one that is not probed.
func (r *Registry) Health(nodeID string) Health {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if p := r.probers[nodeID]; p != nil {
		return *p.health.Load()
	}
	return Health{State: Unknown}
}
