package cli_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func TestProgress(t *testing.T) {
	for _, c := range []struct {
		name     string
		terminal bool
		total    int64
		want     string
	}{
		{"in a log, every 5 s", false, 400, "250 of about 400 read (62%), 50/s: 240 bound, 10 conflicts\n500 of about 400 read (100%), 50/s: 480 bound, 20 conflicts\n"},
		{"in a log, total not known", false, 0, "250 read, 50/s: 240 bound, 10 conflicts\n500 read, 50/s: 480 bound, 20 conflicts\n"},
		{"on a terminal, one line", true, 0, "\r50 read, 50/s: 48 bound, 2 conflicts\x1b[K\r100 read, 50/s: 96 bound, 4 conflicts\x1b[K"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			now := moment
			p := cli.NewProgress(&out, c.terminal, func() time.Time { return now }, c.total)
			for second := int64(1); second <= 10; second++ {
				now = now.Add(time.Second)
				p.Show(api.ImportCounts{Read: 50 * second, Bound: 48 * second, Conflicts: 2 * second})
			}
			p.End()
			if c.terminal {
				require.Contains(t, out.String(), c.want)
				require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("\n")))
				require.True(t, bytes.HasSuffix(out.Bytes(), []byte("\n")))
				return
			}
			require.Equal(t, c.want, out.String())
		})
	}
	t.Run("quick imports show none", func(t *testing.T) {
		var out bytes.Buffer
		p := cli.NewProgress(&out, false, func() time.Time { return moment }, 1)
		p.Show(api.ImportCounts{Read: 1})
		p.End()
		require.Empty(t, out.String())
	})
}
