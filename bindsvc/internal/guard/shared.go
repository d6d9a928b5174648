package guard

import (
	"context"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

// Shared asks the store that all instances share on behalf of the guards, each time for
// no longer than Gate says, and not at all for a while after it has let some wait in vain.
type Shared struct {
	gateway.Revocations
	Nonces  gateway.Nonces
	Limiter gateway.Limiter
	Gate    *outage.Gate
}

// Revoked implements gateway.Revocations.
func (s Shared) Revoked(ctx context.Context, serviceID, token, userID string, issuedAt time.Time) (revoked bool, err error) {
	err = s.Gate.Do(ctx, func(ctx context.Context) (err error) {
		revoked, err = s.Revocations.Revoked(ctx, serviceID, token, userID, issuedAt)
		return err
	})
	return revoked, err
}

// UseNonce implements gateway.Nonces.
func (s Shared) UseNonce(ctx context.Context, app, nonce string, life time.Duration) (first bool, err error) {
	err = s.Gate.Do(ctx, func(ctx context.Context) (err error) {
		first, err = s.Nonces.UseNonce(ctx, app, nonce, life)
		return err
	})
	return first, err
}

// Take implements gateway.Limiter.
func (s Shared) Take(ctx context.Context, serviceID string, buckets []gateway.Bucket) (admission gateway.Admission, err error) {
	err = s.Gate.Do(ctx, func(ctx context.Context) (err error) {
		admission, err = s.Limiter.Take(ctx, serviceID, buckets)
		return err
	})
	return admission, err
}

// Peek implements gateway.Limiter.
func (s Shared) Peek(ctx context.Context, serviceID string, buckets []gateway.Bucket) (admission gateway.Admission, err error) {
	err = s.Gate.Do(ctx, func(ctx context.Context) (err error) {
		admission, err = s.Limiter.Peek(ctx, serviceID, buckets)
		return err
	})
	return admission, err
}
