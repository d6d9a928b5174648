package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/where"
)

// Audit implements bindrule.Rows.
func (t routes) Audit(ctx context.Context, entry gateway.AuditEntry) error {
	return record(ctx, t.tx, t.now, entry)
}

// record adds entries, as the context's actor's.
func record(ctx context.Context, tx *sql.Tx, now time.Time, entries ...gateway.AuditEntry) error {
	insert, err := tx.PrepareContext(ctx, `INSERT INTO gateway_audit (at, actor, address, request_id, action, service_id, node_id, user_id, username,
			username_key_before, username_key_after, before, after)
		VALUES ($1, $2, nullif($3, ''), nullif($4, ''), $5, nullif($6, ''), nullif($7, ''), nullif($8, ''), nullif($9, ''),
			nullif($10, ''), nullif($11, ''), nullif($12, ''), nullif($13, ''))`)
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	actor := gateway.ActorOf(ctx)
	for _, e := range entries {
		_, err := insert.ExecContext(ctx, now.UnixMicro(), actorName(actor), actor.Address, actor.RequestID,
			e.Action, e.ServiceID, e.NodeID, e.UserID, e.Username, e.KeyBefore, e.KeyAfter, string(e.Before), string(e.After))
		if err != nil {
			return err
		}
	}
	return nil
}

// actorName is never empty, so that no filter mistakes it for "any".
func actorName(actor gateway.Actor) string { return cmp.Or(actor.Name, "unknown") }

// Record implements gateway.AuditLog.
func (s *Store) Record(ctx context.Context, entry gateway.AuditEntry) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return record(ctx, tx, s.now(), entry) })
}

const auditColumns = `id, at, actor, coalesce(address, ''), coalesce(request_id, ''), action, coalesce(service_id, ''), coalesce(node_id, ''),
	coalesce(user_id, ''), coalesce(username, ''), coalesce(username_key_before, ''), coalesce(username_key_after, ''), before, after`

// ListAudit implements gateway.AuditLog.
func (s *Store) ListAudit(ctx context.Context, filter gateway.AuditFilter) (page []gateway.AuditEntry, total int64, err error) {
	clause, args := auditWhere(filter)
	err = s.inSnapshot(ctx, func(tx *sql.Tx) (err error) {
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM gateway_audit`+clause, args...).Scan(&total); err != nil {
			return err
		}
		page, err = collect(ctx, tx, scanAudit, `SELECT `+auditColumns+` FROM gateway_audit`+clause+` ORDER BY id DESC LIMIT `+strconv.Itoa(filter.Limit)+` OFFSET `+strconv.Itoa(filter.Offset), args...)
		return err
	})
	return page, total, err
}

func scanAudit(row scanner) (gateway.AuditEntry, error) {
	var e gateway.AuditEntry
	var at int64
	var before, after []byte
	err := row.Scan(&e.ID, &at, &e.Actor.Name, &e.Actor.Address, &e.Actor.RequestID, &e.Action, &e.ServiceID, &e.NodeID,
		&e.UserID, &e.Username, &e.KeyBefore, &e.KeyAfter, &before, &after)
	e.At, e.Before, e.After = time.UnixMicro(at).UTC(), before, after
	return e, err
}

func auditWhere(f gateway.AuditFilter) (clause string, args []any) {
	var w where.Clause
	w.Add(f.ServiceID != "", `service_id = ?`, f.ServiceID)
	w.Add(f.NodeID != "", `node_id = ?`, f.NodeID)
	w.Add(f.UserID != "", `user_id = ?`, f.UserID)
	w.Add(f.Username != "", `(username_key_before = ? OR username_key_after = ?)`, f.Username)
	w.Add(f.Actor != "", `actor = ?`, f.Actor)
	w.Add(f.Action != "", `(action = ? OR substr(action, 1, length(?) + 1) = ? || '.')`, f.Action)
	w.Add(f.RequestID != "", `request_id = ?`, f.RequestID)
	w.Add(!f.Since.IsZero(), `at >= ?`, f.Since.UnixMicro())
	w.Add(!f.Until.IsZero(), `at < ?`, f.Until.UnixMicro())
	return w.SQL()
}

// What the first change after a time found, and what is bound now.
const (
	changeAfterByUser = `SELECT before FROM gateway_audit
		WHERE service_id = $1 AND user_id = $2 AND at > $3 AND action LIKE 'binding.%' ORDER BY id LIMIT 1`
	changeAfterByName = `SELECT before FROM gateway_audit
		WHERE service_id = $1 AND (username_key_before = $2 OR username_key_after = $2) AND at > $3 AND action LIKE 'binding.%' ORDER BY id LIMIT 1`
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
	err := s.inSnapshot(ctx, func(tx *sql.Tx) error {
		var before []byte
		err := tx.QueryRowContext(ctx, changeAfter, serviceID, who, at.UnixMicro()).Scan(&before)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			row, err := scanRoute(tx.QueryRowContext(ctx, bound, serviceID, who))
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
