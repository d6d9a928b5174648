package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

var _ gateway.Revocations = (*Store)(nil)

const maxAdmitted = 1000

// A logout mark is the time of the logout in milliseconds.
func logoutKey(serviceID, token string) string { return "gateway:logout:" + serviceID + ":" + token }

// A kick mark is a hash: kickedAt, the time in milliseconds, and the hash of each token admitted since.
func kickKey(serviceID, userID string) string { return "gateway:kick:" + serviceID + ":" + userID }

const kickedAt = "at"

// markTime begins the scripts that write a mark, ARGV[1] being its life in milliseconds.
// A mark that is there already is never shortened.
const markTime = `
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local life = string.format('%.0f', math.max(tonumber(ARGV[1]), redis.call('PTTL', KEYS[1])))
`

var logoutScript = goredis.NewScript(markTime + `
return redis.call('SET', KEYS[1], now, 'PX', life)
`)

var kickScript = goredis.NewScript(markTime + `
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], '` + kickedAt + `', now)
return redis.call('PEXPIRE', KEYS[1], life)
`)

// admitScript adds the token ARGV[1] to the kick mark, if there is one, and answers
// whether the token is good. ARGV[2] is how many fields the mark may have.
var admitScript = goredis.NewScript(`
local fields = redis.call('HLEN', KEYS[1])
if fields == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return 1
end
if fields >= tonumber(ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], 1)
return 1
`)

// RevokeToken implements gateway.Revocations. The mark is lost with Redis's memory.
func (s *Store) RevokeToken(ctx context.Context, serviceID, token string, life time.Duration) error {
	return s.mark(ctx, logoutScript, logoutKey(serviceID, token), life)
}

// RevokeUser implements gateway.Revocations. Tokens admitted since an earlier kick are
// refused too. The mark is lost with Redis's memory.
func (s *Store) RevokeUser(ctx context.Context, serviceID, userID string, life time.Duration) error {
	return s.mark(ctx, kickScript, kickKey(serviceID, userID), life)
}

func (s *Store) mark(ctx context.Context, script *goredis.Script, key string, life time.Duration) error {
	return harmless(script.Run(ctx, s.client, []string{key}, max(1, life.Milliseconds())).Err())
}

// Admit implements gateway.Revocations. The error may be gateway.ErrTooManyAdmitted.
func (s *Store) Admit(ctx context.Context, serviceID, token, userID string) error {
	// Two steps, since in a cluster the marks are in two places. The kick's is first: a
	// token that stays refused for one of the two is what a failure in between leaves.
	admitted, err := admitScript.Run(ctx, s.client, []string{kickKey(serviceID, userID)}, hexSHA256(token), 1+maxAdmitted).Bool()
	if err != nil {
		return harmless(err)
	}
	if err := s.client.Del(ctx, logoutKey(serviceID, token)).Err(); err != nil {
		return harmless(err)
	}
	if !admitted {
		return gateway.ErrTooManyAdmitted
	}
	return nil
}

// Revoked implements gateway.Revocations, in one round trip. A token issued in the
// millisecond of the kick counts as older.
func (s *Store) Revoked(ctx context.Context, serviceID, token, userID string, issuedAt time.Time) (bool, error) {
	var logout *goredis.IntCmd
	var kick *goredis.SliceCmd
	// The pipeline's error is that of one of its commands, which are looked at one by one.
	_, _ = s.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		logout = pipe.Exists(ctx, logoutKey(serviceID, token))
		if userID != "" {
			kick = pipe.HMGet(ctx, kickKey(serviceID, userID), kickedAt, hexSHA256(token))
		}
		return nil
	})
	marked, err := logout.Result()
	switch {
	case err != nil:
		return false, harmless(err)
	case marked > 0:
		return true, nil
	case kick == nil:
		return false, nil
	}
	fields, err := kick.Result()
	switch {
	case err != nil:
		return false, harmless(err)
	case fields[0] == nil, fields[1] != nil: // not kicked out, or admitted since
		return false, nil
	}
	at, err := strconv.ParseInt(fmt.Sprint(fields[0]), 10, 64)
	if err != nil {
		return false, errors.New("a kick mark in Redis (gateway:kick:…) does not hold the time of the kick")
	}
	return issuedAt.IsZero() || issuedAt.UnixMilli() <= at, nil
}
