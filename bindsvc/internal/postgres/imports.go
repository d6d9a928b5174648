package postgres

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/bindrule"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const importColumns = `id, service_id, coalesce(node_id, ''), source, state, run, actor,
	read, bound, unchanged, skipped, conflicts, invalid, removed, kept, create_time, update_time`

func scanImport(row pgx.CollectableRow) (gateway.Import, error) {
	var i gateway.Import
	n := &i.Counts
	err := row.Scan(&i.ID, &i.ServiceID, &i.NodeID, &i.Source, &i.State, &i.Run, &i.Actor,
		&n.Read, &n.Bound, &n.Unchanged, &n.Skipped, &n.Conflicts, &n.Invalid, &i.Removed, &i.Kept, &i.CreatedAt, &i.UpdatedAt)
	return i, err
}

// BeginImport implements gateway.Imports. The actor is the context's if i names none.
func (s *Store) BeginImport(ctx context.Context, i gateway.Import) (begun gateway.Import, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		n := i.Counts
		begun, err = one(ctx, tx, scanImport, `INSERT INTO gateway_import (service_id, node_id, source, state, actor,
				read, bound, unchanged, skipped, conflicts, invalid, removed, kept, create_time, update_time)
			VALUES ($1, nullif($2, ''), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14) RETURNING `+importColumns,
			i.ServiceID, i.NodeID, i.Source, gateway.ImportRunning, cmp.Or(i.Actor, actorName(gateway.ActorOf(ctx))),
			n.Read, n.Bound, n.Unchanged, n.Skipped, n.Conflicts, n.Invalid, i.Removed, i.Kept, now())
		return err
	})
	return begun, err
}

// ImportByID implements gateway.Imports.
func (s *Store) ImportByID(ctx context.Context, id int64) (gateway.Import, error) {
	return one(ctx, s.pool, scanImport, `SELECT `+importColumns+` FROM gateway_import WHERE id = $1`, id)
}

// ListImports implements gateway.Imports. An empty serviceID means every service.
func (s *Store) ListImports(ctx context.Context, serviceID string, offset, limit int) (page []gateway.Import, total int64, err error) {
	const matching = ` FROM gateway_import WHERE ($1 = '' OR service_id = $1)`
	err = s.inSnapshot(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT count(*)`+matching, serviceID).Scan(&total); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT `+importColumns+matching+` ORDER BY id DESC LIMIT $2 OFFSET $3`, serviceID, limit, offset)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, scanImport)
		return err
	})
	return page, total, err
}

// ClaimImport implements gateway.Imports.
func (s *Store) ClaimImport(ctx context.Context, id int64, claim func(*gateway.Import) error) (claimed gateway.Import, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		i, err := one(ctx, tx, scanImport, `SELECT `+importColumns+` FROM gateway_import WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		if err := claim(&i); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE gateway_import SET run = run + 1 WHERE id = $1`, id); err != nil {
			return err
		}
		i.Run++
		claimed, err = saveImport(ctx, tx, i)
		return err
	})
	return claimed, err
}

// SaveImport implements gateway.Imports.
func (s *Store) SaveImport(ctx context.Context, i gateway.Import) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		saved, err := saveImport(ctx, tx, i)
		if err != nil {
			return err
		}
		switch saved.State {
		case gateway.ImportDone:
			return record(ctx, tx, gateway.AuditImport(gateway.ActionImportDone, saved))
		case gateway.ImportUndone:
			return record(ctx, tx, gateway.AuditImport(gateway.ActionImportUndone, saved))
		default:
			return nil
		}
	})
}

func saveImport(ctx context.Context, tx pgx.Tx, i gateway.Import) (gateway.Import, error) {
	n := i.Counts
	saved, err := one(ctx, tx, scanImport, `UPDATE gateway_import SET state = $2, read = $3, bound = $4, unchanged = $5, skipped = $6,
			conflicts = $7, invalid = $8, removed = $9, kept = $10, update_time = $11 WHERE id = $1 AND run = $12 RETURNING `+importColumns,
		i.ID, i.State, n.Read, n.Bound, n.Unchanged, n.Skipped, n.Conflicts, n.Invalid, i.Removed, i.Kept, now(), i.Run)
	if gateway.IsNotFound(err) {
		err = i.TakenOver()
	}
	return saved, err
}

// holdImport keeps other runs of the import out until the transaction ends.
func holdImport(ctx context.Context, tx pgx.Tx, i gateway.Import) error {
	err := tx.QueryRow(ctx, `SELECT FROM gateway_import WHERE id = $1 AND run = $2 FOR NO KEY UPDATE`, i.ID, i.Run).Scan()
	if errors.Is(err, pgx.ErrNoRows) {
		return i.TakenOver()
	}
	return err
}

// ImportRows implements gateway.Imports. Most imports meet few rows that exist: the
// rows are made first, and looked up only where some were not made.
func (s *Store) ImportRows(ctx context.Context, i gateway.Import, rows []gateway.ImportRow) (batch gateway.ImportBatch, err error) {
	if i.ID == 0 {
		err = s.inSnapshot(ctx, func(tx pgx.Tx) (err error) {
			batch, err = foreseeRows(ctx, tx, i, rows)
			return err
		})
	} else {
		err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
			batch, err = importRows(ctx, tx, i, rows)
			return err
		})
	}
	if sqlState(err) == foreignKeyViolation {
		err = gateway.Conflictf("the service or the node does not exist") // deleted just now
	}
	if err != nil {
		return gateway.ImportBatch{}, err
	}
	return batch, nil
}

// foreseeRows says what importRows would do.
func foreseeRows(ctx context.Context, tx pgx.Tx, i gateway.Import, rows []gateway.ImportRow) (batch gateway.ImportBatch, err error) {
	if err := verifyNodes(ctx, tx, i.ServiceID, rows); err != nil {
		return batch, err
	}
	existing, err := existingRows(ctx, tx, i.ServiceID, rows)
	if err != nil {
		return batch, err
	}
	batch.Bound += int64(len(existing.Sort(i.ID, rows, &batch)))
	return batch, nil
}

func importRows(ctx context.Context, tx pgx.Tx, i gateway.Import, rows []gateway.ImportRow) (batch gateway.ImportBatch, err error) {
	if err := holdImport(ctx, tx, i); err != nil {
		return batch, err
	}
	if err := verifyNodes(ctx, tx, i.ServiceID, rows); err != nil {
		return batch, err
	}
	made, err := insertRows(ctx, tx, i, rows)
	if err != nil || made == len(rows) {
		return gateway.ImportBatch{Bound: int64(made)}, err
	}
	existing, err := existingRows(ctx, tx, i.ServiceID, rows) // those that were just made too, which count as bound
	if err != nil {
		return batch, err
	}
	if absent := existing.Sort(i.ID, rows, &batch); len(absent) > 0 {
		return batch, errRace // what was in their way is gone again
	}
	return batch, nil
}

// verifyNodes refuses rows on a node that the service does not have.
func verifyNodes(ctx context.Context, tx pgx.Tx, serviceID string, rows []gateway.ImportRow) error {
	wanted := map[string]bool{}
	for _, row := range rows {
		wanted[row.NodeID] = true
	}
	var missing string
	err := tx.QueryRow(ctx, `SELECT w.id FROM unnest($2::text[]) AS w (id)
		WHERE NOT EXISTS (SELECT FROM gateway_node n WHERE n.id = w.id AND n.service_id = $1) LIMIT 1`,
		serviceID, slices.Sorted(maps.Keys(wanted))).Scan(&missing)
	switch err = notFound(err); {
	case err == nil:
		return gateway.Conflictf("service %q has no node %q", serviceID, missing)
	case gateway.IsNotFound(err):
		return nil
	}
	return err
}

// existingRows reads the rows of the table that the rows of an import meet.
func existingRows(ctx context.Context, tx pgx.Tx, serviceID string, rows []gateway.ImportRow) (existing bindrule.Existing, err error) {
	var userIDs, keys []string
	for _, row := range rows {
		if row.UserID != "" {
			userIDs = append(userIDs, row.UserID)
		}
		if row.Username != "" {
			keys = append(keys, string(gateway.KeyOf(row.Username)))
		}
	}
	// A plan made without a look at the arrays, and while the table was small, compares
	// every row with every element.
	if _, err := tx.Exec(ctx, `SET LOCAL plan_cache_mode = force_custom_plan`); err != nil {
		return existing, err
	}
	found, err := tx.Query(ctx, `SELECT `+routeColumns+` FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = ANY($2) AND r.user_id IS NOT NULL
		UNION ALL SELECT `+routeColumns+` FROM gateway_user_route r WHERE r.service_id = $1 AND r.username_key = ANY($3) AND r.username_key IS NOT NULL`,
		serviceID, userIDs, keys)
	if err != nil {
		return existing, err
	}
	for found.Next() {
		row, err := scanRoute(found)
		if err != nil {
			found.Close()
			return existing, err
		}
		existing.Add(row)
	}
	return existing, found.Err()
}

// insertRows makes those rows of an import that nothing is in the way of, and says how many.
func insertRows(ctx context.Context, tx pgx.Tx, i gateway.Import, rows []gateway.ImportRow) (made int, err error) {
	userIDs, usernames, keys, nodeIDs := make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows))
	for at, row := range rows {
		userIDs[at], usernames[at], keys[at], nodeIDs[at] = row.UserID, row.Username, string(gateway.KeyOf(row.Username)), row.NodeID
	}
	done, err := tx.Exec(ctx, `INSERT INTO gateway_user_route (service_id, user_id, username, username_key, node_id, epoch, import_id, create_time, update_time)
		SELECT $1::text, nullif(w.user_id, ''), nullif(w.username, ''), nullif(w.key, ''), w.node_id, 1, $2::bigint, $3::timestamp, $3::timestamp
		FROM unnest($4::text[], $5::text[], $6::text[], $7::text[]) AS w (user_id, username, key, node_id)
		ON CONFLICT DO NOTHING`,
		i.ServiceID, i.ID, now(), userIDs, usernames, keys, nodeIDs)
	return int(done.RowsAffected()), err
}

// UndoRows implements gateway.Imports. A binding that was changed has another
// epoch or update_time; also one that was changed by hand (see the triggers).
func (s *Store) UndoRows(ctx context.Context, i gateway.Import, after int64, limit int) (batch gateway.UndoBatch, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if err := holdImport(ctx, tx, i); err != nil {
			return err
		}
		batch = gateway.UndoBatch{Last: after}
		rows, err := tx.Query(ctx, `SELECT `+routeColumns+` FROM gateway_user_route r
			WHERE r.import_id = $1 AND r.id > $2 ORDER BY r.id LIMIT $3 FOR UPDATE`, i.ID, after, limit)
		if err != nil {
			return err
		}
		made, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (bindrule.Row, error) { return scanRoute(row) })
		if err != nil {
			return err
		}
		var removed []int64
		var entries []gateway.AuditEntry
		for _, row := range made {
			batch.Last = row.ID
			if row.IsAsImported() {
				removed = append(removed, row.ID)
				entries = append(entries, bindrule.Entry(&row, nil))
			}
		}
		batch.Removed, batch.Kept = int64(len(removed)), int64(len(made)-len(removed))
		if len(removed) > 0 {
			if _, err := tx.Exec(ctx, `DELETE FROM gateway_user_route WHERE id = ANY($1)`, removed); err != nil { // their aliases go with them
				return err
			}
			if err := record(ctx, tx, entries...); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `UPDATE gateway_import SET removed = removed + $2 WHERE id = $1`, i.ID, batch.Removed); err != nil {
				return err
			}
		}
		// Not by the number of rows: one that was unbound meanwhile was counted by LIMIT.
		return tx.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM gateway_user_route WHERE import_id = $1 AND id > $2)`, i.ID, batch.Last).Scan(&batch.Done)
	})
	if err != nil {
		return gateway.UndoBatch{}, err
	}
	return batch, nil
}
