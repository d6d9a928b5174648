package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// Chain runs the guards in the order of their cost. It is safe for concurrent use.
type Chain struct {
	links    []*link
	subjects Subjects
	policies func() *policy.Snapshot
	log      *slog.Logger
	now      func() time.Time
	past     *past
}

// link is a guard of a chain with what it has done.
type link struct {
	Guard
	counts     [len(Results)]atomic.Int64
	complained atomic.Int64 // Unix nanoseconds
}

// Result is how one check ended.
type Result int

// The results of checks.
const (
	Passed    Result = iota
	Refused          // the request was refused
	Shadowed         // it would have been, had the policy not been in shadow mode
	Unchecked        // it could not be checked; the failure policy decided
)

// Results are their names in metrics and the status.
var Results = [...]string{"passed", "refused", "shadow", "unchecked"}

// NewChain makes the chain of all guards.
func NewChain(parts Parts, policies func() *policy.Snapshot, log *slog.Logger, now func() time.Time) *Chain {
	return newChain(guards(parts), parts.Subjects, policies, log, now)
}

func newChain(all []Guard, subjects Subjects, policies func() *policy.Snapshot, log *slog.Logger, now func() time.Time) *Chain {
	c := &Chain{subjects: subjects, policies: policies, log: log, now: now, past: newPast()}
	slices.SortStableFunc(all, func(a, b Guard) int { return int(a.Cost() - b.Cost()) })
	for _, g := range all {
		c.links = append(c.links, &link{Guard: g})
	}
	return c
}

// Question is the question whether the request may pass. Its method is in capitals, as
// in the policies: to some servers post is POST, and none may do more with it.
func (c *Chain) Question(req gateway.Request, service gateway.Service) *Question {
	asSent := req.Method
	req.Method = strings.ToUpper(req.Method)
	return &Question{
		methodAsSent: asSent,
		Request:      req, Service: service, Resource: policy.Canonical(req.Path), Policies: c.policies(), Now: c.now(), subjects: c.subjects,
	}
}

