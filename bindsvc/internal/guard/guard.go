package guard

import (
	"context"
	"errors"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// Guard is one check that can refuse a request.
type Guard interface {
	// Name is that of the guard's master switch.
	Name() string

	// Cost orders the guards: the cheapest comes first (seed 004), so that what is
	// refused has cost little.
	Cost() Cost

	// Failure says what becomes of a request that could not be checked; for no request
	// (nil) what is so unless a policy says otherwise.
	Failure(q *Question) Failure

	// Check returns nil to let the request pass, a *gateway.Error to refuse it, any
	// other error if it could not be checked. Under a gateway.Trace it changes nothing.
	Check(ctx context.Context, q *Question) error
}

// Cost is what a check commonly takes.
type Cost int

// The costs, in order.
const (
	CostMemory      Cost = iota // look-ups in memory
	CostComputation             // and cryptography
	CostSession                 // mostly memory, else a question to the session stores
	CostRoundTrip               // one question to the shared store, every time
	CostDirectory               // several questions to the durable store, kept for minutes
)

// String names the cost.
func (c Cost) String() string {
	return [...]string{"memory", "computation", "session", "round trip", "directory"}[c]
}

// Failure is what becomes of a request that could not be checked.
type Failure string

// The failure policies.
const (
	Open   Failure = policy.FailureOpen   // it passes
	Closed Failure = policy.FailureClosed // it is refused
)

// Subject is who a token belongs to.
type Subject struct {
	UserID, Channel, Source string
	IssuedAt, ExpiresAt     time.Time // zero: the token does not tell
	Signed                  bool      // the token says so itself, by its signature
}

// Subjects knows whom tokens belong to.
type Subjects interface {
	// Subject returns gateway.ErrNotFound when the token is nobody's; any other error
	// means that this could not be found out.
	Subject(ctx context.Context, serviceID, token string, identity *policy.IdentityRule) (Subject, error)
}

// Question is a request that is to be checked. It belongs to one goroutine.
type Question struct {
	gateway.Request
	Service  gateway.Service
	Resource string // the path as patterns know it
	Policies *policy.Snapshot
	Now      time.Time

	// App is the client-id of a good signature; the signature guard sets it.
	App string

	methodAsSent string // Method is in capitals
	rules        *policy.Interface

	subjects Subjects
	subject  *Subject
	unknown  error
	shadowed []Finding
}

// Finding is what a policy would have done, had it not been in shadow mode.
type Finding struct {
	Policy string
	Reason gateway.Reason
}

// interfaces are the rules for the path of the request. They are looked for once.
func (q *Question) interfaces() policy.Interface {
	if q.rules == nil {
		rules := q.Policies.At(q.Resource)
		q.rules = &rules
	}
	return *q.rules
}

// Subject returns whose request it is; gateway.ErrNotFound: nobody's that is known.
// It is found out once.
func (q *Question) Subject(ctx context.Context) (Subject, error) {
	if q.subject == nil && q.unknown == nil {
		subject, err := q.findSubject(ctx)
		if err != nil {
			q.unknown = err
		} else {
			q.subject = &subject
		}
	}
	if q.unknown != nil {
		return Subject{}, q.unknown
	}
	return *q.subject, nil
}

func (q *Question) findSubject(ctx context.Context) (Subject, error) {
	switch {
	case q.User != nil:
		return Subject{UserID: q.User.ID}, nil
	case q.Login, q.Token == "":
		return Subject{}, gateway.ErrNotFound
	}
	return q.subjects.Subject(ctx, q.Service.ID, q.Token, q.Policies.Identity(q.Service.ID))
}

// Forget makes the request nobody's.
func (q *Question) Forget() { q.subject, q.unknown = nil, gateway.ErrNotFound }

// userID is the user of the request, empty if there is none or it could not be found out.
func (q *Question) userID(ctx context.Context) string {
	subject, err := q.Subject(ctx)
	if err != nil {
		return ""
	}
	return subject.UserID
}

// refuse returns the refusal, or notes it and returns nil where the policy, or all of
// the guard, is in shadow mode.
func (q *Question) refuse(guard, policyID string, shadow bool, refusal *gateway.Error) error {
	refusal.Guard = guard
	if refusal.Cause == nil {
		refusal.Cause = errors.New("by policy " + policyID)
	}
	if _, all := q.Policies.IsEnabled(guard); shadow || all {
		q.shadowed = append(q.shadowed, Finding{policyID, refusal.Reason})
		return nil
	}
	return refusal
}
