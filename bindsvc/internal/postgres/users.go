package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// UsersConfig names the nodes' own user table and its columns; empty fields mean
// the defaults. Names are letters, digits and _, and case counts.
type UsersConfig struct {
	Table    string // sys_user; may name its schema: app.sys_user
	ID       string // id, of any type
	Username string // username; may be NULL
	Admin    string // is_admin: a number, boolean or text; "1", "t" and "true" mean yes
	Status   string // status, likewise; yes = active
}

var (
	tableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)
	columnName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Users is a gateway.Users in the database of the store. The table need not exist
// before it is asked for; its absence is a ConflictError then, and never "no such user".
type Users struct {
	store   *Store
	name    string // as configured
	table   string // quoted
	id      string // quoted
	columns []string
	user    string                 // the SELECT list of a gateway.User
	idType  atomic.Pointer[string] // nil until the table has been looked at
}

var _ gateway.Users = (*Users)(nil)

// NewUsers makes a Users. An error means that cfg is wrong.
func NewUsers(store *Store, cfg UsersConfig) (*Users, error) {
	cfg = UsersConfig{
		Table: cmp.Or(cfg.Table, "sys_user"), ID: cmp.Or(cfg.ID, "id"), Username: cmp.Or(cfg.Username, "username"),
		Admin: cmp.Or(cfg.Admin, "is_admin"), Status: cmp.Or(cfg.Status, "status"),
	}
	var problems []error
	if !tableName.MatchString(cfg.Table) {
		problems = append(problems, fmt.Errorf("admin.userTable %q: want a name such as sys_user or app.sys_user", cfg.Table))
	}
	columns := []string{cfg.ID, cfg.Username, cfg.Admin, cfg.Status}
	for _, column := range columns {
		if !columnName.MatchString(column) {
			problems = append(problems, fmt.Errorf("admin.userColumns %q: want a column's name such as is_admin", column))
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	quote := func(column string) string { return pgx.Identifier{column}.Sanitize() }
	isYes := func(column string) string {
		return `coalesce(lower(` + quote(column) + `::text) IN ('1', 't', 'true'), false)`
	}
	return &Users{
		store: store, name: cfg.Table, table: pgx.Identifier(strings.Split(cfg.Table, ".")).Sanitize(), id: quote(cfg.ID), columns: columns,
		user: `coalesce(` + quote(cfg.ID) + `::text, ''), coalesce(` + quote(cfg.Username) + `::text, ''), ` + isYes(cfg.Admin) + `, ` + isYes(cfg.Status),
	}, nil
}

func scanUser(row pgx.CollectableRow) (gateway.User, error) {
	var user gateway.User
	err := row.Scan(&user.ID, &user.Username, &user.IsAdmin, &user.Active)
	return user, err
}

// UserByID implements gateway.Users. The id is made the column's type, not the
// column text, so that its index serves; "007" is not the user 7 all the same.
func (u *Users) UserByID(ctx context.Context, id string) (gateway.User, error) {
	idType, err := u.inspect(ctx)
	if err != nil {
		return gateway.User{}, err
	}
	rows, err := u.store.pool.Query(ctx, `SELECT `+u.user+` FROM `+u.table+` WHERE `+u.id+` = CAST($1::text AS `+idType+`)`, id)
	var found []gateway.User
	if err == nil {
		found, err = pgx.CollectRows(rows, scanUser)
	}
	switch {
	case strings.HasPrefix(sqlState(err), dataException): // an id that the column cannot hold
		return gateway.User{}, gateway.ErrNotFound
	case err != nil:
		return gateway.User{}, u.failed(err)
	}
	for _, user := range found {
		if user.ID == id {
			return user, nil
		}
	}
	return gateway.User{}, gateway.ErrNotFound
}

// CountUsers implements gateway.Users; it counts them.
func (u *Users) CountUsers(ctx context.Context) (count int64, err error) {
	if _, err := u.inspect(ctx); err != nil {
		return 0, err
	}
	if err := u.store.pool.QueryRow(ctx, `SELECT count(*) FROM `+u.table).Scan(&count); err != nil {
		return 0, u.failed(err)
	}
	return count, nil
}

// EachUser implements gateway.Users, in one read-only transaction that sees the
// table as it was at the start. A cursor keeps memory small however slow fn is,
// and ends at once when fn has had enough. The connection is none of the pool's:
// fn writes through that, and must find a place in it.
func (u *Users) EachUser(ctx context.Context, fn func(gateway.User) error) error {
	if _, err := u.inspect(ctx); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, u.store.pool.Config().ConnConfig)
	if err != nil {
		return u.failed(err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ending) // nothing was written
	}()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DECLARE users NO SCROLL CURSOR FOR SELECT `+u.user+` FROM `+u.table+` ORDER BY `+u.id); err != nil {
			return u.failed(err)
		}
		for {
			// Not prepared: the statement means another cursor in the next transaction.
			rows, err := tx.Query(ctx, `FETCH FORWARD 5000 FROM users`, pgx.QueryExecModeExec)
			if err != nil {
				return u.failed(err)
			}
			users, err := pgx.CollectRows(rows, scanUser)
			if err != nil {
				return u.failed(err)
			}
			if len(users) == 0 {
				return nil
			}
			for _, user := range users {
				if err := fn(user); err != nil {
					return err
				}
			}
		}
	})
}

// inspect returns the type of the id column, having made sure that all columns are there.
func (u *Users) inspect(ctx context.Context) (idType string, err error) {
	if known := u.idType.Load(); known != nil {
		return *known, nil
	}
	var exists bool
	if err := u.store.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, u.table).Scan(&exists); err != nil {
		return "", fmt.Errorf("user table %s: %w", u.name, err)
	}
	if !exists {
		return "", gateway.Conflictf("admin.userTable: there is no table %s", u.name)
	}
	// Typmod -1: a cast to varchar(5) would cut the value.
	rows, err := u.store.pool.Query(ctx, `SELECT attname::text, format_type(atttypid, -1) FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, u.table)
	if err != nil {
		return "", fmt.Errorf("user table %s: %w", u.name, err)
	}
	types := map[string]string{}
	var column, columnType string
	if _, err := pgx.ForEachRow(rows, []any{&column, &columnType}, func() error {
		types[column] = columnType
		return nil
	}); err != nil {
		return "", fmt.Errorf("user table %s: %w", u.name, err)
	}
	for _, column := range u.columns {
		if types[column] == "" {
			return "", gateway.Conflictf("admin.userColumns: table %s has no column %s", u.name, column)
		}
	}
	idType = types[u.columns[0]]
	u.idType.Store(&idType)
	return idType, nil
}

// failed forgets what is known of the table, which may have been changed.
func (u *Users) failed(err error) error {
	u.idType.Store(nil)
	return fmt.Errorf("user table %s: %w", u.name, err)
}
