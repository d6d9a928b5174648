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
	RolesOf(ctx context.Context, serviceID, userID string) ([]string, error)
}

// access says who may call an interface: its methods, grey release, roles.
type access struct{ roles RoleLister }

func (access) Name() string              { return policy.GuardAccess }
func (access) Cost() Cost                { return CostDirectory }
func (access) Failure(*Question) Failure { return Closed }

// Check implements Guard: what is asked of memory first.
func (g access) Check(ctx context.Context, q *Question) error {
	if err := g.method(q); err != nil {
		return err
	}
	if q.Method == http.MethodOptions { // a preflight is nobody's
		return nil
	}
	if err := g.grey(ctx, q); err != nil {
		return err
	}
	return g.rbac(ctx, q)
}

// method refuses methods that no rule of the interface names.
func (g access) method(q *Question) error {
	rules := q.Policies.Access(policy.AccessMethod, q.Service.ID, q.Method, q.Resource)
	var allowed []string
	for _, rule := range rules {
		allowed = append(allowed, rule.Methods...)
	}
	if len(rules) == 0 || slices.Contains(allowed, q.Method) {
		return nil
	}
	return q.refuse(g.Name(), rules[0].ID, isShadow(rules), &gateway.Error{Reason: gateway.MethodNotAllowed, Allow: allowed})
}

// isShadow reports whether none of the rules, which were combined, refuses by itself.
func isShadow(rules []*policy.AccessRule) bool {
	return !slices.ContainsFunc(rules, func(r *policy.AccessRule) bool { return !r.Shadow })
}

// grey hides an interface from everybody outside its lists and percentages.
func (g access) grey(ctx context.Context, q *Question) error {
	rules := q.Policies.Access(policy.AccessGrey, q.Service.ID, q.Method, q.Resource)
	if len(rules) == 0 {
		return nil
	}
	subject, err := q.Subject(ctx)
	if err != nil && !errors.Is(err, gateway.ErrNotFound) {
		return gateway.Unavailable(err)
	}
	for _, rule := range rules {
		if slices.Contains(rule.Users, subject.UserID) && subject.UserID != "" || inPercentage(rule, subject.UserID) {
			return nil
		}
	}
	return q.refuse(g.Name(), rules[0].ID, isShadow(rules), &gateway.Error{Reason: gateway.NotFound})
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
func (g access) rbac(ctx context.Context, q *Question) error {
	rules := q.Policies.Access(policy.AccessRBAC, q.Service.ID, q.Method, q.Resource)
	if len(rules) == 0 {
		return nil
	}
	subject, err := q.Subject(ctx)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return q.refuse(g.Name(), rules[0].ID, isShadow(rules), &gateway.Error{Reason: gateway.Unauthenticated})
	case err != nil:
		return gateway.Unavailable(err)
	}
	roles, err := g.roles.RolesOf(ctx, q.Service.ID, subject.UserID)
	if err != nil {
		return fmt.Errorf("roles: %w", err)
	}
	for _, rule := range rules {
		if slices.ContainsFunc(rule.Roles, func(role string) bool { return slices.Contains(roles, role) }) {
			return nil
		}
	}
	return q.refuse(g.Name(), rules[0].ID, isShadow(rules), &gateway.Error{Reason: gateway.Forbidden})
}
