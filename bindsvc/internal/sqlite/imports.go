package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/bindrule"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const importColumns = `id, service_id, coalesce(node_id, ''), source, state, run, actor,
	read, bound, unchanged, skipped, conflicts, invalid, removed, kept, create_time, update_time`

func scanImport(row scanner) (gateway.Import, error) {
	var i gateway.Import
	var created, updated int64
	n := &i.Counts
	err := row.Scan(&i.ID, &i.ServiceID, &i.NodeID, &i.Source, &i.State, &i.Run, &i.Actor,
		&n.Read, &n.Bound, &n.Unchanged, &n.Skipped, &n.Conflicts, &n.Invalid, &i.Removed, &i.Kept, &created, &updated)
	i.CreatedAt, i.UpdatedAt = time.UnixMicro(created).UTC(), time.UnixMicro(updated).UTC()
	return i, notFound(err)
}

// BeginImport implements gateway.Imports. The actor is the context's if i names none.
func (s *Store) BeginImport(ctx context.Context, i gateway.Import) (begun gateway.Import, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) (err error) {
		n := i.Counts
		begun, err = scanImport(tx.QueryRowContext(ctx, `INSERT INTO gateway_import (service_id, node_id, source, state, actor,
				read, bound, unchanged, skipped, conflicts, invalid, removed, kept, create_time, update_time)
			VALUES ($1, nullif($2, ''), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14) RETURNING `+importColumns,
			i.ServiceID, i.NodeID, i.Source, gateway.ImportRunning, cmp.Or(i.Actor, actorName(gateway.ActorOf(ctx))),
			n.Read, n.Bound, n.Unchanged, n.Skipped, n.Conflicts, n.Invalid, i.Removed, i.Kept, s.now().UnixMicro()))
		return err
	})
	return begun, err
}

// ImportByID implements gateway.Imports.
func (s *Store) ImportByID(ctx context.Context, id int64) (gateway.Import, error) {
	return scanImport(s.read.QueryRowContext(ctx, `SELECT `+importColumns+` FROM gateway_import WHERE id = $1`, id))
}

// ListImports implements gateway.Imports. An empty serviceID means every service.
func (s *Store) ListImports(ctx context.Context, serviceID string, offset, limit int) (page []gateway.Import, total int64, err error) {
	const matching = ` FROM gateway_import WHERE ($1 = '' OR service_id = $1)`
	err = s.inSnapshot(ctx, func(tx *sql.Tx) (err error) {
		if err := tx.QueryRowContext(ctx, `SELECT count(*)`+matching, serviceID).Scan(&total); err != nil {
			return err
		}
		page, err = collect(ctx, tx, scanImport, `SELECT `+importColumns+matching+` ORDER BY id DESC LIMIT $2 OFFSET $3`, serviceID, limit, offset)
		return err
	})
	return page, total, err
}

// ClaimImport implements gateway.Imports.
func (s *Store) ClaimImport(ctx context.Context, id int64, claim func(*gateway.Import) error) (claimed gateway.Import, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		i, err := scanImport(tx.QueryRowContext(ctx, `SELECT `+importColumns+` FROM gateway_import WHERE id = $1`, id))
		if err != nil {
			return err
		}
		if err := claim(&i); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE gateway_import SET run = run + 1 WHERE id = $1`, id); err != nil {
			return err
		}
		i.Run++
		claimed, err = saveImport(ctx, tx, i, s.now())
		return err
	})
	return claimed, err
}

// SaveImport implements gateway.Imports.
func (s *Store) SaveImport(ctx context.Context, i gateway.Import) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		now := s.now()
		saved, err := saveImport(ctx, tx, i, now)
		if err != nil {
			return err
		}
		switch saved.State {
		case gateway.ImportDone:
			return record(ctx, tx, now, gateway.AuditImport(gateway.ActionImportDone, saved))
		case gateway.ImportUndone:
			return record(ctx, tx, now, gateway.AuditImport(gateway.ActionImportUndone, saved))
		default:
			return nil
		}
	})
}

func saveImport(ctx context.Context, tx *sql.Tx, i gateway.Import, now time.Time) (gateway.Import, error) {
	n := i.Counts
	saved, err := scanImport(tx.QueryRowContext(ctx, `UPDATE gateway_import SET state = $2, read = $3, bound = $4, unchanged = $5, skipped = $6,
			conflicts = $7, invalid = $8, removed = $9, kept = $10, update_time = $11 WHERE id = $1 AND run = $12 RETURNING `+importColumns,
		i.ID, i.State, n.Read, n.Bound, n.Unchanged, n.Skipped, n.Conflicts, n.Invalid, i.Removed, i.Kept, now.UnixMicro(), i.Run))
	if gateway.IsNotFound(err) {
		err = i.TakenOver()
	}
	return saved, err
}

