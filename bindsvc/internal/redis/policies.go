package redis

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

var _ gateway.PolicyCache = (*Store)(nil)

const (
	policyRevisionKey = "gateway:policy:revision"
	policyChannel     = "gateway:policy:changed" // the message is the revision, or the pending change's field
)

// policyKey is a hash of id -> servedPolicy.
func policyKey(kind gateway.PolicyKind) string { return "gateway:policy:" + string(kind) }

// servedPolicy is a policy as JSON.
type servedPolicy struct {
	Body      json.RawMessage `json:"body"`
	Revision  int64           `json:"revision"`
	UpdatedAt time.Time       `json:"updatedAt"`
}

// policyChunk is how many fields one command writes: Redis sees to others between reading two commands.
const policyChunk = 500

// announceScript makes ARGV[1] the served revision and tells the followers, on the channel ARGV[2].
var announceScript = goredis.NewScript(`
redis.call('SET', KEYS[1], ARGV[1])
return redis.call('PUBLISH', ARGV[2], ARGV[1])
`)

// PublishPolicies implements gateway.PolicyCache. Each kind is replaced at once, the
// revision is written last, and only a change is announced. A kind that this version
// does not know is left alone. What is stored and cannot be read is replaced. It may
// wait for another instance's publication, at most as long as one may take.
func (s *Store) PublishPolicies(ctx context.Context, policies []gateway.Policy, revision int64) error {
	wanted, err := encodePolicies(policies)
	if err != nil {
		return err
	}
	return s.asPublisher(ctx, func(ctx context.Context) error {
		var unreadable *unreadableError
		served, exists, err := s.servedRevision(ctx)
		switch {
		case errors.As(err, &unreadable):
			exists = false
		case err != nil:
			return err
		case exists && served > revision:
			return nil
		}
		changed := !exists || served != revision
		stored := s.storedKinds(ctx)
		for _, kind := range gateway.PolicyKinds {
			now, err := stored[kind].Result()
			if err != nil && !isWrongType(err) {
				return readError(policyKey(kind), err)
			}
			if err == nil && maps.Equal(now, wanted[kind]) {
				continue
			}
			if err := s.replaceHash(ctx, policyKey(kind), wanted[kind]); err != nil {
				return err
			}
			changed = true
		}
		if !changed {
			return nil
		}
		return harmless(announceScript.Run(ctx, s.client, []string{policyRevisionKey}, revision, policyChannel).Err())
	})
}

// encodePolicies are the hashes to store.
func encodePolicies(policies []gateway.Policy) (map[gateway.PolicyKind]map[string]string, error) {
	hashes := map[gateway.PolicyKind]map[string]string{}
	for _, p := range policies {
		value, err := encode(servedPolicy{p.Body, p.Revision, p.UpdatedAt.UTC()})
		if err != nil {
			return nil, fmt.Errorf("policy %s/%s: %w", p.Kind, p.ID, err)
		}
		if hashes[p.Kind] == nil {
			hashes[p.Kind] = map[string]string{}
		}
		hashes[p.Kind][p.ID] = value
	}
	return hashes, nil
}