// Check returns nil if every guard lets the request pass, else the refusal, a
// *gateway.Error. Before anything is checked, or counted, the caller is asked for what
// is missing of the request (NEEDS_MORE).
func (c *Chain) Check(ctx context.Context, q *Question) error {
	if q.Ambiguous && q.Policies.HasPathRules(q.Service.ID) {
		return &gateway.Error{Reason: gateway.Validation, Detail: "an encoded slash or dot segment in the path, which may be another path to the node than to the gateway's policies"}
	}
	if needs := c.missing(q); len(needs) > 0 {
		return &gateway.Error{Reason: gateway.NeedsMore, Need: needs}
	}
	trace := gateway.TraceOf(ctx)
	for _, l := range c.links {
		step := trace.Begin("guard", l.Name())
		if enabled, _ := q.Policies.IsEnabled(l.Name()); !enabled {
			step.End(gateway.Skipped, "switched off")
			continue
		}
		already := len(q.shadowed)
		result, err := c.check(ctx, l, q)
		if trace == nil {
			l.counts[result].Add(1)
		}
		if trace != nil {
			l.explain(step, q, result, err, q.shadowed[already:])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// missing is what the caller has not told of the request and its guards need.
func (c *Chain) missing(q *Question) (needs []string) {
	if !q.CanTellMore {
		return nil
	}
	for _, need := range q.Policies.Needs(q.Service.ID) {
		isTold := need == policy.NeedAddress && q.AddressTold || need == policy.NeedQuery && q.QueryTold ||
			strings.HasPrefix(need, policy.NeedSource) && q.SourceTold
		if !isTold {
			needs = append(needs, need)
		}
	}
	enabled, _ := q.Policies.IsEnabled(policy.GuardSignature)
	inForce, onTrial := q.interfaces().Signature(q.Service.ID, q.Method)
	if enabled && q.Form.State == gateway.FormNotTold && (inForce != nil || onTrial != nil) {
		needs = append(needs, policy.NeedForm)
	}
	if len(needs) > 0 { // all of it, since it is not kept from one question to the next
		needs = append(needs, slices.DeleteFunc(q.Policies.Needs(q.Service.ID), func(need string) bool { return slices.Contains(needs, need) })...)
	}
	return needs
}

func (c *Chain) check(ctx context.Context, l *link, q *Question) (Result, error) {
	already := len(q.shadowed)
	var refusal *gateway.Error
	err := errors.New("a policy cannot be used")
	isBroken := q.Policies.IsBroken(l.Name(), q.Service.ID)
	_, inShadow := q.Policies.IsEnabled(l.Name())
	isOpen := inShadow || l.Failure(q) == Open
	if !isBroken {
		err = l.ask(ctx, q)
	}
	switch {
	case err == nil && len(q.shadowed) > already:
		return Shadowed, nil
	case err == nil:
		return Passed, nil
	case errors.As(err, &refusal):
		refusal.Guard = l.Name()
		return Refused, refusal
	case isBroken && isOpen:
		err = l.ask(ctx, q) // the others hold
		if errors.As(err, &refusal) {
			refusal.Guard = l.Name()
			return Refused, refusal
		}
		return Unchecked, nil
	case isOpen:
		c.complain(ctx, l, q, err)
		return Unchecked, nil
	}
	c.complain(ctx, l, q, err)
	if isBroken {
		return Unchecked, &gateway.Error{Reason: gateway.PolicyInvalid, Guard: l.Name(), Cause: err}
	}
	closed := gateway.Unavailable(err)
	closed.Guard = l.Name()
	return Unchecked, closed
}

// ask has the guard check. A mistake in a guard is no worse than a store that is down.
func (l *link) ask(ctx context.Context, q *Question) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return l.Check(ctx, q)
}

// complain logs that requests cannot be checked, once a second: all of an outage fail alike.
func (c *Chain) complain(ctx context.Context, l *link, q *Question, err error) {
	if gateway.TraceOf(ctx) != nil {
		return
	}
	now, last := c.now().UnixNano(), l.complained.Load()
	if now-last < int64(time.Second) || !l.complained.CompareAndSwap(last, now) {
		return
	}
	c.log.WarnContext(ctx, "request could not be checked", "guard", l.Name(), "failure_policy", l.Failure(q), "service", q.Service.ID, "request", q.ID, "error", err)
}

func (l *link) explain(step gateway.Began, q *Question, result Result, err error, shadowed []Finding) {
	detail := fmt.Sprintf("policies of revision %d, fails %s", q.Policies.Revision, l.Failure(q))
	for _, finding := range shadowed {
		detail += fmt.Sprintf("; policy %s would refuse with %s (shadow)", finding.Policy, finding.Reason)
	}
	switch result {
	case Refused:
		var refusal *gateway.Error
		errors.As(err, &refusal)
		step.End(gateway.Refused, fmt.Sprintf("%v; %s", refusal, detail))
	case Unchecked:
		step.End(gateway.Unreachable, "could not be checked; "+detail)
	case Passed, Shadowed:
		step.End(gateway.Found, "passes; "+detail)
	}
}

// State is what there is to say about a guard.
type State struct {
	Name            string
	Cost            Cost
	Failure         Failure
	Enabled, Shadow bool
	Remark          string // of the master switch
	Broken          bool   // a policy cannot be used and has no last good version
	Policies        int
	Counts          [len(Results)]int64
}

// States returns the state of every guard, in the order in which they check.
func (c *Chain) States() []State {
	snapshot := c.policies()
	var states []State
	for _, l := range c.links {
		s := State{Name: l.Name(), Cost: l.Cost(), Failure: l.Failure(nil), Policies: snapshot.Count(gateway.PolicyKind(l.Name())), Broken: snapshot.HasBroken(l.Name())}
		s.Enabled, s.Shadow = snapshot.IsEnabled(l.Name())
		s.Remark = snapshot.SwitchRemark(l.Name())
		for i := range l.counts {
			s.Counts[i] = l.counts[i].Load()
		}
		states = append(states, s)
	}
	return states
}
