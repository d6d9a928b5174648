package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strconv"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/where"
)

// RolesOf implements gateway.Roles.
func (s *Store) RolesOf(ctx context.Context, serviceID, userID string) ([]string, error) {
	return rolesOf(ctx, s.read, serviceID, userID)
}

func rolesOf(ctx context.Context, db queryer, serviceID, userID string) ([]string, error) {
	return collect(ctx, db, func(row scanner) (role string, err error) {
		err = row.Scan(&role)
		return role, err
	}, `SELECT role FROM gateway_user_role WHERE service_id = $1 AND user_id = $2 ORDER BY role`, serviceID, userID)
}

// SetRoles implements gateway.Roles. A role that is named twice is one; roles that the
// user has already, and no others, are no change.
func (s *Store) SetRoles(ctx context.Context, serviceID, userID string, roles []string) error {
	roles = slices.Compact(slices.Sorted(slices.Values(roles)))
	var hasChanged bool
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if exists, err := (registryTx{Tx: tx}).exists(ctx, `SELECT 1 FROM gateway_service WHERE id = $1`, serviceID); err != nil {
			return err
		} else if !exists {
			return gateway.Conflictf("there is no service %q", serviceID)
		}
		before, err := rolesOf(ctx, tx, serviceID, userID)
		if hasChanged = err == nil && !slices.Equal(before, roles); !hasChanged {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM gateway_user_role WHERE service_id = $1 AND user_id = $2`, serviceID, userID); err != nil {
			return err
		}
		for _, role := range roles {
			if _, err := tx.ExecContext(ctx, `INSERT INTO gateway_user_role (service_id, user_id, role) VALUES ($1, $2, $3)`, serviceID, userID, role); err != nil {
				return err
			}
		}
		return record(ctx, tx, s.now(), gateway.AuditRoles(serviceID, userID, before, roles))
	})
	if err == nil && hasChanged {
		s.hub.publish(gateway.Change{Kind: gateway.ChangeRoles, ServiceID: serviceID, UserID: userID})
	}
	return err
}

// dropRoles takes all roles from the users of a service, and reports whether there were any.
func (tx registryTx) dropRoles(ctx context.Context, serviceID string) (bool, error) {
	gone, err := collect(ctx, tx.Tx, scanRole, `SELECT service_id, user_id, role FROM gateway_user_role WHERE service_id = $1 ORDER BY user_id, role`, serviceID)
	if err != nil || len(gone) == 0 {
		return false, err
	}
	var entries []gateway.AuditEntry
	for len(gone) > 0 {
		userID := gone[0].UserID
		var roles []string
		for len(gone) > 0 && gone[0].UserID == userID {
			roles, gone = append(roles, gone[0].Role), gone[1:]
		}
		entries = append(entries, gateway.AuditRoles(serviceID, userID, roles, nil))
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM gateway_user_role WHERE service_id = $1`, serviceID); err != nil {
		return false, err
	}
	return true, record(ctx, tx.Tx, tx.now, entries...)
}

// ListRoles implements gateway.Roles.
func (s *Store) ListRoles(ctx context.Context, filter gateway.UserRoleFilter) (page []gateway.UserRole, total int64, err error) {
	clause, args := rolesWhere(filter)
	err = s.inSnapshot(ctx, func(tx *sql.Tx) (err error) {
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM gateway_user_role`+clause, args...).Scan(&total); err != nil {
			return err
		}
		page, err = collect(ctx, tx, scanRole, `SELECT service_id, user_id, role FROM gateway_user_role`+clause+
			` ORDER BY service_id, user_id, role LIMIT `+strconv.Itoa(filter.Limit)+` OFFSET `+strconv.Itoa(filter.Offset), args...)
		return err
	})
	return page, total, err
}

func scanRole(row scanner) (r gateway.UserRole, err error) {
	err = row.Scan(&r.ServiceID, &r.UserID, &r.Role)
	return r, err
}

func rolesWhere(f gateway.UserRoleFilter) (clause string, args []any) {
	var w where.Clause
	w.Add(f.ServiceID != "", `service_id = ?`, f.ServiceID)
	w.Add(f.UserID != "", `user_id = ?`, f.UserID)
	w.Add(f.Role != "", `role = ?`, f.Role)
	return w.SQL()
}
