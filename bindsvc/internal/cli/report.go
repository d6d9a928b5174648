package cli

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/homenode/homenode/bindsvc/api"
)

// reportFile takes the conflicts of an import one by one; what was added is in the
// file even if the import never ends.
type reportFile interface {
	add(api.ImportConflict) error
	close() error
}

// newReport prepares the report. An earlier one at the path is replaced when the
// import begins, and not if it is refused. No path: nothing is kept. source is the
// file that the import reads, nil if there is none.
func newReport(path string, source os.FileInfo) (*lateReport, error) {
	if path == "" {
		return &lateReport{file: noReport{}}, nil
	}
	if extension := strings.ToLower(filepath.Ext(path)); extension != ".csv" && extension != ".json" {
		return nil, usagef("--report %s: want a name that ends in .csv or .json", path)
	}
	if there, err := os.Stat(path); err == nil && source != nil && os.SameFile(there, source) {
		return nil, usagef("--report %s: that is the file to import", path)
	}
	if folder, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, usagef("--report: %w", err)
	} else if !folder.IsDir() {
		return nil, usagef("--report %s: its folder is none", path)
	}
	return &lateReport{path: path}, nil
}

// lateReport is a report whose file is made when the import begins.
type lateReport struct {
	path string
	file reportFile // nil: not begun
}

func (r *lateReport) begin() (err error) {
	if r.file == nil {
		r.file, err = createReport(r.path)
	}
	return err
}

func (r *lateReport) add(c api.ImportConflict) error {
	if err := r.begin(); err != nil {
		return err
	}
	return r.file.add(c)
}

func (r *lateReport) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.close()
}

// createReport makes the file, for this user only: it names people.
func createReport(path string) (reportFile, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, usagef("--report: %w", err)
	}
	if strings.EqualFold(filepath.Ext(path), ".json") {
		return &jsonReport{to: file}, nil
	}
	report := &csvReport{to: file, csv: csv.NewWriter(file)}
	if err := report.write("line", "userId", "username", "nodeId", "reason", "boundNodeId", "otherUserId", "detail"); err != nil {
		_ = file.Close()
		return nil, usagef("--report: %w", err)
	}
	return report, nil
}

type noReport struct{}

func (noReport) add(api.ImportConflict) error { return nil }
func (noReport) close() error                 { return nil }

type csvReport struct {
	to  io.WriteCloser
	csv *csv.Writer
}

func (r *csvReport) add(c api.ImportConflict) error {
	return r.write(number(c.Line), c.UserID, c.Username, c.NodeID, string(c.Reason), c.BoundNodeID, c.OtherUserID, c.Detail)
}

func (r *csvReport) write(cells ...string) error {
	for i := range cells {
		cells[i] = inert(cells[i])
	}
	if err := r.csv.Write(cells); err != nil {
		return err
	}
	r.csv.Flush()
	return r.csv.Error()
}

func (r *csvReport) close() error { return r.to.Close() }

// inert is a cell that a spreadsheet takes for text, not for a formula.
// See https://owasp.org/www-community/attacks/CSV_Injection.
func inert(cell string) string {
	if strings.IndexAny(cell, "=+-@\t\r\n＝＋－＠") == 0 {
		return "'" + cell
	}
	return cell
}

// jsonReport is one array, of which close writes the end.
type jsonReport struct {
	to   io.WriteCloser
	some bool
}

func (r *jsonReport) add(c api.ImportConflict) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	before := "[\n"
	if r.some {
		before = ",\n"
	}
	r.some = true
	_, err = io.WriteString(r.to, before+string(raw))
	return err
}

func (r *jsonReport) close() error {
	end := "\n]\n"
	if !r.some {
		end = "[]\n"
	}
	_, err := io.WriteString(r.to, end)
	if closeErr := r.to.Close(); err == nil {
		err = closeErr
	}
	return err
}
