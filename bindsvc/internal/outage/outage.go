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

const (
	// slow is how long a failed call must have taken to count: a store that
	// refuses at once costs nothing and may be asked again at once.
	slow = 100 * time.Millisecond

	// tooMany slow failures in a row, no answer between them, are an outage; one
	// alone is a hiccup that others need not pay for.
	tooMany = 3
)

// Gate lets calls to one store through, each bounded by Limit. After too many
// that failed slowly it refuses further ones for Pause.
type Gate struct {
	Limit time.Duration
	Pause time.Duration

	failures    atomic.Int32 // slow ones since the last answer
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
	switch {
	case err == nil || isAnswer(err):
		g.failures.Store(0)
	case ctx.Err() == nil && time.Since(start) >= slow && g.failures.Add(1) >= tooMany:
		g.closedUntil.Store(time.Now().Add(g.Pause).UnixNano())
	}
	return err
}

func isAnswer(err error) bool {
	var conflict *gateway.ConflictError
	return errors.Is(err, gateway.ErrNotFound) || errors.As(err, &conflict)
}
