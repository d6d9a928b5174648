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
//
// How a user stays known. What a change makes this instance forget is read anew
// in the background, and a write leaves its result in memory: otherwise a user
// would be unknown from a change to their next request, and refused if the
// durable store went away in between.
package binding

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"
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
	renewals  = 4 // that run at a time; what finds no place is read when it is asked for

	unwrittenSize = 10_000
	unwrittenTTL  = time.Hour // then the user's next login has to tell
)

// lookup is one question: the binding of a user id, or of a username key.
type lookup struct {
	serviceID string
	userID    string
	username  gateway.UsernameKey
}

func (l lookup) String() string { return l.serviceID + "\x00" + l.userID + "\x00" + string(l.username) }

// local is a copy in this instance's memory.
type local struct {
	gateway.Route
	era uint64
}

type stripe struct {
	sync.Mutex
	generation uint64
}

// Directory answers look-ups and carries out changes. It is safe for concurrent use.
type Directory struct {
	store      gateway.Bindings
	shared     gateway.RouteCache // nil = none
	readGate   *outage.Gate       // of the durable store
	writeGate  *outage.Gate
	sharedGate *outage.Gate
	log        *slog.Logger

	ctx     context.Context //nolint:containedctx // of what runs in the background; ended by Close
	end     context.CancelFunc
	renewal sync.WaitGroup
	renewer chan struct{} // a place for each renewal that runs

	unwritten *otter.Cache[lookup, gateway.Login] // that took place and could not be stored yet

	live    atomic.Bool // the change feed is heard
	local   *otter.Cache[lookup, local]
	era     atomic.Uint64 // of copies; those of an older one are asked for again
	seed    maphash.Seed
	stripes [stripes]stripe
	loads   singleflight.Group
}

// Gates bound how long a request waits for a store.
type Gates struct {
	Read   *outage.Gate // of the durable store
	Write  *outage.Gate // of the durable store
	Shared *outage.Gate // of the shared cache
}

// NewDirectory makes a Directory; shared may be nil.
func NewDirectory(store gateway.Bindings, shared gateway.RouteCache, gates Gates, log *slog.Logger) *Directory {
	ctx, end := context.WithCancel(context.Background())
	return &Directory{
		store: store, shared: shared, readGate: gates.Read, writeGate: gates.Write, sharedGate: gates.Shared, log: log,
		ctx: ctx, end: end, renewer: make(chan struct{}, renewals),
		seed: maphash.MakeSeed(),
		local: otter.Must(&otter.Options[lookup, local]{
			MaximumSize:      localSize,
			ExpiryCalculator: otter.ExpiryWriting[lookup, local](localTTL),
		}),
		unwritten: otter.Must(&otter.Options[lookup, gateway.Login]{
			MaximumSize:      unwrittenSize,
			ExpiryCalculator: otter.ExpiryWriting[lookup, gateway.Login](unwrittenTTL),
		}),
	}
}

// Close ends what the Directory runs in the background. Nothing may be asked of it any more.
func (d *Directory) Close() {
	d.end()
	d.renewal.Wait()
	d.local.StopAllGoroutines()
	d.unwritten.StopAllGoroutines()
}

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
	copied, isKnown := d.known(ctx, l)
	if isKnown && copied.era == d.era.Load() {
		return copied.Route, nil
	}
	if gateway.TraceOf(ctx) != nil { // joins no load, and starts none that others would join
		return d.load(ctx, l, d.generation(l))
	}
	// Concurrent misses of one user share a load, unless a change was heard since it
	// began. Its context is nobody's: the first to ask may go away while the others wait.
	generation := d.generation(l)
	loading := d.loads.DoChan(l.String()+"\x00"+strconv.FormatUint(generation, 10), func() (any, error) {
		return d.load(context.WithoutCancel(ctx), l, generation)
	})
	select {
	case loaded := <-loading:
		route, _ := loaded.Val.(gateway.Route)
		return route, loaded.Err
	case <-ctx.Done():
		return gateway.Route{}, ctx.Err()
	}
}

// known looks into this instance's memory.
func (d *Directory) known(ctx context.Context, l lookup) (local, bool) {
	step := gateway.TraceOf(ctx).Begin("binding", "L1")
	found, ok := d.local.GetIfPresent(l)
	switch {
	case !ok:
		step.End(gateway.Missing, "")
	case found.era != d.era.Load():
		step.End(gateway.Found, "node "+found.NodeID+", asked again since a change may have been missed")
	default:
		step.End(gateway.Found, "node "+found.NodeID)
	}
	return found, ok
}

