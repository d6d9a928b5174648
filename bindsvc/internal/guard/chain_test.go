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
