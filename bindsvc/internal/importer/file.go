package importer

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// maxLineBytes is the longest record of a file; a longer one ends the import.
const maxLineBytes = 64 << 10

// File is a CSV file as a source: RFC 4180, UTF-8 with or without a BOM, the first
// line naming the columns userId, username and nodeId in any order. lines is about
// how many it has. A first line that cannot be understood, here, or a record over
// 64 KiB, in Each, is a gateway.Error with reason VALIDATION. Each may be called once.
func File(content io.Reader, lines int64) (Source, error) {
	limited := &recordLimit{from: skipBOM(content)}
	reader := csv.NewReader(limited)
	reader.FieldsPerRecord = -1 // checked here: one wrong line is no reason to stop
	reader.ReuseRecord = true
	var refusal *gateway.Error
	header, err := reader.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, invalid("the file is empty: its first line has to name the columns")
	case errors.As(err, &refusal):
		return nil, err
	case err != nil:
		return nil, invalid("the first line: %v", err)
	}
	columns, err := columnsOf(header)
	if err != nil {
		return nil, err
	}
	return &file{limited, reader, columns, max(0, lines-1)}, nil
}

type file struct {
	limited *recordLimit
	reader  *csv.Reader
	columns columns
	total   int64
}

func (f *file) Kind() gateway.ImportSource { return gateway.ImportFile }

func (f *file) Total(context.Context) (int64, error) { return f.total, nil }

func (f *file) Each(ctx context.Context, fn func(Record) error) error {
	for ctx.Err() == nil {
		f.limited.read = 0
		fields, err := f.reader.Read()
		var unreadable *csv.ParseError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &unreadable):
			err = fn(Record{Line: int64(unreadable.StartLine), Problem: unreadable.Err.Error()})
		case err != nil:
			return err
		default:
			line, _ := f.reader.FieldPos(0)
			err = fn(f.columns.record(int64(line), fields))
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// columns are the places of the columns in a line; -1 where the file has none.
type columns struct{ count, userID, username, nodeID int }

func columnsOf(header []string) (columns, error) {
	c := columns{count: len(header), userID: -1, username: -1, nodeID: -1}
	for i, name := range header {
		place, ok := map[string]*int{"userid": &c.userID, "username": &c.username, "nodeid": &c.nodeID}[strings.ToLower(strings.TrimSpace(name))]
		switch {
		case !ok:
			return c, invalid("the first line names the column %.40q; want userId, username, nodeId, with commas between them", name)
		case *place >= 0:
			return c, invalid("the first line names the column %q twice", name)
		}
		*place = i
	}
	if c.userID < 0 && c.username < 0 {
		return c, invalid("the first line names neither userId nor username")
	}
	return c, nil
}

// rounded is a number as spreadsheets write long ones: its last digits are lost.
var rounded = regexp.MustCompile(`^[0-9](\.[0-9]+)?[eE]\+[0-9]+$`)

func (c columns) record(line int64, fields []string) Record {
	if len(fields) != c.count {
		return Record{Line: line, Problem: fmt.Sprintf("%d fields instead of %d", len(fields), c.count)}
	}
	field := func(place int) string {
		if place < 0 {
			return ""
		}
		return strings.Clone(strings.TrimSpace(fields[place])) // of a record that is used again
	}
	r := Record{Line: line, UserID: field(c.userID), Username: field(c.username), NodeID: field(c.nodeID)}
	if rounded.MatchString(r.UserID) {
		r.Problem = "the user id was rounded by a spreadsheet; export the column as text"
	}
	return r
}

func invalid(format string, args ...any) error {
	return &gateway.Error{Reason: gateway.Validation, Detail: fmt.Sprintf(format, args...)}
}

func skipBOM(r io.Reader) io.Reader {
	buffered := bufio.NewReader(r)
	if bom, _ := buffered.Peek(3); string(bom) == "\xef\xbb\xbf" {
		_, _ = buffered.Discard(3)
	}
	return buffered
}

// recordLimit fails once a single record has made the parser read too much.
type recordLimit struct {
	from io.Reader
	read int
}

func (l *recordLimit) Read(p []byte) (int, error) {
	if l.read > maxLineBytes {
		return 0, invalid("a record of more than %d bytes: is a quote open?", maxLineBytes)
	}
	n, err := l.from.Read(p)
	l.read += n
	return n, err
}
