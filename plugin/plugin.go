// Package plugin is Homenode's enforcement point inside Traefik: it deletes the headers that only the
// gateway may set, asks the binding service which node a request belongs to, marks the request for that
// node's child router, and reports successful logins before the client can see their token, and logouts before
// it can see that they are done. All thinking is the binding service's.
//
// Traefik interprets this package with Yaegi: standard library only, no generics. A call of an interpreted
// function costs microseconds, the more the longer the function is, since all its variables and expressions
// get memory first; a call of compiled library code costs a fraction. So the path of an ordinary request is
// few functions, and what is rarely needed is in functions of its own.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	headerNode     = "X-Gateway-Node"
	headerEpoch    = "X-Binding-Epoch"
	headerReason   = "X-Gateway-Reason"
	headerRequest  = "X-Request-Id"
	headerPool     = "X-Homenode-Pool"
	headerService  = "X-Homenode-Service"
	headerToken    = "X-Homenode-Token"
	headerUsername = "X-Homenode-Username"
	// headerClientStatus: "200" on a rejection asks for HTTP 200, for clients that read only business codes.
	headerClientStatus = "X-Homenode-Client-Status"

	// statusClientClosedRequest is what Traefik itself records for a client that went away.
	statusClientClosedRequest = 499
)

// Config is one middleware's settings, as Traefik decodes them. Durations are Go duration texts.
type Config struct {
	// Service is the id of the service whose requests pass here. Required.
	Service string `json:"service,omitempty"`
	// Endpoint is the binding service: http://host[:port][/base], https://… or unix:///path. Required.
	Endpoint string `json:"endpoint,omitempty"`
	// Secret is shared with the binding service, at least 16 characters. Without Secret and SecretFile the
	// environment decides: HOMENODE_SECRET, else HOMENODE_SECRET_FILE.
	Secret string `json:"secret,omitempty"`
	// SecretFile holds the secret; space around it is ignored.
	SecretFile string `json:"secretFile,omitempty"`
	// Timeout bounds one question to the binding service ("2s").
	Timeout string `json:"timeout,omitempty"`
	// BindTimeout bounds how long a login response waits for its binding ("1s").
	BindTimeout string `json:"bindTimeout,omitempty"`
	// LoginPath is the full path of the login; a POST to exactly this path is one. Empty: no login.
	LoginPath string `json:"loginPath,omitempty"`
	// LogoutPath is the full path of the logout; a request with a token to exactly this path is one, be it not
	// OPTIONS or HEAD. Empty: no logout.
	LogoutPath string `json:"logoutPath,omitempty"`
	// Login says where a login's JSON carries what.
	Login Login `json:"login,omitempty"`
	// TokenSources are tried in order: "header:NAME", "bearer", "cookie:NAME", "query:NAME".
	TokenSources []string `json:"tokenSources,omitempty"`
	// StripHeaders are deleted from the client's requests in addition to the gateway's own.
	StripHeaders []string `json:"stripHeaders,omitempty"`
	// Closed refuses requests without a token too while there is no decision: the service has a policy that must not
	// be gone around. Otherwise they take Traefik's pool of nodes then.
	Closed bool `json:"closed,omitempty"`
	// Messages is the language, zh or en, for clients whose Accept-Language decides nothing.
	Messages string `json:"messages,omitempty"`
}

// Login holds field paths, dotted, into the JSON of a login request (Username) and of its response (all others).
type Login struct {
	Username string `json:"username,omitempty"`
	Code     string `json:"code,omitempty"`
	// Success lists the values of Code, as texts, that mean success.
	Success []string `json:"success,omitempty"`
	Token   string   `json:"token,omitempty"`
	UserID  string   `json:"userId,omitempty"`
	// ResponseUsername may be empty: users are then bound by their id alone.
	ResponseUsername string `json:"responseUsername,omitempty"`
}

// CreateConfig returns the defaults. Lists are left empty and get theirs in New: Traefik's decoder writes a
// shorter list over the head of a default one and would keep its tail.
func CreateConfig() *Config {
	return &Config{
		Timeout:     "2s",
		BindTimeout: "1s",
		Login: Login{
			Username:         "username",
			Code:             "code",
			Token:            "data.token",
			UserID:           "data.userId",
			ResponseUsername: "data.username",
		},
		Messages: languageChinese,
	}
}

// Middleware serves the requests of one router. Everything that outlives a request is the client's, which
// all middlewares with the same endpoint and secret share.
type Middleware struct {
	next        http.Handler
	service     string
	client      *client
	timeout     time.Duration
	bindTimeout time.Duration
	loginPath   string
	logoutPath  string
	login       loginFields
	sources     []tokenSource
	guarded     *guardedHeaders
	closed      bool
	language    string
	// need holds the *need of the last decision. A reload forgets it; then the binding service asks for it anew.
	need atomic.Value
}

