package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Config says where the database is.
type Config struct {
	URL      string // see ParseURL
	User     string // wins over the URL's; empty = the URL's
	Password string // likewise
	Log      *slog.Logger
}

// Store is a gateway.Store in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	log  *slog.Logger
}

var _ gateway.Store = (*Store)(nil)

// Open makes a Store. It does not connect: a server that is down shows at the
// first call, and a call after it is back succeeds. An error means that cfg is wrong.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	config, err := ParseURL(cfg.URL, cfg.User, cfg.Password)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{pool: pool, log: log}, nil
}

// Pool is the pool of connections, for its metrics.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Ping succeeds when the server answers.
func (s *Store) Ping(ctx context.Context) error { return s.pool.Ping(ctx) }

// Close ends the connections, waiting for the calls that use one.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// errRace aborts a transaction that found another one ahead of it.
var errRace = errors.New("another transaction was faster")

// The SQLSTATEs that this package reacts to.
const (
	uniqueViolation      = "23505"
	foreignKeyViolation  = "23503"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	dataException        = "22" // the class: a value that its type cannot hold
)

func sqlState(err error) string {
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		return failure.Code
	}
	return ""
}

// inTx runs fn in a transaction, and again from the start when it lost a race,
// until ctx ends. Whatever fn did is gone when it is run again.
func (s *Store) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	for attempt := 0; ; attempt++ {
		err := s.tryTx(ctx, fn)
		switch state := sqlState(err); {
		case errors.Is(err, errRace), state == uniqueViolation, state == serializationFailure, state == deadlockDetected:
		default:
			return err
		}
		pause := time.Duration(rand.Int64N(int64(time.Millisecond << min(attempt, 6))))
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

func (s *Store) tryTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// A caller that went away must not leave the transaction, and its locks, behind.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ending) // after a commit it does nothing
	}()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
