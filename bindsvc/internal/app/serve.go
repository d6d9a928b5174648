package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/homenode/homenode/bindsvc/internal/binding"
	"github.com/homenode/homenode/bindsvc/internal/config"
	"github.com/homenode/homenode/bindsvc/internal/decide"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/httpapi"
	"github.com/homenode/homenode/bindsvc/internal/outage"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/postgres"
	"github.com/homenode/homenode/bindsvc/internal/redis"
	"github.com/homenode/homenode/bindsvc/internal/registry"
	"github.com/homenode/homenode/bindsvc/internal/session"
	"github.com/homenode/homenode/bindsvc/internal/sqlite"
	"github.com/homenode/homenode/bindsvc/internal/traefikconf"
)

// How long one request may wait for a store, and for how long nobody asks a store
// that made requests wait in vain. A decision stays below the plugin's 2 s. A login
// report may take longer: the plugin releases the response after its own bound.
const (
	storeLimit = time.Second
	cacheLimit = 500 * time.Millisecond
	writeLimit = 4 * time.Second
	storePause = time.Second
)

// stores are the adapters of one mode.
type stores struct {
	durable   gateway.Store
	tokens    gateway.TokenCache
	authority gateway.Tokens      // nil = none
	routes    gateway.RouteCache  // nil = none
	policies  gateway.PolicyCache // nil = none
	revoked   gateway.Revocations
	limiter   gateway.Limiter
	nonces    gateway.Nonces
	users     gateway.Users // nil = none
	names     session.Names
	prepare   func(context.Context) error
	close     func() error
}

// Serve runs the binding service until ctx ends, then finishes the requests that
// run. It returns an error for settings that cannot work; a store that is down is
// waited for.
func Serve(ctx context.Context, c config.Config, log *slog.Logger) error {
	if c.Embedded() {
		if err := completeEmbedded(&c, log); err != nil {
			return err
		}
	}
	listeners, err := listen(c)
	if err != nil {
		return err
	}
	defer listeners.close()
	st, err := openStores(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := st.close(); err != nil {
			log.Error("store not closed cleanly", "error", err)
		}
	}()

	nodes := registry.New(st.durable, registry.Options{
		PollInterval: time.Duration(c.Registry.PollInterval),
		Propagation:  time.Duration(c.Traefik.PollInterval) + traefikThrottle,
		Seed:         c.Seed,
		Health: registry.HealthOptions{
			Interval: time.Duration(c.Health.Interval), Timeout: time.Duration(c.Health.Timeout),
			Failures: c.Health.Failures, Successes: c.Health.Successes,
		},
	}, log, time.Now)
	tokenWrites := gate(cacheLimit)
	if c.Embedded() { // the tokens are in the file, whose writers wait in a queue
		tokenWrites = &outage.Gate{Limit: writeLimit}
	}
	sessions := session.NewResolver(st.tokens, st.authority, gate(cacheLimit), tokenWrites, st.names, log, time.Now)
	defer sessions.Close()
	// Writes wait in a queue when many log in at once: that is no outage.
	bindings := binding.NewDirectory(st.durable, st.routes, binding.Gates{
		Read: gate(storeLimit), Write: &outage.Gate{Limit: writeLimit}, Shared: gate(cacheLimit),
	}, log)
	defer bindings.Close()
	sealer, err := policy.NewSealer(c.PolicyKeys()...)
	if err != nil {
		return err
	}
	subjects := guard.NewDirectory(sessions, log, time.Now)
	defer subjects.Close()
	roles := guard.NewRoles(st.durable, gate(storeLimit), time.Now)
	defer roles.Close()
	policies := policy.NewKeeper(policy.Parts{
		Store: st.durable, Cache: st.policies, Sealer: sealer, Guards: guard.Names(), Changed: subjects.Follow, Log: log, Now: time.Now,
		Services: func(id string) bool { _, ok := nodes.Snapshot().Service(id); return ok },
	})
	shared := guard.Shared{Revocations: st.revoked, Nonces: st.nonces, Limiter: st.limiter, Gate: gate(cacheLimit)}
	guards := guard.NewChain(guard.Parts{
		Subjects: subjects, Revocations: shared, Nonces: shared, Limiter: shared, Roles: roles,
	}, policies.Snapshot, log, time.Now)
	options, err := serverOptions(c)
	if err != nil {
		return err
	}
	server, err := httpapi.New(options, httpapi.Parts{
		Registry: nodes, Decider: decide.New(nodes, guards, bindings), Sessions: sessions, Bindings: bindings,
		Policies: policies, Guards: guards, Revoked: st.revoked, Subjects: subjects,
		Store: st.durable, Users: st.users, Log: log, Stopping: ctx.Done(),
	})
	if err != nil {
		return err
	}

	// Two lives: what answers requests ends first, what it needs ends after.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	needed, neededCtx := errgroup.WithContext(background)
	needed.Go(func() error { return sessions.Run(neededCtx) })
	needed.Go(func() error {
		if err := waitFor(neededCtx, st.prepare, log); err != nil {
			return nil //nolint:nilerr // ended while the store was down: a normal end
		}
		follow, followCtx := errgroup.WithContext(neededCtx)
		follow.Go(func() error { return nodes.Run(followCtx) })
		follow.Go(func() error { return policies.Run(followCtx) })
		follow.Go(func() error { return followChanges(followCtx, st.durable, copies{bindings, nodes, policies, roles}) })
		return follow.Wait()
	})
	err = serveHTTP(ctx, listeners, server, time.Duration(c.Shutdown), log)
	stopBackground()
	return errors.Join(err, needed.Wait())
}

