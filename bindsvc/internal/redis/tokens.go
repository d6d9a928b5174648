package redis

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func tokenKey(serviceID, token string) string { return "gateway:token:" + serviceID + ":" + token }

// PutToken implements gateway.TokenCache.
func (s *Store) PutToken(ctx context.Context, serviceID, token, userID string) error {
	return harmless(s.client.Set(ctx, tokenKey(serviceID, token), userID, s.tokenTTL).Err())
}

// DropToken implements gateway.TokenCache.
func (s *Store) DropToken(ctx context.Context, serviceID, token string) error {
	return harmless(s.client.Del(ctx, tokenKey(serviceID, token)).Err())
}

// UserByToken implements gateway.Tokens.
func (s *Store) UserByToken(ctx context.Context, serviceID, token string) (string, error) {
	var answer *goredis.StringCmd
	if s.sliding && gateway.TraceOf(ctx) == nil { // an explanation prolongs nothing
		answer = s.client.GetEx(ctx, tokenKey(serviceID, token), s.tokenTTL)
	} else {
		answer = s.client.Get(ctx, tokenKey(serviceID, token))
	}
	return present(answer)
}

// present is the value of a string; an empty one counts as none.
func present(answer *goredis.StringCmd) (string, error) {
	value, err := answer.Result()
	switch {
	case errors.Is(err, goredis.Nil), err == nil && value == "":
		return "", gateway.ErrNotFound
	case err != nil:
		return "", harmless(err)
	}
	return value, nil
}
