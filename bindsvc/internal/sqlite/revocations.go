package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

var _ gateway.Revocations = (*Store)(nil)

// The kinds of revocation.
const (
	revokedToken = "token"
	revokedUser  = "user"
)

// RevokeToken implements gateway.Revocations. A revocation never becomes shorter.
func (s *Store) RevokeToken(ctx context.Context, serviceID, token string, life time.Duration) error {
	now := s.now()
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if err := revoke(ctx, tx, serviceID, revokedToken, tokenKey(token), now, life); err != nil {
			return err
		}
		return clearExpired(ctx, tx, now)
	})
}

// RevokeUser implements gateway.Revocations. A revocation never becomes shorter.
func (s *Store) RevokeUser(ctx context.Context, serviceID, userID string, life time.Duration) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		now := s.now() // in the transaction: whoever was admitted before it was admitted earlier
		if err := revoke(ctx, tx, serviceID, revokedUser, userID, now, life); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM gateway_admission WHERE service_id = $1 AND user_id = $2`, serviceID, userID); err != nil {
			return err
		}
		return clearExpired(ctx, tx, now)
	})
}

func revoke(ctx context.Context, tx *sql.Tx, serviceID, kind, key string, now time.Time, life time.Duration) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO gateway_revocation AS r (service_id, kind, key, at, expires) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (service_id, kind, key) DO UPDATE SET at = excluded.at, expires = max(r.expires, excluded.expires)`,
		serviceID, kind, key, now.UnixMilli(), now.Add(life).UnixMilli())
	return err
}

// Admit implements gateway.Revocations. Against most logins nothing stands, and they cost one read.
func (s *Store) Admit(ctx context.Context, serviceID, token, userID string) error {
	now, key := s.now(), tokenKey(token)
	if r, err := s.revocations(ctx, serviceID, key, userID, now); err != nil || r == (revocations{}) {
		return err
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM gateway_revocation WHERE service_id = $1 AND kind = $2 AND key = $3`,
			serviceID, revokedToken, key); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO gateway_admission (service_id, user_id, token, expires)
			SELECT service_id, key, $4, expires FROM gateway_revocation WHERE service_id = $1 AND kind = $2 AND key = $3 AND $3 <> ''
			ON CONFLICT (service_id, user_id, token) DO NOTHING`, serviceID, revokedUser, userID, key); err != nil {
			return err
		}
		return clearExpired(ctx, tx, now)
	})
}

// Revoked implements gateway.Revocations. A token that was issued in the very
// millisecond in which its user was kicked out is refused.
func (s *Store) Revoked(ctx context.Context, serviceID, token, userID string, issuedAt time.Time) (bool, error) {
	r, err := s.revocations(ctx, serviceID, tokenKey(token), userID, s.now())
	if err != nil {
		return false, err
	}
	return r.ofToken || r.ofUser.Valid && issuedAt.UnixMilli() <= r.ofUser.Int64, nil
}

// revocations are what stands against a token.
type revocations struct {
	ofToken bool
	ofUser  sql.NullInt64 // when the user was kicked out, unless the token was admitted since
}

func (s *Store) revocations(ctx context.Context, serviceID, key, userID string, now time.Time) (r revocations, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT
		EXISTS (SELECT 1 FROM gateway_revocation WHERE service_id = $1 AND kind = 'token' AND key = $2 AND expires > $4),
		(SELECT at FROM gateway_revocation WHERE service_id = $1 AND kind = 'user' AND key = $3 AND $3 <> '' AND expires > $4
			AND NOT EXISTS (SELECT 1 FROM gateway_admission WHERE service_id = $1 AND user_id = $3 AND token = $2))`,
		serviceID, key, userID, now.UnixMilli()).Scan(&r.ofToken, &r.ofUser)
	return r, err
}

// clearExpired clears away a batch of what has no effect any more.
func clearExpired(ctx context.Context, tx *sql.Tx, now time.Time) error {
	for _, statement := range [...]string{
		`DELETE FROM gateway_revocation WHERE (service_id, kind, key) IN (SELECT service_id, kind, key FROM gateway_revocation WHERE expires <= $1 LIMIT $2)`,
		`DELETE FROM gateway_admission WHERE (service_id, user_id, token) IN (SELECT service_id, user_id, token FROM gateway_admission WHERE expires <= $1 LIMIT $2)`,
	} {
		if _, err := tx.ExecContext(ctx, statement, now.UnixMilli(), expiredBatch); err != nil {
			return err
		}
	}
	return nil
}

// tokenKey is what a token is found by: who reads the file cannot use it.
func tokenKey(token string) string {
	hash := sha256.Sum256([]byte(token))
	return hex.EncodeToString(hash[:])
}
