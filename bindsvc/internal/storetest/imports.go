package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func (p probe) begin() gateway.Import {
	p.Helper()
	i, err := p.store.BeginImport(p.Context(), gateway.Import{ServiceID: ai, Source: gateway.ImportFile})
	require.NoError(p, err)
	return i
}

func (p probe) importRows(i gateway.Import, rows ...gateway.ImportRow) gateway.ImportBatch {
	p.Helper()
	batch, err := p.store.ImportRows(p.Context(), i, rows)
	require.NoError(p, err)
	return batch
}

func (p probe) binding(userID string) gateway.Binding {
	p.Helper()
	binding, err := p.store.BindingByUser(p.Context(), ai, userID)
	require.NoError(p, err)
	return binding
}

// all returns every binding.
func (p probe) all() []gateway.Binding {
	p.Helper()
	page, total, err := p.store.ListBindings(p.Context(), gateway.BindingFilter{Limit: 10_000})
	require.NoError(p, err)
	require.Len(p, page, int(total))
	return page
}

func row(userID, username, nodeID string) gateway.ImportRow {
	return gateway.ImportRow{UserID: userID, Username: username, NodeID: nodeID}
}

func testImports(t *testing.T, b Backend) {
	store, database := setup(t, b)
	p := probe{t, store}
	p.login(login("1", "Alice", "n1"))
	p.login(login("2", "", "n2"))
	p.bind("", "Advance", "n1")
	before := p.all()

	rows := []gateway.ImportRow{
		{Line: 1, UserID: "1", Username: "another name", NodeID: "n1"}, // unchanged, the name too
		{Line: 2, UserID: "2", Username: "Bob", NodeID: "n1"},
		{Line: 3, UserID: "3", Username: "ALICE", NodeID: "n1"},
		{Line: 4, UserID: "4", Username: "advance", NodeID: "n1"}, // unchanged: gets the user id at the first login
		{Line: 5, UserID: "5", Username: "Éva", NodeID: "n3"},
		{Line: 6, Username: "only a name", NodeID: "n2"},
		{Line: 7, UserID: "only an id", NodeID: "n2"},
	}
	conflicts := []gateway.ImportConflict{
		{ImportRow: rows[1], Reason: gateway.BoundElsewhere, BoundNodeID: "n2"},
		{ImportRow: rows[2], Reason: gateway.NameTaken, BoundNodeID: "n1", OtherUserID: "1"},
	}

	require.Equal(t, gateway.ImportBatch{Bound: 3, Unchanged: 2, Conflicts: conflicts},
		p.importRows(gateway.Import{ServiceID: ai}, rows...), "a dry run")
	require.Equal(t, before, p.all(), "a dry run writes nothing")

	i := p.begin()
	here, there := follow(t, store), follow(t, open(t, b, database))
	require.Equal(t, gateway.ImportBatch{Bound: 3, Unchanged: 2, Conflicts: conflicts}, p.importRows(i, rows...))
	here.requireTold(t, byUser("5"), byName("Éva"), byName("only a name"), byUser("only an id"))
	there.requireTold(t, byUser("5"), byName("Éva"), byName("only a name"), byUser("only an id"))
	after := p.all()
	require.Equal(t, before, after[:3])
	for n, want := range rows[4:] {
		made := after[3+n]
		require.WithinDuration(t, time.Now(), made.CreatedAt, time.Minute)
		require.Equal(t, gateway.Binding{
			ID: made.ID, ServiceID: ai, UserID: want.UserID, Username: want.Username, NodeID: want.NodeID,
			Epoch: 1, ImportID: i.ID, CreatedAt: made.CreatedAt, UpdatedAt: made.CreatedAt,
		}, made)
	}
	require.Equal(t, "n3", p.nodeNamed("e\u0301VA"))

	require.Equal(t, gateway.ImportBatch{Bound: 3, Unchanged: 2, Conflicts: conflicts}, p.importRows(i, rows...), "gone on with: what it bound is its own")
	require.Equal(t, gateway.ImportBatch{Unchanged: 5, Conflicts: conflicts}, p.importRows(p.begin(), rows...), "another import")
	require.Equal(t, gateway.ImportBatch{}, p.importRows(i))
	require.Equal(t, after, p.all())

	for _, nodeID := range []string{"m1", "none", ""} {
		for _, id := range []int64{0, i.ID} {
			_, err := store.ImportRows(t.Context(), gateway.Import{ID: id, ServiceID: ai, Run: i.Run}, []gateway.ImportRow{row("8", "", "n1"), row("9", "", nodeID)})
			requireConflict(t, err, fmt.Sprintf("%q", nodeID))
		}
	}
	require.Equal(t, after, p.all())

	result := p.login(login("4", "advance", "n3"))
	require.Equal(t, "n1", result.Binding.NodeID, "the login decides whose the row is")

	_, total, err := store.ListAudit(t.Context(), gateway.AuditFilter{Action: "binding.create", Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, len(before), total, "imported rows are not told one by one")
}

func testImportRecords(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	actor := gateway.Actor{Name: "user:7", RequestID: "r-1"}
	ctx := gateway.WithActor(t.Context(), actor)
	var begun []gateway.Import
	for _, i := range []gateway.Import{
		{ServiceID: ai, NodeID: "n1", Source: gateway.ImportUsers},
		{ServiceID: other, Source: gateway.ImportFile, State: gateway.ImportDone, Actor: "somebody else"},
		{ServiceID: ai, Source: gateway.ImportFile, Counts: gateway.ImportCounts{Read: 1}},
	} {
		stored, err := store.BeginImport(ctx, i)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), stored.CreatedAt, time.Minute)
		if i.Actor == "" {
			i.Actor = actor.Name
		}
		i.Run = 1
		i.ID, i.State, i.CreatedAt, i.UpdatedAt = stored.ID, gateway.ImportRunning, stored.CreatedAt, stored.CreatedAt
		require.Equal(t, i, stored)
		begun = append(begun, stored)
	}
	require.Less(t, begun[0].ID, begun[1].ID)

	save := func(change func(*gateway.Import)) gateway.Import {
		t.Helper()
		change(&begun[0])
		require.NoError(t, store.SaveImport(ctx, begun[0]))
		stored, err := store.ImportByID(ctx, begun[0].ID)
		require.NoError(t, err)
		begun[0].UpdatedAt = stored.UpdatedAt
		require.Equal(t, begun[0], stored)
		return stored
	}
	audited := func() []gateway.AuditEntry {
		t.Helper()
		page, _, err := store.ListAudit(ctx, gateway.AuditFilter{Action: "import", Limit: 10})
		require.NoError(t, err)
		return page
	}
	save(func(i *gateway.Import) {
		i.Counts = gateway.ImportCounts{Read: 6, Bound: 5, Unchanged: 4, Skipped: 3, Conflicts: 2, Invalid: 1}
	})
	require.Empty(t, audited())
	done := save(func(i *gateway.Import) { i.State = gateway.ImportDone })
	require.True(t, done.UpdatedAt.After(done.CreatedAt))
	save(func(i *gateway.Import) { i.State = gateway.ImportUndoing })
	save(func(i *gateway.Import) { i.State, i.Removed, i.Kept = gateway.ImportUndone, 4, 1 })
	entries := audited()
	require.Len(t, entries, 2)
	for n, action := range []string{gateway.ActionImportUndone, gateway.ActionImportDone} {
		require.Equal(t, []any{action, ai, "n1", actor}, []any{entries[n].Action, entries[n].ServiceID, entries[n].NodeID, entries[n].Actor})
	}
	require.JSONEq(t, string(gateway.AuditImport(gateway.ActionImportUndone, begun[0]).After), string(entries[0].After))
	require.Nil(t, entries[0].Before)

	for _, list := range []struct {
		service       string
		offset, limit int
		total         int64
		page          []gateway.Import
	}{
		{"", 0, 10, 3, []gateway.Import{begun[2], begun[1], begun[0]}},
		{ai, 0, 1, 2, []gateway.Import{begun[2]}},
		{ai, 1, 1, 2, []gateway.Import{begun[0]}},
		{"none", 0, 10, 0, nil},
	} {
		page, total, err := store.ListImports(ctx, list.service, list.offset, list.limit)
		require.NoError(t, err)
		require.Equal(t, list.total, total)
		require.ElementsMatch(t, list.page, page)
	}
	_, err := store.ImportByID(ctx, 1<<40)
	require.ErrorIs(t, err, gateway.ErrNotFound)
	var conflict *gateway.ConflictError
	require.ErrorAs(t, store.SaveImport(ctx, gateway.Import{ID: 1 << 40, State: gateway.ImportDone}), &conflict)
	require.Len(t, audited(), 2)
}