// New returns the middleware called name, or an error that names every wrong setting, each on a line of its
// own. It dials nothing. Traefik calls it again at every change of any configuration and cancels ctx while
// requests still run, so that ctx serves nothing here. A panic would freeze Traefik's dynamic configuration:
// it becomes an error.
func New(_ context.Context, next http.Handler, config *Config, name string) (handler http.Handler, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			handler, err = nil, fmt.Errorf("homenode middleware %s: %v", name, cause)
		}
	}()
	if next == nil || config == nil {
		return nil, fmt.Errorf("homenode middleware %s: no next handler or no configuration", name)
	}
	s, err := config.verify()
	if err != nil {
		return nil, fmt.Errorf("homenode middleware %s: %w", name, err)
	}
	warmUp.Do(warm)
	return newMiddleware(next, config, s, clientFor(s.endpoint, s.secret)), nil
}

func newMiddleware(next http.Handler, config *Config, s *settings, c *client) *Middleware {
	m := &Middleware{
		next:        next,
		service:     config.Service,
		client:      c,
		timeout:     s.timeout,
		bindTimeout: s.bindTimeout,
		loginPath:   config.LoginPath,
		logoutPath:  config.LogoutPath,
		login:       s.login,
		sources:     s.sources,
		guarded:     s.guarded,
		closed:      config.Closed,
		language:    s.language,
	}
	m.need.Store(&need{})
	return m
}

// ServeHTTP routes one request: no header of the client's can pass for one of the gateway's, a request with a
// token or a login goes where the binding service says or is answered with 503, and anonymous requests fall
// back to Traefik's own pool of nodes when the binding service cannot be reached.
func (m *Middleware) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	m.guarded.strip(req.Header)
	q := question{requestID: requestID(req.Header), service: m.service}
	rw.Header().Set(headerRequest, q.requestID)

	if req.Method == http.MethodPost && m.loginPath != "" && req.URL.Path == m.loginPath {
		q.login = true
		q.username = m.readUsername(req, q.requestID)
	} else {
		q.token = m.token(req)
	}

	a, err := m.decide(req, &q)
	switch {
	case err != nil:
		m.serveUndecided(rw, req, &q, err)
	case a.status != http.StatusOK:
		a.send(rw)
	case q.login || req.URL.Path == m.logoutPath && m.isLogout(req, &q):
		m.guarded.set(req.Header, a.header)
		m.serveHeld(rw, req, &q)
	default:
		m.guarded.set(req.Header, a.header)
		// The very rw that Traefik gave: wrapped by interpreted code it would lose Flush, and event streams
		// would arrive in one piece.
		m.next.ServeHTTP(rw, req)
	}
}

// serveUndecided serves a request for which there is no decision. One with a token, or a login, is never sent
// anywhere: its user may be bound. Nor is any other that the client has made impossible to ask about, or that a
// closed service might refuse.
func (m *Middleware) serveUndecided(rw http.ResponseWriter, req *http.Request, q *question, err error) {
	switch {
	case errors.Is(err, errClientGone):
		rw.WriteHeader(statusClientClosedRequest)
	case q.token == "" && !q.login && !m.closed && errors.Is(err, errUnavailable):
		req.Header.Set(headerPool, m.service)
		m.next.ServeHTTP(rw, req)
	default:
		m.sendUnavailable(rw, req, q.requestID)
	}
}

// decide finds out what is to become of the request. It asks for every request: the local cache of decisions
// (cache.go) goes before the question.
//
// While a login of the user is on its way to the binding service, that does not know the token yet, and would call
// the request anonymous, or does not know the name, and would place it anew: the node could be any. Or it refuses the
// token as nobody's, or as that of a user who was kicked out before. Such an answer does not count before the login
// has arrived.
func (m *Middleware) decide(req *http.Request, q *question) (*answer, error) {
	var p *report
	if m.client.pendingCount.Load() > 0 {
		p = m.client.pendingOf(q)
	}
	if p != nil && !p.heard.Load() {
		if err := m.client.await(req.Context(), p, q.requestID, m.timeout); err != nil {
			return nil, err
		}
	}
	a, err := m.ask(req, q)
	if p == nil || err != nil || !a.knowsNobody() {
		return a, err
	}
	if err := m.client.await(req.Context(), p, q.requestID, m.timeout); err != nil {
		return nil, err
	}
	return m.ask(req, q)
}
