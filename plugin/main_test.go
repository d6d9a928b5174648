package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
	"go.uber.org/goleak"

	"github.com/homenode/homenode/plugin"
)

// What no log may ever contain.
const (
	secret   = "the-shared-secret-of-the-tests"
	token    = "token-of-alice"
	password = "password-of-alice"
)

// logs receives what the plugin logs, compiled or interpreted.
var logs lockedBuffer

func TestMain(m *testing.M) {
	log.SetOutput(&logs)
	os.Unsetenv("HOMENODE_SECRET")
	os.Unsetenv("HOMENODE_SECRET_FILE")
	code := m.Run()
	for _, confidential := range []string{secret, token, password} {
		if strings.Contains(logs.String(), confidential) {
			fmt.Printf("a log line contains %q:\n%s\n", confidential, logs.String())
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}

type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
}

// settings are a middleware's, as they stand in Traefik's dynamic configuration.
type settings map[string]any

// build makes a middleware out of its settings, as Traefik does.
type build func(next http.Handler, s settings) (http.Handler, error)

// onEachBuild runs a test on the compiled plugin and on the interpreted one, which Traefik runs. The race detector
// gets the compiled one alone: of the other it would see the interpreter's own races, not the plugin's. The
// Makefile runs the tests with it and without.
func onEachBuild(t *testing.T, test func(t *testing.T, build build)) {
	t.Helper()
	t.Run("compiled", func(t *testing.T) { test(t, compiled) })
	if !raceDetector {
		t.Run("interpreted", func(t *testing.T) { test(t, interpreted(t)) })
	}
}

func compiled(next http.Handler, s settings) (http.Handler, error) {
	config := plugin.CreateConfig()
	decode(s, config)
	return plugin.New(context.Background(), next, config, "test")
}

// decode stands in for Traefik's mapstructure: both match names by case-insensitive equality.
func decode(s settings, config any) {
	text, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(text, config)
	}
	if err != nil {
		panic(err)
	}
}

var loadOnce sync.Once
var loaded struct {
	err                 error
	newFunc, configFunc reflect.Value
}

// interpreted loads the plugin the way of Traefik's pkg/plugins/middlewareyaegi.go, once per process.
func interpreted(t testing.TB) build {
	t.Helper()
	loadOnce.Do(func() { loaded.err = load() })
	require.NoError(t, loaded.err)
	return func(next http.Handler, s settings) (http.Handler, error) {
		config := loaded.configFunc.Call(nil)[0]
		decode(s, config.Interface())
		results := loaded.newFunc.Call([]reflect.Value{
			reflect.ValueOf(context.Background()), reflect.ValueOf(next), config, reflect.ValueOf("test"),
		})
		if err := results[1].Interface(); err != nil {
			return nil, err.(error)
		}
		return results[0].Interface().(http.Handler), nil
	}
}

func load() error {
	const importPath = "github.com/homenode/homenode/plugin"
	goPath, err := os.MkdirTemp("", "homenode-plugin")
	if err != nil {
		return err
	}
	defer os.RemoveAll(goPath)
	folder := filepath.Join(goPath, "src", filepath.FromSlash(importPath))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		return err
	}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, source), text, 0o644); err != nil {
			return err
		}
	}

	i := interp.New(interp.Options{GoPath: goPath, Env: os.Environ(), Stdout: io.Discard, Stderr: &logs})
	if err := i.Use(stdlib.Symbols); err != nil {
		return err
	}
	if _, err := i.Eval(fmt.Sprintf("import %q", importPath)); err != nil {
		return err
	}
	if loaded.newFunc, err = i.Eval("plugin.New"); err != nil {
		return err
	}
	loaded.configFunc, err = i.Eval("plugin.CreateConfig")
	return err
}

// bindingService is a binding service whose answers a test decides.
type bindingService struct {
	server *httptest.Server
	// connections counts those ever opened.
	connections atomic.Int64

	mutex  sync.Mutex
	decide http.HandlerFunc
	take   http.HandlerFunc
	note   http.HandlerFunc
	asked  []*http.Request
	posts  []post
	ended  []post
}

