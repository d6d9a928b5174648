package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// RunRevocations runs the suite of gateway.Revocations. Each call of open returns one
// that nothing has been revoked in yet; its clock is the machine's, to a few seconds.
func RunRevocations(t *testing.T, open func(t *testing.T) gateway.Revocations) {
	const long = time.Hour
	ctx := t.Context()
	var unknown time.Time // when the token was issued: it does not tell
	setup := func(t *testing.T) (r gateway.Revocations, isRevoked func(serviceID, token, userID string, issuedAt time.Time) bool) {
		r = open(t)
		return r, func(serviceID, token, userID string, issuedAt time.Time) bool {
			t.Helper()
			revoked, err := r.Revoked(ctx, serviceID, token, userID, issuedAt)
			require.NoError(t, err)
			return revoked
		}
	}
	past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Minute)

	t.Run("nothing", func(t *testing.T) {
		r, isRevoked := setup(t)
		require.False(t, isRevoked(ai, "t", "1", unknown))
		require.False(t, isRevoked(ai, "t", "", unknown))
		require.NoError(t, r.Admit(ctx, ai, "t", "1"))
		require.False(t, isRevoked(ai, "t", "1", past))
	})

	t.Run("a token", func(t *testing.T) {
		r, isRevoked := setup(t)
		require.NoError(t, r.RevokeToken(ctx, ai, "t", long))
		for _, issuedAt := range []time.Time{unknown, past, future} {
			require.True(t, isRevoked(ai, "t", "1", issuedAt))
			require.True(t, isRevoked(ai, "t", "", issuedAt))
		}
		require.False(t, isRevoked(ai, "T", "1", unknown), "another token")
		require.False(t, isRevoked(ai, "", "1", unknown), "no token")
		require.False(t, isRevoked(other, "t", "1", unknown), "the same of another service")
		require.NoError(t, r.RevokeToken(ctx, ai, "t", long), "again")

		require.NoError(t, r.Admit(ctx, ai, "another", "1"))
		require.NoError(t, r.Admit(ctx, other, "t", "1"))
		require.True(t, isRevoked(ai, "t", "1", unknown), "another was admitted")
		require.NoError(t, r.Admit(ctx, ai, "t", "1"))
		require.False(t, isRevoked(ai, "t", "1", unknown))
		require.NoError(t, r.RevokeToken(ctx, ai, "t", long))
		require.True(t, isRevoked(ai, "t", "1", unknown), "logged out again")
		require.NoError(t, r.Admit(ctx, ai, "t", ""))
		require.False(t, isRevoked(ai, "t", "1", unknown), "admitted as nobody's")
	})

	t.Run("a user", func(t *testing.T) {
		r, isRevoked := setup(t)
		require.NoError(t, r.Admit(ctx, ai, "early", "1"))
		require.NoError(t, r.RevokeUser(ctx, ai, "1", long))
		for _, token := range []string{"t", "early"} {
			require.True(t, isRevoked(ai, token, "1", unknown))
			require.True(t, isRevoked(ai, token, "1", past))
			require.False(t, isRevoked(ai, token, "1", future), "issued after that")
		}
		require.False(t, isRevoked(ai, "t", "2", past), "another user")
		require.False(t, isRevoked(ai, "t", "", past), "nobody")
		require.False(t, isRevoked(other, "t", "1", past), "of another service")

		require.NoError(t, r.Admit(ctx, other, "t", "1"))
		require.NoError(t, r.Admit(ctx, ai, "t", "2"))
		require.NoError(t, r.Admit(ctx, ai, "t", ""))
		require.True(t, isRevoked(ai, "t", "1", past), "another was admitted")
		require.NoError(t, r.Admit(ctx, ai, "t", "1"))
		require.NoError(t, r.Admit(ctx, ai, "t", "1"), "again")
		require.False(t, isRevoked(ai, "t", "1", unknown))
		require.False(t, isRevoked(ai, "t", "1", past))
		require.True(t, isRevoked(ai, "early", "1", past), "another token of the user")

		require.NoError(t, r.RevokeToken(ctx, ai, "t", long))
		require.True(t, isRevoked(ai, "t", "1", future), "logged out after that")
		require.NoError(t, r.Admit(ctx, ai, "t", "1"))
		require.False(t, isRevoked(ai, "t", "1", past))
		require.NoError(t, r.RevokeUser(ctx, ai, "1", long))
		require.True(t, isRevoked(ai, "t", "1", past), "kicked out again")
		require.False(t, isRevoked(ai, "t", "1", future))
	})

	t.Run("both", func(t *testing.T) {
		r, isRevoked := setup(t)
		require.NoError(t, r.RevokeToken(ctx, ai, "t", long))
		require.NoError(t, r.RevokeUser(ctx, ai, "1", long))
		require.True(t, isRevoked(ai, "t", "1", future))
		require.NoError(t, r.Admit(ctx, ai, "t", "1"))
		require.False(t, isRevoked(ai, "t", "1", past))
	})

	t.Run("for life", func(t *testing.T) {
		r, isRevoked := setup(t)
		const short = 200 * time.Millisecond
		start := time.Now()
		require.NoError(t, r.RevokeUser(ctx, ai, "1", short))
		require.NoError(t, r.RevokeToken(ctx, ai, "t", short))
		require.NoError(t, r.RevokeToken(ctx, ai, "long", long))
		byUser, byToken := isRevoked(ai, "another", "1", past), isRevoked(ai, "t", "", past)
		if time.Since(start) < short { // else the machine was too slow to see it
			require.True(t, byUser)
			require.True(t, byToken)
		}
		require.Eventually(t, func() bool { return !isRevoked(ai, "another", "1", past) && !isRevoked(ai, "t", "", past) }, 10*time.Second, 10*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(start), short)
		require.True(t, isRevoked(ai, "long", "", past))

		require.NoError(t, r.RevokeUser(ctx, ai, "1", long))
		require.NoError(t, r.RevokeToken(ctx, ai, "t", long))
		require.True(t, isRevoked(ai, "another", "1", past), "kicked out again")
		require.True(t, isRevoked(ai, "t", "", past))
	})
}