// traefikThrottle is how much later than its poll Traefik may apply a
// configuration (providersThrottleDuration, 2 s by default), and a second more.
const traefikThrottle = 3 * time.Second

func gate(limit time.Duration) *outage.Gate { return &outage.Gate{Limit: limit, Pause: storePause} }

// completeEmbedded makes the data folder and the secrets that the embedded mode
// keeps there when the settings name none.
func completeEmbedded(c *config.Config, log *slog.Logger) error {
	if err := ensureDir(c.DataDir); err != nil {
		return err
	}
	for _, kept := range []struct {
		secret *config.Secret
		file   string
	}{{&c.Secret, "secret"}, {&c.AdminToken, "admin-token"}} {
		if *kept.secret != "" {
			continue
		}
		secret, err := keptSecret(c.DataDir, kept.file)
		if err != nil {
			return err
		}
		*kept.secret = secret
		log.Info("secret kept in the data folder", "file", filepath.Join(c.DataDir, kept.file))
	}
	return nil
}

func openStores(ctx context.Context, c config.Config, log *slog.Logger) (stores, error) {
	if c.Embedded() {
		store, err := sqlite.Open(ctx, filepath.Join(c.DataDir, "homenode.db"), sqlite.Options{TokenTTL: time.Duration(c.Token.CacheTTL)})
		if err != nil {
			return stores{}, err
		}
		buckets := guard.NewBuckets(time.Now)
		return stores{
			durable: store, tokens: store, names: session.Names{Cache: "SQL"}, revoked: store, limiter: buckets, nonces: buckets,
			prepare: func(context.Context) error { return nil },
			close:   func() error { buckets.Close(); return store.Close() },
		}, nil
	}
	store, err := postgres.Open(ctx, postgresConfig(c, log))
	if err != nil {
		return stores{}, usageError{err}
	}
	port, err := strconv.Atoi(cmp.Or(c.RedisPort, "6379"))
	if err != nil {
		return stores{}, errors.Join(usageError{fmt.Errorf("REDIS_PORT %q: want a number", c.RedisPort)}, store.Close())
	}
	client, err := redis.Open(redis.Config{
		URL: string(c.RedisURL), Host: c.RedisHost, Port: port, Password: string(c.RedisPass), Database: c.RedisDB,
		SentinelMaster: c.Redis.SentinelMaster, SentinelAddrs: c.Redis.Sentinels, ClusterAddrs: c.Redis.Cluster,
		TokenTTL: time.Duration(c.Token.CacheTTL), SlidingTokens: !c.SaToken.Enabled, Log: log,
	})
	if err != nil {
		return stores{}, errors.Join(usageError{err}, store.Close())
	}
	users, err := postgres.NewUsers(store, postgres.UsersConfig{
		Table: c.Admin.UserTable, ID: c.Admin.UserColumns.ID, Username: c.Admin.UserColumns.Username,
		Admin: c.Admin.UserColumns.IsAdmin, Status: c.Admin.UserColumns.Status,
	})
	if err != nil {
		return stores{}, errors.Join(usageError{err}, client.Close(), store.Close())
	}
	st := stores{
		users:   users,
		durable: store, tokens: client, routes: client, policies: client, revoked: client, limiter: client, nonces: client, names: session.Names{Cache: "Redis", Authority: "sa-token"},
		prepare: func(ctx context.Context) error { return postgres.Migrate(ctx, postgresConfig(c, log)) },
		close:   func() error { return errors.Join(client.Close(), store.Close()) },
	}
	if c.SaToken.Enabled {
		st.authority = redis.NewSaToken(client.Client(), redis.SaTokenConfig{
			TokenName: c.SaToken.TokenName, LoginType: c.SaToken.LoginType, ActiveTimeout: time.Duration(c.SaToken.ActiveTimeout),
		})
	}
	return st, nil
}

// waitFor runs prepare until it succeeds or ctx ends.
func waitFor(ctx context.Context, prepare func(context.Context) error, log *slog.Logger) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, prepare(ctx) },
		backoff.WithBackOff(&backoff.ExponentialBackOff{
			InitialInterval: 100 * time.Millisecond, Multiplier: 2, RandomizationFactor: 0.2, MaxInterval: 2 * time.Second,
		}), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, next time.Duration) {
			log.Warn("waiting for the database", "error", err, "again_in", next)
		}))
	return err
}

// copies are whoever keeps a copy of what is stored.
type copies struct {
	bindings *binding.Directory
	nodes    *registry.Registry
	policies *policy.Keeper
	roles    *guard.Roles
}

