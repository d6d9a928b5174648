package outage_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/outage"
)

var errStore = errors.New("store failed")

func TestGate(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	tests := map[string]struct {
		first func(context.Context) error
		next  error // of a call right after
	}{
		"an answer keeps it open":               {func(context.Context) error { return nil }, nil},
		"not found is an answer, however slow":  {func(context.Context) error { time.Sleep(400 * time.Millisecond); return gateway.ErrNotFound }, nil},
		"a conflict is an answer, however slow": {func(context.Context) error { time.Sleep(400 * time.Millisecond); return gateway.Conflictf("taken") }, nil},
		"a refusal at once keeps it open":       {func(context.Context) error { return errStore }, nil},
		"slow failures close it":                {func(context.Context) error { time.Sleep(400 * time.Millisecond); return errStore }, outage.ErrPaused},
		"a hanging store is cut off, closes it": {hang, outage.ErrPaused},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := outage.Gate{Limit: 500 * time.Millisecond, Pause: time.Second}
				for range 3 {
					start := time.Now()
					require.NotErrorIs(t, gate.Do(t.Context(), test.first), outage.ErrPaused)
					require.LessOrEqual(t, time.Since(start), 500*time.Millisecond)
				}
				ok := func(context.Context) error { return nil }
				require.ErrorIs(t, gate.Do(t.Context(), ok), test.next)
				time.Sleep(time.Second)
				require.NoError(t, gate.Do(t.Context(), ok), "open again after the pause")
			})
		})
	}
}

func TestAnAnswerBetweenFailuresKeepsItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := outage.Gate{Limit: time.Second, Pause: time.Second}
		for range 10 {
			require.ErrorIs(t, gate.Do(t.Context(), func(context.Context) error { time.Sleep(400 * time.Millisecond); return errStore }), errStore)
			require.NoError(t, gate.Do(t.Context(), func(context.Context) error { return nil }))
		}
	})
}

func TestACallerThatLeavesSaysNothingAboutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := outage.Gate{Limit: time.Second, Pause: time.Second}
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := gate.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.NoError(t, gate.Do(t.Context(), func(context.Context) error { return nil }))
	})
}