// encode leaves the characters of a body as they are.
func encode(value any) (string, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "", err
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// replaceHash makes the hash these fields and no others, in one transaction.
func (s *Store) replaceHash(ctx context.Context, key string, fields map[string]string) error {
	_, err := s.client.TxPipelined(ctx, func(pipe goredis.Pipeliner) error {
		pipe.Del(ctx, key)
		for chunk := range slices.Chunk(slices.Sorted(maps.Keys(fields)), policyChunk) {
			args := make([]any, 0, 2*len(chunk))
			for _, field := range chunk {
				args = append(args, field, fields[field])
			}
			pipe.HSet(ctx, key, args...)
		}
		return nil
	})
	return harmless(err)
}

// ServedPolicies implements gateway.PolicyCache, ordered by kind and id. In the middle
// of a publication some kinds may be newer than the revision says, never older.
func (s *Store) ServedPolicies(ctx context.Context) ([]gateway.Policy, int64, error) {
	revision, exists, err := s.servedRevision(ctx) // before the kinds: of two publications, the revision is that of the first
	if err != nil {
		return nil, 0, err
	}
	var policies []gateway.Policy
	for kind, answer := range s.storedKinds(ctx) {
		hash, err := answer.Result()
		if err != nil {
			return nil, 0, readError(policyKey(kind), err)
		}
		for id, value := range hash {
			var p servedPolicy
			if err := decodeObject(value, &p, &p.Body); err != nil {
				return nil, 0, &unreadableError{policyKey(kind), fmt.Sprintf("field %q: %v", id, err)}
			}
			policies = append(policies, gateway.Policy{Kind: kind, ID: id, Body: p.Body, Revision: p.Revision, UpdatedAt: p.UpdatedAt})
		}
	}
	if !exists && len(policies) > 0 {
		return nil, 0, &unreadableError{policyRevisionKey, "there are policies, but no revision"}
	}
	slices.SortFunc(policies, func(a, b gateway.Policy) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return policies, revision, nil
}

var errNoObject = errors.New("the body is no object")

// decodeObject reads JSON into value, whose member body has to be an object.
func decodeObject(text string, value any, body *json.RawMessage) error {
	if err := json.Unmarshal([]byte(text), value); err != nil {
		return err
	}
	if !bytes.HasPrefix(*body, []byte("{")) {
		return errNoObject
	}
	return nil
}

// servedRevision is that of the last complete publication, if there was one.
func (s *Store) servedRevision(ctx context.Context) (revision int64, exists bool, err error) {
	value, err := s.client.Get(ctx, policyRevisionKey).Result()
	switch {
	case errors.Is(err, goredis.Nil):
		return 0, false, nil
	case err != nil:
		return 0, false, readError(policyRevisionKey, err)
	}
	if revision, err = strconv.ParseInt(value, 10, 64); err != nil || revision < 0 {
		return 0, false, &unreadableError{policyRevisionKey, fmt.Sprintf("%q is no revision", value)}
	}
	return revision, true, nil
}

// storedKinds asks for the hashes of all kinds; the answers are looked at one by one.
func (s *Store) storedKinds(ctx context.Context) map[gateway.PolicyKind]*goredis.MapStringStringCmd {
	answers := map[gateway.PolicyKind]*goredis.MapStringStringCmd{}
	_, _ = s.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for _, kind := range gateway.PolicyKinds {
			answers[kind] = pipe.HGetAll(ctx, policyKey(kind))
		}
		return nil
	})
	return answers
}

// One publishes at a time: in a cluster no transaction spans the kinds, and a publication
// that is overtaken would leave its older policies under the newer revision.
const (
	publisherKey   = "gateway:policy:publisher"
	publisherLife  = 10 * time.Second // of one that has died; a live one gives up in half the time
	publisherPause = 50 * time.Millisecond
)

// releaseScript deletes a key whose value is still ARGV[1].
var releaseScript = goredis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
`)

// asPublisher calls publish while nobody else publishes.
func (s *Store) asPublisher(ctx context.Context, publish func(context.Context) error) error {
	me := rand.Text()
	waiting, stop := context.WithTimeout(ctx, 2*publisherLife)
	defer stop()
	for {
		mine, err := s.client.SetNX(waiting, publisherKey, me, publisherLife).Result()
		if err != nil {
			return harmless(err)
		}
		if mine {
			break
		}
		select {
		case <-waiting.Done():
			return fmt.Errorf("another instance publishes policies (%s in Redis): %w", publisherKey, waiting.Err())
		case <-time.After(publisherPause):
		}
	}
	publishing, cancel := context.WithTimeout(ctx, publisherLife/2)
	defer cancel()
	err := publish(publishing)
	// If this fails too, the key expires.
	_ = releaseScript.Run(context.WithoutCancel(ctx), s.client, []string{publisherKey}, me).Err()
	return err
}

// unreadableError is a stored value that is not what the gateway writes.
type unreadableError struct{ key, why string }

func (e *unreadableError) Error() string {
	return e.key + " in Redis cannot be read: " + e.why
}

// readError is the error of a read of the key, which is no secret.
func readError(key string, err error) error {
	if isWrongType(err) {
		return &unreadableError{key, "WRONGTYPE"}
	}
	return fmt.Errorf("%s: %w", key, harmless(err))
}

func isWrongType(err error) bool { return goredis.HasErrorPrefix(err, "WRONGTYPE") }
