package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

type target struct{ base, path string }

// prober probes one node until it is cancelled. Only its goroutine writes health.
type prober struct {
	target  target
	cancel  context.CancelFunc
	health  atomic.Pointer[Health]
	judged  bool             // the first probe is over; it decides at once
	decided chan struct{}    // closed after it
	ended   chan struct{}    // closed when the goroutine has returned
	now     chan chan Health // asks for a probe at once
}

// startProber is called with r.mu held; the goroutine ends with Run's context or
// cancel. Until its first probe the node is what it was known as (the zero Health
// if it was not probed there): a changed health path takes nobody's node away.
func (r *Registry) startProber(nodeID string, t target, known Health) *prober {
	ctx, cancel := context.WithCancel(r.runCtx)
	p := &prober{target: t, cancel: cancel, decided: make(chan struct{}), ended: make(chan struct{}), now: make(chan chan Health)}
	if known.State == "" {
		known.State = Unknown
	}
	p.health.Store(&known)
	r.probing.Add(1)
	go func() {
		defer r.probing.Done()
		defer close(p.ended)
		defer cancel()
		r.probe(ctx, nodeID, p)
		close(p.decided)
		ticker := time.NewTicker(r.opts.Health.Interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				r.probe(ctx, nodeID, p)
			case answer := <-p.now:
				r.probe(ctx, nodeID, p)
				answer <- *p.health.Load()
			}
		}
	}()
	return p
}

func (r *Registry) probe(ctx context.Context, nodeID string, p *prober) {
	err := r.get(ctx, p.target.base+p.target.path)
	if ctx.Err() != nil {
		return
	}
	before, was := *p.health.Load(), p.health.Load().State
	if !p.judged {
		before = Health{State: Unknown}
		p.judged = true
	}
	after := before.next(err, r.opts.Health, r.now())
	p.health.Store(&after)
	if after.State != was {
		r.log.InfoContext(ctx, "node is "+string(after.State), "node", nodeID, "was", was, "error", after.LastError)
	}
}

func (r *Registry) get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Health.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "homenode-health")
	res, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("health answered %d", res.StatusCode)
	}
	return nil
}

// next is the health after one more probe. The first probe decides at once.
func (h Health) next(err error, opts HealthOptions, now time.Time) Health {
	h.CheckedAt = now
	state := h.State
	if err != nil {
		h.LastError = err.Error()
		h.Failures, h.Successes = h.Failures+1, 0
		if h.Failures >= opts.Failures || h.State == Unknown {
			state = Down
		}
	} else {
		h.LastError = ""
		h.Failures, h.Successes = 0, h.Successes+1
		if h.Successes >= opts.Successes || h.State == Unknown {
			state = Up
		}
	}
	if state != h.State {
		h.State, h.Since = state, now
	}
	return h
}

// Probe probes a node now and returns its health. A node that is not probed
// (disabled, or unknown) is gateway.ErrNotFound.
func (r *Registry) Probe(ctx context.Context, nodeID string) (Health, error) {
	r.mu.RLock()
	p := r.probers[nodeID]
	r.mu.RUnlock()
	if p == nil {
		return Health{}, gateway.ErrNotFound
	}
	answer := make(chan Health, 1)
	select {
	case p.now <- answer:
	case <-p.ended:
		return Health{}, gateway.ErrNotFound
	case <-ctx.Done():
		return Health{}, ctx.Err()
	}
	select {
	case health := <-answer:
		return health, nil
	case <-ctx.Done():
		return Health{}, ctx.Err()
	}
}
