package cli

import (
	"io"
	"time"

	"github.com/homenode/homenode/bindsvc/api"
)

// RenderTable is a table as it is laid out on a terminal or elsewhere.
func RenderTable(header []string, rows [][]string, terminal bool) string {
	return grid{header, rows}.render(terminal)
}

// Progress is the progress of an import, at the times of a test.
type Progress struct{ p progress }

// NewProgress begins the progress of an import of about total users.
func NewProgress(w io.Writer, terminal bool, now func() time.Time, total int64) *Progress {
	p := &Progress{progress{w: w, terminal: terminal, now: now}}
	p.p.begin(total)
	return p
}

// Show shows the counts if it is time to.
func (p *Progress) Show(counts api.ImportCounts) { p.p.show(counts) }

// End ends it.
func (p *Progress) End() { p.p.end() }
