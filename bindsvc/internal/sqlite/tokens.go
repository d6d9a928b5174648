package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// expiredBatch is how many expired tokens a login clears away.
const expiredBatch = 100

// PutToken implements gateway.TokenCache. The token is stored as its SHA-256.
func (s *Store) PutToken(ctx context.Context, serviceID, token, userID string) error {
	now := s.now()
	hash := sha256.Sum256([]byte(token))
	return s.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO gateway_token (service_id, token_hash, user_id, expires_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (service_id, token_hash) DO UPDATE SET user_id = excluded.user_id, expires_at = excluded.expires_at`,
			serviceID, hash[:], userID, now.Add(s.tokenTTL).UnixMicro())
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM gateway_token WHERE (service_id, token_hash) IN (
			SELECT service_id, token_hash FROM gateway_token WHERE expires_at <= $1 LIMIT $2)`, now.UnixMicro(), expiredBatch)
		return err
	})
}

// DropToken implements gateway.TokenCache.
func (s *Store) DropToken(ctx context.Context, serviceID, token string) error {
	hash := sha256.Sum256([]byte(token))
	return s.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM gateway_token WHERE service_id = $1 AND token_hash = $2`, serviceID, hash[:])
		return err
	})
}

// UserByToken implements gateway.Tokens. A token in use does not expire: no
// session store stands behind this one that could be asked instead.
func (s *Store) UserByToken(ctx context.Context, serviceID, token string) (userID string, err error) {
	now := s.now()
	hash := sha256.Sum256([]byte(token))
	var expires int64
	err = s.read.QueryRowContext(ctx, `SELECT user_id, expires_at FROM gateway_token WHERE service_id = $1 AND token_hash = $2 AND expires_at > $3`,
		serviceID, hash[:], now.UnixMicro()).Scan(&userID, &expires)
	if err != nil {
		return "", notFound(err)
	}
	if time.UnixMicro(expires).Sub(now) < s.tokenTTL/2 && gateway.TraceOf(ctx) == nil {
		s.renew(ctx, serviceID, hash[:], now)
	}
	return userID, nil
}

// renew is tried again at the next use when it fails: the answer is known already.
func (s *Store) renew(ctx context.Context, serviceID string, hash []byte, now time.Time) {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE gateway_token SET expires_at = $3 WHERE service_id = $1 AND token_hash = $2`,
			serviceID, hash, now.Add(s.tokenTTL).UnixMicro())
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "token not renewed", "service", serviceID, "error", err)
	}
}
