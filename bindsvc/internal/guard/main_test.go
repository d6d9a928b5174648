package guard_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/policy/policytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	discard = slog.New(slog.DiscardHandler)
	errDown = errors.New("down")
)

// world is everything that guards ask, as plain values.
type world struct {
	t        testing.TB
	now      time.Time
	store    *policytest.Memory
	policies *policy.Keeper
	chain    *guard.Chain

	users      map[string]string // token -> user
	sessionErr error
	revoked    map[string]bool // by token
	revokedErr error
	roles      map[string][]string
	rolesErr   error
	rolesAsked int
	limiter    gateway.Limiter
	nonces     gateway.Nonces
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newWorld(t testing.TB) *world {
	w := &world{t: t, now: start, store: &policytest.Memory{}, users: map[string]string{"t7": "7", "t8": "8"}, revoked: map[string]bool{}, roles: map[string][]string{}}
	clock := func() time.Time { return w.now }
	buckets := guard.NewBuckets(clock)
	t.Cleanup(buckets.Close)
	w.limiter, w.nonces = buckets, buckets
	directory := guard.NewDirectory(w, discard, clock)
	t.Cleanup(directory.Close)
	w.policies = policytest.NewKeeper(t, w.store, nil, clock)
	w.chain = guard.NewChain(guard.Parts{Subjects: directory, Revocations: w, Nonces: w, Limiter: w, Roles: w}, w.policies.Snapshot, discard, clock)
	return w
}

func (w *world) set(kind gateway.PolicyKind, id, body string) {
	w.t.Helper()
	policytest.Set(w.t, w.policies, kind, id, body)
}

func (w *world) UserByToken(_ context.Context, _, token string) (string, error) {
	if w.sessionErr != nil {
		return "", w.sessionErr
	}
	if user, ok := w.users[token]; ok {
		return user, nil
	}
	return "", gateway.ErrNotFound
}

func (w *world) RevokeToken(context.Context, string, string, time.Duration) error { return nil }
func (w *world) RevokeUser(context.Context, string, string, time.Duration) error  { return nil }
func (w *world) Admit(context.Context, string, string, string) error              { return nil }

func (w *world) Revoked(_ context.Context, _, token, _ string, _ time.Time) (bool, error) {
	return w.revoked[token], w.revokedErr
}

func (w *world) RolesOf(_ context.Context, _, user string) ([]string, error) {
	w.rolesAsked++
	return w.roles[user], w.rolesErr
}

func (w *world) Take(ctx context.Context, service string, buckets []gateway.Bucket) (gateway.Admission, error) {
	return w.limiter.Take(ctx, service, buckets)
}

func (w *world) Peek(ctx context.Context, service string, buckets []gateway.Bucket) (gateway.Admission, error) {
	return w.limiter.Peek(ctx, service, buckets)
}

func (w *world) UseNonce(ctx context.Context, app, nonce string, life time.Duration) (bool, error) {
	return w.nonces.UseNonce(ctx, app, nonce, life)
}

// downLimiter is a gateway.Limiter and gateway.Nonces that cannot be asked.
type downLimiter struct{}

func (downLimiter) Take(context.Context, string, []gateway.Bucket) (gateway.Admission, error) {
	return gateway.Admission{}, errDown
}

func (downLimiter) Peek(context.Context, string, []gateway.Bucket) (gateway.Admission, error) {
	return gateway.Admission{}, errDown
}

func (downLimiter) UseNonce(context.Context, string, string, time.Duration) (bool, error) {
	return false, errDown
}

// get is a request of a plugin that has told everything.
func get(path string) gateway.Request {
	return gateway.Request{
		ServiceID: "ai", Method: "GET", Path: path, Form: gateway.Form{State: gateway.FormNone},
		CanTellMore: true, AddressTold: true, QueryTold: true, SourceTold: true, Address: netip.MustParseAddr("192.0.2.1"),
	}
}

func with(req gateway.Request, change func(*gateway.Request)) gateway.Request {
	change(&req)
	return req
}

func token(token string) func(*gateway.Request) {
	return func(r *gateway.Request) { r.Token = token }
}

// ask returns the reason of the refusal, empty if the request passes.
func (w *world) ask(req gateway.Request) gateway.Reason {
	w.t.Helper()
	refusal, _ := w.check(w.t.Context(), req)
	if refusal == nil {
		return ""
	}
	return refusal.Reason
}

func (w *world) check(ctx context.Context, req gateway.Request) (*gateway.Error, *guard.Question) {
	w.t.Helper()
	q := w.chain.Question(req, gateway.Service{ID: req.ServiceID, PathPrefix: "/js/a"})
	err := w.chain.Check(ctx, q)
	if err == nil {
		_, _ = q.Subject(ctx) // as the decision does
	}
	w.chain.Remember(ctx, q)
	if err == nil {
		return nil, q
	}
	var refusal *gateway.Error
	require.ErrorAs(w.t, err, &refusal)
	return refusal, q
}

// counts are those of one guard, by name of the result.
func (w *world) counts(name string) map[string]int64 {
	counts := map[string]int64{}
	for _, state := range w.chain.States() {
		for i, result := range guard.Results {
			if state.Name == name && state.Counts[i] > 0 {
				counts[result] = state.Counts[i]
			}
		}
	}
	return counts
}
