package importer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/importer"
)

// table is gateway.Imports in memory.
type table struct {
	gateway.Imports
	rows    map[string]gateway.ImportRow
	record  gateway.Import
	batches []int
	err     error
}

func newTable() *table { return &table{rows: map[string]gateway.ImportRow{}} }

func (s *table) BeginImport(_ context.Context, i gateway.Import) (gateway.Import, error) {
	i.ID = 1
	s.record = i
	return i, nil
}

func (s *table) ImportByID(_ context.Context, id int64) (gateway.Import, error) {
	if id != s.record.ID {
		return gateway.Import{}, gateway.ErrNotFound
	}
	return s.record, nil
}

func (s *table) ClaimImport(_ context.Context, id int64, claim func(*gateway.Import) error) (gateway.Import, error) {
	if id != s.record.ID {
		return gateway.Import{}, gateway.ErrNotFound
	}
	claimed := s.record
	if err := claim(&claimed); err != nil {
		return gateway.Import{}, err
	}
	s.record = claimed
	return claimed, nil
}

func (s *table) SaveImport(_ context.Context, i gateway.Import) error {
	s.record = i
	return nil
}

func (s *table) ImportRows(_ context.Context, i gateway.Import, rows []gateway.ImportRow) (batch gateway.ImportBatch, err error) {
	if s.err != nil {
		return batch, s.err
	}
	s.batches = append(s.batches, len(rows))
	for _, row := range rows {
		if i.ID != 0 {
			s.rows[row.UserID+"/"+row.Username] = row
		}
		batch.Bound++
	}
	return batch, nil
}

// heard is a listener that keeps what it hears.
type heard struct {
	total     int64
	conflicts []gateway.ImportConflict
	progress  func(gateway.ImportCounts) error
}

func (h *heard) Begin(_, total int64) error { h.total = total; return nil }

func (h *heard) Conflict(c gateway.ImportConflict) error {
	h.conflicts = append(h.conflicts, c)
	return nil
}

func (h *heard) Progress(c gateway.ImportCounts) error {
	if h.progress != nil {
		return h.progress(c)
	}
	return nil
}

func hasNode(serviceID, nodeID string) bool {
	return serviceID == "ai" && strings.HasPrefix(nodeID, "n")
}

func run(t *testing.T, store *table, content string, job importer.Job) (gateway.Import, *heard, error) {
	t.Helper()
	job.ServiceID = "ai"
	listener := &heard{}
	source, err := importer.File(strings.NewReader(content), int64(strings.Count(content, "\n")))
	if err != nil {
		return gateway.Import{}, listener, err
	}
	record, err := importer.New(store, hasNode).Run(t.Context(), job, source, listener)
	return record, listener, err
}

func TestAFile(t *testing.T) {
	store := newTable()
	record, listener, err := run(t, store, "\xef\xbb\xbfUserName , userId\r\n\"o\"\"neil, jr\",7\r\n 王 , 8 \n,9\nann,\n,\n", importer.Job{NodeID: "n1"})
	require.NoError(t, err)
	require.EqualValues(t, 5, listener.total)
	require.Equal(t, gateway.ImportCounts{Read: 5, Bound: 4, Invalid: 1}, record.Counts)
	require.Equal(t, gateway.ImportDone, store.record.State)
	for _, key := range []string{`7/o"neil, jr`, "8/王", "9/", "/ann"} {
		require.Contains(t, store.rows, key)
	}
}

func TestAFileThatCannotBeUnderstood(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "no columns": "\n", "unknown column": "userId,age\n1,2\n", "a column twice": "userId,userId\n", "no user": "nodeId\nn1\n",
		"one endless record": "userId\n\"" + strings.Repeat("x\n", 1<<16),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(t, newTable(), content, importer.Job{NodeID: "n1"})
			var refusal *gateway.Error
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, gateway.Validation, refusal.Reason)
		})
	}
}

func TestAnImportGoesOn(t *testing.T) {
	var content strings.Builder
	content.WriteString("userId\n")
	for i := range 12_001 {
		fmt.Fprintf(&content, "%d\n", i)
	}
	store := newTable()
	ctx, cancel := context.WithCancel(t.Context())
	cutOff := &heard{progress: func(gateway.ImportCounts) error { cancel(); return nil }}
	source, err := importer.File(strings.NewReader(content.String()), 0)
	require.NoError(t, err)
	record, err := importer.New(store, hasNode).Run(ctx, importer.Job{ServiceID: "ai", NodeID: "n1"}, source, cutOff)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, gateway.ImportRunning, record.State)

	store.err = errors.New("down")
	record, _, err = run(t, store, content.String(), importer.Job{NodeID: "n1", ImportID: 1})
	require.ErrorIs(t, err, store.err)
	require.Equal(t, gateway.ImportFailed, record.State)

	store.err = nil
	record, _, err = run(t, store, content.String(), importer.Job{NodeID: "n1", ImportID: 1})
	require.NoError(t, err)
	require.Equal(t, gateway.ImportCounts{Read: 12_001, Bound: 12_001}, record.Counts)
	require.Len(t, store.rows, 12_001)

	var conflict *gateway.ConflictError
	_, _, err = run(t, store, content.String(), importer.Job{NodeID: "n2", ImportID: 1})
	require.ErrorAs(t, err, &conflict, "it was begun for another node")
	_, _, err = run(t, store, content.String(), importer.Job{NodeID: "n1", ImportID: 2})
	require.ErrorIs(t, err, gateway.ErrNotFound)
	store.record.State = gateway.ImportUndone
	_, _, err = run(t, store, content.String(), importer.Job{NodeID: "n1", ImportID: 1})
	require.ErrorAs(t, err, &conflict)
}

// A quote that is never closed makes one user of many lines.
func TestAStrayQuoteBindsNobody(t *testing.T) {
	store := newTable()
	record, listener, err := run(t, store, "userId,username\n1,\"yan\n2,xu\n3,wu\"\n4,ann\n", importer.Job{NodeID: "n1"})
	require.NoError(t, err)
	require.Equal(t, gateway.ImportCounts{Read: 2, Bound: 1, Invalid: 1}, record.Counts)
	require.Contains(t, listener.conflicts[0].Detail, "quote")
}

func TestADryRunWritesNothing(t *testing.T) {
	store := newTable()
	record, _, err := run(t, store, "userId\n1\n", importer.Job{NodeID: "n1", DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, record.Counts.Bound)
	require.Empty(t, store.rows)
	require.Zero(t, store.record)
}

// What was read is always accounted for, and what is bound has passed the rules.
func FuzzFile(f *testing.F) {
	f.Add("userId,username,nodeId\n7,ann,n1\n")
	f.Add("username\n\"a\nb\"\n\"\n")
	f.Add("userId\n1\x00\n\xff\n")
	f.Fuzz(func(t *testing.T, content string) {
		store := newTable()
		record, listener, err := run(t, store, content, importer.Job{NodeID: "n1"})
		var refusal *gateway.Error
		if err != nil {
			require.ErrorAs(t, err, &refusal)
			return
		}
		c := record.Counts
		require.Equal(t, c.Read, c.Bound+c.Unchanged+c.Skipped+c.Conflicts+c.Invalid)
		require.EqualValues(t, c.Conflicts+c.Invalid, len(listener.conflicts))
		for _, row := range store.rows {
			require.True(t, hasNode("ai", row.NodeID))
			if row.UserID != "" {
				require.NoError(t, gateway.VerifyUserID("", row.UserID))
			}
			if row.Username != "" {
				require.NoError(t, gateway.VerifyName("", row.Username))
			}
		}
	})
}
