package guard

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const (
	maxBuckets = 200_000
	maxNonces  = 200_000

	longestWait = 1e18 // nanoseconds, 30 years: what a rate near zero comes to is beyond a time.Duration
)

// Buckets is a gateway.Limiter and gateway.Nonces in the memory of one process, for the
// embedded mode. It is safe for concurrent use.
type Buckets struct {
	now    func() time.Time
	mu     sync.Mutex // over a call: all buckets give one, or none does
	levels *otter.Cache[string, level]
	nonces *otter.Cache[string, struct{}]
}

type level struct {
	tokens float64
	at     time.Time
}

// NewBuckets makes Buckets.
func NewBuckets(now func() time.Time) *Buckets {
	return &Buckets{
		now:    now,
		levels: otter.Must(&otter.Options[string, level]{MaximumSize: maxBuckets}),
		nonces: otter.Must(&otter.Options[string, struct{}]{MaximumSize: maxNonces, ExpiryCalculator: otter.ExpiryWriting[string, struct{}](time.Hour)}),
	}
}

// Close ends what Buckets runs in the background.
func (b *Buckets) Close() {
	b.levels.StopAllGoroutines()
	b.nonces.StopAllGoroutines()
}

// Take implements gateway.Limiter.
func (b *Buckets) Take(_ context.Context, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	admission := b.look(serviceID, buckets, now)
	if !admission.Allowed {
		return admission, nil
	}
	for _, bucket := range buckets {
		b.levels.Set(serviceID+"\x00"+bucket.Key, level{b.tokens(serviceID, bucket, now) - 1, now})
	}
	return admission, nil
}

// Peek implements gateway.Limiter.
func (b *Buckets) Peek(_ context.Context, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.look(serviceID, buckets, b.now()), nil
}

func (b *Buckets) look(serviceID string, buckets []gateway.Bucket, now time.Time) gateway.Admission {
	for i, bucket := range buckets {
		if tokens := b.tokens(serviceID, bucket, now); tokens < 1 {
			wait := time.Duration(min(math.Ceil((1-tokens)/bucket.Rate*float64(time.Second)), longestWait))
			return gateway.Admission{Refused: i, RetryAfter: wait}
		}
	}
	return gateway.Admission{Allowed: true}
}

// tokens is what the bucket holds now. A clock that went back adds nothing.
func (b *Buckets) tokens(serviceID string, bucket gateway.Bucket, now time.Time) float64 {
	was, ok := b.levels.GetIfPresent(serviceID + "\x00" + bucket.Key)
	if !ok {
		return bucket.Burst
	}
	return min(bucket.Burst, was.tokens+max(0, now.Sub(was.at).Seconds())*bucket.Rate)
}

// UseNonce implements gateway.Nonces.
func (b *Buckets) UseNonce(_ context.Context, app, nonce string, life time.Duration) (bool, error) {
	key := app + "\x00" + nonce
	_, isNew := b.nonces.SetIfAbsent(key, struct{}{})
	if isNew {
		b.nonces.SetExpiresAfter(key, life)
	}
	return isNew, nil
}