// followChanges hands every change of the store to whoever keeps a copy of it.
func followChanges(ctx context.Context, feed gateway.ChangeFeed, to copies) error {
	return feed.Follow(ctx,
		func(live bool) {
			to.bindings.Live(ctx, live)
			to.roles.MayHaveMissed()
			if live {
				to.nodes.RefreshSoon()
				to.policies.RefreshSoon()
			}
		},
		func(change gateway.Change) {
			switch change.Kind {
			case gateway.ChangeRegistry:
				to.nodes.RefreshSoon()
			case gateway.ChangePolicies:
				to.policies.RefreshSoon()
			case gateway.ChangeRoles:
				to.roles.Changed(change.ServiceID, change.UserID)
			default:
				to.bindings.Changed(ctx, change)
			}
		})
}

func serverOptions(c config.Config) (httpapi.Options, error) {
	endpoint, err1 := c.PluginEndpoint()
	serviceURL, err2 := c.ServiceURL()
	whitelist, err3 := config.Prefixes("admin.ipWhitelist", c.Admin.IPWhitelist)
	proxies, err4 := config.Prefixes("admin.trustedProxies", c.Admin.TrustedProxies)
	adminURL := ""
	var err5 error
	if c.Admin.Enabled {
		adminURL, err5 = c.AdminURL()
	}
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return httpapi.Options{}, usageError{err}
	}
	return httpapi.Options{
		Version: version(),
		Secret:  string(c.Secret), AdminToken: string(c.AdminToken), AdminEnabled: c.Admin.Enabled,
		AdminWhitelist: whitelist, TrustedProxies: proxies,
		TokenSources: c.Token.Sources, TokenTTL: time.Duration(c.Token.CacheTTL), MaxAge: time.Duration(c.Decision.MaxAge), StaleIfError: time.Duration(c.Decision.StaleIfError),
		Messages: c.Messages, TraefikPoll: time.Duration(c.Traefik.PollInterval),
		Traefik: traefikconf.Settings{
			Plugin: c.Traefik.Plugin, Endpoint: endpoint, ServiceURL: serviceURL, AdminURL: adminURL,
			EntryPoints: c.Traefik.EntryPoints, Rule: c.Traefik.Rule, TLS: c.Traefik.TLS, NoRoute: c.Traefik.NoRoute,
			CircuitBreaker: c.Traefik.CircuitBreaker, Timeout: time.Duration(c.Traefik.Timeout), BindTimeout: time.Duration(c.Traefik.BindTimeout),
			TokenSources: c.Token.Sources, StripHeaders: c.Traefik.StripHeaders,
			Messages: c.Messages,
		},
	}, nil
}

// listeners are the sockets of one process.
type listeners struct {
	internal []net.Listener
	admin    net.Listener
}

func (l listeners) close() {
	for _, listener := range append(l.internal, l.admin) {
		if listener != nil {
			_ = listener.Close()
		}
	}
}

func listen(c config.Config) (l listeners, err error) {
	defer func() {
		if err != nil {
			l.close()
			err = usageError{err}
		}
	}()
	for _, address := range c.Listen {
		listener, err := listenAt(address)
		if err != nil {
			return l, fmt.Errorf("listen (HOMENODE_LISTEN): %w", err)
		}
		l.internal = append(l.internal, listener)
	}
	if l.admin, err = listenAt(c.AdminListen); err != nil {
		return l, fmt.Errorf("adminListen (HOMENODE_ADMIN_LISTEN): %w", err)
	}
	return l, nil
}

var listenConfig net.ListenConfig

func listenAt(address string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, "unix://")
	if !isSocket {
		return listenConfig.Listen(context.Background(), "tcp", address)
	}
	// A socket file that nobody listens at is what a killed process left behind.
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(context.Background(), "unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: another process listens there", path)
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path)
	}
	listener, err := listenConfig.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o660) //nolint:gosec // Traefik's user shares the group
}

// localURL is where the first TCP listener is reached from this machine.
func localURL(addresses []string) string {
	for _, address := range addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			continue
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		return "http://" + net.JoinHostPort(host, port)
	}
	return ""
}

// serveHTTP answers until ctx ends, then lets the requests that run finish, for
// at most limit.
func serveHTTP(ctx context.Context, l listeners, handlers *httpapi.Server, limit time.Duration, log *slog.Logger) error {
	internal, admin := newServer(handlers.Internal(), log), newServer(handlers.Admin(), log)
	failed := make(chan error, len(l.internal)+1)
	serve := func(server *http.Server, listener net.Listener) {
		go func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	for _, listener := range l.internal {
		serve(internal, listener)
		log.Info("listening", "address", listener.Addr().String(), "what", "internal: /v1, /metrics, /healthz, /readyz")
	}
	serve(admin, l.admin)
	log.Info("listening", "address", l.admin.Addr().String(), "what", "admin: "+gateway.AdminPrefix)

	var err error
	select {
	case <-ctx.Done():
		log.Info("stopping: requests that run are finished first")
	case err = <-failed:
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	var both errgroup.Group
	both.Go(func() error { return internal.Shutdown(shutdown) })
	both.Go(func() error { return admin.Shutdown(shutdown) })
	return errors.Join(err, both.Wait())
}

func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
