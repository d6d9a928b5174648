package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const (
	// silence is how long the feed may be silent before it is asked whether it
	// is still there, and how long it may take to answer: a connection whose
	// other end has vanished stays open for hours otherwise.
	silence = 2 * time.Second

	reconnectFirst = 100 * time.Millisecond
	reconnectMax   = 2 * time.Second
)

// Follow implements gateway.ChangeFeed, on a connection of its own. It
// reconnects until ctx ends, and then returns nil.
func (s *Store) Follow(ctx context.Context, live func(bool), changed func(gateway.Change)) error {
	pause := reconnectFirst
	for ctx.Err() == nil {
		heard := false
		err := s.listen(ctx, func() { heard = true; live(true) }, changed)
		if heard {
			live(false)
			pause = reconnectFirst
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end that was asked for
		}
		s.log.WarnContext(ctx, "changes may be missed until the database is listened to again", "error", err, "again_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, reconnectMax)
	}
	return nil
}

// listen hears changes until the connection breaks.
func (s *Store) listen(ctx context.Context, connected func(), changed func(gateway.Change)) error {
	connecting, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, s.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ending)
	}()
	if _, err := conn.Exec(connecting, "LISTEN homenode"); err != nil {
		return err
	}
	connected()
	for {
		payload, err := next(ctx, conn)
		if err != nil {
			return err
		}
		for _, change := range decode(payload) {
			changed(change)
		}
	}
}

// next returns the payload of the next notification, pinging a silent connection.
func next(ctx context.Context, conn *pgx.Conn) (string, error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, silence)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			return notification.Payload, nil
		case ctx.Err() != nil, waiting.Err() == nil, conn.IsClosed():
			return "", err
		}
		answering, cancel := context.WithTimeout(ctx, silence)
		err = conn.Ping(answering)
		cancel()
		if err != nil {
			return "", fmt.Errorf("silent connection: %w", err)
		}
	}
}

// decode reads a payload. One that a newer version or a hand has sent may mean anything.
func decode(payload string) []gateway.Change {
	var change gateway.Change
	if err := json.Unmarshal([]byte(payload), &change); err == nil {
		switch change.Kind {
		case gateway.ChangeUser, gateway.ChangeUsername, gateway.ChangeBindings, gateway.ChangeRegistry, gateway.ChangePolicies, gateway.ChangeRoles:
			return []gateway.Change{change}
		}
	}
	return []gateway.Change{{Kind: gateway.ChangeBindings}, {Kind: gateway.ChangeRegistry}, {Kind: gateway.ChangePolicies}, {Kind: gateway.ChangeRoles}}
}
