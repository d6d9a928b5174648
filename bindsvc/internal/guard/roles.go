package guard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

const (
	rolesFresh = 5 * time.Minute // spec section 5
	rolesKept  = 24 * time.Hour  // for while the store cannot be asked
	rolesUsers = 100_000
)

// Roles is a RoleLister that remembers. It is safe for concurrent use.
type Roles struct {
	store RoleLister
	gate  *outage.Gate
	now   func() time.Time
	local *otter.Cache[roleKey, roleEntry]
	// changes counts what Changed was told, so that an answer from before is not kept.
	changes atomic.Int64
}

type roleKey struct{ serviceID, userID string }

type roleEntry struct {
	roles []string
	asked time.Time
}

// NewRoles makes a Roles over the store of roles.
func NewRoles(store RoleLister, gate *outage.Gate, now func() time.Time) *Roles {
	return &Roles{store: store, gate: gate, now: now, local: otter.Must(&otter.Options[roleKey, roleEntry]{
		MaximumSize: rolesUsers, ExpiryCalculator: otter.ExpiryWriting[roleKey, roleEntry](rolesKept),
	})}
}

// Close ends what Roles runs in the background.
func (r *Roles) Close() { r.local.StopAllGoroutines() }

// RolesOf returns the roles of the user, remembered for 5 minutes, and for longer only
// while the store cannot be asked.
func (r *Roles) RolesOf(ctx context.Context, serviceID, userID string) (roles []string, err error) {
	key := roleKey{serviceID, userID}
	known, isKnown := r.local.GetIfPresent(key)
	if isKnown && r.now().Sub(known.asked) < rolesFresh {
		return known.roles, nil
	}
	before := r.changes.Load()
	err = r.gate.Do(ctx, func(ctx context.Context) (err error) {
		roles, err = r.store.RolesOf(ctx, serviceID, userID)
		return err
	})
	switch {
	case err == nil:
		if r.changes.Load() == before && gateway.TraceOf(ctx) == nil {
			r.local.Set(key, roleEntry{roles, r.now()})
			if r.changes.Load() != before { // told between the two
				r.local.Invalidate(key)
			}
		}
		return roles, nil
	case isKnown:
		return known.roles, nil
	}
	return nil, err
}

// Changed forgets the roles of a user, or of all if both are empty.
func (r *Roles) Changed(serviceID, userID string) {
	r.changes.Add(1)
	if serviceID == "" && userID == "" {
		r.local.InvalidateAll()
		return
	}
	r.local.Invalidate(roleKey{serviceID, userID})
}

// MayHaveMissed makes everything be asked again, but keeps it for while nobody can be asked.
func (r *Roles) MayHaveMissed() {
	r.changes.Add(1)
	for key, entry := range r.local.All() {
		r.local.Set(key, roleEntry{entry.roles, time.Time{}})
	}
}
