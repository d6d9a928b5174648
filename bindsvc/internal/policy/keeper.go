package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// How often the stores are asked for changes that nothing told of, and how long they may take.
const (
	pollInterval = 5 * time.Second
	durableLimit = 2 * time.Second
	cacheLimit   = time.Second
	publishAgain = time.Minute      // a cache that was emptied is filled again
	switchLimit  = 2 * time.Second  // then a switch goes through the cache
	changeLimit  = 20 * time.Second // 10,000 policies at once

	rollbackTries = 5
	maxRolledBack = 20_000
	maxAtOnce     = 10_000
	lookedBack    = 1000 // changes of switches since one of them went through the cache
)

// Keeper keeps the snapshot of the policies, and changes them. It is safe for
// concurrent use.
//
// The durable store is asked first, by its revision; while it cannot be asked, the
// cache serves what was published last; while neither can, the last snapshot holds.
// Switches that the durable store could not take are in the cache, count for every
// instance, and are handed on when it is back.
type Keeper struct {
	store    gateway.Policies
	cache    gateway.PolicyCache // nil: there is none
	sealer   *Sealer
	guards   []string             // that have a master switch; nil: any
	services func(id string) bool // whether there is such a service
	changed  func(*Snapshot)      // called with every snapshot before it is in force, one at a time
	log      *slog.Logger
	now      func() time.Time

	snapshot   atomic.Pointer[Snapshot]
	asked      atomic.Int64 // Unix nanoseconds: when a store last answered
	kick       chan struct{}
	refreshing sync.Mutex

	// Under refreshing.
	published   int64
	publishedAt time.Time
}

// Parts are what a Keeper needs; all but Store, Sealer, Log and Now may be nil.
type Parts struct {
	Store    gateway.Policies
	Cache    gateway.PolicyCache
	Sealer   *Sealer
	Guards   []string // that have a master switch
	Services func(id string) bool
	Changed  func(*Snapshot)
	Log      *slog.Logger
	Now      func() time.Time
}

// NewKeeper makes a Keeper. Nothing is read before Run or Refresh.
func NewKeeper(parts Parts) *Keeper {
	k := &Keeper{
		store: parts.Store, cache: parts.Cache, sealer: parts.Sealer, guards: parts.Guards, services: parts.Services, changed: parts.Changed,
		log: parts.Log, now: parts.Now, kick: make(chan struct{}, 1),
	}
	if k.changed == nil {
		k.changed = func(*Snapshot) {}
	}
	k.snapshot.Store(Empty())
	return k
}

// Snapshot returns the current policies; none before the first refresh.
func (k *Keeper) Snapshot() *Snapshot { return k.snapshot.Load() }

// AskedAt is when a store last confirmed the snapshot; zero before the first time.
func (k *Keeper) AskedAt() time.Time {
	nanos := k.asked.Load()
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// IsReady reports whether the policies have been read once: before that nothing is guarded.
func (k *Keeper) IsReady() bool { return k.asked.Load() != 0 }

// Run refreshes the snapshot every 5 s, and at once when something tells of a change,
// until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if k.cache != nil {
		group.Go(func() error { return k.cache.FollowPolicies(ctx, k.RefreshSoon) })
	}
	group.Go(func() error {
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		for {
			if err := k.Refresh(ctx); err != nil && ctx.Err() == nil {
				k.log.WarnContext(ctx, "policies not refreshed, the last ones hold", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			case <-k.kick:
			}
		}
	})
	return group.Wait()
}

