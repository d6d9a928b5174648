package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	migrations "github.com/homenode/homenode/sql"
)

// versionTable is goose's, under a name that no other program's table has.
const versionTable = "gateway_schema_version"

// Migrate brings the database to the schema of this version: an empty one, or
// one that the old gateway filled. Of several processes that start at once one
// migrates and the others wait for it.
func Migrate(ctx context.Context, cfg Config) error {
	pool, err := ParseURL(cfg.URL, cfg.User, cfg.Password)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*pool.ConnConfig)
	defer db.Close()
	files, err := fs.Sub(migrations.FS, "postgres")
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600)) // once a second, for ten minutes
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true),
		goose.WithGoMigrations(goose.NewGoMigration(3, &goose.GoFunc{RunTx: fillUsernameKeys}, nil)))
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// fillUsernameKeys gives the rows of the old gateway their username keys. Where
// names of one service differ in case or composition only, the row updated last
// gets the key; the others stay, found by their user id.
func fillUsernameKeys(ctx context.Context, tx *sql.Tx) error {
	ids, keys, err := usernameKeys(ctx, tx)
	if err != nil {
		return err
	}
	const batch = 10_000
	for start := 0; start < len(ids); start += batch {
		end := min(start+batch, len(ids))
		if _, err := tx.ExecContext(ctx, `UPDATE gateway_user_route AS r SET username_key = k.key
			FROM unnest($1::bigint[], $2::text[]) AS k (id, key) WHERE r.id = k.id`, ids[start:end], keys[start:end]); err != nil {
			return err
		}
	}
	return nil
}

func usernameKeys(ctx context.Context, tx *sql.Tx) (ids []int64, keys []string, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, coalesce(service_id, ''), username FROM gateway_user_route
		WHERE username <> '' ORDER BY update_time DESC NULLS LAST, id DESC`)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	taken := map[[2]string]bool{}
	for rows.Next() {
		var id int64
		var serviceID, username string
		if err := rows.Scan(&id, &serviceID, &username); err != nil {
			return nil, nil, err
		}
		key := string(gateway.KeyOf(username))
		if name := [2]string{serviceID, key}; !taken[name] {
			taken[name] = true
			ids, keys = append(ids, id), append(keys, key)
		}
	}
	return ids, keys, rows.Err()
}
