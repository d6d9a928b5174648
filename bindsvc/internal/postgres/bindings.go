package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/bindrule"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// routeColumns reads a row r; a row of the old gateway may lack anything but its id.
const routeColumns = `r.id, coalesce(r.service_id, ''), coalesce(r.user_id, ''), coalesce(r.username, ''), coalesce(r.username_key, ''),
	coalesce(r.node_id, ''), r.epoch, coalesce(r.import_id, 0), coalesce(r.create_time, r.update_time, 'epoch'), coalesce(r.update_time, r.create_time, 'epoch')`

func scanRoute(row pgx.Row, more ...any) (bindrule.Row, error) {
	var r bindrule.Row
	err := row.Scan(append([]any{&r.ID, &r.ServiceID, &r.UserID, &r.Username, &r.Key, &r.NodeID, &r.Epoch, &r.ImportID, &r.CreatedAt, &r.UpdatedAt}, more...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		err = gateway.ErrNotFound
	}
	return r, err
}

// BindingByUser implements gateway.Bindings.
func (s *Store) BindingByUser(ctx context.Context, serviceID, userID string) (gateway.Binding, error) {
	row, err := scanRoute(s.pool.QueryRow(ctx,
		`SELECT `+routeColumns+` FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = $2`, serviceID, userID))
	return row.Binding, err
}

// BindingByUsername implements gateway.Bindings.
func (s *Store) BindingByUsername(ctx context.Context, serviceID string, key gateway.UsernameKey) (gateway.Binding, error) {
	var rank int
	row, err := scanRoute(s.pool.QueryRow(ctx, `SELECT `+routeColumns+`, 0 AS rank
		FROM gateway_user_route r WHERE r.service_id = $1 AND r.username_key = $2
		UNION ALL SELECT `+routeColumns+`, 1
		FROM gateway_login_alias a JOIN gateway_user_route r ON r.id = a.route_id WHERE a.service_id = $1 AND a.alias_key = $2
		ORDER BY rank LIMIT 1`, serviceID, key), &rank)
	return row.Binding, err
}

// BindIfAbsent implements gateway.Bindings. Most logins change nothing, and cost one read.
func (s *Store) BindIfAbsent(ctx context.Context, login gateway.Login) (gateway.BindResult, error) {
	row, aliasLeadsHere, err := s.bound(ctx, login)
	switch {
	case err == nil && bindrule.Settled(row, aliasLeadsHere, login):
		return gateway.BindResult{Binding: row.Binding, Before: &row.Binding}, nil
	case err != nil && !errors.Is(err, gateway.ErrNotFound):
		return gateway.BindResult{}, err
	}
	return s.write(ctx, func(rows routes) (gateway.BindResult, error) {
		return bindrule.BindIfAbsent(ctx, rows, login, now())
	})
}

// bound reads the row of the login's user id, and whether its alias leads there.
func (s *Store) bound(ctx context.Context, login gateway.Login) (row bindrule.Row, aliasLeadsHere bool, err error) {
	row, err = scanRoute(s.pool.QueryRow(ctx, `SELECT `+routeColumns+`, EXISTS (
			SELECT FROM gateway_login_alias a WHERE a.service_id = $1 AND a.alias_key = $3 AND a.route_id = r.id)
		FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = $2`,
		login.ServiceID, login.UserID, gateway.KeyOf(login.LoginUsername)), &aliasLeadsHere)
	return row, aliasLeadsHere, err
}

// Bind implements gateway.Bindings.
func (s *Store) Bind(ctx context.Context, want gateway.Assignment) (gateway.BindResult, error) {
	return s.write(ctx, func(rows routes) (gateway.BindResult, error) {
		return bindrule.Bind(ctx, rows, want, now())
	})
}

// Unbind implements gateway.Bindings.
func (s *Store) Unbind(ctx context.Context, id int64) (gateway.BindResult, error) {
	return s.write(ctx, func(rows routes) (gateway.BindResult, error) {
		return bindrule.Unbind(ctx, rows, id)
	})
}

func (s *Store) write(ctx context.Context, rule func(routes) (gateway.BindResult, error)) (result gateway.BindResult, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		result, err = rule(routes{tx})
		return err
	})
	if sqlState(err) == foreignKeyViolation {
		err = gateway.Conflictf("the service or the node does not exist")
	}
	if err != nil {
		return gateway.BindResult{}, err
	}
	return result, nil
}

// now is as precise as a timestamp of PostgreSQL, so that what is returned is what is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// ListBindings implements gateway.Bindings.
func (s *Store) ListBindings(ctx context.Context, filter gateway.BindingFilter) (page []gateway.Binding, total int64, err error) {
	const matching = ` FROM gateway_user_route r WHERE ($1 = '' OR r.service_id = $1)
		AND ($2 = '' OR strpos(gateway_username_key(r.username), $2) > 0 OR strpos(gateway_username_key(r.user_id), $2) > 0)`
	keyword := gateway.KeyOf(filter.Keyword)
	err = s.inSnapshot(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT count(*)`+matching, filter.ServiceID, keyword).Scan(&total); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT `+routeColumns+matching+` ORDER BY r.id LIMIT $3 OFFSET $4`,
			filter.ServiceID, keyword, filter.Limit, filter.Offset)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (gateway.Binding, error) {
			r, err := scanRoute(row)
			return r.Binding, err
		})
		return err
	})
	return page, total, err
}

// CountBindings implements gateway.Bindings.
func (s *Store) CountBindings(ctx context.Context) (map[string]int64, error) {
	rows, err := s.pool.Query(ctx, `SELECT node_id, count(*) FROM gateway_user_route WHERE node_id IS NOT NULL GROUP BY node_id`)
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	var nodeID string
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&nodeID, &count}, func() error {
		counts[nodeID] = count
		return nil
	})
	return counts, err
}
