// Package importer binds many users at once: those of the nodes' own user table, or
// those of a CSV file. It reads a source once, in batches, each of one
// transaction or a few; what exists is never changed, so that an import can be sent again
// whenever it was cut off, and undone as a whole.
package importer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// batchSize is how many users the store is given at a time. Larger batches gain nothing.
const batchSize = 10_000

// maxRecords is how many users an import takes: what it remembers of them (seen) is
// in memory.
const maxRecords = 5_000_000

// Source yields users, in an order that does not change from one import to the next.
type Source interface {
	// Kind is what the import is recorded as.
	Kind() gateway.ImportSource
	// Total says about how many there are; 0: not known.
	Total(ctx context.Context) (int64, error)
	// Each calls fn for every user until fn returns an error, which it returns.
	Each(ctx context.Context, fn func(Record) error) error
}

// Record is a user as a source has it.
type Record struct {
	Line     int64
	UserID   string
	Username string
	NodeID   string // empty: the import's
	Skip     bool   // not active
	Problem  string // not empty: cannot be read, and why
}

// Listener hears how an import goes on. An error of it ends the import.
type Listener interface {
	Begin(importID, total int64) error
	Conflict(conflict gateway.ImportConflict) error
	Progress(counts gateway.ImportCounts) error
}

// Job is what to import.
type Job struct {
	ServiceID string
	NodeID    string // for records that name none; empty: none may be missing
	ImportID  int64  // goes on with that import; 0: a new one
	DryRun    bool   // reports, writes nothing
}

// Importer runs imports. It is safe for concurrent use.
type Importer struct {
	store   gateway.Imports
	hasNode func(serviceID, nodeID string) bool
}

// New makes an Importer. hasNode says whether a node is one of the service's.
func New(store gateway.Imports, hasNode func(serviceID, nodeID string) bool) *Importer {
	return &Importer{store: store, hasNode: hasNode}
}

// saveEvery is how often a running import says how far it is.
const saveEvery = 2 * time.Second

// saveLimit bounds the note on how far an import came, when its caller has gone.
const saveLimit = 5 * time.Second

// Run imports. When ctx ends, or a store cannot be asked, what was bound stays, and
// a Run with the ImportID of what is returned goes on.
func (i *Importer) Run(ctx context.Context, job Job, source Source, listener Listener) (gateway.Import, error) {
	record, err := i.begin(ctx, job, source)
	if err != nil {
		return record, err
	}
	run := &run{importer: i, job: job, listener: listener, record: record, seen: newSeen()}
	err = run.all(ctx, source)
	if job.DryRun {
		return run.record, err
	}
	run.record.State = gateway.ImportDone
	switch {
	case ctx.Err() != nil:
		run.record.State = gateway.ImportRunning // cut off
	case err != nil:
		run.record.State = gateway.ImportFailed
	}
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveLimit)
	defer cancel()
	if saveErr := i.store.SaveImport(saving, run.record); err == nil {
		err = saveErr
	}
	return run.record, err
}

func (i *Importer) begin(ctx context.Context, job Job, source Source) (gateway.Import, error) {
	wanted := gateway.Import{
		ServiceID: job.ServiceID, NodeID: job.NodeID, Source: source.Kind(), State: gateway.ImportRunning, Actor: gateway.ActorOf(ctx).Name,
	}
	switch {
	case job.DryRun:
		return wanted, nil
	case job.ImportID == 0:
		return i.store.BeginImport(ctx, wanted)
	}
	return i.store.ClaimImport(ctx, job.ImportID, func(record *gateway.Import) error {
		switch {
		case record.ServiceID != wanted.ServiceID || record.NodeID != wanted.NodeID || record.Source != wanted.Source:
			return gateway.Conflictf("import %d is of other users: service %q, node %q, source %q", record.ID, record.ServiceID, record.NodeID, record.Source)
		case record.State == gateway.ImportUndoing || record.State == gateway.ImportUndone:
			return gateway.Conflictf("import %d was undone", record.ID)
		}
		record.State, record.Counts = gateway.ImportRunning, gateway.ImportCounts{}
		return nil
	})
}

// run is one import under way.
type run struct {
	importer *Importer
	job      Job
	listener Listener
	record   gateway.Import
	batch    []gateway.ImportRow
	saved    time.Time

	seen *seen
}

func (r *run) all(ctx context.Context, source Source) error {
	total, err := source.Total(ctx)
	if err != nil {
		return err
	}
	if err := r.listener.Begin(r.record.ID, total); err != nil {
		return err
	}
	if err := source.Each(ctx, func(record Record) error { return r.one(ctx, record) }); err != nil {
		return err
	}
	return r.flush(ctx)
}

