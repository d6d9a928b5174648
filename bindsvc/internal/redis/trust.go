package redis

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// errNotTrusted is returned instead of a cached route that may be outdated.
var errNotTrusted = errors.New("the cached routes in Redis are not trusted before they have been flushed")

const (
	regainFirst = 100 * time.Millisecond
	regainMax   = 2 * time.Second
)

// trust knows whether every change has reached the cached routes. It is lost when
// an invalidation fails, and when a connection meets a Redis process, or a history
// of one, that this one has not seen: one restarted from an old snapshot, or a
// replica promoted before it had everything, holds routes that were invalidated. A flush that
// began after the loss restores it.
type trust struct {
	log  *slog.Logger
	lost chan struct{} // wakes regain

	mu         sync.Mutex
	generation uint64 // of losses
	trusted    bool
	seen       map[string]bool // the Redis processes and their histories
}

func newTrust(log *slog.Logger) *trust {
	t := &trust{log: log, lost: make(chan struct{}, 1), seen: map[string]bool{}}
	t.lost <- struct{}{} // nothing is known of what the cache holds
	return t
}

// state returns the generation, and whether the cache is trusted in it.
func (t *trust) state() (generation uint64, trusted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.generation, t.trusted
}

// holds reports whether the cache has been trusted since the generation.
func (t *trust) holds(generation uint64) bool {
	now, trusted := t.state()
	return trusted && now == generation
}

func (t *trust) lose(ctx context.Context, why string, err error) {
	t.mu.Lock()
	had := t.trusted
	t.generation++
	t.trusted = false
	t.mu.Unlock()
	select {
	case t.lost <- struct{}{}:
	default:
	}
	if had {
		t.log.WarnContext(ctx, "cached routes in Redis not used until they have been flushed", "why", why, "error", err)
	}
}

// restore trusts the cache after a flush that began in the generation, unless
// trust has been lost since.
func (t *trust) restore(generation uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.generation == generation {
		t.trusted = true
	}
	return t.generation == generation
}

// meet is called on every new connection, before it is used.
func (t *trust) meet(ctx context.Context, conn *goredis.Conn) error {
	var info string
	for _, section := range []string{"server", "replication"} {
		answer, err := conn.Info(ctx, section).Result()
		var reply goredis.Error
		if err != nil && !errors.As(err, &reply) { // one who may not ask INFO takes all such servers for one
			return err
		}
		info += answer + "\n"
	}
	if field(info, "redis_mode") == "sentinel" { // keeps no routes
		return nil
	}
	// The process, and its history: the latter is a new one when a replica becomes the
	// master, also one that was the master before and has lost the last writes.
	id := field(info, "run_id") + " " + field(info, "master_replid")
	t.mu.Lock()
	isNew := !t.seen[id]
	t.seen[id] = true
	t.mu.Unlock()
	if isNew {
		t.lose(ctx, "connected to a Redis process not seen before", nil)
	}
	return nil
}

// field returns the value of a line "name:value" of an INFO answer.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// regain flushes whenever trust is lost, until that succeeds or ctx ends.
func (t *trust) regain(ctx context.Context, flush func(context.Context) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.lost:
		}
		for pause := regainFirst; ; pause = min(2*pause, regainMax) {
			if _, trusted := t.state(); trusted {
				break // by somebody else's flush
			}
			err := flush(ctx)
			if err == nil {
				t.log.InfoContext(ctx, "cached routes in Redis flushed, and used from now on")
				break
			}
			t.log.DebugContext(ctx, "cached routes in Redis not flushed yet", "error", err, "again_in", pause)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
}
