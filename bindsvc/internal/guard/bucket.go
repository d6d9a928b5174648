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
)

// Buckets is a gateway.Limiter and gateway.Nonces in the memory of one process, for the
// embedded mode. It is safe for concurrent use.
type Buckets struct {
	now    func() time.Time
	mu     sync.Mutex // over a call: all buckets give one, or none does
	levels map[bucketKey]*level
	nonces *otter.Cache[string, struct{}]
}

type bucketKey struct{ serviceID, key string }

// level is what a bucket held at a time.
type level struct {
	tokens float64
	at     time.Time
	full   time.Time // when it is full again, as good as a new one
}

// NewBuckets makes Buckets.
func NewBuckets(now func() time.Time) *Buckets {
	return &Buckets{
		now:    now,
		levels: map[bucketKey]*level{},
		nonces: otter.Must(&otter.Options[string, struct{}]{MaximumSize: maxNonces, ExpiryCalculator: otter.ExpiryWriting[string, struct{}](time.Hour)}),
	}
}

// Close ends what Buckets runs in the background.
func (b *Buckets) Close() { b.nonces.StopAllGoroutines() }

// Take implements gateway.Limiter.
func (b *Buckets) Take(_ context.Context, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	levels := make([]level, 0, 4)
	for i, bucket := range buckets {
		l := b.level(serviceID, bucket, now)
		if l.tokens < 1 {
			return refused(i, bucket, l), nil
		}
		levels = append(levels, l)
	}
	for i, bucket := range buckets {
		l := levels[i]
		l.tokens--
		l.full = now.Add(seconds((bucket.Burst - l.tokens) / bucket.Rate))
		b.put(bucketKey{serviceID, bucket.Key}, l)
	}
	return gateway.Admission{Allowed: true}, nil
}

// Peek implements gateway.Limiter.
func (b *Buckets) Peek(_ context.Context, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for i, bucket := range buckets {
		if l := b.level(serviceID, bucket, now); l.tokens < 1 {
			return refused(i, bucket, l), nil
		}
	}
	return gateway.Admission{Allowed: true}, nil
}

func refused(i int, bucket gateway.Bucket, l level) gateway.Admission {
	return gateway.Admission{Refused: i, RetryAfter: seconds((1 - l.tokens) / bucket.Rate)}
}

// seconds rounds up, and bounds what a rate near zero makes of it.
func seconds(s float64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	if s >= most.Seconds() {
		return most
	}
	return time.Duration(math.Ceil(s * float64(time.Second)))
}

// level is what the bucket holds now. A clock that went back adds nothing.
func (b *Buckets) level(serviceID string, bucket gateway.Bucket, now time.Time) level {
	was := b.levels[bucketKey{serviceID, bucket.Key}]
	if was == nil {
		return level{tokens: bucket.Burst, at: now}
	}
	return level{tokens: min(bucket.Burst, was.tokens+max(0, now.Sub(was.at).Seconds())*bucket.Rate), at: now}
}

func (b *Buckets) put(key bucketKey, l level) {
	if known := b.levels[key]; known != nil {
		*known = l
		return
	}
	if len(b.levels) >= maxBuckets {
		b.makeRoom(l.at)
	}
	b.levels[key] = &l
}

// makeRoom forgets buckets that are full again, of those that it happens to meet, and any
// one if it meets none.
func (b *Buckets) makeRoom(now time.Time) {
	const looks = 1000
	looked, forgotten := 0, 0
	for key, l := range b.levels {
		if !l.full.After(now) || looked == looks && forgotten == 0 {
			delete(b.levels, key)
			forgotten++
		}
		if looked++; looked > looks {
			return
		}
	}
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
