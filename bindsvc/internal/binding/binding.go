// Package binding answers which node a user is bound to, from memory, the shared
// cache and the durable store, and keeps the copies true.
//
// How a copy stays true. The durable store tells every instance of every change
// (gateway.ChangeFeed). An instance believes copies only while it hears that
// feed; when the feed breaks it asks the durable store first and falls back on
// copies only if the store cannot be asked, since then nobody can change it
// either. A read that began before a change must not write its answer into a
// copy after the change was heard: in memory a generation number per stripe sees
// to that, in the shared cache a tombstone.
package binding

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

const (
	localSize = 500_000
	localTTL  = 24 * time.Hour
	stripes   = 256
)

// lookup is one question: the binding of a user id, or of a username key.
type lookup struct {
	serviceID string
	userID    string
	username  gateway.UsernameKey
}

func (l lookup) String() string { return l.serviceID + "\x00" + l.userID + "\x00" + string(l.username) }

type stripe struct {
	sync.Mutex
	generation uint64
}

// Directory answers look-ups and carries out changes. It is safe for concurrent use.
type Directory struct {
	store      gateway.Bindings
	shared     gateway.RouteCache // nil = none
	storeGate  *outage.Gate
	sharedGate *outage.Gate
	log        *slog.Logger

	live    atomic.Bool // the change feed is heard
	local   *otter.Cache[lookup, gateway.Route]
	seed    maphash.Seed
	stripes [stripes]stripe
	loads   singleflight.Group
}

// NewDirectory makes a Directory; shared may be nil.
func NewDirectory(store gateway.Bindings, shared gateway.RouteCache, storeGate, sharedGate *outage.Gate, log *slog.Logger) *Directory {
	return &Directory{
		store: store, shared: shared, storeGate: storeGate, sharedGate: sharedGate, log: log,
		seed: maphash.MakeSeed(),
		local: otter.Must(&otter.Options[lookup, gateway.Route]{
			MaximumSize:      localSize,
			ExpiryCalculator: otter.ExpiryWriting[lookup, gateway.Route](localTTL),
		}),
	}
}

// Close ends what the Directory runs in the background.
func (d *Directory) Close() { d.local.StopAllGoroutines() }

// ByUser returns the route of a user id. gateway.ErrNotFound means that the
// durable store has none; any other error that it could not be asked.
func (d *Directory) ByUser(ctx context.Context, serviceID, userID string) (gateway.Route, error) {
	return d.find(ctx, lookup{serviceID: serviceID, userID: userID})
}

// ByUsername is ByUser for a username, or a name once typed at a login.
func (d *Directory) ByUsername(ctx context.Context, serviceID, username string) (gateway.Route, error) {
	return d.find(ctx, lookup{serviceID: serviceID, username: gateway.KeyOf(username)})
}

func (d *Directory) find(ctx context.Context, l lookup) (gateway.Route, error) {
	if !d.live.Load() {
		return d.findDeaf(ctx, l)
	}
	if route, ok := d.local.GetIfPresent(l); ok {
		return route, nil
	}
	// Concurrent misses of one user share a load. Its context is nobody's: the
	// first to ask may go away while the others wait.
	loading := d.loads.DoChan(l.String(), func() (any, error) { return d.load(context.WithoutCancel(ctx), l) })
	select {
	case loaded := <-loading:
		return loaded.Val.(gateway.Route), loaded.Err
	case <-ctx.Done():
		return gateway.Route{}, ctx.Err()
	}
}

func (d *Directory) load(ctx context.Context, l lookup) (gateway.Route, error) {
	generation := d.generation(l)
	if route, err := d.askShared(ctx, l); err == nil {
		d.keep(l, route, generation)
		return route, nil
	}
	route, err := d.askStore(ctx, l)
	if err != nil {
		return gateway.Route{}, err
	}
	if d.keep(l, route, generation) {
		d.fillShared(ctx, l, route)
	}
	return route, nil
}

// findDeaf is find while changes may be missed.
func (d *Directory) findDeaf(ctx context.Context, l lookup) (gateway.Route, error) {
	route, storeErr := d.askStore(ctx, l)
	if storeErr == nil || errors.Is(storeErr, gateway.ErrNotFound) {
		return route, storeErr
	}
	if route, ok := d.local.GetIfPresent(l); ok {
		return route, nil
	}
	if route, err := d.askShared(ctx, l); err == nil {
		return route, nil
	}
	return gateway.Route{}, storeErr
}

func (d *Directory) askStore(ctx context.Context, l lookup) (gateway.Route, error) {
	var found gateway.Binding
	err := d.storeGate.Do(ctx, func(ctx context.Context) (err error) {
		if l.userID != "" {
			found, err = d.store.BindingByUser(ctx, l.serviceID, l.userID)
		} else {
			found, err = d.store.BindingByUsername(ctx, l.serviceID, l.username)
		}
		return err
	})
	return found.Route(), err
}

var errNoSharedCache = errors.New("no shared cache")

