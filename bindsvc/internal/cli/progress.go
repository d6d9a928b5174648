package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/homenode/homenode/bindsvc/api"
)

// progress shows how far an import is: on a terminal one line that is written anew,
// elsewhere (a log) a line every now and then.
type progress struct {
	w        io.Writer
	terminal bool
	now      func() time.Time

	total    int64 // 0: not known
	began    time.Time
	shown    time.Time
	unclosed bool // the terminal's line waits for its end
}

// How often progress is shown.
const (
	onTerminal = 100 * time.Millisecond
	inLog      = 5 * time.Second
)

func (p *progress) begin(total int64) {
	p.total, p.began = total, p.now()
	p.shown = p.began
}

func (p *progress) show(counts api.ImportCounts) {
	every := inLog
	if p.terminal {
		every = onTerminal
	}
	now := p.now()
	if p.began.IsZero() {
		p.began, p.shown = now, now
	}
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	if line := p.line(counts, now); p.terminal {
		p.unclosed = true
		_, _ = fmt.Fprintf(p.w, "\r%s\x1b[K", line) // to the end of the line: the one before may be longer
	} else {
		_, _ = fmt.Fprintln(p.w, line)
	}
}

func (p *progress) line(counts api.ImportCounts, now time.Time) string {
	read := fmt.Sprintf("%d read", counts.Read)
	if p.total > 0 { // about: users may come and go meanwhile
		read = fmt.Sprintf("%d of about %d read (%d%%)", counts.Read, p.total, min(100, counts.Read*100/p.total))
	}
	perSecond := float64(counts.Read) / max(now.Sub(p.began).Seconds(), 0.001)
	return fmt.Sprintf("%s, %.0f/s: %d bound, %d conflicts", read, perSecond, counts.Bound, counts.Conflicts)
}

func (p *progress) end() {
	if p.unclosed {
		_, _ = fmt.Fprintln(p.w)
	}
}
