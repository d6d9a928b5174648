package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/config"
)

// How long one call waits for the whole of its answer.
const (
	plainLimit = 30 * time.Second
	noLimit    = 0 // an import lasts as long as it has users
)

// connection is the admin API of one service.
type connection struct {
	server string // as it was given, for messages
	api    *api.ClientWithResponses
	close  func()
}

// connect prepares the connection that flags and settings ask for, whose calls
// may take as long as limit. Nothing is sent yet.
func (c *console) connect(limit time.Duration) (*connection, error) {
	// The service on this machine may have its address and data folder from its
	// file of settings. What else is wrong with those is told by `config check`.
	settings, _ := config.Load(c.getenv)
	server := cmp.Or(c.server, c.getenv("HOMENODE_ADMIN_URL"), localServer(settings.AdminListen))
	base, transport, err := target(server)
	if err != nil {
		return nil, err
	}
	token, err := c.token(settings.DataDir)
	if err != nil {
		return nil, err
	}
	language := c.language()
	client, err := api.NewClientWithResponses(base,
		api.WithHTTPClient(&http.Client{
			Transport:     transport,
			Timeout:       limit,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for this server only
		}),
		api.WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
			request.Header.Set("x-token", token)
			request.Header.Set("Accept-Language", language)
			request.Header.Set("User-Agent", "homenode")
			return nil
		}))
	if err != nil {
		return nil, UsageError{err}
	}
	return &connection{server: server, api: client, close: transport.CloseIdleConnections}, nil
}

// target is where the document's paths begin at the server, and how it is dialled.
func target(server string) (string, *http.Transport, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport.DialContext = dialer.DialContext
	if path, isSocket := strings.CutPrefix(server, "unix://"); isSocket {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
		return "http://homenode" + api.Prefix, transport, nil
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", nil, usagef("--server (HOMENODE_ADMIN_URL): want http://host:port, https://host:port or unix:///path")
	}
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), api.Prefix) + api.Prefix, transport, nil
}