// post is one attempt to deliver a login or a logout.
type post struct {
	header http.Header
	body   map[string]string
}

var usedEndpoints = map[string]bool{} // tests that make a service run one after another

// newBindingService sends every request to node-1, as alice if it has a token, and takes every login and logout.
func newBindingService(t testing.TB) *bindingService {
	s := &bindingService{
		decide: func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("X-Gateway-Node", "node-1")
			if req.Header.Get("X-Homenode-Token") != "" {
				rw.Header().Set("X-User-Id", "1001")
				rw.Header().Set("X-Binding-Epoch", "7")
			}
		},
		take: func(rw http.ResponseWriter, req *http.Request) {
			io.WriteString(rw, `{"node":"node-1","created":true}`)
		},
		note: func(http.ResponseWriter, *http.Request) {},
	}
	s.server = httptest.NewUnstartedServer(s)
	// The plugin remembers for a moment that an endpoint did not answer: none may get
	// the port, and with it the rest, of a server that an earlier test has closed.
	for usedEndpoints[s.server.Listener.Addr().String()] {
		s.server.Listener.Close()
		s.server = httptest.NewUnstartedServer(s)
	}
	usedEndpoints[s.server.Listener.Addr().String()] = true
	s.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.server.Start()
	t.Cleanup(func() { s.server.Close() })
	return s
}

func (s *bindingService) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	if req.Header.Get("Authorization") != "Bearer "+secret {
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch req.Method + " " + req.URL.Path {
	case "GET /v1/decide", "POST /v1/decide":
		body, err := io.ReadAll(req.Body)
		if err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body)) // for the test
		s.mutex.Lock()
		s.asked = append(s.asked, req)
		decide := s.decide
		s.mutex.Unlock()
		decide(rw, req)
	case "POST /v1/logins", "POST /v1/logouts":
		body := map[string]string{}
		if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mutex.Lock()
		take := s.take
		if req.URL.Path == "/v1/logouts" {
			take = s.note
			s.ended = append(s.ended, post{header: req.Header, body: body})
		} else {
			s.posts = append(s.posts, post{header: req.Header, body: body})
		}
		s.mutex.Unlock()
		take(rw, req)
	default:
		rw.WriteHeader(http.StatusNotFound)
	}
}

func (s *bindingService) onDecide(decide http.HandlerFunc) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.decide = decide
}

func (s *bindingService) onLogin(take http.HandlerFunc) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.take = take
}

func (s *bindingService) onLogout(note http.HandlerFunc) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.note = note
}

func (s *bindingService) questions() []*http.Request {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]*http.Request{}, s.asked...)
}

func (s *bindingService) logins() []post {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]post{}, s.posts...)
}

func (s *bindingService) logouts() []post {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]post{}, s.ended...)
}

// lastQuestion returns the last question that was put.
func (s *bindingService) lastQuestion(t *testing.T) *http.Request {
	t.Helper()
	asked := s.questions()
	require.NotEmpty(t, asked)
	return asked[len(asked)-1]
}

// answerStatus answers with a status and a reason of the binding service.
func answerStatus(status int, reason string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json; charset=utf-8")
		rw.Header().Set("X-Gateway-Reason", reason)
		rw.WriteHeader(status)
		fmt.Fprintf(rw, `{"code":%d,"message":"m","data":{"reason":%q}}`, status, reason)
	}
}

// received is a request as a node saw it.
type received struct {
	method, uri string
	header      http.Header
	body        string
	bodyError   bool
	length      int64
	encoding    []string
}

// bundle is a gateway with one service, in front of one node, and a bare proxy to the same node.
type bundle struct {
	t       *testing.T
	service *bindingService
	gateway *httptest.Server
	bare    *httptest.Server
	node    *httptest.Server

	mutex    sync.Mutex
	respond  http.HandlerFunc
	requests []received
	panics   []any
}