func (d *Directory) load(ctx context.Context, l lookup, generation uint64) (gateway.Route, error) {
	keeps := gateway.TraceOf(ctx) == nil
	if route, err := d.askShared(ctx, l); err == nil {
		if keeps {
			d.keep(l, route, generation)
		}
		return route, nil
	}
	route, err := d.askStore(ctx, l)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return gateway.Route{}, err
	case err != nil:
		// From before the feed was heard again; a change heard since has deleted it.
		if old, ok := d.local.GetIfPresent(l); ok {
			return old.Route, nil
		}
		return gateway.Route{}, err
	}
	if keeps && d.keep(l, route, generation) {
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
	if found, ok := d.known(ctx, l); ok {
		return found.Route, nil
	}
	if route, err := d.askShared(ctx, l); err == nil {
		return route, nil
	}
	return gateway.Route{}, storeErr
}

func (d *Directory) askStore(ctx context.Context, l lookup) (gateway.Route, error) {
	step := gateway.TraceOf(ctx).Begin("binding", "SQL")
	var found gateway.Binding
	err := d.readGate.Do(ctx, func(ctx context.Context) (err error) {
		if l.userID != "" {
			found, err = d.store.BindingByUser(ctx, l.serviceID, l.userID)
		} else {
			found, err = d.store.BindingByUsername(ctx, l.serviceID, l.username)
		}
		return err
	})
	step.EndAsked(err, "node "+found.NodeID)
	return found.Route(), err
}

var errNoSharedCache = errors.New("no shared cache")

func (d *Directory) askShared(ctx context.Context, l lookup) (route gateway.Route, err error) {
	if d.shared == nil {
		return gateway.Route{}, errNoSharedCache
	}
	step := gateway.TraceOf(ctx).Begin("binding", "Redis")
	err = d.sharedGate.Do(ctx, func(ctx context.Context) (err error) {
		if l.userID != "" {
			route, err = d.shared.RouteByUser(ctx, l.serviceID, l.userID)
		} else {
			route, err = d.shared.RouteByUsername(ctx, l.serviceID, l.username)
		}
		return err
	})
	step.EndAsked(err, "node "+route.NodeID)
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
	d.local.Set(l, local{route, d.era.Load()})
	return true
}

// replace is keep for a write: reads that began before it must not be kept after it.
func (d *Directory) replace(l lookup, route gateway.Route, generation uint64) bool {
	s := d.stripeOf(l)
	s.Lock()
	defer s.Unlock()
	if s.generation != generation || !d.live.Load() {
		return false
	}
	s.generation++
	d.local.Set(l, local{route, d.era.Load()})
	return true
}

// forget drops a copy, and reports whether there was one.
func (d *Directory) forget(l lookup) bool {
	s := d.stripeOf(l)
	s.Lock()
	defer s.Unlock()
	s.generation++
	_, was := d.local.Invalidate(l)
	return was
}

// renew reads what was forgotten, in the background.
func (d *Directory) renew(l lookup) {
	select {
	case d.renewer <- struct{}{}:
	default:
		return
	}
	d.renewal.Go(func() {
		defer func() { <-d.renewer }()
		_, _ = d.find(d.ctx, l) // an error is whoever's that asks next
	})
}

func (d *Directory) forgetAll() {
	d.distrust()
	d.local.InvalidateAll()
}

// distrust makes every look-up ask again; a copy still serves if the durable store
// cannot be asked.
func (d *Directory) distrust() {
	for i := range d.stripes {
		d.stripes[i].Lock()
	}
	d.era.Add(1)
	for i := range d.stripes {
		d.stripes[i].generation++
		d.stripes[i].Unlock()
	}
}

// Live tells whether the change feed is heard. When it becomes live every copy is
// asked for again, because a change may have been missed.
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
	d.distrust()
	d.live.Store(true)
}

// Changed forgets the copies of what the changes are about, and reads anew what
// was known.
func (d *Directory) Changed(ctx context.Context, changes ...gateway.Change) {
	d.drop(ctx, changes, changes)
}