func testUndo(t *testing.T, b Backend) {
	store, database := setup(t, b)
	p := probe{t, store}
	actor := gateway.Actor{Name: "user:7", Address: "192.0.2.1", RequestID: "r-1"}
	ctx := gateway.WithActor(t.Context(), actor)
	p.login(login("1", "Alice", "n1"))
	p.login(login("2", "Bob", "n1"))
	before := p.all()

	i, another := p.begin(), p.begin()
	p.importRows(another, row("other", "", "n1"))
	var rows []gateway.ImportRow
	for n := range 20 {
		rows = append(rows, row(fmt.Sprint(100+n), fmt.Sprint("User ", n), fmt.Sprintf("n%d", n%3+1)))
	}
	p.importRows(i, append(rows, row("1", "Alice", "n1"), row("", "named", "n2"))...)

	// These have changed since: a new node, a new name and spelling, a user id, a name that went to somebody else.
	p.bind("100", "", "n3")
	p.login(login("101", "renamed", "n1"))
	p.login(login("104", "user 4", "n1"))
	p.login(login("named id", "named", "n1"))
	p.login(login("2", "User 3", "n1"))
	// These logins leave the binding as it is, but their users have met it.
	p.login(typed(login("105", "User 5", "n1"), "138"))
	p.login(login("106", "User 6", "n1"))
	require.Equal(t, "n3", p.nodeNamed("138"))
	changed := map[string]gateway.Binding{}
	for _, userID := range []string{"100", "101", "103", "104", "105", "106", "named id", "other"} {
		changed[userID] = p.binding(userID)
	}
	made := p.all()

	here, there := follow(t, store), follow(t, open(t, b, database))
	var batches, removed, kept int64
	for after, done := int64(0), false; !done; {
		batch, err := store.UndoRows(ctx, i, after, 5)
		require.NoError(t, err)
		require.GreaterOrEqual(t, batch.Last, after)
		require.LessOrEqual(t, batch.Removed+batch.Kept, int64(5))
		after, done = batch.Last, batch.Done
		batches, removed, kept = batches+1, removed+batch.Removed, kept+batch.Kept
	}
	require.GreaterOrEqual(t, batches, int64(5))
	require.Equal(t, []int64{14, 7}, []int64{removed, kept})
	here.requireTold(t, byUser("102"), byUser("119"))
	there.requireTold(t, byUser("102"), byUser("119"))

	for _, userID := range []string{"102", "107", "119"} {
		require.Empty(t, p.nodeOf(userID))
	}
	require.Equal(t, "n3", p.nodeNamed("138"))
	for userID, binding := range changed {
		require.Equal(t, binding, p.binding(userID), "changed since, or another import's")
	}
	require.Len(t, p.all(), len(made)-int(removed))
	require.Equal(t, before[0], p.binding("1"), "it was there before")

	entries, total, err := store.ListAudit(ctx, gateway.AuditFilter{Action: gateway.ActionBindingDelete, Limit: 100})
	require.NoError(t, err)
	require.Equal(t, removed, total)
	binding, err := gateway.AuditedBinding(entries[0].Before)
	require.NoError(t, err)
	want := gateway.AuditBindingChange(&binding, gateway.KeyOf(binding.Username), nil, "")
	want.ID, want.At, want.Actor = entries[0].ID, entries[0].At, actor
	require.Equal(t, []string{"119", "User 19", "n2"}, []string{want.UserID, want.Username, want.NodeID})
	require.JSONEq(t, string(want.Before), string(entries[0].Before))
	entries[0].Before = want.Before
	require.Equal(t, want, entries[0])

	again, err := store.UndoRows(ctx, i, 0, 100)
	require.NoError(t, err)
	require.Equal(t, gateway.UndoBatch{Kept: 7, Last: again.Last, Done: true}, again)
	none, err := store.UndoRows(ctx, p.begin(), 3, 100)
	require.NoError(t, err)
	require.Equal(t, gateway.UndoBatch{Last: 3, Done: true}, none)

	// Undone, the users can be imported again.
	require.EqualValues(t, 14, p.importRows(p.begin(), rows...).Bound)
}