// setup starts the bundle. The settings given replace the usual ones.
func setup(t *testing.T, build build, changed settings) *bundle {
	t.Helper()
	b := &bundle{t: t, service: newBindingService(t)}
	b.respond = func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "node") }
	b.node = httptest.NewServer(http.HandlerFunc(b.serveNode))
	t.Cleanup(b.node.Close)

	target, err := url.Parse(b.node.URL)
	require.NoError(t, err)
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	b.bare = httptest.NewServer(proxy)
	t.Cleanup(b.bare.Close)

	middleware, err := build(proxy, b.settings(changed))
	require.NoError(t, err)
	b.gateway = httptest.NewServer(b.recordPanics(middleware))
	t.Cleanup(b.gateway.Close)
	return b
}

func (b *bundle) settings(changed settings) settings {
	s := settings{
		"service": "ai", "endpoint": b.service.server.URL, "secret": secret,
		"timeout": "5s", "bindTimeout": "5s", "loginPath": "/js/a/sys/login", "logoutPath": "/js/a/sys/logout",
	}
	for name, value := range changed {
		s[name] = value
	}
	return s
}

func (b *bundle) recordPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		completed := false
		defer func() {
			if completed {
				return
			}
			cause := recover()
			b.mutex.Lock()
			b.panics = append(b.panics, cause)
			b.mutex.Unlock()
			panic(http.ErrAbortHandler)
		}()
		next.ServeHTTP(rw, req)
		completed = true
	})
}

func (b *bundle) serveNode(rw http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	b.mutex.Lock()
	b.requests = append(b.requests, received{
		method: req.Method, uri: req.RequestURI, header: req.Header.Clone(), body: string(body),
		bodyError: err != nil, length: req.ContentLength, encoding: req.TransferEncoding,
	})
	respond := b.respond
	b.mutex.Unlock()
	respond(rw, req)
}

func (b *bundle) onNode(respond http.HandlerFunc) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.respond = respond
}

// atNode returns the last request that the node got.
func (b *bundle) atNode() received {
	b.t.Helper()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	require.NotEmpty(b.t, b.requests, "the node got no request")
	return b.requests[len(b.requests)-1]
}

func (b *bundle) nodeRequests() int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return len(b.requests)
}

// causes returns what the middleware has panicked with.
func (b *bundle) causes() []any {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return append([]any{}, b.panics...)
}

// response is a response as a client saw it.
type response struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	// readError: the body ended before its end.
	readError bool
}

// reason returns what the error envelope says.
func (r response) reason(t *testing.T) string {
	t.Helper()
	var envelope struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Reason    string `json:"reason"`
			RequestID string `json:"requestId"`
		} `json:"data"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.body), &envelope), r.body)
	require.NotEmpty(t, envelope.Message)
	require.Equal(t, r.header.Get("X-Gateway-Reason"), envelope.Data.Reason)
	return envelope.Data.Reason
}

// get sends a GET for /js/a/list with these headers, "name: value" each, through the gateway.
func (b *bundle) get(headers ...string) response {
	b.t.Helper()
	return b.do(http.MethodGet, "/js/a/list", nil, headers...)
}

// login sends a login request through the gateway.
func (b *bundle) login(body string, headers ...string) response {
	b.t.Helper()
	return b.do(http.MethodPost, "/js/a/sys/login", strings.NewReader(body), headers...)
}

func (b *bundle) do(method, uri string, body io.Reader, headers ...string) response {
	b.t.Helper()
	r, err := send(context.Background(), b.gateway.URL, method, uri, body, headers...)
	require.NoError(b.t, err)
	return r
}

func send(ctx context.Context, base, method, uri string, body io.Reader, headers ...string) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, base+uri, body)
	if err != nil {
		return response{}, err
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header[name] = append(req.Header[name], value)
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return response{
		status: resp.StatusCode, header: resp.Header, body: string(text), trailer: resp.Trailer, readError: err != nil,
	}, nil
}