// RefreshSoon asks Run to refresh, without waiting for it.
func (k *Keeper) RefreshSoon() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// Refresh asks the stores now. On an error the last snapshot holds.
func (k *Keeper) Refresh(ctx context.Context) error {
	k.refreshing.Lock()
	defer k.refreshing.Unlock()
	pending, pendingErr := k.pending(ctx)
	if pendingErr != nil { // what was in force through the cache is not dropped with it
		pending = k.Snapshot().pending
	}
	revision, err := k.revision(ctx)
	if err == nil && len(pending) > 0 {
		pending = k.settle(ctx, pending)
		revision, err = k.revision(ctx)
	}
	policies, revision, origin, err := k.load(ctx, revision, len(pending), err)
	if err != nil {
		return errors.Join(err, pendingErr)
	}
	now := k.Snapshot()
	if policies == nil { // as it is
		k.asked.Store(k.now().UnixNano())
		k.publish(ctx, now.stored, revision)
		return nil
	}
	next := compile(overlay(policies, pending), revision, k.sealer, now)
	next.Origin, next.Pending, next.pending, next.stored = origin, len(pending), pending, policies
	for _, p := range next.Problems {
		k.log.ErrorContext(ctx, "policy that cannot be used", "kind", p.Kind, "id", p.ID, "last_good_version_holds", p.Kept, "error", p.Err)
	}
	k.changed(next) // before anybody can meet what it is told of
	k.snapshot.Store(next)
	k.asked.Store(k.now().UnixNano()) // not before: the first time makes the service ready, and nothing may pass unguarded
	if origin == originDurable {
		k.publish(ctx, policies, revision)
	}
	if now.Revision != revision || now.Origin != origin || now.Pending != len(pending) {
		k.log.InfoContext(ctx, "policies", "revision", revision, "from", origin, "pending", len(pending), "policies", len(next.policies))
	}
	return nil
}

func (k *Keeper) revision(ctx context.Context) (int64, error) {
	limited, cancel := context.WithTimeout(ctx, durableLimit)
	defer cancel()
	return k.store.PolicyRevision(limited)
}

// load reads the policies where they can be read; nil if they are those of the snapshot.
// The revision is that of the durable store, unless err says that it cannot be asked.
func (k *Keeper) load(ctx context.Context, revision int64, pending int, err error) ([]gateway.Policy, int64, string, error) {
	now := k.Snapshot()
	var policies []gateway.Policy
	if err == nil && now.Origin == originDurable && now.Revision == revision && now.Pending == 0 && pending == 0 {
		return nil, revision, originDurable, nil
	}
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, durableLimit)
		defer cancel()
		policies, revision, err = k.store.LoadPolicies(limited)
	}
	if err == nil {
		return notNil(policies), revision, originDurable, nil
	}
	if k.cache == nil || ctx.Err() != nil {
		return nil, 0, "", err
	}
	limited, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	served, revision, cacheErr := k.cache.ServedPolicies(limited)
	switch {
	case cacheErr != nil:
		return nil, 0, "", errors.Join(err, cacheErr)
	case revision == 0 && !k.IsReady(): // nothing was published, or the cache was emptied: nobody knows
		return nil, 0, "", errors.Join(err, errNothingServed)
	case revision == 0, revision < now.Revision: // an emptied cache knows less than this instance
		k.published = 0
		return notNil(now.stored), now.Revision, originMemory, nil
	case revision == now.Revision: // they are here already, and a cache may have evicted some
		return notNil(now.stored), revision, originCache, nil
	}
	return notNil(served), revision, originCache, nil
}

var errNothingServed = errors.New("no policies were ever served")

// Where a snapshot is from.
const (
	originDurable = "SQL"
	originCache   = "Redis"
	originMemory  = "memory"
)

func notNil(policies []gateway.Policy) []gateway.Policy {
	if policies == nil {
		return []gateway.Policy{}
	}
	return policies
}

// pendingRevision marks a policy in a snapshot that the durable store does not have yet.
const pendingRevision = -1