// testImportRuns: who has begun last is the only one who can write.
func testImportRuns(t *testing.T, b Backend) {
	store, database := setup(t, b)
	other := open(t, b, database)
	p := probe{t, store}
	ctx := t.Context()
	first := p.begin()
	second, err := other.ClaimImport(ctx, first.ID, func(i *gateway.Import) error {
		i.State = gateway.ImportUndoing
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, gateway.ImportUndoing, second.State)
	require.Greater(t, second.Run, first.Run)

	var takenOver *gateway.ConflictError
	_, err = store.ImportRows(ctx, first, []gateway.ImportRow{row("1", "ann", "n1")})
	require.ErrorAs(t, err, &takenOver)
	_, err = store.UndoRows(ctx, first, 0, 10)
	require.ErrorAs(t, err, &takenOver)
	first.State = gateway.ImportDone
	require.ErrorAs(t, store.SaveImport(ctx, first), &takenOver)
	require.Empty(t, p.nodeOf("1"))
	there, err := store.ImportByID(ctx, first.ID)
	require.NoError(t, err)
	require.Equal(t, second, there)

	refused := errors.New("refused")
	_, err = store.ClaimImport(ctx, first.ID, func(*gateway.Import) error { return refused })
	require.ErrorIs(t, err, refused)
	require.NoError(t, other.SaveImport(ctx, second), "a claim that was refused takes nothing over")
	_, err = store.ClaimImport(ctx, 1<<40, func(*gateway.Import) error { return nil })
	require.ErrorIs(t, err, gateway.ErrNotFound)
}

// testRaceOfImports imports users while they log in elsewhere, twice at once: each
// gets one row, and every caller learns the truth about it.
func testRaceOfImports(t *testing.T, b Backend) {
	store, database := setup(t, b)
	stores := []gateway.Store{store, open(t, b, database), open(t, b, database)}
	p := probe{t, store}
	const users, batchSize = 300, 50
	imports := []gateway.Import{p.begin(), p.begin()}
	batches := make([]gateway.ImportBatch, len(imports))
	learnt := make([]string, users)
	errs := make(chan error, users+len(imports)*users/batchSize)
	var all sync.WaitGroup
	for n, i := range imports {
		all.Go(func() {
			for start := 0; start < users; start += batchSize {
				var rows []gateway.ImportRow
				for user := start; user < start+batchSize; user++ {
					rows = append(rows, row(fmt.Sprint(user), fmt.Sprint("User ", user), fmt.Sprintf("n%d", n+1)))
				}
				batch, err := stores[n].ImportRows(t.Context(), i, rows)
				batches[n].Bound += batch.Bound
				batches[n].Unchanged += batch.Unchanged
				batches[n].Conflicts = append(batches[n].Conflicts, batch.Conflicts...)
				errs <- err
			}
		})
	}
	all.Go(func() {
		for user := range users {
			result, err := stores[2].BindIfAbsent(t.Context(), login(fmt.Sprint(user), fmt.Sprint("User ", user), "n3"))
			learnt[user] = result.Binding.NodeID
			errs <- err
		}
	})
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}

	made := map[int64]int64{}
	bindings := p.all()
	require.Len(t, bindings, users)
	for _, binding := range bindings {
		made[binding.ImportID]++
	}
	for user, nodeID := range learnt {
		require.Equal(t, p.nodeOf(fmt.Sprint(user)), nodeID)
	}
	for n, i := range imports {
		require.Equal(t, made[i.ID], batches[n].Bound)
		require.EqualValues(t, users, batches[n].Bound+batches[n].Unchanged+int64(len(batches[n].Conflicts)))
		for _, conflict := range batches[n].Conflicts {
			require.Equal(t, gateway.BoundElsewhere, conflict.Reason)
			require.Equal(t, p.nodeOf(conflict.UserID), conflict.BoundNodeID)
		}
	}
}
