package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/pflag"
)

// NodeOptions are the settings of one demo node.
type NodeOptions struct {
	Name    string
	Listen  string
	DataDir string
	Prefix  string
}

// Flags defines the options' flags.
func (o *NodeOptions) Flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Name, "name", "node-1", "the node's name, told in its answers")
	flags.StringVar(&o.Listen, "listen", "127.0.0.1:8981", "host:port to listen at")
	flags.StringVar(&o.DataDir, "data", "node-data", "folder that holds the users' notes")
	flags.StringVar(&o.Prefix, "prefix", "/js/a", "path prefix of the service")
}

// RunNode serves until ctx ends, lets the requests that run then finish, and
// returns nil. What users left in the data folder is there at the next start.
func RunNode(ctx context.Context, o NodeOptions) error {
	n, err := newNode(o.Name, o.DataDir)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: n.handler(o.Prefix), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ends with Shutdown or Close
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if server.Shutdown(ending) != nil {
		return server.Close() // somebody's request does not end by itself
	}
	return nil
}

// node is a small ai-server: whatever a user leaves here is here and nowhere else.
type node struct {
	name string
	root *os.Root // of the data folder: no file name leads out of it

	mu     sync.Mutex
	tokens map[string]user // this node alone knows them
}

type user struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

const (
	tokensFile = "tokens.json"
	maxBody    = 64 << 10
)

func newNode(name, dir string) (*node, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	n := &node{name: name, root: root, tokens: map[string]user{}}
	content, err := root.ReadFile(tokensFile)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	return n, json.Unmarshal(content, &n.tokens)
}

func (n *node) handler(prefix string) http.Handler {
	prefix = strings.TrimSuffix(prefix, "/")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /actuator/health", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, 200, "UP", nil) })
	mux.HandleFunc("POST "+prefix+"/sys/login", n.login)
	mux.HandleFunc("GET "+prefix+"/whoami", n.whoami)
	mux.HandleFunc("GET "+prefix+"/notes", n.known(n.readNotes))
	mux.HandleFunc("POST "+prefix+"/notes", n.known(n.writeNote))
	mux.HandleFunc("GET "+prefix+"/events", n.known(n.events))
	mux.HandleFunc("GET "+prefix+"/ws", n.known(n.socket))
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(nodeHeader, n.name)
		mux.ServeHTTP(rw, r)
	})
}

// nodeHeader is the node's own word on who answered, beside the gateway's.
const nodeHeader = "X-Demo-Node"

// answer writes the ai-server's envelope, which has HTTP status 200 whatever the code.
func answer(rw http.ResponseWriter, code int, message string, data any) {
	encoded, err := json.Marshal(map[string]any{"code": code, "message": message, "data": data})
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "application/json;charset=UTF-8")
	_, _ = rw.Write(encoded)
}

// userID is a 64-bit number beyond 2^53: whoever takes it for a float changes it.
// Ann and ann are one user, here as at the gateway.
func userID(username string) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(strings.ToLower(username)))
	return 1<<62 + hash.Sum64()>>3
}

// login lets everybody in whose password is not "wrong".
func (n *node) login(rw http.ResponseWriter, r *http.Request) {
	var request struct{ Username, Password string }
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, maxBody)).Decode(&request); err != nil || request.Username == "" {
		answer(rw, 400, "username and password, as JSON", nil)
		return
	}
	if request.Password == "wrong" {
		answer(rw, 500, "用户名或密码错误", nil)
		return
	}
	id := userID(request.Username)
	token := rand.Text()
	if err := n.remember(token, user{ID: strconv.FormatUint(id, 10), Name: request.Username}); err != nil {
		answer(rw, 500, "the session could not be stored", nil)
		return
	}
	answer(rw, 200, "登录成功", map[string]any{"token": token, "userId": id, "username": request.Username})
}

func (n *node) remember(token string, u user) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tokens[token] = u
	return n.store(tokensFile, n.tokens)
}

// store replaces a file as a whole: a node that is killed leaves the old or the new one.
func (n *node) store(file string, content any) error {
	encoded, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := n.root.WriteFile(file+".new", encoded, 0o600); err != nil {
		return err
	}
	return n.root.Rename(file+".new", file)
}

func tokenOf(r *http.Request) string {
	if token := r.Header.Get("x-token"); token != "" {
		return token
	}
	if cookie, err := r.Cookie("x-token"); err == nil && cookie.Value != "" {
		return cookie.Value
	}
	return r.URL.Query().Get("x-token")
}

func (n *node) userOf(r *http.Request) (user, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	u, ok := n.tokens[tokenOf(r)]
	return u, ok
}

// known answers 401 for a token that was not given out here.
func (n *node) known(next func(http.ResponseWriter, *http.Request, user)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		u, ok := n.userOf(r)
		if !ok {
			answer(rw, 401, "not logged in at "+n.name, nil)
			return
		}
		next(rw, r, u)
	}
}

func (n *node) whoami(rw http.ResponseWriter, r *http.Request) {
	u, _ := n.userOf(r)
	answer(rw, 200, "OK", map[string]any{
		"node": n.name, "username": u.Name, "uri": r.RequestURI,
		"headers": map[string][]string{
			"X-Gateway-Node": r.Header.Values("X-Gateway-Node"), "X-User-Id": r.Header.Values("X-User-Id"), "X-Request-Id": r.Header.Values("X-Request-Id"),
		},
	})
}

// notesFile is named after the user id, which is digits.
func notesFile(u user) string { return "notes-" + u.ID + ".json" }

func (n *node) notes(u user) (notes []string, err error) {
	content, err := n.root.ReadFile(notesFile(u))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{}, nil
	}
	if err != nil {
		return nil, err
	}
	return notes, json.Unmarshal(content, &notes)
}

func (n *node) readNotes(rw http.ResponseWriter, _ *http.Request, u user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	notes, err := n.notes(u)
	if err != nil {
		answer(rw, 500, "the notes could not be read", nil)
		return
	}
	answer(rw, 200, "OK", notes)
}

const maxNotes = 100

func (n *node) writeNote(rw http.ResponseWriter, r *http.Request, u user) {
	var request struct{ Text string }
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, maxBody)).Decode(&request); err != nil || request.Text == "" {
		answer(rw, 400, `want {"text":"…"}`, nil)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	notes, err := n.notes(u)
	if err == nil && len(notes) >= maxNotes {
		answer(rw, 400, fmt.Sprintf("at most %d notes", maxNotes), nil)
		return
	}
	if err == nil {
		err = n.store(notesFile(u), append(notes, request.Text))
	}
	if err != nil {
		answer(rw, 500, "the note could not be stored", nil)
		return
	}
	answer(rw, 200, "stored on "+n.name, nil)
}

const eventPause = 100 * time.Millisecond

// events sends three server-sent events.
func (n *node) events(rw http.ResponseWriter, r *http.Request, u user) {
	rw.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(rw)
	for i := 1; i <= 3; i++ {
		if _, err := fmt.Fprintf(rw, "data: %d for %s from %s\n\n", i, u.Name, n.name); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(eventPause):
		}
	}
}

// socket echoes what a WebSocket says.
func (n *node) socket(rw http.ResponseWriter, r *http.Request, _ user) {
	conn, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil || conn.Write(r.Context(), kind, append([]byte(n.name+" heard: "), message...)) != nil {
			return
		}
	}
}
