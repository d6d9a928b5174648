package redis

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

var _ gateway.Limiter = (*Store)(nil)

// bucketsScript looks at every bucket before it writes any. KEYS are the buckets; ARGV is
// "take" or "peek", then rate and burst of each. It answers {the number of the bucket that
// is empty for longest, or 0; the microseconds until that one holds one again}.
//
// A bucket is "level microseconds": what it held, and when. It is not written when it
// refuses, which is what an attacker makes it do most: what it gains is reckoned from
// the last admission. Only a clock that was set back is noted at once, since the bucket
// would gain nothing until the clock is where it was.
var bucketsScript = goredis.NewScript(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local refused, wait, set_back = 0, 0, false
local buckets = {}
for i, key in ipairs(KEYS) do
  local rate, burst = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
  local level = burst
  local state = redis.call('GET', key)
  if state then
    local held, at = string.match(state, '^([%d.e+-]+) (%d+)$')
    held, at = tonumber(held), tonumber(at)
    if not held or not at then
      return redis.error_reply('BADBUCKET the value at a key of the limiter is no bucket')
    end
    set_back = set_back or now < at
    level = math.min(burst, held + math.max(0, now - at) * rate / 1000000)
  end
  buckets[i] = {rate = rate, burst = burst, level = level}
  if level < 1 then
    local until_one = math.min(math.ceil((1 - level) / rate * 1000000), 1e15)
    if until_one > wait then
      refused, wait = i, until_one
    end
  end
end
if ARGV[1] == 'take' and (refused == 0 or set_back) then
  for i, key in ipairs(KEYS) do
    local b = buckets[i]
    if refused == 0 then
      b.level = b.level - 1
    end
    local until_full = math.min(math.ceil((b.burst - b.level) / b.rate * 1000), 1e12)
    redis.call('SET', key, string.format('%.17g %.0f', b.level, now), 'PX', string.format('%.0f', until_full + 1000))
  end
end
return {refused, wait}
`)

// Take implements gateway.Limiter. It is one atomic script; each bucket needs a key of its
// own. If several are empty, the Admission tells of the one that stays empty longest. A
// bucket is forgotten a second after it is full again, and with Redis: then it begins full.
// A changed Rate or Burst counts from the next call. An answer that is lost on the way may have cost one.
func (s *Store) Take(ctx context.Context, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	return s.askBuckets(ctx, "take", serviceID, buckets)
}

// Peek implements gateway.Limiter. It writes nothing.
func (s *Store) Peek(ctx context.Context, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	return s.askBuckets(ctx, "peek", serviceID, buckets)
}

func (s *Store) askBuckets(ctx context.Context, command, serviceID string, buckets []gateway.Bucket) (gateway.Admission, error) {
	if len(buckets) == 0 {
		return gateway.Admission{Allowed: true}, nil
	}
	keys, args := make([]string, 0, len(buckets)), make([]any, 0, 1+2*len(buckets))
	args = append(args, command)
	for i, b := range buckets {
		// Written so that NaN, too, is neither.
		if !(b.Rate > 0) || math.IsInf(b.Rate, 0) || !(b.Burst >= 1) || math.IsInf(b.Burst, 0) {
			return gateway.Admission{}, fmt.Errorf("bucket %d: want a rate over 0 and a burst of at least 1, have %g and %g", i, b.Rate, b.Burst)
		}
		keys = append(keys, limitKey(serviceID, b.Key))
		args = append(args, decimal(b.Rate), decimal(b.Burst))
	}
	answer, err := bucketsScript.Run(ctx, s.client, keys, args...).Int64Slice()
	switch {
	case err != nil:
		return gateway.Admission{}, harmless(err)
	case len(answer) != 2 || answer[0] < 0 || answer[0] > int64(len(buckets)):
		return gateway.Admission{}, fmt.Errorf("the limiter's script answered %v", answer)
	case answer[0] == 0:
		return gateway.Admission{Allowed: true}, nil
	}
	return gateway.Admission{Refused: int(answer[0] - 1), RetryAfter: time.Duration(answer[1]) * time.Microsecond}, nil
}

// limitKey has the service as the cluster's hash tag: all buckets of a call are in one slot.
func limitKey(serviceID, key string) string {
	return "gateway:limit:{" + serviceID + "}:" + bounded(key)
}

// decimal loses nothing of the number.
func decimal(number float64) string { return strconv.FormatFloat(number, 'g', -1, 64) }

// bounded is the part of a key that others than the gateway choose, or its hash if it is long.
func bounded(part string) string {
	if len(part) <= 128 {
		return part
	}
	return "sha256:" + hexSHA256(part)
}

func hexSHA256(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