func (r *run) one(ctx context.Context, record Record) error {
	r.record.Counts.Read++
	if r.record.Counts.Read > maxRecords {
		return &gateway.Error{Reason: gateway.TooLarge, Detail: fmt.Sprintf("at most %d users at a time", maxRecords)}
	}
	if r.record.Counts.Read%batchSize == 0 { // also where nothing is bound
		if err := r.progress(ctx); err != nil {
			return err
		}
	}
	if record.Skip {
		r.record.Counts.Skipped++
		return nil
	}
	row := gateway.ImportRow{Line: record.Line, UserID: record.UserID, Username: record.Username, NodeID: record.NodeID}
	if row.NodeID == "" {
		row.NodeID = r.job.NodeID
	}
	if problem := r.problem(record, row); problem != "" {
		r.record.Counts.Invalid++
		return r.listener.Conflict(gateway.ImportConflict{ImportRow: row, Reason: gateway.Invalid, Detail: problem})
	}
	if duplicate := r.duplicate(row); duplicate != "" {
		r.record.Counts.Conflicts++
		return r.listener.Conflict(gateway.ImportConflict{ImportRow: row, Reason: gateway.Duplicate, Detail: duplicate})
	}
	r.batch = append(r.batch, row)
	if len(r.batch) < batchSize {
		return nil
	}
	return r.flush(ctx)
}

// problem says why no binding can hold the row; empty if one can.
func (r *run) problem(record Record, row gateway.ImportRow) string {
	switch {
	case record.Problem != "":
		return record.Problem
	case row.UserID == "" && row.Username == "":
		return "neither a user id nor a username"
	case row.NodeID == "":
		return "no node: the line names none, and neither does the import"
	case !r.importer.hasNode(r.job.ServiceID, row.NodeID):
		return fmt.Sprintf("service %q has no node %q", r.job.ServiceID, row.NodeID)
	}
	if row.UserID != "" {
		if err := gateway.VerifyUserID("userId", row.UserID); err != nil {
			return err.Error()
		}
	}
	if row.Username != "" {
		if err := gateway.VerifyName("username", row.Username); err != nil {
			return err.Error()
		}
		if strings.ContainsFunc(row.Username, unicode.IsControl) {
			return "username contains a control character; is a quote open in the line before?"
		}
	}
	return ""
}

// duplicate says whether the source had the row's user id or username before; empty if not.
func (r *run) duplicate(row gateway.ImportRow) string {
	id, name := r.seen.hash('i', row.UserID), r.seen.hash('n', string(gateway.KeyOf(row.Username)))
	switch {
	case row.UserID != "" && r.seen.has(id):
		return "a line before has the same user id"
	case row.Username != "" && r.seen.has(name):
		return "a line before has the same username"
	}
	r.seen.add(id) // that of no user id is never asked for
	r.seen.add(name)
	return ""
}

func (r *run) flush(ctx context.Context) error {
	if len(r.batch) > 0 {
		batch, err := r.importer.store.ImportRows(ctx, r.record, r.batch)
		if err != nil {
			return err
		}
		r.batch = r.batch[:0]
		r.record.Counts.Bound += batch.Bound
		r.record.Counts.Unchanged += batch.Unchanged
		r.record.Counts.Conflicts += int64(len(batch.Conflicts))
		for _, conflict := range batch.Conflicts {
			if err := r.listener.Conflict(conflict); err != nil {
				return err
			}
		}
	}
	return r.progress(ctx)
}

func (r *run) progress(ctx context.Context) error {
	if !r.job.DryRun && time.Since(r.saved) > saveEvery {
		if err := r.importer.store.SaveImport(ctx, r.record); err != nil {
			return err
		}
		r.saved = time.Now()
	}
	return r.listener.Progress(r.record.Counts)
}

const undoBatch = 2_000

// errUndone ends the claim of an import that is undone already.
var errUndone = errors.New("undone already")

// Undo deletes the bindings that an import made, save those that have changed since
// or whose user has logged in. An import that still runs ends. It may be called
// again until it succeeds.
func (i *Importer) Undo(ctx context.Context, id int64) (gateway.Import, error) {
	record, err := i.store.ClaimImport(ctx, id, func(record *gateway.Import) error {
		switch record.State {
		case gateway.ImportUndone:
			return errUndone
		case gateway.ImportUndoing: // goes on
		default:
			record.State, record.Removed = gateway.ImportUndoing, 0
		}
		record.Kept = 0 // they are met again
		return nil
	})
	if errors.Is(err, errUndone) {
		return i.store.ImportByID(ctx, id)
	}
	if err != nil {
		return record, err
	}
	for after := int64(0); ; {
		batch, err := i.store.UndoRows(ctx, record, after, undoBatch)
		if err != nil {
			return record, err
		}
		record.Removed, record.Kept, after = record.Removed+batch.Removed, record.Kept+batch.Kept, batch.Last
		if batch.Done {
			record.State = gateway.ImportUndone
		}
		if err := i.store.SaveImport(ctx, record); err != nil || batch.Done {
			return record, err
		}
	}
}
