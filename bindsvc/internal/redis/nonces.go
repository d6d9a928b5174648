package redis

import (
	"context"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

var _ gateway.Nonces = (*Store)(nil)

// UseNonce implements gateway.Nonces. A use whose answer is lost on the way counts.
func (s *Store) UseNonce(ctx context.Context, app, nonce string, life time.Duration) (first bool, err error) {
	// A life of zero would be none to go-redis, and the nonce be kept for ever.
	first, err = s.client.SetNX(ctx, "gateway:nonce:"+app+":"+bounded(nonce), 1, max(life, time.Millisecond)).Result()
	return first, harmless(err)
}
