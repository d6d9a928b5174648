package redis

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// pendingKey is a hash of "<kind>/<id>" -> pendingChange.
const pendingKey = "gateway:policy:pending"

func pendingField(change gateway.PolicyChange) string { return string(change.Kind) + "/" + change.ID }

// pendingChange is a gateway.PendingPolicy as JSON.
type pendingChange struct {
	Body  json.RawMessage `json:"body"` // null: there is to be none
	Actor pendingActor    `json:"actor"`
	At    time.Time       `json:"at"`
}

type pendingActor struct {
	Name      string `json:"name"`
	Address   string `json:"address"`
	RequestID string `json:"requestId"`
}

// addPendingScript sets field ARGV[1] to ARGV[2] and tells the followers, on the channel
// ARGV[3], in one step: whoever is told finds the change.
var addPendingScript = goredis.NewScript(`
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('PUBLISH', ARGV[3], ARGV[1])
`)

// AddPending implements gateway.PolicyCache. After an error the change may have been taken all the same.
func (s *Store) AddPending(ctx context.Context, pending gateway.PendingPolicy) error {
	value, err := encode(pendingChange{pending.Body, pendingActor(pending.Actor), pending.At.UTC()})
	if err != nil {
		return fmt.Errorf("policy %s: %w", pendingField(pending.PolicyChange), err)
	}
	err = addPendingScript.Run(ctx, s.client, []string{pendingKey}, pendingField(pending.PolicyChange), value, policyChannel).Err()
	return harmless(err)
}

// PendingPolicies implements gateway.PolicyCache, the oldest first.
func (s *Store) PendingPolicies(ctx context.Context) ([]gateway.PendingPolicy, error) {
	hash, err := s.client.HGetAll(ctx, pendingKey).Result()
	if err != nil {
		return nil, readError(pendingKey, err)
	}
	var all []gateway.PendingPolicy
	for field, value := range hash {
		pending, err := decodePending(field, value)
		if err != nil {
			return nil, err
		}
		all = append(all, pending)
	}
	slices.SortFunc(all, func(a, b gateway.PendingPolicy) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(pendingField(a.PolicyChange), pendingField(b.PolicyChange)))
	})
	return all, nil
}

func decodePending(field, value string) (gateway.PendingPolicy, error) {
	kind, id, ok := strings.Cut(field, "/")
	if !ok {
		return gateway.PendingPolicy{}, &unreadableError{pendingKey, fmt.Sprintf("field %q is no kind/id", field)}
	}
	var p pendingChange
	err := decodeObject(value, &p, &p.Body)
	if errors.Is(err, errNoObject) && string(p.Body) == "null" {
		p.Body, err = nil, nil
	}
	if err != nil {
		return gateway.PendingPolicy{}, &unreadableError{pendingKey, fmt.Sprintf("field %q: %v", field, err)}
	}
	return gateway.PendingPolicy{
		PolicyChange: gateway.PolicyChange{Kind: gateway.PolicyKind(kind), ID: id, Body: p.Body},
		Actor:        gateway.Actor(p.Actor), At: p.At,
	}, nil
}

// removePendingScript deletes field ARGV[1] if its value is still ARGV[2].
var removePendingScript = goredis.NewScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
`)

// RemovePending implements gateway.PolicyCache.
func (s *Store) RemovePending(ctx context.Context, pending gateway.PendingPolicy) error {
	field := pendingField(pending.PolicyChange)
	value, err := s.client.HGet(ctx, pendingKey, field).Result()
	switch {
	case errors.Is(err, goredis.Nil):
		return nil
	case err != nil:
		return readError(pendingKey, err)
	}
	// What it says is compared, not how: a hand may have written it with other spaces.
	now, err := decodePending(field, value)
	if err != nil || !samePending(now, pending) {
		return err
	}
	return harmless(removePendingScript.Run(ctx, s.client, []string{pendingKey}, field, value).Err())
}

func samePending(a, b gateway.PendingPolicy) bool {
	return a.Actor == b.Actor && a.At.Equal(b.At) && (a.Body == nil) == (b.Body == nil) && bytes.Equal(compact(a.Body), compact(b.Body))
}

// compact is JSON without spaces, or what is not JSON as it is.
func compact(body json.RawMessage) []byte {
	var text bytes.Buffer
	if err := json.Compact(&text, body); err != nil {
		return body
	}
	return text.Bytes()
}
