package gateway

import (
	"context"
	"errors"
	"time"
)

// Revocations knows which tokens are no longer good although they have not expired:
// those that were logged out, and those of users whom an administrator kicked out.
type Revocations interface {
	// RevokeToken refuses the token from now on, for life: as long as it would be good.
	RevokeToken(ctx context.Context, serviceID, token string, life time.Duration) error

	// RevokeUser refuses all tokens that the user has now, for life. The clock is the store's.
	RevokeUser(ctx context.Context, serviceID, userID string, life time.Duration) error

	// Admit ends what stands against the token of a login that has just succeeded: it
	// is good although its user was kicked out before, or the same token logged out.
	Admit(ctx context.Context, serviceID, token, userID string) error

	// Revoked reports whether the token was logged out, or its user was kicked out and
	// the token is not known to be newer: neither was it admitted since, nor was it issued
	// after that (issuedAt, zero if the token does not tell). The userID may be empty.
	Revoked(ctx context.Context, serviceID, token, userID string, issuedAt time.Time) (bool, error)
}

// ErrTooManyAdmitted is the answer of Admit when the user has logged in a thousand times
// since being kicked out. The mark that an administrator's kick left does not grow beyond
// that: the token is refused until the mark expires or the user is kicked out again,
// unless it tells that it was issued after the kick.
var ErrTooManyAdmitted = errors.New("too many logins since the user was kicked out")

// ActionUserKickedOut is the audit's action of a user who was kicked out.
const ActionUserKickedOut = "user.kicked-out"

// Bucket is a token bucket: it holds Burst at most, begins full and gains Rate per second.
type Bucket struct {
	Key   string // names it within its service
	Rate  float64
	Burst float64 // at least 1
}

// Admission is the answer of a Limiter.
type Admission struct {
	Allowed    bool
	Refused    int           // index of a bucket that is empty, if not Allowed
	RetryAfter time.Duration // until that bucket holds one again
}

// Limiter counts requests in buckets that all instances share. The clock is the store's.
type Limiter interface {
	// Take takes one out of every bucket, or none if one of them is empty.
	Take(ctx context.Context, serviceID string, buckets []Bucket) (Admission, error)

	// Peek tells what Take would, and takes nothing.
	Peek(ctx context.Context, serviceID string, buckets []Bucket) (Admission, error)
}

// Nonces remembers what may be used once.
type Nonces interface {
	// UseNonce reports whether the app uses the nonce for the first time within life.
	UseNonce(ctx context.Context, app, nonce string, life time.Duration) (first bool, err error)
}
