// Package session answers which user a token belongs to: from memory, from the
// shared cache, from sa-token's keys.
package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

const (
	localSize   = 200_000
	localTTL    = 24 * time.Hour   // how long a token that this instance knows works while the store is down
	localFresh  = 60 * time.Second // how long it is believed without asking the store again
	relearnSize = 10_000

	// doubtful is for how long after a failure of the cache it may lack tokens that
	// other instances have learned meanwhile and write as soon as they can (Run).
	doubtful = 5 * time.Second
)

var errDoubtful = errors.New("the token cache was away a moment ago and may not know every token yet")

// key is the hash that stands for a token in memory: SHA-256 of service id, NUL, token.
type key [sha256.Size]byte

func keyOf(serviceID, token string) key {
	return sha256.Sum256([]byte(serviceID + "\x00" + token))
}

type entry struct {
	userID string
	asked  time.Time // when a store last said so
}

type lesson struct{ serviceID, token, userID string }

// Resolver resolves tokens. It is safe for concurrent use.
type Resolver struct {
	cache     gateway.TokenCache
	authority gateway.Tokens // asked when the cache knows nothing; nil = none
	readGate  *outage.Gate
	writeGate *outage.Gate
	names     Names
	log       *slog.Logger
	now       func() time.Time

	local *otter.Cache[key, entry]

	failedAt atomic.Int64 // Unix nanoseconds: when the cache could not be asked last

	mu        sync.Mutex
	unlearned map[key]lesson // could not be written to the cache yet
}

// Names are what an explanation calls the stores.
type Names struct{ Cache, Authority string }

// NewResolver makes a Resolver over the token cache and, where the node's own
// session store can be read, that authority (nil if not).
func NewResolver(cache gateway.TokenCache, authority gateway.Tokens, readGate, writeGate *outage.Gate, names Names, log *slog.Logger, now func() time.Time) *Resolver {
	return &Resolver{
		cache: cache, authority: authority, readGate: readGate, writeGate: writeGate, names: names, log: log, now: now,
		local: otter.Must(&otter.Options[key, entry]{
			MaximumSize:      localSize,
			ExpiryCalculator: otter.ExpiryWriting[key, entry](localTTL),
		}),
		unlearned: map[key]lesson{},
	}
}

// Close ends what the Resolver runs in the background, apart from Run.
func (r *Resolver) Close() { r.local.StopAllGoroutines() }

// UserByToken returns the user id of a token. gateway.ErrNotFound means that
// every store was asked and none knows the token; any other error that one
// could not be asked and this instance does not know the token by itself.
func (r *Resolver) UserByToken(ctx context.Context, serviceID, token string) (string, error) {
	trace := gateway.TraceOf(ctx)
	step := trace.Begin("token", "L1")
	if len(token) > gateway.MaxTokenBytes {
		step.End(gateway.Missing, "too long to be a token")
		return "", gateway.ErrNotFound
	}
	k := keyOf(serviceID, token)
	known, isKnown := r.local.GetIfPresent(k)
	switch {
	case isKnown && r.now().Sub(known.asked) < localFresh:
		step.End(gateway.Found, "user "+known.userID)
		return known.userID, nil
	case isKnown:
		step.End(gateway.Found, "user "+known.userID+", asked again since it is older than "+localFresh.String())
	default:
		step.End(gateway.Missing, "")
	}
	userID, err := r.ask(ctx, serviceID, token)
	switch {
	case err == nil:
		if trace == nil {
			r.local.Set(k, entry{userID, r.now()})
		}
		return userID, nil
	case errors.Is(err, gateway.ErrNotFound):
		if userID, ok := r.unlearnedUser(k); ok {
			trace.Begin("token", "L1").End(gateway.Found, "user "+userID+", not yet written to the cache")
			return userID, nil
		}
		if trace == nil {
			r.local.Invalidate(k)
		}
		return "", gateway.ErrNotFound
	case isKnown:
		trace.Begin("token", "L1").End(gateway.Found, "user "+known.userID+", since the stores cannot be asked")
		return known.userID, nil
	}
	return "", err
}

