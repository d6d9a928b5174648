package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// askInterval is how often tokens whose key is not known, which anybody can make,
	// may cause the key server to be asked.
	askInterval = 10 * time.Second

	fetchTimeout     = 5 * time.Second
	maxKeySetBytes   = 1 << 20
	maxKeyServerHops = 3
)

// keyServer knows the keys that are published at a URL (a JWK Set, RFC 7517 5). It is
// safe for concurrent use.
type keyServer struct {
	url    string
	client *http.Client
	maxAge time.Duration
	usable func(verificationKey) bool
	log    *slog.Logger
	now    func() time.Time

	fetches singleflight.Group

	mu        sync.Mutex
	keys      []verificationKey // of the last good answer; never changed, only replaced
	fetchedAt time.Time         // when that came; zero = none yet
	askedAt   time.Time         // when the last answer, good or bad, came; zero = none yet
	askErr    error             // why that was bad
	skipped   map[string]bool   // what was logged about the last set
}

func newKeyServer(address string, maxAge time.Duration, usable func(verificationKey) bool, log *slog.Logger, now func() time.Time) *keyServer {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // of the standard library
	transport.DisableKeepAlives = true                           // one request in minutes: nothing to close, and none is repeated since a kept connection broke
	if parsed, err := url.Parse(address); err == nil {
		log = log.With("server", parsed.Host) // no more of it: a URL can hold a password
	}
	return &keyServer{
		url: address, maxAge: maxAge, usable: usable, log: log, now: now,
		client: &http.Client{Transport: transport, CheckRedirect: stayWithServer},
	}
}

// stayWithServer follows a redirect only within the server that was configured.
func stayWithServer(next *http.Request, before []*http.Request) error {
	first := before[0].URL
	switch {
	case len(before) > maxKeyServerHops:
		return errors.New("too many redirects")
	case next.URL.Scheme != first.Scheme || next.URL.Host != first.Host:
		return errors.New("it redirects to another server")
	}
	return nil
}

// known returns the keys without asking, and whether they may still be believed.
func (s *keyServer) known() (keys []verificationKey, isBelieved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys, !s.fetchedAt.IsZero() && s.now().Sub(s.fetchedAt) <= s.maxAge
}

// ask returns the keys that are published now: an answer that came less than notWithin
// ago, or else a new one, which all who ask meanwhile share. An error means that they
// are not known.
func (s *keyServer) ask(ctx context.Context, notWithin time.Duration) ([]verificationKey, error) {
	// The fetch is nobody's: the first to ask may go away while the others wait. It
	// ends by itself, within fetchTimeout.
	fetch := s.fetches.DoChan("", func() (any, error) {
		if keys, isRecent, err := s.lastAnswer(notWithin); isRecent {
			return keys, err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		keys, skipped, err := s.fetch(ctx)
		s.learn(ctx, keys, skipped, err)
		return keys, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case answer := <-fetch:
		keys, _ := answer.Val.([]verificationKey)
		return keys, answer.Err
	}
}

func (s *keyServer) lastAnswer(within time.Duration) (keys []verificationKey, isRecent bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.askedAt.IsZero() || s.now().Sub(s.askedAt) >= within {
		return nil, false, nil
	}
	return s.keys, true, s.askErr
}

// learn keeps a good answer. After a bad one, what was known stays known until it is too old.
func (s *keyServer) learn(ctx context.Context, keys []verificationKey, skipped []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askedAt, s.askErr = s.now(), err
	if err == nil {
		s.keys, s.fetchedAt = keys, s.askedAt
	} else {
		s.log.WarnContext(ctx, "published keys not fetched", "error", err)
	}
	if err == nil || len(skipped) > 0 { // the server gave a set
		s.logSkipped(ctx, skipped)
	}
}

// logSkipped logs what it has not logged of the set before.
func (s *keyServer) logSkipped(ctx context.Context, skipped []string) {
	logged := s.skipped
	s.skipped = make(map[string]bool, len(skipped))
	for _, why := range skipped {
		if !logged[why] && !s.skipped[why] {
			s.log.WarnContext(ctx, "published key skipped", "reason", why)
		}
		s.skipped[why] = true
	}
}

// run fetches the keys every refresh, or sooner after a failure, until ctx ends.
func (s *keyServer) run(ctx context.Context, refresh time.Duration) error {
	for {
		wait := refresh
		if _, err := s.ask(ctx, 0); err != nil {
			wait = min(refresh, askInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// fetch returns the usable keys of the set, at least one, and why others are skipped.
func (s *keyServer) fetch(ctx context.Context) (keys []verificationKey, skipped []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, nil, errors.New("the address cannot be used")
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return nil, nil, withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("the server answered with status %d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxKeySetBytes+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("the answer broke off: %w", err)
	case len(body) > maxKeySetBytes:
		return nil, nil, fmt.Errorf("the answer is longer than %d bytes", maxKeySetBytes)
	}
	return s.parse(body)
}

// withoutURL drops the address from an error, whose query may be a secret.
func withoutURL(err error) error {
	var requestErr *url.Error
	if errors.As(err, &requestErr) {
		return requestErr.Err
	}
	return err
}

func (s *keyServer) parse(body []byte) (keys []verificationKey, skipped []string, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, nil, errors.New("the answer is not a JWK Set")
	}
	for i, text := range set.Keys {
		key, err := parseJWK(text)
		switch {
		case err != nil:
			skipped = append(skipped, fmt.Sprintf("key %d of the set %s", i+1, err))
		case !s.usable(key):
			skipped = append(skipped, fmt.Sprintf("key %d of the set fits none of the algorithms", i+1))
		case len(keys) == maxKeys:
			return nil, nil, fmt.Errorf("the set has more than %d keys that can be used", maxKeys)
		default:
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, skipped, errors.New("the set has no key that can be used")
	}
	return keys, skipped, nil
}
