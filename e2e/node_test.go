package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// node is a backend in the test's own process, so that a scenario can make it
// answer anything, take it down and bring it back on the same address.
type node struct {
	name string
	addr string

	mu     sync.Mutex
	server *http.Server
	down   atomic.Bool // health fails, requests are still served

	failing atomic.Bool  // every second request is answered with an error of the node's own
	turn    atomic.Int64 // counts them

	onLogin  atomic.Pointer[func()]                                 // called before a login is answered
	capture  atomic.Pointer[func(http.ResponseWriter, []byte) bool] // sees a login's body, and may answer it
	requests sync.Map                                               // request id -> true: what reached this node
}

func startNode(t *testing.T, name string) *node {
	t.Helper()
	n := &node{name: name, addr: freeAddr(t)}
	n.up(t)
	t.Cleanup(n.stop)
	return n
}

func (n *node) url() string { return "http://" + n.addr }

// up starts the node on the address that it had.
func (n *node) up(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", n.addr)
	require.NoError(t, err)
	server := &http.Server{Handler: n.handler(), ReadHeaderTimeout: 10 * time.Second}
	n.mu.Lock()
	n.server = server
	n.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// stop cuts every connection, like a machine that loses its power.
func (n *node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server != nil {
		_ = n.server.Close()
		n.server = nil
	}
}

// userID is a 64-bit number beyond 2^53, so that a float on its way would change it.
func userID(username string) string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(username))
	return strconv.FormatUint(1<<62+hash.Sum64()>>3, 10)
}

type echoAnswer struct {
	Node   string      `json:"node"`
	Method string      `json:"method"`
	URI    string      `json:"uri"`
	Header http.Header `json:"header"`
	Body   string      `json:"body"` // SHA-256 in hex
}