func (r *Resolver) ask(ctx context.Context, serviceID, token string) (userID string, err error) {
	trace := gateway.TraceOf(ctx)
	err = r.readGate.Do(ctx, func(ctx context.Context) error {
		step := trace.Begin("token", r.names.Cache)
		userID, err = r.cache.UserByToken(ctx, serviceID, token)
		step.EndAsked(err, "user "+userID)
		if !errors.Is(err, gateway.ErrNotFound) || r.authority == nil {
			return err
		}
		step = trace.Begin("token", r.names.Authority)
		userID, err = r.authority.UserByToken(ctx, serviceID, token)
		step.EndAsked(err, "user "+userID)
		if err != nil || trace != nil {
			return err
		}
		if err := r.cache.PutToken(ctx, serviceID, token, userID); err != nil {
			r.log.WarnContext(ctx, "token resolved but not cached", "service", serviceID, "error", err)
		}
		return nil
	})
	switch {
	case err == nil:
	case !errors.Is(err, gateway.ErrNotFound):
		if trace == nil && ctx.Err() == nil { // a caller that went away says nothing about the cache
			r.failedAt.Store(r.now().UnixNano())
		}
	case r.authority == nil && r.now().UnixNano()-r.failedAt.Load() < int64(doubtful):
		// Another instance may have learned the token while the cache was away, and
		// there is nobody else to ask: not known yet is not unknown.
		err = errDoubtful
		trace.Begin("token", r.names.Cache).End(gateway.Unreachable, "it was away a moment ago: a token learned meanwhile may not be in it yet")
	}
	if errors.Is(err, outage.ErrPaused) {
		trace.Begin("token", r.names.Cache).End(gateway.Unreachable, "not asked: it has just failed to answer in time")
	}
	return userID, err
}

// UserByLiveToken asks the authority itself, past every cache: for a decision that must
// not outlive the session by a minute. gateway.ErrNotFound also where there is no authority.
func (r *Resolver) UserByLiveToken(ctx context.Context, token string) (userID string, err error) {
	if r.authority == nil || token == "" || len(token) > gateway.MaxTokenBytes {
		return "", gateway.ErrNotFound
	}
	err = r.readGate.Do(ctx, func(ctx context.Context) (err error) {
		userID, err = r.authority.UserByToken(ctx, "", token)
		return err
	})
	return userID, err
}

// Learn remembers the token of a login. This instance knows it when Learn
// returns; when the shared cache cannot be written now, Run goes on trying.
func (r *Resolver) Learn(ctx context.Context, serviceID, token, userID string) {
	k := keyOf(serviceID, token)
	if len(token) > gateway.MaxTokenBytes {
		r.log.WarnContext(ctx, "token too long to be cached", "service", serviceID, "bytes", len(token))
		return
	}
	r.local.Set(k, entry{userID, r.now()})
	err := r.writeGate.Do(ctx, func(ctx context.Context) error { return r.cache.PutToken(ctx, serviceID, token, userID) })
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		delete(r.unlearned, k)
	case len(r.unlearned) < relearnSize:
		r.unlearned[k] = lesson{serviceID, token, userID}
		r.log.WarnContext(ctx, "token kept by this instance alone until the cache can be written", "service", serviceID, "error", err)
	default:
		r.log.ErrorContext(ctx, "token known to this instance alone: too many wait for the cache", "service", serviceID, "error", err)
	}
}

// Forget ends what is known of a token that was logged out. Other instances may know it
// for localFresh more.
func (r *Resolver) Forget(ctx context.Context, serviceID, token string) error {
	if len(token) > gateway.MaxTokenBytes {
		return nil
	}
	k := keyOf(serviceID, token)
	r.mu.Lock()
	delete(r.unlearned, k)
	r.mu.Unlock()
	err := r.writeGate.Do(ctx, func(ctx context.Context) error { return r.cache.DropToken(ctx, serviceID, token) })
	r.local.Invalidate(k) // after the cache: what is read between would bring it back
	return err
}

func (r *Resolver) unlearnedUser(k key) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.unlearned[k]
	return l.userID, ok
}

// Run writes what Learn could not, once a second, until ctx ends.
func (r *Resolver) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			r.relearn(ending) // what only this instance knows ends with it
			return nil
		case <-ticker.C:
			r.relearn(ctx)
		}
	}
}

func (r *Resolver) relearn(ctx context.Context) {
	r.mu.Lock()
	waiting := make(map[key]lesson, len(r.unlearned))
	for k, l := range r.unlearned {
		waiting[k] = l
	}
	r.mu.Unlock()
	for k, l := range waiting {
		err := r.writeGate.Do(ctx, func(ctx context.Context) error { return r.cache.PutToken(ctx, l.serviceID, l.token, l.userID) })
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.unlearned[k] == l { // a newer login may have brought another user
			delete(r.unlearned, k)
		}
		r.mu.Unlock()
	}
}
