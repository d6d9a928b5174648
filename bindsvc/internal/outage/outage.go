// Package outage keeps a store that hangs from making every request wait for it.
package outage

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// ErrPaused is returned instead of asking a store that has just let a caller wait in vain.
var ErrPaused = errors.New("not asked: the store has just failed to answer in time")

// slow is how long a failed call must have taken to count: a store that
// refuses at once costs nothing and may be asked again at once.
const slow = 100 * time.Millisecond

// Gate lets calls to one store through, each bounded by Limit. After a call that
// failed slowly it refuses further ones for Pause.
type Gate struct {
	Limit time.Duration
	Pause time.Duration

	closedUntil atomic.Int64 // Unix nanoseconds
}

// Do calls ask, unless the gate is closed. An answer "not found" or "conflict"
// is an answer; a caller that went away says nothing about the store.
func (g *Gate) Do(ctx context.Context, ask func(context.Context) error) error {
	start := time.Now()
	if start.UnixNano() < g.closedUntil.Load() {
		return ErrPaused
	}
	limited, cancel := context.WithTimeout(ctx, g.Limit)
	defer cancel()
	err := ask(limited)
	if err == nil || errors.Is(err, gateway.ErrNotFound) || ctx.Err() != nil {
		return err
	}
	var conflict *gateway.ConflictError
	if now := time.Now(); !errors.As(err, &conflict) && now.Sub(start) >= slow {
		g.closedUntil.Store(now.Add(g.Pause).UnixNano())
	}
	return err
}