// localServer is where a service that listens at address is reached from this machine.
func localServer(address string) string {
	if strings.HasPrefix(address, "unix://") {
		return address
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "http://" + address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// token is the administrator's. There is no flag for it: every user of a machine
// sees the arguments of its processes.
func (c *console) token(dataDir string) (string, error) {
	if token := strings.TrimSpace(c.getenv("HOMENODE_ADMIN_TOKEN")); token != "" {
		return token, nil
	}
	path, setting := c.getenv("HOMENODE_ADMIN_TOKEN_FILE"), "HOMENODE_ADMIN_TOKEN_FILE"
	if path == "" {
		path, setting = filepath.Join(dataDir, "admin-token"), "HOMENODE_DATA_DIR"
	}
	content, err := os.ReadFile(path)
	token := strings.TrimSpace(string(content))
	switch {
	case errors.Is(err, fs.ErrNotExist) && setting == "HOMENODE_DATA_DIR":
		return "", usagef("no administrator's token: set HOMENODE_ADMIN_TOKEN to it, HOMENODE_ADMIN_TOKEN_FILE to a file that holds it, or HOMENODE_DATA_DIR to the data folder of the service (there is no %s)", path)
	case err != nil:
		return "", usagef("the administrator's token (%s): %w", setting, err)
	case token == "":
		return "", usagef("the administrator's token (%s): %s is empty", setting, path)
	}
	return token, nil
}

// language is that of the terminal where the service knows it, else that of this command line.
func (c *console) language() string {
	locale := cmp.Or(c.getenv("LC_ALL"), c.getenv("LC_MESSAGES"), c.getenv("LANG"))
	if strings.HasPrefix(locale, "zh") {
		return "zh"
	}
	return "en"
}

// response is what the generated client returns of every call; A is its answer.
type response[A any] interface {
	GetJSON200() *A
	GetJSONDefault() *api.Refused
	GetBody() []byte
	StatusCode() int
}

// answered returns the answer of a call, or why there is none.
func answered[A any](r response[A], err error) (*A, error) {
	if err != nil {
		return nil, &unanswered{err}
	}
	if answer := r.GetJSON200(); answer != nil {
		var head struct{ Code int } // any other server may answer 200 with JSON of its own
		if json.Unmarshal(r.GetBody(), &head) != nil || head.Code != http.StatusOK {
			return nil, &refusal{status: r.StatusCode()}
		}
		return answer, nil
	}
	return nil, refused(r.StatusCode(), r.GetJSONDefault())
}

// unanswered is the error of a call that got no answer, or none that can be read.
type unanswered struct{ error }

func (e *unanswered) Unwrap() error { return e.error }

// refusal is what a service answered instead of doing as asked.
type refusal struct {
	status    int
	message   string // empty: it was no answer of an admin API
	reason    string
	requestID string
}

func refused(status int, body *api.Refused) error {
	if body == nil || body.Data.Reason == "" {
		return &refusal{status: status}
	}
	return &refusal{status: status, message: body.Message, reason: body.Data.Reason, requestID: body.Data.RequestID}
}

func (r *refusal) Error() string {
	if r.message == "" {
		return fmt.Sprintf("HTTP status %d, which is no answer of the admin API", r.status)
	}
	return escape(fmt.Sprintf("%s (%s, request %s)", r.message, r.reason, r.requestID))
}

// unreachable is the error of a service that did not answer.
type unreachable struct {
	server string
	cause  error
}

func (e *unreachable) Error() string {
	return fmt.Sprintf("%s cannot be reached: %v", e.server, e.cause)
}
func (e *unreachable) Unwrap() error { return e.cause }
func (*unreachable) ExitCode() int   { return ExitUnreachable }

// explain makes of the error of a call one that says what to do. ctx is the one
// that the user can end.
func (c *connection) explain(ctx context.Context, err error) error {
	var refusal *refusal
	var call *unanswered
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &refusal):
		return c.hint(refusal, err)
	case !errors.As(err, &call):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: %w", ctx.Err())
	case errors.As(err, &syntax), errors.As(err, &kind):
		return fmt.Errorf("%s: this is no answer of the admin API: %w", c.server, err)
	}
	return c.unreachable(err)
}

func (c *connection) unreachable(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		err = call.Err // without the URL, which names users
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = errors.New("no answer in time")
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w\nIs `homenode serve` running there? Another address: --server or HOMENODE_ADMIN_URL", err)
	}
	return &unreachable{c.server, err}
}

func (c *connection) hint(r *refusal, err error) error {
	var hint string
	switch {
	case r.status >= http.StatusMultipleChoices && r.status < http.StatusBadRequest:
		hint = "It redirects elsewhere, where the token is not sent: give --server the final address"
	case r.message == "":
		hint = "Is " + c.server + " the address of the admin API (--server or HOMENODE_ADMIN_URL)?"
	case r.status == http.StatusUnauthorized:
		hint = "The service does not know this token. Set HOMENODE_ADMIN_TOKEN, HOMENODE_ADMIN_TOKEN_FILE, or HOMENODE_DATA_DIR to its data folder"
	case r.status == http.StatusForbidden:
		hint = "The token must be an administrator's, and this machine's address in admin.ipWhitelist if that is set"
	case r.status == http.StatusPreconditionFailed:
		hint = "Somebody else has changed it meanwhile: look at it again, then repeat the change if it is still wanted"
	case r.status >= http.StatusInternalServerError:
		hint = "The log of the service says why: look for the request's id"
	default:
		return err
	}
	return fmt.Errorf("%w\n%s", err, hint)
}

// bodyOf reads a refusal that came where a stream was expected.
func bodyOf(status int, body []byte) error {
	var parsed api.Refused
	if json.NewDecoder(bytes.NewReader(body)).Decode(&parsed) != nil {
		return refused(status, nil)
	}
	return refused(status, &parsed)
}
