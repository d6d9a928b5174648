package guard

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// pastRequests is how many of the last requests an instance remembers, without tokens
// and parameters, to tell what a policy would have done.
const pastRequests = 10_000

// past remembers the last requests.
type past struct {
	mu   sync.Mutex
	ring []pastRequest
	next int
}

// longestPast is how many bytes of texts a request may have to be remembered: clients
// choose them, and 10,000 of a megabyte each are all the memory there is.
const longestPast = 4 << 10

// pastRequest is what is remembered of a request, and the Subjects that knows whose it was.
type pastRequest struct {
	at      time.Time
	service gateway.Service
	req     gateway.Request
	subject Subject
	app     string
	unknown error
}

func newPast() *past { return &past{ring: make([]pastRequest, 0, 256)} }

func (p *past) add(r pastRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ring) < pastRequests {
		p.ring = append(p.ring, r)
		return
	}
	p.ring[p.next] = r
	p.next = (p.next + 1) % pastRequests
}

// all returns what is remembered, the oldest first.
func (p *past) all() []pastRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.ring[p.next:], p.ring[:p.next])
}

// Remember keeps the request for Replay, unless its path and other texts are
// unreasonably long. It is called when it has been decided.
func (c *Chain) Remember(ctx context.Context, q *Question) {
	if gateway.TraceOf(ctx) != nil || len(q.Path)+len(q.Method)+len(q.Username)+len(q.Source)+len(q.ID) > longestPast {
		return
	}
	r := pastRequest{at: q.Now, service: q.Service, req: q.Request, app: q.App, unknown: q.unknown}
	if q.subject != nil {
		r.subject = *q.subject
	} else if r.unknown == nil {
		r.unknown = gateway.ErrNotFound
	}
	hadToken := r.req.Token != ""
	r.req.Token, r.req.Query, r.req.Form.Body = "", "", ""
	if hadToken {
		r.req.Token = "*" // that there was one counts, not which
	}
	c.past.add(r)
}

// Subject implements Subjects with what was found out then.
func (r pastRequest) Subject(context.Context, string, string, *policy.IdentityRule) (Subject, error) {
	return r.subject, r.unknown
}

// Replayed is what other policies would have done to the last requests.
type Replayed struct {
	Since    time.Time // when the oldest of them was decided; zero if there are none
	Requests int
	Refused  int // that pass under the policies of now, shadow mode of the others left out
	Admitted int // that are refused under the policies of now
	Reasons  map[gateway.Reason]int
	Samples  []ReplayedRequest // some of those that would be refused
}

// ReplayedRequest is one request that would have been refused.
type ReplayedRequest struct {
	At                            time.Time
	ServiceID, Method, Path, User string
	Reason                        gateway.Reason
}

const replaySamples = 20

// Replay tells what the policies of then, shadow mode included, would have refused of the
// last requests of this instance, and those of now do not. Every guard but the
// signature's can be replayed: signatures are not remembered. Limits count from full
// buckets on the clock of that time.
func (c *Chain) Replay(ctx context.Context, now, then *policy.Snapshot) Replayed {
	replayed := Replayed{Reasons: map[gateway.Reason]int{}}
	past := c.past.all()
	if len(past) > 0 {
		replayed.Since = past[0].at
	}
	before, after := c.newReplay(now), c.newReplay(then)
	defer before.buckets.Close()
	defer after.buckets.Close()
	for _, r := range past {
		if ctx.Err() != nil {
			break
		}
		replayed.Requests++
		was, _ := before.refusal(ctx, r)
		is, shadowed := after.refusal(ctx, r)
		if is == "" {
			is = shadowed
		}
		switch {
		case is == "" && was != "":
			replayed.Admitted++
		case is != "" && was == "":
			replayed.Refused++
			replayed.Reasons[is]++
			if len(replayed.Samples) < replaySamples {
				replayed.Samples = append(replayed.Samples, ReplayedRequest{r.at, r.service.ID, r.req.Method, r.req.Path, r.subject.UserID, is})
			}
		}
	}
	return replayed
}

// replay runs past requests under some policies.
type replay struct {
	policies *policy.Snapshot
	guards   []Guard
	buckets  *Buckets
	clock    time.Time
}

func (c *Chain) newReplay(policies *policy.Snapshot) *replay {
	p := &replay{policies: policies}
	p.buckets = NewBuckets(func() time.Time { return p.clock })
	for _, l := range c.links {
		switch g := l.Guard.(type) {
		case signature:
		case rateLimit:
			p.guards = append(p.guards, rateLimit{p.buckets})
		case identity:
			p.guards = append(p.guards, identity{noneRevoked{}})
		default:
			p.guards = append(p.guards, g)
		}
	}
	return p
}

// refusal is the reason with which the request is refused, and with which it would be
// but for shadow mode.
func (p *replay) refusal(ctx context.Context, r pastRequest) (refused, shadowed gateway.Reason) {
	p.clock = r.at
	q := &Question{
		methodAsSent: r.req.Method, Request: r.req, Service: r.service, Resource: policy.Canonical(r.req.Path), Policies: p.policies, Now: r.at, App: r.app, subjects: r,
	}
	for _, g := range p.guards {
		if enabled, _ := q.Policies.IsEnabled(g.Name()); !enabled {
			continue
		}
		var refusal *gateway.Error
		if errors.As(g.Check(ctx, q), &refusal) {
			refused = refusal.Reason
			break
		}
	}
	if len(q.shadowed) > 0 {
		shadowed = q.shadowed[0].Reason
	}
	return refused, shadowed
}

// noneRevoked is a gateway.Revocations for requests whose tokens are not remembered.
type noneRevoked struct{}

func (noneRevoked) RevokeToken(context.Context, string, string, time.Duration) error { return nil }
func (noneRevoked) RevokeUser(context.Context, string, string, time.Duration) error  { return nil }
func (noneRevoked) Admit(context.Context, string, string, string) error              { return nil }
func (noneRevoked) Revoked(context.Context, string, string, string, time.Time) (bool, error) {
	return false, nil
}
