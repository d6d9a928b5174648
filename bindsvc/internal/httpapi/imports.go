package httpapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/importer"
)

const (
	maxImportFile     = 256 << 20
	reportedConflicts = 1000 // of a summary
)

// ImportExisting binds the users of the nodes' own table.
func (a admin) ImportExisting(c echo.Context, params api.ImportExistingParams) error {
	var in api.ImportExistingRequest
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	if a.users == nil {
		return &gateway.Error{Reason: gateway.Conflict, Detail: "the embedded mode has no user table; import a file"}
	}
	job := importer.Job{ServiceID: in.ServiceID, NodeID: in.NodeID, ImportID: numberOf(in.ImportID), DryRun: isTrue(params.DryRun)}
	return a.runImport(c, job, importer.Users(a.users))
}

// ImportFile binds the users of a CSV file. The whole file is read before the answer
// begins: no proxy between here and the client has to pass both on at a time.
func (a admin) ImportFile(c echo.Context, params api.ImportFileParams) error {
	a.takeTime(c)
	file, lines, err := spool(http.MaxBytesReader(c.Response(), c.Request().Body, maxImportFile))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	source, err := importer.File(file, lines)
	if err != nil {
		return err
	}
	job := importer.Job{ServiceID: params.ServiceID, NodeID: textOf(params.NodeID), ImportID: numberOf(params.ImportID), DryRun: isTrue(params.DryRun)}
	return a.runImport(c, job, source)
}

func numberOf(given *int64) int64 {
	if given == nil {
		return 0
	}
	return *given
}

// takeTime lifts the limit on how long a request may be read, which otherwise would
// end one that is answered for minutes.
func (a admin) takeTime(c echo.Context) {
	if err := http.NewResponseController(c.Response()).SetReadDeadline(time.Time{}); err != nil {
		a.log.DebugContext(c.Request().Context(), "the time to read a request stays limited", "error", err)
	}
}

