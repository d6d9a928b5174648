package sqlite

import (
	"context"
	"sync"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// pollInterval is how often the file is asked whether another process has written.
const pollInterval = 200 * time.Millisecond

// manyChanges is when a follower that has fallen behind is told "anything" instead.
const manyChanges = 1000

func anything() []gateway.Change {
	return []gateway.Change{{Kind: gateway.ChangeBindings}, {Kind: gateway.ChangeRegistry}, {Kind: gateway.ChangePolicies}, {Kind: gateway.ChangeRoles}}
}

// Follow implements gateway.ChangeFeed, until ctx ends; then it returns nil. This
// process's own writes are told one by one. SQLite tells of another process's only
// that there was one.
func (s *Store) Follow(ctx context.Context, live func(bool), changed func(gateway.Change)) error {
	own := s.hub.join()
	defer s.hub.leave(own)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()

	isLive, known := false, int64(0)
	for {
		version, err := s.dataVersion(ctx)
		switch {
		case err != nil && isLive && ctx.Err() == nil:
			isLive = false
			live(false)
			s.log.WarnContext(ctx, "changes of other processes may be missed", "error", err)
		case err == nil && !isLive:
			isLive = true
			live(true)
		case err == nil && version != known:
			for _, change := range anything() {
				changed(change)
			}
		}
		known = version
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				if isLive {
					live(false)
				}
				return nil
			case <-own.wake:
				for _, change := range own.take() {
					changed(change)
				}
			case <-ticker.C:
				waiting = false
			}
		}
	}
}

// dataVersion changes whenever another connection has committed. It is asked on
// the connection of all writes of this process, which therefore do not count.
func (s *Store) dataVersion(ctx context.Context) (version int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err = s.write.QueryRowContext(ctx, `PRAGMA data_version`).Scan(&version)
	return version, err
}

// hub passes this process's changes on to its followers.
type hub struct {
	mu        sync.Mutex
	followers map[*follower]struct{}
}

type follower struct {
	mu      sync.Mutex
	pending []gateway.Change
	wake    chan struct{}
}

func (h *hub) join() *follower {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.followers == nil {
		h.followers = map[*follower]struct{}{}
	}
	f := &follower{wake: make(chan struct{}, 1)}
	h.followers[f] = struct{}{}
	return f
}

func (h *hub) leave(f *follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.followers, f)
}

func (h *hub) publish(changes ...gateway.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for f := range h.followers {
		f.put(changes)
	}
}

// put never waits for the follower.
func (f *follower) put(changes []gateway.Change) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, changes...)
	if len(f.pending) > manyChanges {
		f.pending = anything()
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) take() []gateway.Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	changes := f.pending
	f.pending = nil
	return changes
}