// drop forgets changes in the shared cache and local in memory.
func (d *Directory) drop(ctx context.Context, changes, local []gateway.Change) {
	known := d.forgetLocal(local)
	if d.shared != nil && len(changes) > 0 {
		if err := d.shared.Invalidate(ctx, changes); err != nil {
			d.log.WarnContext(ctx, "shared cache not used until it can be emptied", "error", err)
		}
		// Between the two the memory may have been filled from the shared cache.
		known = append(known, d.forgetLocal(local)...)
	}
	for _, l := range known {
		d.renew(l)
	}
}

// forgetLocal returns the look-ups that were in memory.
func (d *Directory) forgetLocal(changes []gateway.Change) (known []lookup) {
	for _, change := range changes {
		switch change.Kind {
		case gateway.ChangeUser, gateway.ChangeUsername:
			if l := lookupOf(change); d.forget(l) {
				known = append(known, l)
			}
		case gateway.ChangeBindings:
			d.forgetAll()
		case gateway.ChangeRegistry, gateway.ChangePolicies, gateway.ChangeRoles: // a binding does not depend on them
		}
	}
	return known
}

func lookupOf(change gateway.Change) lookup {
	if change.Kind == gateway.ChangeUser {
		return lookup{serviceID: change.ServiceID, userID: change.UserID}
	}
	return lookup{serviceID: change.ServiceID, username: change.UsernameKey}
}

// BindIfAbsent records a login (see gateway.Bindings) and returns the effective binding.
func (d *Directory) BindIfAbsent(ctx context.Context, login gateway.Login) (gateway.BindResult, error) {
	return d.write(ctx, login.ServiceID, login.UserID, login.Username, func(ctx context.Context) (gateway.BindResult, error) {
		return d.store.BindIfAbsent(ctx, login)
	})
}

// LoggedIn is BindIfAbsent for a login that has taken place. One that cannot be stored
// now is remembered (Unwritten) until it is reported again.
func (d *Directory) LoggedIn(ctx context.Context, login gateway.Login) (gateway.BindResult, error) {
	l := lookup{serviceID: login.ServiceID, userID: login.UserID}
	result, err := d.BindIfAbsent(ctx, login)
	var conflict *gateway.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		d.unwritten.Set(l, login)
	} else {
		d.unwritten.Invalidate(l)
	}
	return result, err
}

// Unwritten returns the user's last login that was reported to this instance and could
// not be stored: whoever binds the user has to bind them where it took place.
func (d *Directory) Unwritten(serviceID, userID string) (gateway.Login, bool) {
	return d.unwritten.GetIfPresent(lookup{serviceID: serviceID, userID: userID})
}

// Bind carries out an administrator's bind or rebind (see gateway.Bindings).
func (d *Directory) Bind(ctx context.Context, want gateway.Assignment) (gateway.BindResult, error) {
	return d.write(ctx, want.ServiceID, want.UserID, want.Username, func(ctx context.Context) (gateway.BindResult, error) {
		return d.store.Bind(ctx, want)
	})
}

// Unbind deletes a binding (see gateway.Bindings).
func (d *Directory) Unbind(ctx context.Context, id int64) (gateway.BindResult, error) {
	return d.write(ctx, "", "", "", func(ctx context.Context) (gateway.BindResult, error) { return d.store.Unbind(ctx, id) })
}

// write carries out a write, then forgets what it changed. The row of the user id
// and username that it was about stays in memory as it came back, unless a change
// of it was heard since the write began, which may be the newer one.
func (d *Directory) write(ctx context.Context, serviceID, userID, username string, write func(context.Context) (gateway.BindResult, error)) (result gateway.BindResult, err error) {
	before := map[lookup]uint64{}
	if userID != "" {
		l := lookup{serviceID: serviceID, userID: userID}
		before[l] = d.generation(l)
	}
	if username != "" {
		l := lookup{serviceID: serviceID, username: gateway.KeyOf(username)}
		before[l] = d.generation(l)
	}
	err = d.writeGate.Do(ctx, func(ctx context.Context) (err error) {
		result, err = write(ctx)
		return err
	})
	if err != nil {
		return result, err
	}
	forget := result.Changes
	for l, generation := range before {
		if d.replace(l, result.Binding.Route(), generation) {
			forget = slices.DeleteFunc(slices.Clone(forget), func(c gateway.Change) bool { return lookupOf(c) == l })
		}
	}
	d.drop(context.WithoutCancel(ctx), result.Changes, forget)
	return result, nil
}
