package demo

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheStoryStopsAtTheFirstStepThatDoesNotHold(t *testing.T) {
	st, ran := &story{}, 0
	hold := func(context.Context) error {
		ran++
		st.show(row{"ann", "GET /", "200", "node-1", "fine"})
		return nil
	}
	broken := errors.New("another node answered")
	fail := func(context.Context) error { return broken }

	var out bytes.Buffer
	require.NoError(t, runSteps(t.Context(), &out, st, []step{{"one", hold}}))
	require.Regexp(t, `ann +GET / +200 +node-1 +✔ fine`, out.String())
	require.Contains(t, out.String(), "All 1 steps held.")

	out.Reset()
	ran = 0
	err := runSteps(t.Context(), &out, st, []step{{"one", hold}, {"two", fail}, {"three", hold}})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "step 2 (two)")
	require.Equal(t, 1, ran)
	require.Contains(t, out.String(), "✘ another node answered")
	require.NotContains(t, out.String(), "held")
}