func (d *Directory) askShared(ctx context.Context, l lookup) (route gateway.Route, err error) {
	if d.shared == nil {
		return gateway.Route{}, errNoSharedCache
	}
	err = d.sharedGate.Do(ctx, func(ctx context.Context) (err error) {
		if l.userID != "" {
			route, err = d.shared.RouteByUser(ctx, l.serviceID, l.userID)
		} else {
			route, err = d.shared.RouteByUsername(ctx, l.serviceID, l.username)
		}
		return err
	})
	return route, err
}

func (d *Directory) fillShared(ctx context.Context, l lookup, route gateway.Route) {
	if d.shared == nil {
		return
	}
	// A cache that could not be filled is a cache that answers later: nothing is wrong.
	_ = d.sharedGate.Do(ctx, func(ctx context.Context) error {
		if l.userID != "" {
			return d.shared.FillUser(ctx, l.serviceID, l.userID, route)
		}
		return d.shared.FillUsername(ctx, l.serviceID, l.username, route)
	})
}

func (d *Directory) stripeOf(l lookup) *stripe {
	return &d.stripes[maphash.Comparable(d.seed, l)%stripes]
}

func (d *Directory) generation(l lookup) uint64 {
	s := d.stripeOf(l)
	s.Lock()
	defer s.Unlock()
	return s.generation
}

// keep stores what was read since generation, unless a change was heard since.
func (d *Directory) keep(l lookup, route gateway.Route, generation uint64) bool {
	s := d.stripeOf(l)
	s.Lock()
	defer s.Unlock()
	if s.generation != generation || !d.live.Load() {
		return false
	}
	d.local.Set(l, route)
	return true
}

func (d *Directory) forget(l lookup) {
	s := d.stripeOf(l)
	s.Lock()
	defer s.Unlock()
	s.generation++
	d.local.Invalidate(l)
	d.loads.Forget(l.String()) // whoever asks from now on must not join a load from before
}

func (d *Directory) forgetAll() {
	for i := range d.stripes {
		s := &d.stripes[i]
		s.Lock()
		s.generation++
		s.Unlock()
	}
	d.local.InvalidateAll()
}

// Live tells whether the change feed is heard. Becoming live forgets every copy,
// because a change may have been missed.
func (d *Directory) Live(ctx context.Context, live bool) {
	if !live {
		d.live.Store(false)
		return
	}
	if d.shared != nil {
		if err := d.shared.Flush(ctx); err != nil {
			d.log.WarnContext(ctx, "shared cache not used until it can be emptied", "error", err)
		}
	}
	d.forgetAll()
	d.live.Store(true)
}

// Changed forgets the copies of what a change is about.
func (d *Directory) Changed(ctx context.Context, changes ...gateway.Change) {
	d.forgetLocal(changes)
	if d.shared == nil {
		return
	}
	if err := d.shared.Invalidate(ctx, changes); err != nil {
		d.log.WarnContext(ctx, "shared cache not used until it can be emptied", "error", err)
	}
	// Between the two the memory may have been filled from the shared cache.
	d.forgetLocal(changes)
}

func (d *Directory) forgetLocal(changes []gateway.Change) {
	for _, change := range changes {
		switch change.Kind {
		case gateway.ChangeUser:
			d.forget(lookup{serviceID: change.ServiceID, userID: change.UserID})
		case gateway.ChangeUsername:
			d.forget(lookup{serviceID: change.ServiceID, username: change.UsernameKey})
		case gateway.ChangeBindings:
			d.forgetAll()
		case gateway.ChangeRegistry: // a binding does not depend on it
		}
	}
}

// BindIfAbsent records a login (see gateway.Bindings) and returns the effective binding.
func (d *Directory) BindIfAbsent(ctx context.Context, login gateway.Login) (gateway.BindResult, error) {
	return d.write(ctx, func(ctx context.Context) (gateway.BindResult, error) { return d.store.BindIfAbsent(ctx, login) })
}

// Bind carries out an administrator's bind or rebind (see gateway.Bindings).
func (d *Directory) Bind(ctx context.Context, want gateway.Assignment) (gateway.BindResult, error) {
	return d.write(ctx, func(ctx context.Context) (gateway.BindResult, error) { return d.store.Bind(ctx, want) })
}

// Unbind deletes a binding (see gateway.Bindings).
func (d *Directory) Unbind(ctx context.Context, id int64) (gateway.BindResult, error) {
	return d.write(ctx, func(ctx context.Context) (gateway.BindResult, error) { return d.store.Unbind(ctx, id) })
}

func (d *Directory) write(ctx context.Context, write func(context.Context) (gateway.BindResult, error)) (result gateway.BindResult, err error) {
	err = d.storeGate.Do(ctx, func(ctx context.Context) (err error) {
		result, err = write(ctx)
		return err
	})
	if err == nil && len(result.Changes) > 0 {
		d.Changed(context.WithoutCancel(ctx), result.Changes...)
	}
	return result, err
}