func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(rw http.ResponseWriter, _ *http.Request) {
		if n.down.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /js/a/sys/login", n.login)
	mux.HandleFunc("/js/a/events", n.events)
	mux.HandleFunc("/js/a/ws", n.socket)
	mux.HandleFunc("POST /js/a/upload", func(rw http.ResponseWriter, r *http.Request) {
		read, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(rw, "%d %v", read, err)
	})
	mux.HandleFunc("/js/a/download", func(rw http.ResponseWriter, r *http.Request) {
		size, _ := strconv.ParseInt(r.URL.Query().Get("bytes"), 10, 64)
		_, _ = io.CopyN(rw, zeros{}, size)
	})
	mux.HandleFunc("/js/a/status/{code}", func(rw http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		rw.Header().Set("Content-Type", "text/x-node")
		rw.WriteHeader(code)
		_, _ = io.WriteString(rw, "the node's own "+r.PathValue("code"))
	})
	mux.HandleFunc("/js/a/error/{code}", func(rw http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		ownError(rw, code)
	})
	mux.HandleFunc("/", n.echo)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Real-Node", n.name) // the truth, beside what the gateway says
		if r.URL.Path != "/health" {
			n.requests.Store(r.Header.Get("X-Request-Id"), true)
		}
		if r.URL.Path != "/health" && n.failing.Load() && n.turn.Add(1)%2 == 0 {
			ownError(rw, http.StatusInternalServerError)
			return
		}
		// ServeMux would redirect to a cleaned path; a node gets it as it came.
		if strings.Contains(r.URL.EscapedPath(), "/echo/") {
			n.echo(rw, r)
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

// ownError answers with the node's own envelope, whose odd spelling no gateway may tidy up.
func ownError(rw http.ResponseWriter, code int) {
	rw.Header().Set("Content-Type", "application/json;charset=UTF-8")
	rw.WriteHeader(code)
	_, _ = rw.Write(ownErrorBody(code))
}

func ownErrorBody(code int) []byte {
	return fmt.Appendf(nil, "{ \"code\":%d, \"message\" : \"\\u8282点的错误\",\"data\":1.10 }\n", code)
}

func (n *node) holdLogins(until func()) { n.onLogin.Store(&until) }

func (n *node) captureLogin(capture func(http.ResponseWriter, []byte) bool) {
	n.capture.Store(&capture)
}

func (n *node) echo(rw http.ResponseWriter, r *http.Request) {
	body := sha256.New()
	_, _ = io.Copy(body, r.Body)
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(echoAnswer{n.name, r.Method, r.RequestURI, r.Header, hex.EncodeToString(body.Sum(nil))})
}

// login succeeds for every name but "nobody"; token and user id follow from the
// name, so that every node of a scenario agrees on them, as over a shared session
// store. The answer's spelling is odd on purpose: no gateway may tidy it up.
func (n *node) login(rw http.ResponseWriter, r *http.Request) {
	if held := n.onLogin.Load(); held != nil {
		(*held)()
	}
	body, _ := io.ReadAll(r.Body)
	if capture := n.capture.Load(); capture != nil && (*capture)(rw, body) {
		return
	}
	var request struct {
		Username string `json:"username"`
		As       string `json:"as"` // the username of the answer, if it is another
	}
	_ = json.Unmarshal(body, &request)
	rw.Header().Set("Content-Type", "application/json;charset=UTF-8")
	if request.Username == "nobody" {
		_, _ = io.WriteString(rw, `{"code":500,"message":"用户名或密码错误","data":null}`)
		return
	}
	name := request.Username
	if request.As != "" {
		name = request.As
	}
	_, _ = rw.Write(loginBody(name))
}

func loginBody(name string) []byte {
	encoded, _ := json.Marshal(name)
	return fmt.Appendf(nil, "{ \"code\" : 200,\n \"data\":{\"token\":%q,\"userId\":%s, \"username\":%s,\"extra\":1.10}, \"message\":\"\\u6210功\" }\n", tokenOf(name), userID(name), encoded)
}

func tokenOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "tok-" + hex.EncodeToString(sum[:12])
}

func (n *node) events(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "text/event-stream")
	flusher := rw.(http.Flusher)
	count, err := strconv.Atoi(r.URL.Query().Get("count"))
	if err != nil {
		count = 5
	}
	for i := range count {
		_, _ = fmt.Fprintf(rw, "data: %d from %s\n\n", i, n.name)
		flusher.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (n *node) socket(rw http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if conn.Write(r.Context(), kind, append([]byte(n.name+": "), message...)) != nil {
			return
		}
	}
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// client is one user's browser.
type client struct {
	http *http.Client
	base string // Traefik's entry point
}

func newClient(base string) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100
	transport.DisableCompression = true
	return &client{http: &http.Client{Transport: transport, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, base: base}
}

type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// node is where the request really went; empty if it reached none.
func (a answer) node() string { return a.header.Get("X-Real-Node") }

func (a answer) reason() string { return a.header.Get("X-Gateway-Reason") }

func (a answer) String() string {
	return fmt.Sprintf("%d node=%q gateway-node=%q reason=%q err=%v body=%.300q", a.status, a.node(), a.header.Get("X-Gateway-Node"), a.reason(), a.err, a.body)
}

func (c *client) do(method, path, token string, body []byte, change func(*http.Request)) answer {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	request, err := http.NewRequest(method, c.base+path, reader)
	if err != nil {
		return answer{err: err, header: http.Header{}}
	}
	if token != "" {
		request.Header.Set("x-token", token)
	}
	if change != nil {
		change(request)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{err: err, header: http.Header{}}
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, content, err}
}

func (c *client) get(path, token string) answer { return c.do(http.MethodGet, path, token, nil, nil) }

func (c *client) login(name string) answer { return c.loginAs(name, "") }

// loginAs types one name and is answered with another.
func (c *client) loginAs(typed, as string) answer {
	body, _ := json.Marshal(map[string]string{"username": typed, "as": as, "password": "p"})
	return c.do(http.MethodPost, "/js/a/sys/login", "", body, func(r *http.Request) { r.Header.Set("Content-Type", "application/json") })
}
