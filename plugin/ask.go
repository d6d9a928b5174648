package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// restAfterFailure is how long an unreachable binding service is left alone, so that not every request
	// pays the wait.
	restAfterFailure = time.Second
	// maxToken is the longest token that is sent on; a longer one is nobody's.
	maxToken = 64 << 10
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 64 << 10
	// maxQuestion bounds what a client can make the plugin send: servers accept 1 MiB of headers and reset the
	// connection beyond, which would look like a service that is down.
	maxQuestion = 512 << 10

	reasonUnauthenticated = "UNAUTHENTICATED"
)

var (
	// errClientGone: nobody waits for the answer any more. It says nothing about the binding service.
	errClientGone = errors.New("the client went away")
	// errUnavailable: the binding service gave no decision.
	errUnavailable = errors.New("no decision from the binding service")
	// errUnaskable: the client has sent what no question can hold. It must not get it around the guards.
	errUnaskable = errors.New("the request's method, path, query and headers are too long to ask about")
)

var userAgent = []string{"homenode-plugin"}

// client talks to one binding service. It is shared by every middleware with the same endpoint and secret, and
// outlives Traefik's reloads, which make new middlewares but must neither forget a login on its way nor open
// new connections.
type client struct {
	transport *http.Transport
	// base is the endpoint as a URL to which paths are appended.
	base          string
	authorization []string

	// restUntil is 0 while the service answers, else the Unix time in nanoseconds before which nobody asks.
	restUntil atomic.Int64
	// complainedAt is when the last failure was logged, Unix nanoseconds.
	complainedAt atomic.Int64

	// pendingCount counts the logins and logouts on their way, readable without the lock by every request.
	pendingCount atomic.Int64
	pendingMutex sync.Mutex
	// pending are the logins on their way to the binding service, by tokenKey and nameKey.
	pending map[string]*report
}

var (
	clientsMutex sync.Mutex
	clients      = map[string]*client{}
)

// clientFor returns the one client for this endpoint and secret.
func clientFor(endpoint *url.URL, secret string) *client {
	clientsMutex.Lock()
	defer clientsMutex.Unlock()
	key := endpoint.String() + "\x00" + secret
	if c, ok := clients[key]; ok {
		return c
	}
	c := newClient(endpoint, secret)
	clients[key] = c
	return c
}

func newClient(endpoint *url.URL, secret string) *client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
	base := strings.TrimSuffix(endpoint.String(), "/")
	if endpoint.Scheme == "unix" {
		path := endpoint.Path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		base = "http://homenode"
	}
	return &client{
		transport:     transport,
		base:          base,
		authorization: []string{"Bearer " + secret},
		pending:       map[string]*report{},
	}
}

// question is what the binding service has to know about a request.
type question struct {
	requestID string
	service   string
	// token is the client's, "" without one and on a login.
	token string
	// login: username is that of a login, "" if the request names none.
	login    bool
	username string
	// more is what the binding service wants to know of this very request, nil if it is what it always wants; form
	// is what more asks for, if it does.
	more *need
	form *form
}

// answer is the binding service's decision: to forward a request if status is 200, else what to tell its client.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// bound reports whether the node is that of a user's binding, and not one that was placed.
func (a *answer) bound() bool {
	return len(a.header[headerEpoch]) > 0
}

// knowsNobody reports whether the answer would be another if the binding service knew of the user's login.
func (a *answer) knowsNobody() bool {
	if a.status == http.StatusOK {
		return !a.bound()
	}
	return a.header.Get(headerReason) == reasonUnauthenticated
}

// ask puts one question to the binding service, once more if it asks back, and waits at most the timeout for each
// answer. The error is errClientGone, errUnaskable, or errUnavailable when there is no answer or none of the binding
// service's own. The reason is logged, at most once a second.
func (m *Middleware) ask(req *http.Request, q *question) (*answer, error) {
	c := m.client
	probe := false
	if until := c.restUntil.Load(); until != 0 {
		if probe = c.mayProbe(until, m.timeout); !probe {
			return nil, errUnavailable
		}
	}
	ctx, cancel := context.WithTimeout(req.Context(), m.timeout)
	defer cancel()
	usual := m.need.Load().(*need) //nolint:forcetypeassert // nothing else is stored
	call, err := c.newQuestion(ctx, req, q, usual)
	if err != nil {
		c.settle(probe)
		c.complain(q.requestID, err)
		return nil, err
	}
	a, err := c.exchange(call)
	if err != nil {
		return nil, c.unanswered(req, q, probe, err)
	}
	if c.restUntil.Load() != 0 {
		c.restUntil.Store(0)
	}
	if err := a.verify(); err != nil {
		c.complain(q.requestID, err)
		return nil, errUnavailable
	}
	if a.status == http.StatusPreconditionRequired || strings.Join(a.header[headerNeed], ",") != usual.text {
		return m.heed(req, q, a)
	}
	return a, nil
}

// unanswered tells a client that went away from a binding service that does not answer, which is left alone for
// restAfterFailure.
func (c *client) unanswered(req *http.Request, q *question, probe bool, err error) error {
	if req.Context().Err() != nil {
		c.settle(probe)
		return errClientGone
	}
	c.restUntil.Store(time.Now().Add(restAfterFailure).UnixNano())
	// A connection to a machine that is gone must not fail the next question too.
	c.transport.CloseIdleConnections()
	c.complain(q.requestID, err)
	return errUnavailable
}

