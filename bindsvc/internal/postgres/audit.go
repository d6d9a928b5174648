package postgres

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/where"
)

// Audit implements bindrule.Rows.
func (t routes) Audit(ctx context.Context, entry gateway.AuditEntry) error {
	return record(ctx, t.tx, entry)
}

// execer is a transaction or a pool.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// record adds entries, as the context's actor's. The clock is read here, when the
// rows are locked: later changes of the same rows get later times.
func record(ctx context.Context, db execer, entries ...gateway.AuditEntry) error {
	var columns [9][]string
	for _, e := range entries {
		for i, value := range [...]string{
			e.Action, e.ServiceID, e.NodeID, e.UserID, e.Username, string(e.KeyBefore), string(e.KeyAfter), string(e.Before), string(e.After),
		} {
			columns[i] = append(columns[i], value)
		}
	}
	actor := gateway.ActorOf(ctx)
	args := []any{now(), actorName(actor), actor.Address, actor.RequestID}
	for _, column := range columns {
		args = append(args, column)
	}
	_, err := db.Exec(ctx, `INSERT INTO gateway_audit (at, actor, address, request_id, action, service_id, node_id, user_id, username,
			username_key_before, username_key_after, before, after)
		SELECT $1::timestamp, $2::text, nullif($3::text, ''), nullif($4::text, ''), e.action, nullif(e.service_id, ''), nullif(e.node_id, ''),
			nullif(e.user_id, ''), nullif(e.username, ''), nullif(e.key_before, ''), nullif(e.key_after, ''), nullif(e.before, '')::jsonb, nullif(e.after, '')::jsonb
		FROM unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[])
			AS e (action, service_id, node_id, user_id, username, key_before, key_after, before, after)`, args...)
	return err
}

// actorName is never empty, so that no filter mistakes it for "any".
func actorName(actor gateway.Actor) string { return cmp.Or(actor.Name, "unknown") }

// Record implements gateway.AuditLog.
func (s *Store) Record(ctx context.Context, entry gateway.AuditEntry) error {
	return record(ctx, s.pool, entry)
}

const auditColumns = `id, at, actor, coalesce(address, ''), coalesce(request_id, ''), action, coalesce(service_id, ''), coalesce(node_id, ''),
	coalesce(user_id, ''), coalesce(username, ''), coalesce(username_key_before, ''), coalesce(username_key_after, ''), before, after`

// ListAudit implements gateway.AuditLog.
func (s *Store) ListAudit(ctx context.Context, filter gateway.AuditFilter) (page []gateway.AuditEntry, total int64, err error) {
	clause, args := auditWhere(filter)
	err = s.inSnapshot(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM gateway_audit`+clause, args...).Scan(&total); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT `+auditColumns+` FROM gateway_audit`+clause+` ORDER BY id DESC LIMIT `+strconv.Itoa(filter.Limit)+` OFFSET `+strconv.Itoa(filter.Offset), args...)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, scanAudit)
		return err
	})
	return page, total, err
}

func scanAudit(row pgx.CollectableRow) (gateway.AuditEntry, error) {
	var e gateway.AuditEntry
	var before, after []byte
	err := row.Scan(&e.ID, &e.At, &e.Actor.Name, &e.Actor.Address, &e.Actor.RequestID, &e.Action, &e.ServiceID, &e.NodeID,
		&e.UserID, &e.Username, &e.KeyBefore, &e.KeyAfter, &before, &after)
	e.Before, e.After = before, after
	return e, err
}

func auditWhere(f gateway.AuditFilter) (clause string, args []any) {
	var w where.Clause
	w.Add(f.ServiceID != "", `service_id = ?`, f.ServiceID)
	w.Add(f.NodeID != "", `node_id = ?`, f.NodeID)
	w.Add(f.UserID != "", `user_id = ?`, f.UserID)
	w.Add(f.Username != "", `(username_key_before = ? OR username_key_after = ?)`, f.Username)
	w.Add(f.Actor != "", `actor = ?`, f.Actor)
	w.Add(f.Action != "", `(action = ? OR starts_with(action, ? || '.'))`, f.Action)
	w.Add(f.RequestID != "", `request_id = ?`, f.RequestID)
	w.Add(!f.Since.IsZero(), `at >= ?`, f.Since.UTC())
	w.Add(!f.Until.IsZero(), `at < ?`, f.Until.UTC())
	return w.SQL()
}

// What the first change after a time found, and what is bound now. The entries of
// a user or name are few, and are found by their indexes.
const (
	changeAfterByUser = `SELECT before FROM gateway_audit
		WHERE service_id = $1 AND user_id = $2 AND at > $3 AND starts_with(action, 'binding.') ORDER BY id LIMIT 1`
	changeAfterByName = `SELECT before FROM (
			SELECT id, before FROM gateway_audit WHERE service_id = $1 AND username_key_before = $2 AND at > $3 AND starts_with(action, 'binding.')
			UNION ALL
			SELECT id, before FROM gateway_audit WHERE service_id = $1 AND username_key_after = $2 AND at > $3 AND starts_with(action, 'binding.')
		) AS changes ORDER BY id LIMIT 1`
	boundByUser = `SELECT ` + routeColumns + ` FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = $2`
	boundByName = `SELECT ` + routeColumns + ` FROM gateway_user_route r WHERE r.service_id = $1 AND r.username_key = $2`
)

// BindingAt implements gateway.AuditLog.
func (s *Store) BindingAt(ctx context.Context, serviceID, userID string, key gateway.UsernameKey, at time.Time) (gateway.Binding, error) {
	changeAfter, bound, who := changeAfterByUser, boundByUser, userID
	if userID == "" {
		changeAfter, bound, who = changeAfterByName, boundByName, string(key)
	}
	var binding gateway.Binding
	err := s.inSnapshot(ctx, func(tx pgx.Tx) error {
		var before []byte
		err := tx.QueryRow(ctx, changeAfter, serviceID, who, at.UTC()).Scan(&before)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			row, err := scanRoute(tx.QueryRow(ctx, bound, serviceID, who))
			binding = row.Binding
			return err
		case err != nil:
			return err
		case before == nil:
			return gateway.ErrNotFound
		}
		binding, err = gateway.AuditedBinding(before)
		return err
	})
	if err != nil {
		return gateway.Binding{}, err
	}
	if !binding.WasHeldBy(userID, key, at) {
		return gateway.Binding{}, gateway.ErrNotFound
	}
	return binding, nil
}
