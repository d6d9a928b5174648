package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	migrations "github.com/homenode/homenode/sql"
)

// Options are the settings of a Store; zero values mean the defaults.
type Options struct {
	TokenTTL time.Duration    // how long an unused token is known; 24 h by default
	Now      func() time.Time // time.Now by default
	Log      *slog.Logger     // none by default
}

// Store is a gateway.Store and gateway.TokenCache in one SQLite file. It is safe for concurrent use.
type Store struct {
	write    *sql.DB // one connection
	read     *sql.DB
	hub      hub
	tokenTTL time.Duration
	clock    func() time.Time
	log      *slog.Logger
}

var (
	_ gateway.Store      = (*Store)(nil)
	_ gateway.TokenCache = (*Store)(nil)
)

// The driver knows functions by the process, not by the connection.
func init() {
	sqlite.MustRegisterDeterministicScalarFunction("gateway_username_key", 1,
		func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			if name, ok := args[0].(string); ok {
				return string(gateway.KeyOf(name)), nil
			}
			return nil, nil
		})
}

// migrationLimit bounds the start of several processes on one file.
const migrationLimit = 10 * time.Second

// Open opens the file, made with mode 0600 if there is none, and brings it to
// the schema of this version.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // SQLite gives its other files the mode of this one
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	s := &Store{tokenTTL: opts.TokenTTL, clock: opts.Now, log: opts.Log}
	if s.tokenTTL == 0 {
		s.tokenTTL = 24 * time.Hour
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.write, err = sql.Open("sqlite", dataSource(path, "immediate")); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite", dataSource(path, "deferred")); err != nil {
		return nil, errors.Join(err, s.write.Close())
	}
	s.read.SetMaxOpenConns(max(4, runtime.NumCPU()))
	s.read.SetMaxIdleConns(max(4, runtime.NumCPU()))
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate %s: %w", path, err), s.Close())
	}
	return s, nil
}

func dataSource(path, lock string) string {
	parameters := url.Values{
		"_txlock": {lock}, // a write transaction that starts as a reader fails where it could have waited
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)"},
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: parameters.Encode()}).String()
}

// migrate applies what is missing. Goose has no lock for SQLite: when processes
// start at once all but one fail on what that one has made, and try again.
func (s *Store) migrate(ctx context.Context) error {
	files, err := fs.Sub(migrations.FS, "sqlite")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, files,
		goose.WithTableName("gateway_schema_version"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	for {
		_, err := provider.Up(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Ping succeeds when the file can be read.
func (s *Store) Ping(ctx context.Context) error {
	var tables int
	return s.read.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&tables)
}

// Close closes the file.
func (s *Store) Close() error { return errors.Join(s.read.Close(), s.write.Close()) }

// now is as precise as what is stored.
func (s *Store) now() time.Time { return s.clock().UTC().Truncate(time.Microsecond) }

// inTx runs fn in the write transaction. It waits for other processes until ctx
// ends; whatever fn did before such a wait is gone when it is run again.
func (s *Store) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	for {
		err := s.tryTx(ctx, fn)
		var failure *sqlite.Error
		if !errors.As(err, &failure) || failure.Code()&0xff != sqlite3.SQLITE_BUSY {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (s *Store) tryTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// inSnapshot runs fn in a transaction that sees one state of the file.
func (s *Store) inSnapshot(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return fn(tx)
}

// queryer is a *sql.DB or *sql.Tx.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect reads all rows of a query.
func collect[T any](ctx context.Context, db queryer, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// scanner is a *sql.Row or *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return gateway.ErrNotFound
	}
	return err
}
