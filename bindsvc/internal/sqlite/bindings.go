package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/bindrule"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const routeColumns = `r.id, r.service_id, coalesce(r.user_id, ''), coalesce(r.username, ''), coalesce(r.username_key, ''),
	r.node_id, r.epoch, coalesce(r.import_id, 0), r.create_time, r.update_time`

func scanRoute(row scanner, more ...any) (bindrule.Row, error) {
	var r bindrule.Row
	var created, updated int64
	err := row.Scan(append([]any{&r.ID, &r.ServiceID, &r.UserID, &r.Username, &r.Key, &r.NodeID, &r.Epoch, &r.ImportID, &created, &updated}, more...)...)
	r.CreatedAt, r.UpdatedAt = time.UnixMicro(created).UTC(), time.UnixMicro(updated).UTC()
	return r, notFound(err)
}

// BindingByUser implements gateway.Bindings.
func (s *Store) BindingByUser(ctx context.Context, serviceID, userID string) (gateway.Binding, error) {
	row, err := scanRoute(s.read.QueryRowContext(ctx,
		`SELECT `+routeColumns+` FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = $2`, serviceID, userID))
	return row.Binding, err
}

// BindingByUsername implements gateway.Bindings.
func (s *Store) BindingByUsername(ctx context.Context, serviceID string, key gateway.UsernameKey) (gateway.Binding, error) {
	var rank int
	row, err := scanRoute(s.read.QueryRowContext(ctx, `SELECT `+routeColumns+`, 0 AS rank
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
	return s.bind(ctx, func(rows routes) (gateway.BindResult, error) {
		return bindrule.BindIfAbsent(ctx, rows, login, rows.now)
	})
}

// bound reads the row of the login's user id, and whether its alias leads there.
func (s *Store) bound(ctx context.Context, login gateway.Login) (row bindrule.Row, aliasLeadsHere bool, err error) {
	row, err = scanRoute(s.read.QueryRowContext(ctx, `SELECT `+routeColumns+`, EXISTS (
			SELECT 1 FROM gateway_login_alias a WHERE a.service_id = $1 AND a.alias_key = $3 AND a.route_id = r.id)
		FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = $2`,
		login.ServiceID, login.UserID, gateway.KeyOf(login.LoginUsername)), &aliasLeadsHere)
	return row, aliasLeadsHere, err
}

// Bind implements gateway.Bindings.
func (s *Store) Bind(ctx context.Context, want gateway.Assignment) (gateway.BindResult, error) {
	return s.bind(ctx, func(rows routes) (gateway.BindResult, error) {
		return bindrule.Bind(ctx, rows, want, rows.now)
	})
}

// Unbind implements gateway.Bindings.
func (s *Store) Unbind(ctx context.Context, id int64) (gateway.BindResult, error) {
	return s.bind(ctx, func(rows routes) (gateway.BindResult, error) {
		return bindrule.Unbind(ctx, rows, id)
	})
}

func (s *Store) bind(ctx context.Context, rule func(routes) (gateway.BindResult, error)) (result gateway.BindResult, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) (err error) {
		result, err = rule(routes{tx, s.now()})
		return err
	})
	if err != nil {
		return gateway.BindResult{}, err
	}
	s.hub.publish(result.Changes...)
	return result, nil
}

// ListBindings implements gateway.Bindings.
func (s *Store) ListBindings(ctx context.Context, filter gateway.BindingFilter) (page []gateway.Binding, total int64, err error) {
	const matching = ` FROM gateway_user_route r WHERE ($1 = '' OR r.service_id = $1)
		AND ($2 = '' OR instr(gateway_username_key(r.username), $2) > 0 OR instr(gateway_username_key(r.user_id), $2) > 0)`
	keyword := gateway.KeyOf(filter.Keyword)
	err = s.inSnapshot(ctx, func(tx *sql.Tx) (err error) {
		if err := tx.QueryRowContext(ctx, `SELECT count(*)`+matching, filter.ServiceID, keyword).Scan(&total); err != nil {
			return err
		}
		page, err = collect(ctx, tx, func(row scanner) (gateway.Binding, error) {
			r, err := scanRoute(row)
			return r.Binding, err
		}, `SELECT `+routeColumns+matching+` ORDER BY r.id LIMIT $3 OFFSET $4`, filter.ServiceID, keyword, filter.Limit, filter.Offset)
		return err
	})
	return page, total, err
}

