package redis

import (
	"context"
	"errors"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// silence is how long the feed may be silent before it is asked whether it is still
	// there, and how long it may take to answer: a connection whose other end has
	// vanished stays open for hours otherwise.
	silence = 2 * time.Second

	reconnectFirst = 100 * time.Millisecond
	reconnectMax   = 2 * time.Second
)

// FollowPolicies implements gateway.PolicyCache. It calls changed also whenever it has
// connected, since something may have changed before; never concurrently. It returns nil
// when ctx ends.
func (s *Store) FollowPolicies(ctx context.Context, changed func()) error {
	pause := reconnectFirst
	for ctx.Err() == nil {
		err := s.listen(ctx, func() { pause = reconnectFirst; changed() })
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end that was asked for
		}
		s.log.WarnContext(ctx, "changes of policies come late until Redis is listened to again", "error", harmless(err), "again_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, reconnectMax)
	}
	return nil
}

// listen calls heard when it has subscribed and for each message, until the connection breaks or ctx ends.
func (s *Store) listen(ctx context.Context, heard func()) error {
	feed := s.client.Subscribe(ctx, policyChannel)
	defer func() { _ = feed.Close() }()
	// A read under way does not end with its context, but with its connection.
	stop := context.AfterFunc(ctx, func() { _ = feed.Close() })
	defer stop()
	asked := false
	for {
		message, err := feed.ReceiveTimeout(ctx, silence)
		var waited net.Error
		switch {
		case err == nil:
			asked = false
			switch message.(type) {
			case *goredis.Subscription, *goredis.Message:
				heard()
			}
		case !asked && errors.As(err, &waited) && waited.Timeout():
			if err := feed.Ping(ctx); err != nil {
				return err
			}
			asked = true
		default:
			return err
		}
	}
}
