package guard

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// identity wants a known user where a service's policy does, and refuses tokens that
// were revoked.
type identity struct{ revocations gateway.Revocations }

func (identity) Name() string { return policy.GuardIdentity }
func (identity) Cost() Cost   { return CostSession }

// Failure is about the revoked tokens: who a token belongs to fails closed always, since
// a request of a user must not pass for an anonymous one. So does a policy that cannot
// be used where no policy of the service's own says how its users are known.
func (identity) Failure(q *Question) Failure {
	if q == nil {
		return Open
	}
	p := q.Policies.Identity(q.Service.ID)
	switch {
	case q.Policies.IsBroken(policy.GuardIdentity, q.Service.ID) && (p == nil || len(p.Services) == 0):
		return Closed
	case p != nil && p.BlacklistFailure == policy.FailureClosed && !p.Shadow:
		return Closed
	}
	return Open
}

var errNoJWT = errors.New("the token is no JWT")

var errLoggedOut = errors.New("the token was logged out, or its user kicked out")

// Check implements Guard.
func (g identity) Check(ctx context.Context, q *Question) error {
	p := q.Policies.Identity(q.Service.ID)
	if p == nil || q.Login {
		return nil
	}
	needsNoUser := func() bool { return p.Mode == policy.ModePassthrough || p.IsPublic(q.Resource) }
	if q.Token == "" && q.User == nil {
		// A preflight carries no token, and a signed request that of its app.
		if q.Method == http.MethodOptions || q.App != "" || needsNoUser() {
			return nil
		}
		return g.refuse(q, p, errors.New("no token"))
	}
	subject, err := q.Subject(ctx)
	switch {
	case errors.Is(err, session.ErrUnknownKey): // on no path: it may yet be somebody's, and is nobody's guest
		return g.refuse(q, p, err)
	case errors.Is(err, gateway.ErrNotFound):
		if needsNoUser() {
			return nil
		}
		return g.refuse(q, p, err)
	case err != nil:
		return gateway.Unavailable(err)
	case p.Mode == policy.ModeJWT && !subject.Signed && q.User == nil && !needsNoUser():
		return g.refuse(q, p, errNoJWT)
	}
	if !p.UsesBlacklist() || q.User != nil {
		return nil
	}
	issued := subject.IssuedAt
	if !issued.IsZero() {
		issued = issued.Add(-p.Leeway())
	}
	revoked, err := g.revocations.Revoked(ctx, q.Service.ID, p.RevocationKey(q.Token), subject.UserID, issued)
	switch {
	case err != nil:
		return fmt.Errorf("revoked tokens: %w", err)
	case revoked && p.IsPublic(q.Resource):
		q.Forget()
		return nil
	case revoked:
		return g.refuse(q, p, errLoggedOut)
	}
	return nil
}

func (g identity) refuse(q *Question, p *policy.IdentityRule, why error) error {
	return q.refuse(g.Name(), p.ID, p.Shadow, &gateway.Error{Reason: gateway.Unauthenticated, Cause: fmt.Errorf("by policy %s: %w", p.ID, why)})
}