// mayProbe reports whether this request is the one that asks after restAfterFailure. The others rest on until it
// has its answer.
func (c *client) mayProbe(until int64, timeout time.Duration) bool {
	now := time.Now()
	return now.UnixNano() >= until && c.restUntil.CompareAndSwap(until, now.Add(timeout).UnixNano())
}

// settle lets the next request be the probe, when this one was and found nothing out.
func (c *client) settle(probe bool) {
	if probe {
		c.restUntil.Store(1)
	}
}

// newQuestion writes the forward-auth question, with what is usually needed or what q says. The query stays out of
// X-Forwarded-Uri: it may carry the token, and URLs end up in logs.
func (c *client) newQuestion(ctx context.Context, req *http.Request, q *question, usual *need) (*http.Request, error) {
	call, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/decide", nil)
	if err != nil {
		return nil, err
	}
	// The entry point has set these two, and has removed those of clients that are not trusted.
	proto, host := req.Header["X-Forwarded-Proto"], req.Header["X-Forwarded-Host"]
	if len(proto) == 0 {
		proto = []string{scheme(req)}
	}
	if len(host) == 0 {
		host = []string{req.Host}
	}
	have := haveNone
	if len(req.Header["Content-Type"]) > 0 && isForm(req) {
		have = haveForm
	}
	uri := req.URL.EscapedPath()
	languages := req.Header["Accept-Language"]
	call.Header = http.Header{
		"Authorization":      c.authorization,
		"User-Agent":         userAgent,
		"X-Forwarded-Method": []string{req.Method},
		"X-Forwarded-Proto":  proto,
		"X-Forwarded-Host":   host,
		"X-Forwarded-Uri":    []string{uri},
		"Accept-Language":    languages,
		headerRequest:        []string{q.requestID},
		headerService:        []string{q.service},
		headerHave:           have,
	}
	size := len(req.Method) + len(uri) + len(strings.Join(host, ",")) + len(strings.Join(languages, ","))
	if q.more != nil {
		usual = q.more
	}
	if usual.text != "" {
		size += usual.tell(call.Header, req)
	}
	if size > maxQuestion {
		return nil, errUnaskable
	}
	if q.form != nil {
		q.form.attach(call)
	}
	switch {
	case q.login:
		call.Header[headerUsername] = []string{url.QueryEscape(q.username)}
	case q.token != "" && len(q.token) <= maxToken:
		call.Header[headerToken] = []string{url.QueryEscape(q.token)}
	}
	return call, nil
}

func scheme(req *http.Request) string {
	if req.TLS != nil {
		return "https"
	}
	return "http"
}

// forwardedFor appends the client's address, which Traefik does only after the plugins.
func forwardedFor(req *http.Request) string {
	client, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		client = req.RemoteAddr
	}
	if before := req.Header["X-Forwarded-For"]; len(before) > 0 {
		return strings.Join(before, ", ") + ", " + client
	}
	return client
}

// exchange does one round trip: redirects are answers, not orders.
func (c *client) exchange(call *http.Request) (*answer, error) {
	response, err := c.transport.RoundTrip(call)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	return &answer{status: response.StatusCode, header: response.Header, body: body}, nil
}

// verify tells the binding service's answers from those of anything else at or before its address (a wrong
// secret, a proxy's 502 or login page): these must neither reach the client nor choose its node.
func (a *answer) verify() error {
	if a.status == http.StatusOK {
		if nodes := a.header[headerNode]; len(nodes) != 1 || nodes[0] == "" {
			return errors.New("status 200 without exactly one " + headerNode)
		}
		return nil
	}
	switch {
	case a.header.Get(headerReason) == "" || a.status < 200:
		return fmt.Errorf("status %d without %s", a.status, headerReason)
	case len(a.body) > maxAnswer:
		return fmt.Errorf("status %d with more than %d bytes", a.status, maxAnswer)
	}
	return nil
}

// hopByHop headers, with Date and Content-Length, belong to the connection that carried the answer.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Date", "Content-Length"}

// send gives a rejection to the client, without what is between the binding service and the plugin.
func (a *answer) send(rw http.ResponseWriter) {
	status := a.status
	if a.header.Get(headerClientStatus) == "200" {
		status = http.StatusOK
	}
	for _, value := range a.header["Connection"] {
		for _, name := range strings.Split(value, ",") {
			a.header.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopByHop {
		delete(a.header, name)
	}
	delete(a.header, headerRequest) // set already, and what the client and the node know
	for name, values := range a.header {
		if !strings.HasPrefix(name, homenodePrefix) {
			rw.Header()[name] = values
		}
	}
	rw.WriteHeader(status)
	io.Copy(rw, bytes.NewReader(a.body))
}

// complain logs why there is no decision, at most once a second: the failures of one outage are alike.
func (c *client) complain(requestID string, err error) {
	now, last := time.Now().UnixNano(), c.complainedAt.Load()
	if now-last < int64(time.Second) || !c.complainedAt.CompareAndSwap(last, now) {
		return
	}
	log.Printf("homenode: request %s: binding service %s: %v", requestID, c.base, err)
}
