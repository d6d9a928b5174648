package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/sqlite"
	"github.com/homenode/homenode/bindsvc/internal/storetest"
)

var backend = storetest.Backend{
	NewDatabase: func(t *testing.T) string { return filepath.Join(t.TempDir(), "data", "homenode #1?.db") },
	Open: func(ctx context.Context, database string) (gateway.Store, error) {
		return sqlite.Open(ctx, database, sqlite.Options{})
	},
}

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, backend)) }

func TestConformance(t *testing.T) { storetest.Run(t, backend) }

func TestNothingCommittedIsLostByAKill(t *testing.T) { storetest.RunKilled(t, backend) }

func TestRevocations(t *testing.T) {
	storetest.RunRevocations(t, func(t *testing.T) gateway.Revocations {
		return open(t, filepath.Join(t.TempDir(), "homenode.db"), sqlite.Options{})
	})
}

func open(t *testing.T, path string, opts sqlite.Options) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "homenode.db")
	store := open(t, path, sqlite.Options{})
	require.NoError(t, store.PutToken(t.Context(), "ai", "secret", "1"))
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Len(t, files, 3, "the database, its log, its shared memory")
	for _, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(content), "secret")
	}
}

func TestManyStoresMigrateOneNewFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "homenode.db")
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			store, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err == nil {
				err = store.Close()
			}
			errs[i] = err
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	_, err := sqlite.Open(t.Context(), filepath.Join("/dev/null", "homenode.db"), sqlite.Options{})
	require.Error(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	path := filepath.Join(t.TempDir(), "homenode.db")
	require.NoError(t, os.WriteFile(path, []byte("this is no database, and long enough to be looked at as one"), 0o600))
	_, err = sqlite.Open(ctx, path, sqlite.Options{})
	require.ErrorContains(t, err, path)
}

func TestTheAuditIsAppendOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "homenode.db")
	store := open(t, path, sqlite.Options{})
	require.NoError(t, store.Record(t.Context(), gateway.AuditEntry{Action: gateway.ActionDenied}))
	before, _, err := store.ListAudit(t.Context(), gateway.AuditFilter{Limit: 10})
	require.NoError(t, err)
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer db.Close()
	for statement, refused := range map[string]string{
		`UPDATE gateway_audit SET actor = 'nobody'`: "UPDATE",
		`DELETE FROM gateway_audit`:                 "DELETE",
		`INSERT OR REPLACE INTO gateway_audit (id, at, actor, action) VALUES (1, 0, 'nobody', 'none')`: "REPLACE",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.ErrorContains(t, err, "gateway_audit is append-only: "+refused+" is refused", statement)
	}
	after, _, err := store.ListAudit(t.Context(), gateway.AuditFilter{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestTokens(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "homenode.db")
	store := open(t, path, sqlite.Options{TokenTTL: 10 * time.Hour, Now: func() time.Time { return now }})
	ctx := t.Context()
	user := func(serviceID, token string) string {
		t.Helper()
		userID, err := store.UserByToken(ctx, serviceID, token)
		if err != nil {
			require.ErrorIs(t, err, gateway.ErrNotFound)
		}
		return userID
	}
	require.Empty(t, user("ai", "t"))
	require.NoError(t, store.PutToken(ctx, "ai", "t", "9007199254740993"))
	require.Equal(t, "9007199254740993", user("ai", "t"))
	require.Empty(t, user("other", "t"))
	require.NoError(t, store.PutToken(ctx, "ai", "t", "2"))
	require.Equal(t, "2", user("ai", "t"), "a token that was given again")

	now = now.Add(6 * time.Hour) // less than half is left: renewed, but by no explanation
	explained, _ := gateway.WithTrace(ctx)
	expires := expiry(t, path)
	_, err := store.UserByToken(explained, "ai", "t")
	require.NoError(t, err)
	require.Equal(t, expires, expiry(t, path))
	require.Equal(t, "2", user("ai", "t"))
	now = now.Add(9 * time.Hour)
	require.Equal(t, "2", user("ai", "t"))
	now = now.Add(10 * time.Hour)
	require.Empty(t, user("ai", "t"), "unused for the whole TTL")

	require.NoError(t, store.PutToken(ctx, "ai", "new", "3"))
	now = now.Add(-10 * time.Hour)
	require.Empty(t, user("ai", "t"), "an expired token is cleared away by the next login")
}

// expiry is that of the token that expires last.
func expiry(t *testing.T, path string) (micros int64) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT max(expires_at) FROM gateway_token`).Scan(&micros))
	return micros
}

// TestRevocationsAreKept at a restart, for their life, and as hashes.
func TestRevocationsAreKept(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 600_900_000, time.UTC)
	path := filepath.Join(t.TempDir(), "homenode.db")
	opts := sqlite.Options{Now: func() time.Time { return now }}
	ctx := t.Context()
	store, err := sqlite.Open(ctx, path, opts)
	require.NoError(t, err)
	require.NoError(t, store.RevokeToken(ctx, "ai", "secret", time.Hour))
	require.NoError(t, store.RevokeToken(ctx, "ai", "secret", time.Minute), "which makes it no shorter")
	require.NoError(t, store.RevokeUser(ctx, "ai", "1", time.Hour))
	require.NoError(t, store.Admit(ctx, "ai", "secret too", "1"))
	require.NoError(t, store.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(content), "secret")

	store = open(t, path, opts)
	isRevoked := func(token string, issuedAt time.Time) bool {
		t.Helper()
		revoked, err := store.Revoked(ctx, "ai", token, "1", issuedAt)
		require.NoError(t, err)
		return revoked
	}
	kicked := now
	now = now.Add(time.Hour - time.Millisecond)
	require.True(t, isRevoked("secret", now))
	require.False(t, isRevoked("secret too", kicked))
	require.True(t, isRevoked("another", kicked))
	require.True(t, isRevoked("another", kicked.Add(50*time.Microsecond)), "in the same millisecond")
	require.False(t, isRevoked("another", kicked.Add(time.Millisecond)))
	now = now.Add(time.Millisecond)
	require.False(t, isRevoked("secret", kicked))
	require.False(t, isRevoked("another", kicked))

	require.Equal(t, []int{2, 1}, revocations(t, path))
	require.NoError(t, store.RevokeToken(ctx, "ai", "next", time.Hour))
	require.Equal(t, []int{1, 0}, revocations(t, path), "what has expired is cleared away by the next change")
}

// revocations counts the revocations and admissions.
func revocations(t *testing.T, path string) []int {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer db.Close()
	counts := make([]int, 2)
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM gateway_revocation), (SELECT count(*) FROM gateway_admission)`).Scan(&counts[0], &counts[1]))
	return counts
}