// CountBindings implements gateway.Bindings.
func (s *Store) CountBindings(ctx context.Context) (map[string]int64, error) {
	counts := map[string]int64{}
	_, err := collect(ctx, s.read, func(row scanner) (nodeID string, err error) {
		var count int64
		err = row.Scan(&nodeID, &count)
		counts[nodeID] = count
		return nodeID, err
	}, `SELECT node_id, count(*) FROM gateway_user_route GROUP BY node_id`)
	return counts, err
}

// routes is bindrule.Rows in the write transaction.
type routes struct {
	tx  *sql.Tx
	now time.Time
}

var _ bindrule.Rows = routes{}

func (t routes) Find(ctx context.Context, serviceID, userID string, key gateway.UsernameKey) (byUser, byKey *bindrule.Row, err error) {
	if byUser, err = t.find(ctx, `r.service_id = $1 AND r.user_id = nullif($2, '')`, serviceID, userID); err != nil {
		return nil, nil, err
	}
	byKey, err = t.find(ctx, `r.service_id = $1 AND r.username_key = nullif($2, '')`, serviceID, key)
	return byUser, byKey, err
}

func (t routes) FindID(ctx context.Context, id int64) (*bindrule.Row, error) {
	return t.find(ctx, `r.id = $1`, id)
}

func (t routes) find(ctx context.Context, where string, args ...any) (*bindrule.Row, error) {
	row, err := scanRoute(t.tx.QueryRowContext(ctx, `SELECT `+routeColumns+` FROM gateway_user_route r WHERE `+where, args...))
	if errors.Is(err, gateway.ErrNotFound) {
		return nil, nil
	}
	return &row, err
}

func (t routes) HasNode(ctx context.Context, serviceID, nodeID string) (has bool, err error) {
	err = t.tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM gateway_node WHERE id = $1 AND service_id = $2)`, nodeID, serviceID).Scan(&has)
	return has, err
}

func (t routes) Insert(ctx context.Context, row bindrule.Row) (id int64, err error) {
	err = t.tx.QueryRowContext(ctx, `INSERT INTO gateway_user_route (service_id, user_id, username, username_key, node_id, epoch, create_time, update_time)
		VALUES ($1, nullif($2, ''), nullif($3, ''), nullif($4, ''), $5, $6, $7, $8) RETURNING id`,
		row.ServiceID, row.UserID, row.Username, row.Key, row.NodeID, row.Epoch, row.CreatedAt.UnixMicro(), row.UpdatedAt.UnixMicro()).Scan(&id)
	return id, err
}

func (t routes) Update(ctx context.Context, row bindrule.Row) error {
	_, err := t.tx.ExecContext(ctx, `UPDATE gateway_user_route SET user_id = nullif($2, ''), username = nullif($3, ''), username_key = nullif($4, ''),
		node_id = $5, epoch = $6, update_time = $7 WHERE id = $1`,
		row.ID, row.UserID, row.Username, row.Key, row.NodeID, row.Epoch, row.UpdatedAt.UnixMicro())
	return err
}

func (t routes) Delete(ctx context.Context, id int64) error {
	_, err := t.tx.ExecContext(ctx, `DELETE FROM gateway_user_route WHERE id = $1`, id) // its aliases go with it
	return err
}

func (t routes) Alias(ctx context.Context, serviceID string, key gateway.UsernameKey) (id int64, err error) {
	err = t.tx.QueryRowContext(ctx, `SELECT route_id FROM gateway_login_alias WHERE service_id = $1 AND alias_key = $2`, serviceID, key).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return id, err
}

func (t routes) Aliases(ctx context.Context, id int64) ([]gateway.UsernameKey, error) {
	return collect(ctx, t.tx, func(row scanner) (key gateway.UsernameKey, err error) {
		err = row.Scan(&key)
		return key, err
	}, `SELECT alias_key FROM gateway_login_alias WHERE route_id = $1 ORDER BY update_time DESC, alias_key`, id)
}

func (t routes) PutAlias(ctx context.Context, serviceID string, key gateway.UsernameKey, id int64, now time.Time) error {
	_, err := t.tx.ExecContext(ctx, `INSERT INTO gateway_login_alias (service_id, alias_key, route_id, update_time) VALUES ($1, $2, $3, $4)
		ON CONFLICT (service_id, alias_key) DO UPDATE SET route_id = excluded.route_id, update_time = excluded.update_time`,
		serviceID, key, id, now.UnixMicro())
	return err
}

func (t routes) DeleteAlias(ctx context.Context, serviceID string, key gateway.UsernameKey) error {
	_, err := t.tx.ExecContext(ctx, `DELETE FROM gateway_login_alias WHERE service_id = $1 AND alias_key = $2`, serviceID, key)
	return err
}
