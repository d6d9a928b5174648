package postgres

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/where"
)

const rolesOf = `SELECT role FROM gateway_user_role WHERE service_id = $1 AND user_id = $2 ORDER BY role COLLATE "C"`

// RolesOf implements gateway.Roles.
func (s *Store) RolesOf(ctx context.Context, serviceID, userID string) ([]string, error) {
	return collectRoles(ctx, s.pool, serviceID, userID)
}

func collectRoles(ctx context.Context, db queryer, serviceID, userID string) ([]string, error) {
	rows, err := db.Query(ctx, rolesOf, serviceID, userID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// SetRoles implements gateway.Roles. A role that is named twice is one; roles that the
// user has already, and no others, are no change.
func (s *Store) SetRoles(ctx context.Context, serviceID, userID string, roles []string) error {
	roles = slices.Compact(slices.Sorted(slices.Values(roles)))
	return s.inTx(ctx, func(tx pgx.Tx) error {
		// Those who set roles of one service wait for each other. Bindings do not wait.
		err := tx.QueryRow(ctx, `SELECT FROM gateway_service WHERE id = $1 FOR NO KEY UPDATE`, serviceID).Scan()
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return gateway.Conflictf("there is no service %q", serviceID)
		case err != nil:
			return err
		}
		before, err := collectRoles(ctx, tx, serviceID, userID)
		if err != nil || slices.Equal(before, roles) {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM gateway_user_role WHERE service_id = $1 AND user_id = $2 AND role <> ALL (coalesce($3::text[], '{}'))`,
			serviceID, userID, roles); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO gateway_user_role (service_id, user_id, role) SELECT $1, $2, unnest($3::text[]) ON CONFLICT DO NOTHING`,
			serviceID, userID, roles); err != nil {
			return err
		}
		return record(ctx, tx, gateway.AuditRoles(serviceID, userID, before, roles))
	})
}

// dropRoles takes all roles from the users of a service.
func dropRoles(ctx context.Context, tx pgx.Tx, serviceID string) error {
	rows, err := tx.Query(ctx, `WITH gone AS (DELETE FROM gateway_user_role WHERE service_id = $1 RETURNING user_id, role)
		SELECT user_id, array_agg(role ORDER BY role COLLATE "C") FROM gone GROUP BY user_id ORDER BY user_id COLLATE "C"`, serviceID)
	if err != nil {
		return err
	}
	var entries []gateway.AuditEntry
	var userID string
	var roles []string
	_, err = pgx.ForEachRow(rows, []any{&userID, &roles}, func() error {
		entries = append(entries, gateway.AuditRoles(serviceID, userID, roles, nil))
		return nil
	})
	if err != nil || len(entries) == 0 {
		return err
	}
	return record(ctx, tx, entries...)
}

// ListRoles implements gateway.Roles.
func (s *Store) ListRoles(ctx context.Context, filter gateway.UserRoleFilter) (page []gateway.UserRole, total int64, err error) {
	clause, args := rolesWhere(filter)
	err = s.inSnapshot(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM gateway_user_role`+clause, args...).Scan(&total); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT service_id, user_id, role FROM gateway_user_role`+clause+
			` ORDER BY service_id COLLATE "C", user_id COLLATE "C", role COLLATE "C" LIMIT `+strconv.Itoa(filter.Limit)+` OFFSET `+strconv.Itoa(filter.Offset), args...)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, pgx.RowToStructByPos[gateway.UserRole])
		return err
	})
	return page, total, err
}

func rolesWhere(f gateway.UserRoleFilter) (clause string, args []any) {
	var w where.Clause
	w.Add(f.ServiceID != "", `service_id = ?`, f.ServiceID)
	w.Add(f.UserID != "", `user_id = ?`, f.UserID)
	w.Add(f.Role != "", `role = ?`, f.Role)
	return w.SQL()
}
