package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// answer is what a command has to say.
type answer struct {
	data   any      // as the service gave it: the JSON form
	tables []grid   // the table form
	lines  []string // and below the tables
	note   string   // about the table, not part of it: goes to stderr
}

// grid is a table before it is laid out.
type grid struct {
	header []string
	rows   [][]string
}

// widest is the most characters of a column on a terminal.
const widest = 60

func (c *console) print(cmd *cobra.Command, a answer) error {
	if c.format == "json" {
		return printJSON(cmd.OutOrStdout(), a.data)
	}
	var out strings.Builder
	for i, g := range a.tables {
		if i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(g.render(isTerminal(cmd.OutOrStdout())))
		out.WriteByte('\n')
	}
	for _, line := range a.lines {
		out.WriteString(escape(line))
		out.WriteByte('\n')
	}
	if _, err := io.WriteString(cmd.OutOrStdout(), out.String()); err != nil {
		return err
	}
	if a.note != "" {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), escape(a.note))
		return err
	}
	return nil
}

// render lays the table out: with lines and long cells cut on a terminal, else as
// aligned columns that are whole.
func (g grid) render(terminal bool) string {
	w := table.NewWriter()
	w.SetStyle(plainStyle())
	if terminal {
		w.SetStyle(table.StyleLight)
	}
	w.SuppressTrailingSpaces()
	w.AppendHeader(cells(g.header, false))
	for _, row := range g.rows {
		w.AppendRow(cells(row, terminal))
	}
	return w.Render()
}

func cells(texts []string, cut bool) table.Row {
	row := make(table.Row, len(texts))
	for i, t := range texts {
		t = escape(t)
		if cut {
			t = text.Snip(t, widest, "…")
		}
		row[i] = t
	}
	return row
}

func plainStyle() table.Style {
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	return style
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// escape replaces what a terminal would obey instead of show: control characters,
// characters that turn the direction of what follows, and bytes that are no UTF-8.
func escape(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

func unprintable(r rune) bool {
	return !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r)
}

// printJSON writes indented JSON. Characters that a terminal would obey are escaped
// in it too, which leaves it the same JSON.
func printJSON(w io.Writer, data any) error {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(data); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range out.String() {
		if r == '\n' || !unprintable(r) {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&safe, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}

// none stands in a table for what is not there.
const none = "-"

func orNone(s *string) string {
	if s == nil || *s == "" {
		return none
	}
	return *s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// clock shows a time as the machine's own clock would.
func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

func clockOrNone(t *time.Time) string {
	if t == nil {
		return none
	}
	return clock(*t)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// plural is "1 node", "2 nodes", "2 policies".
func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		return number(n) + " " + stem + "ies"
	}
	return number(n) + " " + one + "s"
}
