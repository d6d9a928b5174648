package guard

import (
	"context"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// maintenance turns requests away while something is repaired, all but those of
// testers, and tells until when.
type maintenance struct{}

func (maintenance) Name() string              { return policy.GuardMaintenance }
func (maintenance) Cost() Cost                { return CostMemory }
func (maintenance) Failure(*Question) Failure { return Open }

// Check implements Guard. Whose request it is is asked only where users are testers.
func (g maintenance) Check(ctx context.Context, q *Question) (refusal error) {
	q.interfaces().Maintenance(q.Service.ID, q.Now, func(m *policy.MaintenanceRule) bool {
		if g.isTester(ctx, q, m) {
			return false
		}
		turnedAway := &gateway.Error{
			Reason: gateway.InMaintenance, Text: m.Message, Maintenance: &gateway.MaintenanceInfo{Start: m.Start, End: m.End},
		}
		if m.End != nil && m.End.After(q.Now) {
			turnedAway.RetryAfter = m.End.Sub(q.Now)
		}
		refusal = q.refuse(g.Name(), m.ID, m.Shadow, turnedAway)
		return refusal != nil
	})
	return refusal
}

func (maintenance) isTester(ctx context.Context, q *Question, m *policy.MaintenanceRule) bool {
	if m.IsTestersAddress(q.Address) {
		return true
	}
	if len(m.Testers.Users) == 0 {
		return false
	}
	if q.Login {
		return m.IsTester("", q.Username)
	}
	return m.IsTester(q.userID(ctx), "")
}
