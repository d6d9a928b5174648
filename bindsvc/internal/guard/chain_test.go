package guard

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/policy/policytest"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// teapot is a guard that nothing else knows of.
type teapot struct {
	failure Failure
	answer  error
}

func (teapot) Name() string                             { return "teapot" }
func (teapot) Cost() Cost                               { return CostRoundTrip }
func (g teapot) Failure(*Question) Failure              { return g.failure }
func (g teapot) Check(context.Context, *Question) error { return g.answer }

// ask puts a question to a chain of it and another guard.
func (g teapot) ask(t *testing.T) (*gateway.Error, map[string]int64) {
	t.Helper()
	c := newChain([]Guard{g, maintenance{}}, nil, policy.Empty, slog.New(slog.DiscardHandler), time.Now)
	err := c.Check(t.Context(), c.Question(gateway.Request{Path: "/x"}, gateway.Service{ID: "ai"}))
	state := c.States()[1]
	require.Equal(t, "teapot", state.Name, "the cheaper one is asked first")
	counts := map[string]int64{}
	for i, name := range Results {
		if state.Counts[i] > 0 {
			counts[name] = state.Counts[i]
		}
	}
	var refusal *gateway.Error
	errors.As(err, &refusal)
	return refusal, counts
}

// What a new guard needs is itself: the chain knows what to do with its answers.
func TestAnyGuardFitsTheChain(t *testing.T) {
	refusal, counts := teapot{failure: Closed}.ask(t)
	require.Nil(t, refusal)
	require.Equal(t, map[string]int64{"passed": 1}, counts)

	refusal, counts = teapot{failure: Open, answer: &gateway.Error{Reason: gateway.Forbidden}}.ask(t)
	require.Equal(t, gateway.Forbidden, refusal.Reason)
	require.Equal(t, "teapot", refusal.Guard)
	require.Equal(t, map[string]int64{"refused": 1}, counts)

	refusal, counts = teapot{failure: Open, answer: errors.New("no water")}.ask(t)
	require.Nil(t, refusal)
	require.Equal(t, map[string]int64{"unchecked": 1}, counts)

	refusal, counts = teapot{failure: Closed, answer: errors.New("no water")}.ask(t)
	require.Equal(t, gateway.StoreUnavailable, refusal.Reason)
	require.Equal(t, map[string]int64{"unchecked": 1}, counts)
}

// unknownKey is a Subjects of tokens whose key is not published (yet).
type unknownKey struct{}

func (unknownKey) Subject(context.Context, string, string, *policy.IdentityRule) (Subject, error) {
	return Subject{}, session.ErrUnknownKey
}

func TestATokenOfAnUnknownKeyIsNobodysGuest(t *testing.T) {
	store := &policytest.Memory{}
	store.Put(gateway.PolicyIdentity, "ai", `{"mode":"jwt","public":["/pub/**"],"jwt":{"algorithms":["RS256"],"jwksUrl":"https://login.example/keys"}}`)
	policies := policytest.NewKeeper(t, store, nil, time.Now)
	c := newChain([]Guard{identity{noneRevoked{}}}, unknownKey{}, policies.Snapshot, slog.New(slog.DiscardHandler), time.Now)
	for _, path := range []string{"/pub/x", "/x"} {
		err := c.Check(t.Context(), c.Question(gateway.Request{Path: path, Token: "a.b.c"}, gateway.Service{ID: "ai"}))
		var refusal *gateway.Error
		require.ErrorAs(t, err, &refusal, path)
		require.Equal(t, gateway.Unauthenticated, refusal.Reason)
	}
}
