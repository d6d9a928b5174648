package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Keys are the seed's. A value is a node id, with "#epoch" behind it once the
// user has been rebound; a node id contains no '#'.
const (
	routesPattern = "gateway:route:*"
	userPrefix    = "gateway:route:user:"
	namePrefix    = "gateway:route:name:"
)

const (
	// tombstone marks a look-up that was invalidated, so that a fill that read the
	// durable store before cannot bring the old answer back. It is no node id.
	tombstone = "-"
	// tombstoneTTL is longer than a read of the durable store may take.
	tombstoneTTL = 10 * time.Second
)

const flushBatch = 500

func userKey(serviceID, userID string) string { return userPrefix + serviceID + ":" + userID }

func nameKey(serviceID string, key gateway.UsernameKey) string {
	return namePrefix + serviceID + ":" + string(key)
}

// RouteByUser implements gateway.RouteCache.
func (s *Store) RouteByUser(ctx context.Context, serviceID, userID string) (gateway.Route, error) {
	return s.route(ctx, userKey(serviceID, userID))
}

// RouteByUsername implements gateway.RouteCache.
func (s *Store) RouteByUsername(ctx context.Context, serviceID string, key gateway.UsernameKey) (gateway.Route, error) {
	return s.route(ctx, nameKey(serviceID, key))
}

func (s *Store) route(ctx context.Context, key string) (gateway.Route, error) {
	generation, trusted := s.trust.state()
	if !trusted {
		return gateway.Route{}, errNotTrusted
	}
	value, err := present(s.client.Get(ctx, key))
	switch {
	case err != nil:
		return gateway.Route{}, err
	case !s.trust.holds(generation): // the command itself may have met a new Redis
		return gateway.Route{}, errNotTrusted
	case value == tombstone:
		return gateway.Route{}, gateway.ErrNotFound
	}
	return parseRoute(value)
}

func parseRoute(value string) (gateway.Route, error) {
	nodeID, epoch, hasEpoch := strings.Cut(value, "#")
	route := gateway.Route{NodeID: nodeID, Epoch: 1}
	if hasEpoch {
		var err error
		if route.Epoch, err = strconv.ParseInt(epoch, 10, 64); err != nil || route.Epoch < 1 {
			return gateway.Route{}, fmt.Errorf("cached route %q: the epoch is no positive number", value)
		}
	}
	if nodeID == "" {
		return gateway.Route{}, fmt.Errorf("cached route %q names no node", value)
	}
	return route, nil
}

func formatRoute(route gateway.Route) string {
	if route.Epoch > 1 {
		return route.NodeID + "#" + strconv.FormatInt(route.Epoch, 10)
	}
	return route.NodeID
}

// FillUser implements gateway.RouteCache.
func (s *Store) FillUser(ctx context.Context, serviceID, userID string, route gateway.Route) error {
	return s.fill(ctx, userKey(serviceID, userID), route)
}

// FillUsername implements gateway.RouteCache.
func (s *Store) FillUsername(ctx context.Context, serviceID string, key gateway.UsernameKey, route gateway.Route) error {
	return s.fill(ctx, nameKey(serviceID, key), route)
}

func (s *Store) fill(ctx context.Context, key string, route gateway.Route) error {
	if _, trusted := s.trust.state(); !trusted {
		return errNotTrusted
	}
	return harmless(s.client.SetNX(ctx, key, formatRoute(route), 0).Err())
}

// Invalidate implements gateway.RouteCache.
func (s *Store) Invalidate(ctx context.Context, changes []gateway.Change) error {
	var keys []string
	for _, change := range changes {
		switch change.Kind {
		case gateway.ChangeUser:
			keys = append(keys, userKey(change.ServiceID, change.UserID))
		case gateway.ChangeUsername:
			keys = append(keys, nameKey(change.ServiceID, change.UsernameKey))
		case gateway.ChangeBindings:
			s.trust.lose(ctx, "any binding may have changed", nil)
			return nil // nothing is answered from here until the flush that follows
		case gateway.ChangeRegistry, gateway.ChangePolicies, gateway.ChangeRoles: // a route does not depend on them
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if _, trusted := s.trust.state(); !trusted {
		// A flush has to come anyway, one that began before this change does not do,
		// and a Redis that hangs must not hold up the changes behind this one.
		s.trust.lose(ctx, "an invalidation came before the flush", nil)
		return nil
	}
	if err := s.bury(ctx, keys); err != nil {
		s.trust.lose(ctx, "an invalidation failed", err)
		return err
	}
	return nil
}

// bury puts a tombstone in the place of each key.
func (s *Store) bury(ctx context.Context, keys []string) error {
	_, err := s.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for _, key := range keys {
			pipe.Set(ctx, key, tombstone, tombstoneTTL)
		}
		return nil
	})
	return harmless(err)
}

// Flush implements gateway.RouteCache. It buries what is there instead of
// deleting it: a deleted tombstone would let an outdated fill through.
func (s *Store) Flush(ctx context.Context) error {
	// The first connections of a flush meet the Redis processes, which costs the
	// trust that it is to restore: what it did before that is done again.
	for range 3 {
		generation, _ := s.trust.state()
		if err := s.buryAll(ctx); err != nil {
			s.trust.lose(ctx, "a flush failed", err)
			return err
		}
		if s.trust.restore(generation) {
			return nil
		}
	}
	return errNotTrusted
}

func (s *Store) buryAll(ctx context.Context) error {
	if cluster, ok := s.client.(*goredis.ClusterClient); ok {
		var masters atomic.Int64
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, master *goredis.Client) error {
			masters.Add(1)
			return s.buryFound(ctx, master)
		})
		if err == nil && masters.Load() == 0 {
			err = errors.New("the cluster has no master")
		}
		return harmless(err)
	}
	return s.buryFound(ctx, s.client)
}

// scanner is the part of a client that finds keys on one server.
type scanner interface {
	Scan(ctx context.Context, cursor uint64, match string, count int64) *goredis.ScanCmd
}

// buryFound buries the routes of one server. In a cluster the keys found on a master
// are written through the cluster's client, which follows a slot that moves.
func (s *Store) buryFound(ctx context.Context, server scanner) error {
	var cursor uint64
	for {
		keys, next, err := server.Scan(ctx, cursor, routesPattern, flushBatch).Result()
		if err != nil {
			return harmless(err)
		}
		if len(keys) > 0 {
			if err := s.bury(ctx, keys); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
