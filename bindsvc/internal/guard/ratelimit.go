package guard

import (
	"context"
	"fmt"
	"slices"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// rateLimit bounds how often an interface is called, in all, or by each user, address
// or app.
type rateLimit struct{ limiter gateway.Limiter }

func (rateLimit) Name() string { return policy.GuardRateLimit }
func (rateLimit) Cost() Cost   { return CostRoundTrip }

// Failure is open: protection must not become the failure (seed 004).
func (rateLimit) Failure(*Question) Failure { return Open }

// Check implements Guard. A policy in shadow mode counts by itself, so that it takes
// nothing from the others.
func (g rateLimit) Check(ctx context.Context, q *Question) error {
	inForce, onTrial := q.interfaces().Limits(q.Service.ID, q.Method)
	if _, allInShadow := q.Policies.IsEnabled(g.Name()); allInShadow {
		inForce, onTrial = nil, slices.Concat(inForce, onTrial)
	}
	for _, rule := range onTrial {
		if bucket, isCounted := g.bucket(ctx, q, rule); isCounted {
			if err := g.count(ctx, q, []*policy.LimitRule{rule}, []gateway.Bucket{bucket}); err != nil {
				return err
			}
		}
	}
	var counting []*policy.LimitRule
	var buckets []gateway.Bucket
	for _, rule := range inForce {
		if bucket, isCounted := g.bucket(ctx, q, rule); isCounted {
			counting, buckets = append(counting, rule), append(buckets, bucket)
		}
	}
	if len(buckets) == 0 {
		return nil
	}
	return g.count(ctx, q, counting, buckets)
}

// bucket is the rule's for this request; false if it does not count this one.
func (g rateLimit) bucket(ctx context.Context, q *Question, rule *policy.LimitRule) (gateway.Bucket, bool) {
	subject, isCounted := g.subject(ctx, q, rule)
	return gateway.Bucket{Key: rule.ID + ":" + rule.By + ":" + subject, Rate: rule.PerSecond, Burst: rule.Capacity}, isCounted
}

// subject is whose requests the rule counts together; false if it does not count this one.
func (rateLimit) subject(ctx context.Context, q *Question, rule *policy.LimitRule) (string, bool) {
	switch rule.By {
	case policy.ByUser:
		user := q.userID(ctx)
		return user, user != ""
	case policy.ByAddress:
		return gateway.Subnet(q.Address), q.Address.IsValid()
	case policy.ByApp:
		return q.App, q.App != ""
	}
	return "", true
}

func (g rateLimit) count(ctx context.Context, q *Question, rules []*policy.LimitRule, buckets []gateway.Bucket) error {
	take := g.limiter.Take
	if gateway.TraceOf(ctx) != nil {
		take = g.limiter.Peek
	}
	admission, err := take(ctx, q.Service.ID, buckets)
	if err != nil {
		return fmt.Errorf("limiter: %w", err)
	}
	if admission.Allowed {
		return nil
	}
	rule := rules[admission.Refused]
	return q.refuse(g.Name(), rule.ID, rule.Shadow, &gateway.Error{Reason: gateway.RateLimited, RetryAfter: admission.RetryAfter})
}
