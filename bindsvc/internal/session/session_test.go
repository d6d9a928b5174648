package session_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

var errDown = errors.New("redis is down")

type tokens struct {
	mu    sync.Mutex
	users map[string]string
	err   error
	asked int
}

func (s *tokens) UserByToken(_ context.Context, svc, token string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.err != nil {
		return "", s.err
	}
	if user, ok := s.users[svc+token]; ok {
		return user, nil
	}
	return "", gateway.ErrNotFound
}

func (s *tokens) PutToken(_ context.Context, svc, token, user string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.users[svc+token] = user
	}
	return s.err
}

func (s *tokens) DropToken(_ context.Context, svc, token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		delete(s.users, svc+token)
	}
	return s.err
}

func (s *tokens) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func setup(t *testing.T) (*session.Resolver, *tokens, *tokens) {
	cache, authority := &tokens{users: map[string]string{}}, &tokens{users: map[string]string{}}
	gate := func() *outage.Gate { return &outage.Gate{Limit: time.Second, Pause: 0} }
	resolver := session.NewResolver(cache, authority, gate(), gate(), session.Names{}, slog.New(slog.DiscardHandler), time.Now)
	t.Cleanup(resolver.Close)
	return resolver, cache, authority
}

func TestTheCacheThenTheAuthority(t *testing.T) {
	resolver, cache, authority := setup(t)
	authority.users["ait"] = "7"
	for range 2 {
		user, err := resolver.UserByToken(t.Context(), "ai", "t")
		require.NoError(t, err)
		require.Equal(t, "7", user)
	}
	require.Equal(t, 1, authority.asked)
	require.Equal(t, "7", cache.users["ait"], "what the authority said is cached")
	_, err := resolver.UserByToken(t.Context(), "other", "t")
	require.ErrorIs(t, err, gateway.ErrNotFound, "a token is one service's")
}

func TestAStoreThatCannotBeAskedIsNotUnknown(t *testing.T) {
	for _, down := range []string{"cache", "authority"} {
		t.Run(down, func(t *testing.T) {
			resolver, cache, authority := setup(t)
			map[string]*tokens{"cache": cache, "authority": authority}[down].set(errDown)
			_, err := resolver.UserByToken(t.Context(), "ai", "t")
			require.ErrorIs(t, err, errDown)
		})
	}
}

func TestAKnownTokenWorksWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver, cache, _ := setup(t)
		resolver.Learn(t.Context(), "ai", "t", "7")
		cache.set(errDown)
		time.Sleep(time.Hour)
		user, err := resolver.UserByToken(t.Context(), "ai", "t")
		require.NoError(t, err)
		require.Equal(t, "7", user)
	})
}

func TestALoggedOutTokenIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver, cache, _ := setup(t)
		resolver.Learn(t.Context(), "ai", "t", "7")
		delete(cache.users, "ait")
		time.Sleep(time.Hour)
		_, err := resolver.UserByToken(t.Context(), "ai", "t")
		require.ErrorIs(t, err, gateway.ErrNotFound)
	})
}

func TestWhatCouldNotBeCachedIsCachedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver, cache, _ := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- resolver.Run(ctx) }()
		cache.set(errDown)
		resolver.Learn(ctx, "ai", "t", "7")
		time.Sleep(5 * time.Second)
		cache.set(nil)
		time.Sleep(90 * time.Second) // long enough for the copy in memory not to be believed any more
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, "7", cache.users["ait"])
	})
}

func TestATokenTheCacheHasNotLearnedYetIsNotAnonymous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver, cache, _ := setup(t)
		cache.set(errDown)
		resolver.Learn(t.Context(), "ai", "t", "7")
		cache.set(nil) // back, but Run has not come round
		time.Sleep(2 * time.Minute)
		user, err := resolver.UserByToken(t.Context(), "ai", "t")
		require.NoError(t, err)
		require.Equal(t, "7", user)
	})
}

// Without an authority, a token that another instance learned while the cache was
// away is in no store for a moment.
func TestAfterAnOutageAnUnknownTokenIsDoubtedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &tokens{users: map[string]string{}}
		gate := func() *outage.Gate { return &outage.Gate{Limit: time.Second, Pause: 0} }
		resolver := session.NewResolver(cache, nil, gate(), gate(), session.Names{}, slog.New(slog.DiscardHandler), time.Now)
		defer resolver.Close()
		ask := func() error {
			_, err := resolver.UserByToken(t.Context(), "ai", "t")
			return err
		}
		require.ErrorIs(t, ask(), gateway.ErrNotFound)
		cache.set(context.Canceled)
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err := resolver.UserByToken(gone, "ai", "t")
		require.ErrorIs(t, err, context.Canceled)
		cache.set(nil)
		require.ErrorIs(t, ask(), gateway.ErrNotFound, "a caller that went away says nothing about the cache")
		cache.set(errDown)
		require.ErrorIs(t, ask(), errDown)
		cache.set(nil)
		require.NotErrorIs(t, ask(), gateway.ErrNotFound)
		time.Sleep(6 * time.Second)
		require.ErrorIs(t, ask(), gateway.ErrNotFound)
	})
}

func TestALaterLoginWins(t *testing.T) {
	resolver, cache, _ := setup(t)
	resolver.Learn(t.Context(), "ai", "t", "7")
	resolver.Learn(t.Context(), "ai", "t", "8")
	user, err := resolver.UserByToken(t.Context(), "ai", "t")
	require.NoError(t, err)
	require.Equal(t, "8", user)
	require.Equal(t, "8", cache.users["ait"])
}

func TestATokenBeyondTheLimitIsNobodys(t *testing.T) {
	resolver, cache, _ := setup(t)
	long := strings.Repeat("x", gateway.MaxTokenBytes+1)
	resolver.Learn(t.Context(), "ai", long, "7")
	_, err := resolver.UserByToken(t.Context(), "ai", long)
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.Zero(t, cache.asked)
}

func TestForget(t *testing.T) {
	resolver, cache, _ := setup(t)
	resolver.Learn(t.Context(), "ai", "t", "7")
	require.NoError(t, resolver.Forget(t.Context(), "ai", "t"))
	require.NotContains(t, cache.users, "ait")
	_, err := resolver.UserByToken(t.Context(), "ai", "t")
	require.ErrorIs(t, err, gateway.ErrNotFound)

	cache.set(errors.New("down"))
	resolver.Learn(t.Context(), "ai", "not written yet", "7")
	require.Error(t, resolver.Forget(t.Context(), "ai", "not written yet"), "to be tried again")
	cache.set(nil)
	_, err = resolver.UserByToken(t.Context(), "ai", "not written yet")
	require.ErrorIs(t, err, gateway.ErrNotFound, "nor is it written later")
}