// overlay puts pending changes over what is stored.
func overlay(policies []gateway.Policy, pending []gateway.PendingPolicy) []gateway.Policy {
	if len(pending) == 0 {
		return policies
	}
	replaced := map[policyKey]bool{}
	for _, p := range pending {
		replaced[policyKey{p.Kind, p.ID}] = true
	}
	all := slices.DeleteFunc(slices.Clone(policies), func(p gateway.Policy) bool { return replaced[policyKey{p.Kind, p.ID}] })
	for _, p := range pending {
		if p.Body != nil {
			all = append(all, gateway.Policy{Kind: p.Kind, ID: p.ID, Body: p.Body, Revision: pendingRevision, UpdatedAt: p.At})
		}
	}
	slices.SortFunc(all, func(a, b gateway.Policy) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return all
}

func (k *Keeper) pending(ctx context.Context) ([]gateway.PendingPolicy, error) {
	if k.cache == nil {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	return k.cache.PendingPolicies(limited)
}

// publish serves the policies to those who cannot ask the durable store.
func (k *Keeper) publish(ctx context.Context, policies []gateway.Policy, revision int64) {
	if k.cache == nil || k.published == revision && k.now().Sub(k.publishedAt) < publishAgain {
		return
	}
	limited, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	if err := k.cache.PublishPolicies(limited, policies, revision); err != nil {
		k.log.DebugContext(ctx, "policies not published", "error", err)
		return
	}
	k.published, k.publishedAt = revision, k.now()
}

// settle hands switches to the durable store that it could not take before, and returns
// those that it still does not take. One that was changed there since is dropped.
func (k *Keeper) settle(ctx context.Context, pending []gateway.PendingPolicy) []gateway.PendingPolicy {
	for i, p := range pending {
		if err := k.handOn(gateway.WithActor(ctx, p.Actor), p); err != nil {
			k.log.WarnContext(ctx, "switch not handed to the durable store yet", "kind", p.Kind, "id", p.ID, "error", err)
			return pending[i:]
		}
		k.log.InfoContext(ctx, "switch handed to the durable store", "kind", p.Kind, "id", p.ID, "actor", p.Actor.Name)
	}
	return nil
}

func (k *Keeper) handOn(ctx context.Context, p gateway.PendingPolicy) error {
	ctx, cancel := context.WithTimeout(ctx, switchLimit)
	defer cancel()
	since, err := k.store.PolicyHistory(ctx, p.Kind, 0, lookedBack)
	if err != nil {
		return err
	}
	isSuperseded := slices.ContainsFunc(since, func(entry gateway.AuditEntry) bool {
		change, _, _, err := gateway.AuditedPolicy(entry)
		return err == nil && change.ID == p.ID && entry.At.After(p.At)
	})
	if !isSuperseded {
		_, err = k.store.ChangePolicies(ctx, func(now []gateway.Policy, _ int64) ([]gateway.PolicyChange, error) {
			if slices.ContainsFunc(now, func(there gateway.Policy) bool { // changed since the history was read
				return there.Kind == p.Kind && there.ID == p.ID && there.UpdatedAt.After(p.At)
			}) {
				return nil, nil
			}
			return []gateway.PolicyChange{p.PolicyChange}, nil
		})
	}
	if err != nil {
		return err
	}
	// One that stays in the cache is older than what is stored now, and dropped then.
	if err := k.cache.RemovePending(ctx, p); err != nil {
		k.log.WarnContext(ctx, "switch handed on, but not removed from the cache", "kind", p.Kind, "id", p.ID, "error", err)
	}
	return nil
}

// Changed is what a change did.
type Changed struct {
	Revision int64
	// Pending: the durable store could not be written; the change is in force through
	// the cache, and is handed on when the durable store is back.
	Pending bool
	Changes []gateway.PolicyChange // as they are stored
	Before  []json.RawMessage      // the bodies that they replace, at the place of Changes; nil: there was none
}

// Wish is a change as an administrator gives it.
type Wish struct {
	Kind gateway.PolicyKind
	ID   string
	Body json.RawMessage // with secrets as they are; nil: delete
	// Match is asked with the policy that is to be replaced (nil: there is none) and
	// may refuse; nil: no condition.
	Match func(now *gateway.Policy) error
}

// Change carries out the wishes, all or none of them, and makes this instance see
// them. An *InvalidError names what is wrong with a wish.
func (k *Keeper) Change(ctx context.Context, wishes []Wish) (Changed, error) {
	if len(wishes) > maxAtOnce {
		return Changed{}, &InvalidError{fmt.Errorf("more than %d policies at once", maxAtOnce)}
	}
	return k.change(ctx, limitOf(wishes), func(now []gateway.Policy, _ int64) ([]gateway.PolicyChange, error) { return k.Plan(now, wishes) })
}

// Replace carries out the wishes, all of one kind, as Change does, and deletes every
// other policy of the kind.
func (k *Keeper) Replace(ctx context.Context, kind gateway.PolicyKind, wishes []Wish) (Changed, error) {
	if len(wishes) > maxAtOnce {
		return Changed{}, &InvalidError{fmt.Errorf("more than %d policies at once", maxAtOnce)}
	}
	return k.change(ctx, limitOf(append(slices.Clip(wishes), Wish{Kind: kind})), func(now []gateway.Policy, _ int64) ([]gateway.PolicyChange, error) {
		return k.Plan(now, slices.Concat(wishes, Others(now, kind, wishes)))
	})
}

// Others are the wishes to delete every policy of the kind that the given ones leave alone.
func Others(now []gateway.Policy, kind gateway.PolicyKind, wishes []Wish) (deletions []Wish) {
	wished := map[string]bool{}
	for _, wish := range wishes {
		wished[wish.ID] = true
	}
	for _, p := range now {
		if p.Kind == kind && !wished[p.ID] {
			deletions = append(deletions, Wish{Kind: kind, ID: p.ID})
		}
	}
	return deletions
}

func limitOf(wishes []Wish) time.Duration {
	if slices.ContainsFunc(wishes, func(w Wish) bool { return !w.Kind.IsSwitch() }) {
		return changeLimit
	}
	return switchLimit
}

// InvalidError says what is wrong with a policy, field by field.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *InvalidError) Unwrap() error { return e.Err }

// Plan turns wishes into changes of the policies as they are now, or says what is wrong
// with them. An error of Match is returned as it is.
func (k *Keeper) Plan(now []gateway.Policy, wishes []Wish) ([]gateway.PolicyChange, error) {
	index := map[policyKey]*gateway.Policy{}
	for i := range now {
		index[policyKey{now[i].Kind, now[i].ID}] = &now[i]
	}
	var changes []gateway.PolicyChange
	var problems []error
	for _, wish := range wishes {
		there := index[policyKey{wish.Kind, wish.ID}]
		if wish.Match != nil {
			if err := wish.Match(there); err != nil {
				return nil, err
			}
		}
		change := gateway.PolicyChange{Kind: wish.Kind, ID: wish.ID}
		if wish.Body != nil {
			var stored []byte
			if there != nil {
				stored = there.Body
			}
			body, err := k.sealer.Prepare(wish.Kind, wish.ID, wish.Body, stored, k.now())
			if err == nil {
				err = k.verifyNames(wish.Kind, wish.ID, body)
			}
			if err != nil {
				problems = append(problems, prefixed(len(wishes) > 1, wish.ID, err))
			}
			change.Body = body
		}
		changes = append(changes, change)
	}
	if err := errors.Join(problems[:min(len(problems), 10)]...); err != nil {
		return nil, &InvalidError{err}
	}
	return changes, k.Verify(now, changes)
}

func prefixed(needed bool, id string, err error) error {
	if needed {
		return fmt.Errorf("%s: %w", id, err)
	}
	return err
}

// verifyNames refuses a policy for a service, and a switch for a guard, that there is
// not: it would do nothing.
func (k *Keeper) verifyNames(kind gateway.PolicyKind, id string, body []byte) error {
	if kind == gateway.PolicyGuards {
		if k.guards != nil && !slices.Contains(k.guards, id) {
			return fmt.Errorf("id: want one of %s", strings.Join(k.guards, ", "))
		}
		return nil
	}
	if k.services == nil {
		return nil
	}
	var scope Common
	if err := json.Unmarshal(body, &scope); err != nil {
		return err
	}
	for i, id := range scope.Services {
		if !k.services(id) {
			return fmt.Errorf("services[%d]: there is no service %s", i, id)
		}
	}
	return nil
}

// Verify refuses changes after which a policy could not be used although each is fine
// by itself, with an *InvalidError.
func (k *Keeper) Verify(now []gateway.Policy, changes []gateway.PolicyChange) error {
	before := compile(now, 0, k.sealer, nil)
	known := map[policyKey]bool{}
	for _, p := range before.Problems {
		known[policyKey{p.Kind, p.ID}] = true
	}
	for _, p := range compile(Applied(now, changes), 0, k.sealer, nil).Problems {
		if !known[policyKey{p.Kind, p.ID}] {
			return &InvalidError{prefixed(len(changes) > 1, p.ID, p.Err)}
		}
	}
	return nil
}

// Applied is the policies after the changes.
func Applied(now []gateway.Policy, changes []gateway.PolicyChange) []gateway.Policy {
	var pending []gateway.PendingPolicy
	for _, change := range changes {
		pending = append(pending, gateway.PendingPolicy{PolicyChange: change})
	}
	return overlay(now, pending)
}

// Replaced is the bodies that the changes replace, at the place of each; nil: there is none.
func Replaced(now []gateway.Policy, changes []gateway.PolicyChange) []json.RawMessage {
	bodies := map[policyKey]json.RawMessage{}
	for _, p := range now {
		bodies[policyKey{p.Kind, p.ID}] = p.Body
	}
	replaced := make([]json.RawMessage, len(changes))
	for i, change := range changes {
		replaced[i] = bodies[policyKey{change.Kind, change.ID}]
	}
	return replaced
}

// Would is the snapshot after the changes.
func (k *Keeper) Would(changes []gateway.PolicyChange) *Snapshot {
	now := k.Snapshot()
	next := compile(Applied(now.policies, changes), now.Revision, k.sealer, now)
	next.Origin = now.Origin
	return next
}

func (k *Keeper) change(ctx context.Context, limit time.Duration, decide func([]gateway.Policy, int64) ([]gateway.PolicyChange, error)) (Changed, error) {
	var done Changed
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var refusal error
	revision, err := k.store.ChangePolicies(limited, func(now []gateway.Policy, revision int64) (changes []gateway.PolicyChange, err error) {
		changes, err = decide(now, revision)
		done.Changes, done.Before, refusal = changes, Replaced(now, changes), err
		return changes, err
	})
	switch {
	case err == nil:
		done.Revision = revision
		k.supersede(ctx, done.Changes)
	case refusal != nil:
		return Changed{}, refusal
	default:
		if done, err = k.switchOver(ctx, decide, err); err != nil {
			return Changed{}, err
		}
	}
	if err := k.Refresh(ctx); err != nil {
		k.log.WarnContext(ctx, "policies changed, but not read again", "error", err)
		k.RefreshSoon()
	}
	return done, nil
}

// switchOver puts changes of switches into force through the cache, since the durable
// store failed.
func (k *Keeper) switchOver(ctx context.Context, decide func([]gateway.Policy, int64) ([]gateway.PolicyChange, error), failure error) (Changed, error) {
	if k.cache == nil {
		return Changed{}, gateway.Unavailable(failure)
	}
	now := k.Snapshot()
	changes, err := decide(now.policies, now.Revision)
	if err != nil {
		return Changed{}, err
	}
	for _, change := range changes {
		if !change.Kind.IsSwitch() {
			refusal := gateway.Unavailable(failure)
			refusal.Detail = "only guards and maintenance can be changed while the database cannot be written"
			return Changed{}, refusal
		}
	}
	for _, change := range changes {
		limited, cancel := context.WithTimeout(ctx, cacheLimit)
		err := k.cache.AddPending(limited, gateway.PendingPolicy{PolicyChange: change, Actor: gateway.ActorOf(ctx), At: k.now().UTC()})
		cancel()
		if err != nil {
			refusal := gateway.Unavailable(errors.Join(failure, err))
			refusal.Detail = "neither the database nor Redis can be written"
			return Changed{}, refusal
		}
	}
	k.log.WarnContext(ctx, "policies changed through the cache, since the durable store cannot be written", "policies", len(changes), "error", failure)
	return Changed{Revision: now.Revision, Pending: true, Changes: changes, Before: Replaced(now.policies, changes)}, nil
}

// supersede drops pending changes of policies that the durable store has a newer version of.
func (k *Keeper) supersede(ctx context.Context, changes []gateway.PolicyChange) {
	pending, err := k.pending(ctx)
	if err != nil {
		return // settle drops them by their time
	}
	for _, p := range pending {
		if slices.ContainsFunc(changes, func(c gateway.PolicyChange) bool { return c.Kind == p.Kind && c.ID == p.ID }) {
			if err := k.cache.RemovePending(ctx, p); err != nil {
				k.log.WarnContext(ctx, "superseded switch not removed", "kind", p.Kind, "id", p.ID, "error", err)
			}
		}
	}
}

var errChanged = errors.New("the policies were changed meanwhile")

// Rollback brings all policies of a kind back to what they were at that revision, as a
// change of its own. An *InvalidError says why that cannot be.
func (k *Keeper) Rollback(ctx context.Context, kind gateway.PolicyKind, to int64) (Changed, error) {
	for range rollbackTries {
		changes, at, err := k.RollbackPlan(ctx, kind, to)
		if err != nil {
			return Changed{}, err
		}
		done, err := k.change(ctx, changeLimit, func(now []gateway.Policy, revision int64) ([]gateway.PolicyChange, error) {
			if revision != at {
				return nil, errChanged
			}
			return changes, k.Verify(now, changes)
		})
		if !errors.Is(err, errChanged) {
			return done, err
		}
	}
	return Changed{}, gateway.Conflictf("the policies are being changed by others: try again")
}

// RollbackPlan is what Rollback would change, and the revision that it starts from.
func (k *Keeper) RollbackPlan(ctx context.Context, kind gateway.PolicyKind, to int64) (changes []gateway.PolicyChange, at int64, err error) {
	at, err = k.store.PolicyRevision(ctx)
	if err != nil {
		return nil, 0, gateway.Unavailable(err)
	}
	if to < 0 || to > at {
		return nil, 0, &InvalidError{fmt.Errorf("revision: want 0 to %d", at)}
	}
	entries, err := k.store.PolicyHistory(ctx, kind, to, maxRolledBack+1)
	if err != nil {
		return nil, 0, gateway.Unavailable(err)
	}
	if len(entries) > maxRolledBack {
		return nil, 0, &InvalidError{fmt.Errorf("revision: more than %d changes since then", maxRolledBack)}
	}
	was := map[string]json.RawMessage{}
	for _, entry := range entries { // the newest first: the oldest one wins
		change, before, _, err := gateway.AuditedPolicy(entry)
		if err != nil {
			return nil, 0, fmt.Errorf("audit entry %d: %w", entry.ID, err)
		}
		was[change.ID] = before
	}
	for id, body := range was {
		changes = append(changes, gateway.PolicyChange{Kind: kind, ID: id, Body: body})
	}
	slices.SortFunc(changes, func(a, b gateway.PolicyChange) int { return cmp.Compare(a.ID, b.ID) })
	return changes, at, nil
}
