package gateway

import (
	"context"
	"sync"
	"time"
)

// Trace records, step by step, how a decision comes about. It travels in the
// context of a request that is only to be explained; the code that decides is the
// same, and asks the trace before it changes anything: under a trace it must not.
// A nil *Trace is that of a live request; all its methods do nothing.
type Trace struct {
	mu    sync.Mutex
	steps []Step
}

// Step is one look-up or check of a decision.
type Step struct {
	Name    string // token, binding, node …
	Source  string // who answered: L1, Redis, sa-token, SQL, registry …
	Outcome Outcome
	Detail  string
	Took    time.Duration
}

// Outcome is what a step found.
type Outcome string

// The outcomes of a step.
const (
	Found       Outcome = "found"
	Missing     Outcome = "missing"
	Unreachable Outcome = "unavailable"
	Refused     Outcome = "refused"
	Skipped     Outcome = "skipped"
	Chosen      Outcome = "chosen"
)

type traceKey struct{}

// WithTrace returns a context under which a decision is explained instead of made.
func WithTrace(ctx context.Context) (context.Context, *Trace) {
	t := &Trace{}
	return context.WithValue(ctx, traceKey{}, t), t
}

// TraceOf returns the trace of the context, nil for a live request.
func TraceOf(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}

// Steps returns what was recorded, in order.
func (t *Trace) Steps() []Step {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Step(nil), t.steps...)
}

// Began is a step that has begun.
type Began struct {
	trace        *Trace
	name, source string
	start        time.Time
}

// Begin begins a step.
func (t *Trace) Begin(name, source string) Began {
	if t == nil {
		return Began{}
	}
	return Began{t, name, source, time.Now()}
}

// End records the step.
func (b Began) End(outcome Outcome, detail string) {
	if b.trace == nil {
		return
	}
	b.trace.mu.Lock()
	defer b.trace.mu.Unlock()
	b.trace.steps = append(b.trace.steps, Step{b.name, b.source, outcome, detail, time.Since(b.start)})
}

// EndAsked records the step of a question to a store: found as detail says, or what err says.
func (b Began) EndAsked(err error, detail string) {
	switch {
	case b.trace == nil:
	case err == nil:
		b.End(Found, detail)
	case IsNotFound(err):
		b.End(Missing, "")
	default:
		b.End(Unreachable, "could not be asked")
	}
}
