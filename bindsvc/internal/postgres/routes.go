package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/bindrule"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// routes is bindrule.Rows in one transaction. What it reads it locks.
type routes struct{ tx pgx.Tx }

var _ bindrule.Rows = routes{}

// Find locks both rows with one statement, in the order of their ids, so that two
// logins that want the same two rows wait for each other instead of deadlocking.
func (t routes) Find(ctx context.Context, serviceID, userID string, key gateway.UsernameKey) (byUser, byKey *bindrule.Row, err error) {
	rows, err := t.tx.Query(ctx, `SELECT `+routeColumns+` FROM gateway_user_route r
		WHERE r.service_id = $1 AND (r.user_id = nullif($2, '') OR r.username_key = nullif($3, '')) ORDER BY r.id FOR UPDATE`,
		serviceID, userID, key)
	if err != nil {
		return nil, nil, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (bindrule.Row, error) { return scanRoute(row) })
	for i := range found {
		if userID != "" && found[i].UserID == userID {
			byUser = &found[i]
		}
		if key != "" && found[i].Key == key {
			byKey = &found[i]
		}
	}
	return byUser, byKey, err
}

func (t routes) FindID(ctx context.Context, id int64) (*bindrule.Row, error) {
	row, err := scanRoute(t.tx.QueryRow(ctx, `SELECT `+routeColumns+` FROM gateway_user_route r WHERE r.id = $1 FOR UPDATE`, id))
	if errors.Is(err, gateway.ErrNotFound) {
		return nil, nil
	}
	return &row, err
}

func (t routes) HasNode(ctx context.Context, serviceID, nodeID string) (bool, error) {
	err := t.tx.QueryRow(ctx, `SELECT FROM gateway_node WHERE id = $1 AND service_id = $2 FOR KEY SHARE`, nodeID, serviceID).Scan()
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Insert gives way to a row that another transaction has just made, without the
// error that would fill the server's log on every race.
func (t routes) Insert(ctx context.Context, row bindrule.Row) (id int64, err error) {
	err = t.tx.QueryRow(ctx, `INSERT INTO gateway_user_route (service_id, user_id, username, username_key, node_id, epoch, create_time, update_time)
		VALUES ($1, nullif($2, ''), nullif($3, ''), nullif($4, ''), $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING id`,
		row.ServiceID, row.UserID, row.Username, row.Key, row.NodeID, row.Epoch, row.CreatedAt, row.UpdatedAt).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errRace
	}
	return id, err
}

func (t routes) Update(ctx context.Context, row bindrule.Row) error {
	_, err := t.tx.Exec(ctx, `UPDATE gateway_user_route SET user_id = nullif($2, ''), username = nullif($3, ''), username_key = nullif($4, ''),
		node_id = $5, epoch = $6, update_time = $7 WHERE id = $1`,
		row.ID, row.UserID, row.Username, row.Key, row.NodeID, row.Epoch, row.UpdatedAt)
	return err
}

func (t routes) Delete(ctx context.Context, id int64) error {
	_, err := t.tx.Exec(ctx, `DELETE FROM gateway_user_route WHERE id = $1`, id) // its aliases go with it
	return err
}

func (t routes) Alias(ctx context.Context, serviceID string, key gateway.UsernameKey) (id int64, err error) {
	err = t.tx.QueryRow(ctx, `SELECT route_id FROM gateway_login_alias WHERE service_id = $1 AND alias_key = $2 FOR UPDATE`, serviceID, key).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, err
}

func (t routes) Aliases(ctx context.Context, id int64) ([]gateway.UsernameKey, error) {
	rows, err := t.tx.Query(ctx, `SELECT alias_key FROM gateway_login_alias WHERE route_id = $1 ORDER BY update_time DESC, alias_key`, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[gateway.UsernameKey])
}

func (t routes) PutAlias(ctx context.Context, serviceID string, key gateway.UsernameKey, id int64, now time.Time) error {
	_, err := t.tx.Exec(ctx, `INSERT INTO gateway_login_alias (service_id, alias_key, route_id, update_time) VALUES ($1, $2, $3, $4)
		ON CONFLICT (service_id, alias_key) DO UPDATE SET route_id = excluded.route_id, update_time = excluded.update_time`, serviceID, key, id, now)
	return err
}

func (t routes) DeleteAlias(ctx context.Context, serviceID string, key gateway.UsernameKey) error {
	_, err := t.tx.Exec(ctx, `DELETE FROM gateway_login_alias WHERE service_id = $1 AND alias_key = $2`, serviceID, key)
	return err
}
