package httpapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/binding"
	"github.com/homenode/homenode/bindsvc/internal/decide"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/registry"
	"github.com/homenode/homenode/bindsvc/internal/session"
	"github.com/homenode/homenode/bindsvc/internal/traefikconf"
)

// Options are what a Server needs to know.
type Options struct {
	Version        string
	Secret         string // shared with the plugins and with Traefik's HTTP provider
	AdminToken     string // empty: nobody is an administrator
	AdminEnabled   bool
	AdminWhitelist []netip.Prefix // empty = any address
	TrustedProxies []netip.Prefix // whose X-Forwarded-For is believed
	TokenSources   []string
	TokenTTL       time.Duration // how long an opaque token is remembered
	MaxAge         time.Duration // how long a plugin may keep a decision
	StaleIfError   time.Duration // how much longer while this service cannot be asked
	Messages       string        // zh or en: the language of a client that does not say
	Traefik        traefikconf.Settings
	TraefikPoll    time.Duration // that of Traefik's HTTP provider
}

// Server answers the internal and the admin listener.
type Server struct {
	opts      Options
	secret    [sha256.Size]byte
	admin     [sha256.Size]byte
	sources   []tokenSource
	languages languages
	metrics   *metrics

	attempts   *attempts
	importing  chan struct{} // holds a place for the import that runs
	conformant echo.MiddlewareFunc
	stopping   <-chan struct{}

	registry *registry.Registry
	decider  *decide.Decider
	sessions *session.Resolver
	bindings *binding.Directory
	store    gateway.Store
	users    gateway.Users
	policies *policy.Keeper
	guards   *guard.Chain
	revoked  gateway.Revocations
	subjects guard.Subjects
	log      *slog.Logger
}

// Parts are what a Server answers from.
type Parts struct {
	Registry *registry.Registry
	Decider  *decide.Decider
	Sessions *session.Resolver
	Bindings *binding.Directory
	Store    gateway.Store
	Users    gateway.Users // the nodes' own user table; nil: there is none
	Policies *policy.Keeper
	Guards   *guard.Chain
	Revoked  gateway.Revocations
	Subjects guard.Subjects
	Log      *slog.Logger
	Stopping <-chan struct{} // closed when the process is to end: imports then end too, to be resumed; nil: never
}

// New makes a Server.
func New(opts Options, parts Parts) (*Server, error) {
	conformant, err := conformant()
	if err != nil {
		return nil, err
	}
	return &Server{
		opts: opts, secret: sha256.Sum256([]byte(opts.Secret)), admin: sha256.Sum256([]byte(opts.AdminToken)),
		sources: parseTokenSources(opts.TokenSources), languages: newLanguages(opts.Messages), metrics: newMetrics(parts.Registry, parts.Guards, parts.Policies),
		attempts: newAttempts(), importing: make(chan struct{}, 1), conformant: conformant, stopping: parts.Stopping,
		registry: parts.Registry, decider: parts.Decider, sessions: parts.Sessions, bindings: parts.Bindings,
		store: parts.Store, users: parts.Users, policies: parts.Policies, guards: parts.Guards, revoked: parts.Revoked, subjects: parts.Subjects, log: parts.Log,
	}, nil
}

func (s *Server) newEcho() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.refuse
	e.Use(s.recoverPanics, identify)
	return e
}

// recoverPanics answers INTERNAL and keeps the process.
func (s *Server) recoverPanics(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				if abort, ok := p.(error); ok && errors.Is(abort, http.ErrAbortHandler) {
					panic(p)
				}
				s.log.ErrorContext(c.Request().Context(), "panic", "panic", p, "path", c.Path(), "request", requestID(c))
				err = &gateway.Error{Reason: gateway.Internal}
			}
		}()
		return next(c)
	}
}

var saneRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// identify gives every request an id: the caller's if it is sane, else a new one.
func identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(headerRequestID)
		if !saneRequestID.MatchString(id) {
			var random [16]byte
			_, _ = rand.Read(random[:]) // never fails (crypto/rand since Go 1.24)
			id = hex.EncodeToString(random[:])
		}
		c.Set(headerRequestID, id)
		return next(c)
	}
}

func requestID(c echo.Context) string {
	id, _ := c.Get(headerRequestID).(string)
	return id
}

// authenticate lets callers in that know the shared secret. Its refusal carries no
// X-Gateway-Reason: it is for the operator of the caller, and a plugin must not
// take it for a verdict on the client.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if s.opts.Secret == "" || !matches(bearer(c.Request().Header.Get("Authorization")), s.secret) {
			s.log.WarnContext(c.Request().Context(), "call with a wrong shared secret, or none", "path", c.Path(), "from", c.Request().RemoteAddr)
			c.Response().Header().Set("WWW-Authenticate", "Bearer")
			return c.JSON(http.StatusUnauthorized, envelope{Code: http.StatusUnauthorized, Message: "wrong shared secret", Data: nil})
		}
		return next(c)
	}
}

// isReady reports whether the registry and the policies are loaded and every node has
// been probed: before that nothing would be guarded.
func (s *Server) isReady() bool { return s.registry.IsReady() && s.policies.IsReady() }

// whenReady refuses until the service is ready.
func (s *Server) whenReady(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !s.isReady() {
			return notReady()
		}
		return next(c)
	}
}

func matches(given string, want [sha256.Size]byte) bool {
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], want[:]) == 1
}

// bearer returns the credentials of an Authorization header of scheme Bearer, or "".
func bearer(authorization string) string {
	const scheme = "bearer "
	if len(authorization) > len(scheme) && strings.EqualFold(authorization[:len(scheme)], scheme) {
		return strings.TrimSpace(authorization[len(scheme):])
	}
	return ""
}

func healthz(c echo.Context) error { return c.String(http.StatusOK, "ok\n") }

func (s *Server) readyz(c echo.Context) error {
	if !s.isReady() {
		return notReady()
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), time.Second)
	defer cancel()
	if err := s.store.Ping(ctx); err != nil {
		return gateway.Unavailable(err)
	}
	return c.String(http.StatusOK, "ready\n")
}
