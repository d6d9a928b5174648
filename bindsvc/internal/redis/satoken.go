package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// SaTokenConfig has to equal the nodes' own sa-token settings.
type SaTokenConfig struct {
	TokenName     string           // first part of every key
	LoginType     string           // second part; "login" unless the nodes say otherwise
	ActiveTimeout time.Duration    // a token unused for longer is frozen; zero or less = no such limit
	Now           func() time.Time // time.Now by default
}

// SaToken reads the sessions that sa-token (1.4x) keeps in Redis. It never writes.
type SaToken struct {
	client goredis.UniversalClient
	cfg    SaTokenConfig
}

var _ gateway.Tokens = (*SaToken)(nil)

// NewSaToken makes a SaToken over the client of a Store.
func NewSaToken(client goredis.UniversalClient, cfg SaTokenConfig) *SaToken {
	if cfg.LoginType == "" {
		cfg.LoginType = "login"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &SaToken{client: client, cfg: cfg}
}

// noLogin are the values that say why a token is no login any more: -1 none,
// -2 invalid, -3 expired, -4 replaced, -5 kicked out, -6 frozen, -7 no prefix.
var noLogin = []string{"-1", "-2", "-3", "-4", "-5", "-6", "-7"}

// UserByToken implements gateway.Tokens. The sessions of all services are one.
func (t *SaToken) UserByToken(ctx context.Context, _, token string) (string, error) {
	var login, active *goredis.StringCmd
	// The pipeline's error is that of one of its commands, which are looked at one by one.
	_, _ = t.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		login = pipe.Get(ctx, t.key("token", token))
		if t.cfg.ActiveTimeout > 0 {
			active = pipe.Get(ctx, t.key("last-active", token))
		}
		return nil
	})
	userID, err := present(login)
	switch {
	case err != nil:
		return "", err
	case slices.Contains(noLogin, userID):
		return "", gateway.ErrNotFound
	case active == nil:
		return userID, nil
	}
	lastActive, err := present(active)
	if err != nil { // a session without it counts as frozen
		return "", err
	}
	frozen, err := t.frozen(lastActive)
	switch {
	case err != nil:
		return "", err
	case frozen:
		return "", gateway.ErrNotFound
	}
	return userID, nil
}

func (t *SaToken) key(kind, token string) string {
	return t.cfg.TokenName + ":" + t.cfg.LoginType + ":" + kind + ":" + token
}

var errLastActive = errors.New("sa-token's last-active value is not \"milliseconds\" or \"milliseconds,seconds\"")

// frozen reads "millis" or "millis,timeoutSeconds"; a negative timeout means never. Like
// sa-token it counts whole seconds.
func (t *SaToken) frozen(lastActive string) (bool, error) {
	since, own, hasOwn := strings.Cut(lastActive, ",")
	millis, err := strconv.ParseInt(strings.TrimSpace(since), 10, 64)
	if err != nil {
		return false, errLastActive
	}
	allowed := int64(t.cfg.ActiveTimeout / time.Second)
	if hasOwn {
		if allowed, err = strconv.ParseInt(strings.TrimSpace(own), 10, 64); err != nil {
			return false, errLastActive
		}
	}
	return allowed >= 0 && (t.cfg.Now().UnixMilli()-millis)/1000 > allowed, nil
}
