package guard

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// RoleLister knows the roles of users.
type RoleLister interface {
	// RolesOf returns them in order, by their bytes, as gateway.Roles does.
	RolesOf(ctx context.Context, serviceID, userID string) ([]string, error)
}

// access says who may call an interface: its methods, grey release, roles.
type access struct{ roles RoleLister }

func (access) Name() string              { return policy.GuardAccess }
func (access) Cost() Cost                { return CostDirectory }
func (access) Failure(*Question) Failure { return Closed }

// Check implements Guard: what is asked of memory first. What is in shadow mode neither
// refuses, be it because the roles cannot be asked, nor takes the place of what does.
func (g access) Check(ctx context.Context, q *Question) error {
	for _, of := range []struct {
		kind    string
		refusal func(context.Context, *Question, []*policy.AccessRule) (*gateway.Error, error)
	}{{policy.AccessMethod, g.method}, {policy.AccessGrey, g.grey}, {policy.AccessRBAC, g.rbac}} {
		if of.kind != policy.AccessMethod && (q.Login || q.Method == http.MethodOptions) { // nobody's, as a preflight is
			return nil
		}
		inForce, would := q.interfaces().Access(of.kind, q.Service.ID, q.Method)
		if len(inForce) > 0 {
			if err := g.refuse(ctx, q, inForce, false, of.refusal); err != nil {
				return err
			}
		}
		if len(would) > 0 {
			_ = g.refuse(ctx, q, would, true, of.refusal)
		}
	}
	return nil
}

func (g access) refuse(ctx context.Context, q *Question, rules []*policy.AccessRule, shadow bool,
	refusalBy func(context.Context, *Question, []*policy.AccessRule) (*gateway.Error, error)) error {
	refusal, err := refusalBy(ctx, q, rules)
	if err != nil || refusal == nil {
		return err
	}
	return q.refuse(g.Name(), rules[0].ID, shadow, refusal)
}

// method refuses methods that no rule of the interface names.
func (access) method(_ context.Context, q *Question, rules []*policy.AccessRule) (*gateway.Error, error) {
	var allowed []string
	for _, rule := range rules {
		allowed = append(allowed, rule.Methods...)
	}
	if slices.Contains(allowed, q.methodAsSent) {
		return nil, nil
	}
	return &gateway.Error{Reason: gateway.MethodNotAllowed, Allow: allowed}, nil
}

// grey hides an interface from everybody outside its lists and percentages.
func (access) grey(ctx context.Context, q *Question, rules []*policy.AccessRule) (*gateway.Error, error) {
	subject, err := q.Subject(ctx)
	if err != nil && !errors.Is(err, gateway.ErrNotFound) {
		return nil, gateway.Unavailable(err)
	}
	for _, rule := range rules {
		if slices.Contains(rule.Users, subject.UserID) && subject.UserID != "" || inPercentage(rule, subject.UserID) {
			return nil, nil
		}
	}
	return &gateway.Error{Reason: gateway.NotFound}, nil
}

// inPercentage reports whether the user is among the rule's: always the same users, and
// other ones for another rule. Who is not known is in none but 100.
func inPercentage(rule *policy.AccessRule, userID string) bool {
	if rule.Percent >= 100 {
		return true
	}
	if userID == "" {
		return false
	}
	sum := sha256.Sum256([]byte(rule.ID + "\x00" + userID))
	const parts = 1_000_000
	return float64(binary.BigEndian.Uint64(sum[:])%parts) < rule.Percent/100*parts
}

// rbac wants one of the roles that the interface's rules name.
func (g access) rbac(ctx context.Context, q *Question, rules []*policy.AccessRule) (*gateway.Error, error) {
	subject, err := q.Subject(ctx)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return &gateway.Error{Reason: gateway.Unauthenticated}, nil
	case err != nil:
		return nil, gateway.Unavailable(err)
	}
	roles, err := g.roles.RolesOf(ctx, q.Service.ID, subject.UserID)
	if err != nil {
		return nil, fmt.Errorf("roles: %w", err)
	}
	for _, rule := range rules {
		for _, role := range rule.Roles {
			if _, has := slices.BinarySearch(roles, role); has {
				return nil, nil
			}
		}
	}
	return &gateway.Error{Reason: gateway.Forbidden}, nil
}
