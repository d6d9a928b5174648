package guard_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

func TestRolesAreRememberedForFiveMinutes(t *testing.T) {
	w := newWorld(t)
	roles := guard.NewRoles(w, &outage.Gate{Limit: time.Second}, func() time.Time { return w.now })
	t.Cleanup(roles.Close)
	of := func() []string {
		t.Helper()
		have, err := roles.RolesOf(t.Context(), "ai", "7")
		require.NoError(t, err)
		return have
	}
	w.roles["7"] = []string{"a"}
	require.Equal(t, []string{"a"}, of())
	w.roles["7"] = []string{"b"}
	w.now = start.Add(5*time.Minute - time.Second)
	require.Equal(t, []string{"a"}, of())
	require.Equal(t, 1, w.rolesAsked)
	w.now = start.Add(5 * time.Minute)
	require.Equal(t, []string{"b"}, of())

	w.roles["7"] = []string{"c"}
	roles.Changed("ai", "8")
	require.Equal(t, []string{"b"}, of())
	roles.Changed("ai", "7")
	require.Equal(t, []string{"c"}, of())

	w.rolesErr = errDown
	w.now = w.now.Add(time.Hour)
	require.Equal(t, []string{"c"}, of(), "what is known holds while the store cannot be asked")
	roles.MayHaveMissed()
	require.Equal(t, []string{"c"}, of())
	roles.Changed("", "")
	_, err := roles.RolesOf(t.Context(), "ai", "7")
	require.ErrorIs(t, err, errDown)
}

// slowRoles answers with what was so before a change.
type slowRoles struct {
	asked  chan struct{}
	answer chan []string
}

func (s slowRoles) RolesOf(context.Context, string, string) ([]string, error) {
	s.asked <- struct{}{}
	return <-s.answer, nil
}

func TestAnAnswerFromBeforeAChangeIsNotKept(t *testing.T) {
	slow := slowRoles{make(chan struct{}), make(chan []string)}
	roles := guard.NewRoles(slow, &outage.Gate{Limit: time.Minute}, time.Now)
	t.Cleanup(roles.Close)
	got := make(chan []string)
	ask := func() {
		have, err := roles.RolesOf(context.Background(), "ai", "7")
		if err == nil {
			got <- have
		}
	}
	go ask()
	<-slow.asked
	roles.Changed("ai", "7")
	slow.answer <- []string{"before"}
	require.Equal(t, []string{"before"}, <-got)
	go ask()
	<-slow.asked
	slow.answer <- []string{"after"}
	require.Equal(t, []string{"after"}, <-got)
}
