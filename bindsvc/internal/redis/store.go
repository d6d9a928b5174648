package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// ioTimeout bounds the dialling, each read and each write. A Redis that takes
// longer is down: what it is asked has to be answered before a client gives up.
const ioTimeout = 500 * time.Millisecond

// Config says where Redis is: URL, or Host, or Sentinel, or Cluster.
type Config struct {
	URL string // redis://[user:password@]host:port/database, rediss:// for TLS

	Host string
	Port int // 6379 by default

	SentinelMaster   string // the name that the Sentinels know the master by
	SentinelAddrs    []string
	SentinelUsername string
	SentinelPassword string

	ClusterAddrs []string // some of the cluster's nodes, host:port

	Username string // wins over the URL's; empty = the URL's
	Password string // likewise
	Database int    // likewise; a cluster has only 0
	TLS      bool   // implied by rediss://

	TokenTTL      time.Duration // 24 h by default
	SlidingTokens bool          // a token in use does not expire: for an installation without sa-token, which could be asked again

	Log *slog.Logger // none by default
}

// Store is a gateway.TokenCache and gateway.RouteCache, and what the guards share: a
// gateway.PolicyCache, Revocations, Limiter and Nonces. It is safe for concurrent use.
type Store struct {
	client   goredis.UniversalClient
	log      *slog.Logger
	tokenTTL time.Duration
	sliding  bool
	trust    *trust
	end      context.CancelFunc // of the goroutine that regains trust
	ended    chan struct{}
}

var (
	_ gateway.TokenCache = (*Store)(nil)
	_ gateway.RouteCache = (*Store)(nil)
)

// Open makes a Store. It does not wait for a connection: a Redis that is down
// shows at the first call, and a call after it is back succeeds. An error means
// that cfg is wrong.
func Open(cfg Config) (*Store, error) {
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{log: log, tokenTTL: cfg.TokenTTL, sliding: cfg.SlidingTokens, trust: newTrust(log), ended: make(chan struct{})}
	if s.tokenTTL == 0 {
		s.tokenTTL = 24 * time.Hour
	}
	options.OnConnect = s.trust.meet
	s.client = goredis.NewUniversalClient(options)
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	go func() { // ends with Close
		defer close(s.ended)
		s.trust.regain(ctx, s.Flush)
	}()
	return s, nil
}

func (c Config) options() (*goredis.UniversalOptions, error) {
	options := &goredis.UniversalOptions{
		DialTimeout: ioTimeout, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: ioTimeout,
		MaxRetries: 1, DialerRetries: 1, MinRetryBackoff: 8 * time.Millisecond, MaxRetryBackoff: 50 * time.Millisecond,
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	places := 0
	if c.URL != "" {
		places++
		if err := addURL(options, c.URL); err != nil {
			return nil, err
		}
	}
	if c.Host != "" {
		places++
		port := c.Port
		if port == 0 {
			port = 6379
		}
		options.Addrs = []string{net.JoinHostPort(c.Host, strconv.Itoa(port))}
	}
	if len(c.SentinelAddrs) > 0 || c.SentinelMaster != "" {
		places++
		if len(c.SentinelAddrs) == 0 || c.SentinelMaster == "" {
			return nil, errors.New("redis: Sentinel needs addresses and the master's name")
		}
		options.Addrs, options.MasterName = c.SentinelAddrs, c.SentinelMaster
		options.SentinelUsername, options.SentinelPassword = c.SentinelUsername, c.SentinelPassword
	}
	if len(c.ClusterAddrs) > 0 {
		places++
		options.Addrs, options.IsClusterMode = c.ClusterAddrs, true
	}
	if places != 1 {
		return nil, errors.New("redis: want exactly one of URL, host, Sentinel and cluster")
	}
	if c.Username != "" {
		options.Username = c.Username
	}
	if c.Password != "" {
		options.Password = c.Password
	}
	if c.Database != 0 {
		options.DB = c.Database
	}
	if options.IsClusterMode && options.DB != 0 {
		return nil, errors.New("redis: a cluster has only database 0")
	}
	if c.TLS && options.TLSConfig == nil {
		options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return options, nil
}

func addURL(options *goredis.UniversalOptions, raw string) error {
	parsed, err := goredis.ParseURL(raw)
	if err != nil || parsed.Network != "tcp" {
		// The error may quote the URL, password included.
		return errors.New("REDIS_URL: want redis://[user:password@]host:port/database, or rediss:// for TLS")
	}
	options.Addrs, options.DB = []string{parsed.Addr}, parsed.DB
	options.Username, options.Password, options.TLSConfig = parsed.Username, parsed.Password, parsed.TLSConfig
	return nil
}

// Client is the connection pool, for what else is kept in Redis.
func (s *Store) Client() goredis.UniversalClient { return s.client }

// Ping succeeds when Redis answers.
func (s *Store) Ping(ctx context.Context) error { return harmless(s.client.Ping(ctx).Err()) }

// Close ends the connections and the goroutine of the Store.
func (s *Store) Close() error {
	s.end()
	<-s.ended
	return s.client.Close()
}

// harmless is err without what it may quote: Redis repeats the arguments, a
// token among them, of a command that it does not know.
func harmless(err error) error {
	var reply goredis.Error
	if err == nil || errors.Is(err, goredis.Nil) || !errors.As(err, &reply) {
		return err
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return fmt.Errorf("redis answered with the error %s", code)
}
