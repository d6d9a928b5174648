package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func TestNoDataDrivesTheTerminal(t *testing.T) {
	const evil = "a\x1b]0;title\x07\x1b[2J\r\n\u009b31m\u202egnp\u200b\xff安\U000e0041"
	g := setup(t)
	g.answers["listRoutes"] = bindings(binding(1, to("7"), to(evil)))
	for _, format := range []string{"table", "json"} {
		o := g.done("routes", "-o", format)
		for _, r := range o.out {
			require.False(t, r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u200b' || r == '\U000e0041'), "%s: %q", format, r)
		}
		require.Contains(t, o.out, "安")
	}
	require.Contains(t, g.done("routes").out, `a\x1b]0;title\a\x1b[2J\r\n`)
	var parsed struct{ Records []api.Binding }
	require.NoError(t, json.Unmarshal([]byte(g.done("routes", "-o", "json").out), &parsed))
	require.Equal(t, strings.ToValidUTF8(evil, "\ufffd"), *parsed.Records[0].Username, "escaped, yet the same")
}

func TestTables(t *testing.T) {
	rows := [][]string{{"安娜", "x"}, {"ann", strings.Repeat("长", 100)}}
	header := []string{"name", "text"}

	t.Run("elsewhere: aligned and whole", func(t *testing.T) {
		got := lines(cli.RenderTable(header, rows, false))
		require.Equal(t, []string{"NAME  TEXT", "安娜  x", "ann   " + strings.Repeat("长", 100)}, got)
	})
	t.Run("on a terminal: with lines and cut", func(t *testing.T) {
		got := cli.RenderTable(header, rows, true)
		require.Contains(t, got, "│ 安娜 │ x")
		require.Contains(t, got, "长…")
		require.NotContains(t, got, strings.Repeat("长", 31))
	})
}