// holdImport refuses a run that another one has taken over from. The write
// transaction keeps others out until it ends.
func holdImport(ctx context.Context, tx *sql.Tx, i gateway.Import) error {
	var isNewest bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM gateway_import WHERE id = $1 AND run = $2)`, i.ID, i.Run).Scan(&isNewest)
	if err == nil && !isNewest {
		return i.TakenOver()
	}
	return err
}

// writeBatch is how many rows one transaction makes: a login waits for it, since
// there is one writer.
const writeBatch = 1000

// ImportRows implements gateway.Imports.
func (s *Store) ImportRows(ctx context.Context, i gateway.Import, rows []gateway.ImportRow) (all gateway.ImportBatch, err error) {
	for some := range slices.Chunk(rows, writeBatch) {
		batch, err := s.importSome(ctx, i, some)
		if err != nil {
			return gateway.ImportBatch{}, err
		}
		all.Bound += batch.Bound
		all.Unchanged += batch.Unchanged
		all.Conflicts = append(all.Conflicts, batch.Conflicts...)
	}
	return all, nil
}

func (s *Store) importSome(ctx context.Context, i gateway.Import, rows []gateway.ImportRow) (batch gateway.ImportBatch, err error) {
	isDryRun := i.ID == 0
	run := s.inTx
	if isDryRun {
		run = s.inSnapshot
	}
	var absent []gateway.ImportRow
	err = run(ctx, func(tx *sql.Tx) error {
		batch = gateway.ImportBatch{}
		if !isDryRun {
			if err := holdImport(ctx, tx, i); err != nil {
				return err
			}
		}
		if err := verifyNodes(ctx, tx, i.ServiceID, rows); err != nil {
			return err
		}
		existing, err := existingRows(ctx, tx, i.ServiceID, rows)
		if err != nil {
			return err
		}
		absent = existing.Sort(i.ID, rows, &batch)
		batch.Bound += int64(len(absent))
		if isDryRun {
			return nil
		}
		return insertRows(ctx, tx, i, absent, s.now())
	})
	if err != nil {
		return gateway.ImportBatch{}, err
	}
	if !isDryRun && len(absent) > 0 {
		s.hub.publish(gateway.Change{Kind: gateway.ChangeBindings})
	}
	return batch, nil
}

// verifyNodes refuses rows on a node that the service does not have.
func verifyNodes(ctx context.Context, tx *sql.Tx, serviceID string, rows []gateway.ImportRow) error {
	verified := map[string]bool{}
	for _, row := range rows {
		if verified[row.NodeID] {
			continue
		}
		switch has, err := (routes{tx: tx}).HasNode(ctx, serviceID, row.NodeID); {
		case err != nil:
			return err
		case !has:
			return gateway.Conflictf("service %q has no node %q", serviceID, row.NodeID)
		}
		verified[row.NodeID] = true
	}
	return nil
}

// existingRows reads the rows of the table that the rows of an import meet.
func existingRows(ctx context.Context, tx *sql.Tx, serviceID string, rows []gateway.ImportRow) (existing bindrule.Existing, err error) {
	byUser, err := tx.PrepareContext(ctx, boundByUser)
	if err != nil {
		return existing, err
	}
	defer func() { _ = byUser.Close() }()
	byName, err := tx.PrepareContext(ctx, boundByName)
	if err != nil {
		return existing, err
	}
	defer func() { _ = byName.Close() }()
	add := func(find *sql.Stmt, who string) error {
		if who == "" {
			return nil
		}
		row, err := scanRoute(find.QueryRowContext(ctx, serviceID, who))
		switch {
		case err == nil:
			existing.Add(row)
		case errors.Is(err, gateway.ErrNotFound):
			return nil
		}
		return err
	}
	for _, row := range rows {
		if err := add(byUser, row.UserID); err != nil {
			return existing, err
		}
		if err := add(byName, string(gateway.KeyOf(row.Username))); err != nil {
			return existing, err
		}
	}
	return existing, nil
}

func insertRows(ctx context.Context, tx *sql.Tx, i gateway.Import, rows []gateway.ImportRow, now time.Time) error {
	insert, err := tx.PrepareContext(ctx, `INSERT INTO gateway_user_route (service_id, user_id, username, username_key, node_id, epoch, import_id, create_time, update_time)
		VALUES ($1, nullif($2, ''), nullif($3, ''), nullif($4, ''), $5, 1, $6, $7, $7)`)
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	for _, row := range rows {
		if _, err := insert.ExecContext(ctx, i.ServiceID, row.UserID, row.Username, gateway.KeyOf(row.Username), row.NodeID, i.ID, now.UnixMicro()); err != nil {
			return err
		}
	}
	return nil
}

// UndoRows implements gateway.Imports. A binding that was changed has another
// epoch or update_time.
func (s *Store) UndoRows(ctx context.Context, i gateway.Import, after int64, limit int) (batch gateway.UndoBatch, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if err := holdImport(ctx, tx, i); err != nil {
			return err
		}
		batch = gateway.UndoBatch{Last: after}
		made, err := collect(ctx, tx, func(row scanner) (bindrule.Row, error) { return scanRoute(row) }, `SELECT `+routeColumns+` FROM gateway_user_route r
			WHERE r.import_id = $1 AND r.id > $2 ORDER BY r.id LIMIT $3`, i.ID, after, limit)
		if err != nil {
			return err
		}
		remove, err := tx.PrepareContext(ctx, `DELETE FROM gateway_user_route WHERE id = $1`) // its aliases go with it
		if err != nil {
			return err
		}
		defer func() { _ = remove.Close() }()
		var entries []gateway.AuditEntry
		for _, row := range made {
			batch.Last = row.ID
			if !row.IsAsImported() {
				batch.Kept++
				continue
			}
			if _, err := remove.ExecContext(ctx, row.ID); err != nil {
				return err
			}
			batch.Removed++
			entries = append(entries, bindrule.Entry(&row, nil))
		}
		if _, err := tx.ExecContext(ctx, `UPDATE gateway_import SET removed = removed + $2 WHERE id = $1`, i.ID, batch.Removed); err != nil {
			return err
		}
		batch.Done = len(made) < limit
		return record(ctx, tx, s.now(), entries...)
	})
	if err != nil {
		return gateway.UndoBatch{}, err
	}
	if batch.Removed > 0 {
		s.hub.publish(gateway.Change{Kind: gateway.ChangeBindings})
	}
	return batch, nil
}