// spool keeps a body in a file that no name leads to, and counts its lines.
func spool(body io.Reader) (file *os.File, lines int64, err error) {
	file, err = os.CreateTemp("", "homenode-import-*.csv")
	if err != nil {
		return nil, 0, &gateway.Error{Reason: gateway.Internal, Detail: "no temporary file can be made: the service needs a folder to write to, /tmp or TMPDIR", Cause: err}
	}
	_ = os.Remove(file.Name()) // gone when it is closed, whatever happens
	counter := &lineCounter{}
	_, err = io.Copy(io.MultiWriter(file, counter), body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		err = &gateway.Error{Reason: gateway.TooLarge, Detail: "at most 256 MiB"}
	case err != nil:
		err = invalid("the body broke off")
	default:
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	return file, counter.lines(), nil
}

type lineCounter struct {
	ends int64
	last byte
}

func (l *lineCounter) Write(p []byte) (int, error) {
	for _, b := range p {
		if b == '\n' {
			l.ends++
		}
		l.last = b
	}
	return len(p), nil
}

func (l *lineCounter) lines() int64 {
	if l.last != 0 && l.last != '\n' {
		return l.ends + 1
	}
	return l.ends
}

func (a admin) runImport(c echo.Context, job importer.Job, source importer.Source) error {
	if _, ok := a.registry.Snapshot().Service(job.ServiceID); !ok {
		return gateway.Conflictf("there is no service %q", job.ServiceID)
	}
	if job.NodeID != "" && !a.hasNode(job.ServiceID, job.NodeID) {
		return gateway.Conflictf("service %q has no node %q", job.ServiceID, job.NodeID)
	}
	select {
	case a.importing <- struct{}{}:
		defer func() { <-a.importing }()
	default:
		return gateway.Conflictf("another import is running on this instance; send this one again when it is done")
	}
	a.takeTime(c)
	ctx, cancel := a.untilStopping(c.Request().Context())
	defer cancel()
	report := a.reportFor(c, job)
	record, err := importer.New(a.store, a.hasNode).Run(ctx, job, source, report)
	return report.end(record, missing(stored(err), noImport(job.ImportID)))
}

// untilStopping returns a context that also ends when the process is to end: what
// lasts for minutes and can be resumed does not hold it up.
func (a admin) untilStopping(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with ctx
		select {
		case <-a.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (a admin) hasNode(serviceID, nodeID string) bool {
	node, ok := a.registry.Snapshot().Node(nodeID)
	return ok && node.ServiceID == serviceID
}

// report tells the client of an import, in the format that it asked for.
type report interface {
	importer.Listener
	end(record gateway.Import, err error) error
}

func (a admin) reportFor(c echo.Context, job importer.Job) report {
	for accepted := range strings.SplitSeq(c.Request().Header.Get("Accept"), ",") {
		format, _, _ := mime.ParseMediaType(accepted)
		switch format {
		case "application/x-ndjson":
			return &lineReport{stream: stream{admin: a, c: c}}
		case "text/csv":
			return &csvReport{stream: stream{admin: a, c: c}}
		case "application/json":
			return &summary{admin: a, c: c, dryRun: job.DryRun}
		}
	}
	return &summary{admin: a, c: c, dryRun: job.DryRun}
}

func viewConflict(conflict gateway.ImportConflict) api.ImportConflict {
	return api.ImportConflict{
		Line: conflict.Line, UserID: conflict.UserID, Username: conflict.Username, NodeID: conflict.NodeID, Reason: api.ImportConflictReason(conflict.Reason),
		BoundNodeID: conflict.BoundNodeID, OtherUserID: conflict.OtherUserID, Detail: conflict.Detail,
	}
}

// summary is one JSON answer at the end.
type summary struct {
	admin     admin
	c         echo.Context
	dryRun    bool
	conflicts []api.ImportConflict
	leftOut   int64
}

func (s *summary) Begin(int64, int64) error { return nil }

func (s *summary) Progress(gateway.ImportCounts) error { return nil }

func (s *summary) Conflict(conflict gateway.ImportConflict) error {
	if len(s.conflicts) < reportedConflicts {
		s.conflicts = append(s.conflicts, viewConflict(conflict))
	} else {
		s.leftOut++
	}
	return nil
}

func (s *summary) end(record gateway.Import, err error) error {
	if err != nil {
		return withImportID(err, record.ID)
	}
	view := api.ImportReport{DryRun: s.dryRun, Counts: viewCounts(record.Counts), Conflicts: s.conflicts, ConflictsLeftOut: s.leftOut}
	if view.Conflicts == nil {
		view.Conflicts = []api.ImportConflict{}
	}
	if record.ID != 0 {
		view.ImportID = &record.ID
	}
	return s.admin.succeed(s.c, view)
}

// withImportID adds to a refusal how the import goes on.
func withImportID(err error, id int64) error {
	var refusal *gateway.Error
	if id == 0 || !errors.As(err, &refusal) {
		return err
	}
	more := *refusal
	more.Detail = strings.TrimPrefix(more.Detail+"; ", "; ") + fmt.Sprintf("what is bound stays, and importId %d goes on", id)
	return &more
}

// stream is an answer that is sent while the import runs.
type stream struct {
	admin admin
	c     echo.Context
	until time.Time // the client has to read what is sent by then
}

// writeLimit is how long a client may leave what is sent to it unread: an import
// holds a transaction of its source open.
const writeLimit = 10 * time.Second

func (s *stream) begin(contentType string) {
	header := s.c.Response().Header()
	header.Set("Content-Type", contentType)
	header.Set(headerRequestID, requestID(s.c))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // nginx would keep the progress to itself
	s.c.Response().WriteHeader(http.StatusOK)
}

// extend gives what is written next its time.
func (s *stream) extend() {
	if time.Until(s.until) < writeLimit/2 {
		s.until = time.Now().Add(writeLimit)
		s.deadline(s.until)
	}
}

func (s *stream) deadline(at time.Time) {
	if err := http.NewResponseController(s.c.Response()).SetWriteDeadline(at); err != nil {
		s.admin.log.DebugContext(s.c.Request().Context(), "the time to send an answer stays as it is", "error", err)
	}
}

func (s *stream) flush() error {
	s.extend()
	return http.NewResponseController(s.c.Response()).Flush()
}

// finish sends the rest; the connection's next answer has no deadline again.
func (s *stream) finish() error {
	err := s.flush()
	s.deadline(time.Time{})
	return err
}

func (s *stream) logRefusal(refusal *gateway.Error) {
	s.admin.logRefusal(s.c.Request().Context(), refusal, requestID(s.c), s.c.Path())
}

// lineReport sends a JSON object a line, as things happen.
type lineReport struct {
	stream
	encoder *json.Encoder
}

func (r *lineReport) Begin(id, total int64) error {
	r.begin("application/x-ndjson; charset=utf-8")
	r.encoder = json.NewEncoder(r.c.Response())
	if err := r.send(api.ImportEvent{Event: api.Begin, ImportID: &id, Total: &total}); err != nil {
		return err
	}
	return r.flush()
}

func (r *lineReport) Conflict(conflict gateway.ImportConflict) error {
	view := viewConflict(conflict)
	return r.send(api.ImportEvent{Event: api.Conflict, Conflict: &view})
}

func (r *lineReport) Progress(counts gateway.ImportCounts) error {
	view := viewCounts(counts)
	if err := r.send(api.ImportEvent{Event: api.Progress, Counts: &view}); err != nil {
		return err
	}
	return r.flush()
}

func (r *lineReport) end(record gateway.Import, err error) error {
	if r.encoder == nil {
		return err // nothing has been sent: a plain refusal
	}
	counts := viewCounts(record.Counts)
	last := api.ImportEvent{Event: api.Done, ImportID: &record.ID, Counts: &counts}
	if err != nil {
		refusal := asRefusal(err)
		r.logRefusal(refusal)
		reason, message := string(refusal.Reason), r.admin.messageOf(r.c, refusal)
		last.Event, last.Reason, last.Message = api.Failed, &reason, &message
	}
	if err := r.send(last); err != nil {
		return err
	}
	return r.finish()
}

func (r *lineReport) send(event api.ImportEvent) error {
	r.extend()
	return r.encoder.Encode(event)
}

// csvReport sends the conflicts as CSV. An import that fails ends in the middle of
// the transfer, so that nobody takes half a report for a whole one.
type csvReport struct {
	stream
	writer *csv.Writer
}

func (r *csvReport) Begin(int64, int64) error {
	r.begin("text/csv; charset=utf-8")
	r.writer = csv.NewWriter(r.c.Response())
	r.extend()
	return r.writer.Write([]string{"line", "userId", "username", "nodeId", "reason", "boundNodeId", "otherUserId", "detail"})
}

func (r *csvReport) Conflict(conflict gateway.ImportConflict) error {
	r.extend()
	return r.writer.Write([]string{
		strconv.FormatInt(conflict.Line, 10), plainCell(conflict.UserID), plainCell(conflict.Username), plainCell(conflict.NodeID), string(conflict.Reason),
		conflict.BoundNodeID, plainCell(conflict.OtherUserID), plainCell(conflict.Detail),
	})
}

// plainCell keeps a spreadsheet from running what a user calls themselves.
func plainCell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}

func (r *csvReport) Progress(gateway.ImportCounts) error {
	r.writer.Flush()
	if err := r.writer.Error(); err != nil {
		return err
	}
	return r.flush()
}

func (r *csvReport) end(_ gateway.Import, err error) error {
	if r.writer == nil {
		return err
	}
	r.writer.Flush()
	if err != nil {
		r.logRefusal(asRefusal(err))
		panic(http.ErrAbortHandler)
	}
	if err := r.writer.Error(); err != nil {
		return err
	}
	return r.finish()
}

func viewCounts(c gateway.ImportCounts) api.ImportCounts {
	return api.ImportCounts{Read: c.Read, Bound: c.Bound, Unchanged: c.Unchanged, Skipped: c.Skipped, Conflicts: c.Conflicts, Invalid: c.Invalid}
}

func viewImport(i gateway.Import) api.Import {
	return api.Import{
		ID: i.ID, ServiceID: i.ServiceID, NodeID: orNull(i.NodeID), Source: api.ImportSource(i.Source), State: api.ImportState(i.State), Actor: i.Actor,
		Counts: viewCounts(i.Counts), Removed: i.Removed, Kept: i.Kept, CreateTime: i.CreatedAt, UpdateTime: i.UpdatedAt,
	}
}

// ListImports answers with a page of imports.
func (a admin) ListImports(c echo.Context, params api.ListImportsParams) error {
	page, size := pageOf(params.Page, params.Size)
	imports, total, err := a.store.ListImports(c.Request().Context(), textOf(params.ServiceID), (page-1)*size, size)
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, pageView(total, page, size, imports, viewImport))
}

// GetImport answers with one import.
func (a admin) GetImport(c echo.Context, id api.ImportID) error {
	record, err := a.store.ImportByID(c.Request().Context(), id)
	if err != nil {
		return missing(stored(err), noImport(id))
	}
	return a.succeed(c, viewImport(record))
}

// UndoImport deletes the bindings that an import made.
func (a admin) UndoImport(c echo.Context, id api.ImportID) error {
	a.takeTime(c)
	ctx, cancel := a.untilStopping(c.Request().Context())
	defer cancel()
	record, err := importer.New(a.store, a.hasNode).Undo(ctx, id)
	a.bindings.Changed(ctx, gateway.Change{Kind: gateway.ChangeBindings}) // even after an error: some may be gone
	if err != nil {
		return missing(stored(err), noImport(id))
	}
	return a.succeed(c, viewImport(record))
}
