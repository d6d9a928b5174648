package demo_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/demo"
	"github.com/homenode/homenode/internal/proc"
)

// server is a node that runs in this process.
type server struct {
	url  string
	stop func() // ends it, which must succeed
}

func startNode(t *testing.T, dir string) server {
	t.Helper()
	address, err := proc.FreeAddress()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- demo.RunNode(ctx, demo.NodeOptions{Name: "node-1", Listen: address, DataDir: dir, Prefix: "/js/a"})
		close(ended)
	}()
	s := server{url: "http://" + address, stop: func() {
		cancel()
		require.NoError(t, <-ended)
	}}
	t.Cleanup(s.stop)
	require.Eventually(t, func() bool {
		response, err := http.Get(s.url + "/actuator/health")
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}, 10*time.Second, 10*time.Millisecond)
	return s
}

func (s server) open(t *testing.T, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "node-1", response.Header.Get("X-Demo-Node"))
	return response
}

type envelope struct {
	Code int
	Data json.RawMessage
}

func (s server) call(t *testing.T, method, path, body string, headers ...string) envelope {
	t.Helper()
	var e envelope
	require.NoError(t, json.NewDecoder(s.open(t, method, path, body, headers...).Body).Decode(&e))
	return e
}

type session struct {
	Token    string
	UserID   json.Number
	Username string
}

func (s server) login(t *testing.T, name string) (logged session) {
	t.Helper()
	e := s.call(t, http.MethodPost, "/js/a/sys/login", `{"username":"`+name+`","password":"p"}`)
	require.Equal(t, 200, e.Code)
	require.NoError(t, json.Unmarshal(e.Data, &logged))
	return logged
}

func TestALoginGivesAStableLargeUserID(t *testing.T) {
	node := startNode(t, t.TempDir())
	first, second := node.login(t, "ann"), node.login(t, "Ann")
	require.Equal(t, first.UserID, second.UserID)
	require.NotEqual(t, first.Token, second.Token)
	require.Equal(t, "ann", first.Username)
	id, err := first.UserID.Int64()
	require.NoError(t, err)
	require.Greater(t, id, int64(1)<<53)
}

func TestANodeKeepsNotesAndSessionsThroughARestart(t *testing.T) {
	dir := t.TempDir()
	first := startNode(t, dir)
	token := first.login(t, "ann").Token
	require.Equal(t, 200, first.call(t, http.MethodPost, "/js/a/notes", `{"text":"remember"}`, "x-token", token).Code)
	first.stop()

	second := startNode(t, dir)
	for _, test := range []struct {
		name, query string
		headers     []string
	}{
		{"header", "", []string{"x-token", token}},
		{"cookie", "", []string{"Cookie", "x-token=" + token}},
		{"query", "?x-token=" + url.QueryEscape(token), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.JSONEq(t, `["remember"]`, string(second.call(t, http.MethodGet, "/js/a/notes"+test.query, "", test.headers...).Data))
		})
	}
	stranger := second.login(t, "../../ann").Token
	require.JSONEq(t, `[]`, string(second.call(t, http.MethodGet, "/js/a/notes", "", "x-token", stranger).Data))
}

func TestANodeRefuses(t *testing.T) {
	node, elsewhere := startNode(t, t.TempDir()), startNode(t, t.TempDir())
	token, foreign := node.login(t, "ann").Token, elsewhere.login(t, "ann").Token
	for _, test := range []struct {
		name, method, path, body, token string
		code                            int
	}{
		{"another node's token", http.MethodGet, "/js/a/notes", "", foreign, 401},
		{"no token", http.MethodPost, "/js/a/notes", `{"text":"n"}`, "", 401},
		{"a wrong password", http.MethodPost, "/js/a/sys/login", `{"username":"ann","password":"wrong"}`, "", 500},
		{"no username", http.MethodPost, "/js/a/sys/login", `{"username":""}`, "", 400},
		{"no JSON", http.MethodPost, "/js/a/sys/login", `username=ann`, "", 400},
		{"a large note", http.MethodPost, "/js/a/notes", `{"text":"` + strings.Repeat("x", 1<<20) + `"}`, token, 400},
		{"an empty note", http.MethodPost, "/js/a/notes", `{"text":""}`, token, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := node.call(t, test.method, test.path, test.body, "x-token", test.token)
			require.Equal(t, test.code, e.Code)
			require.JSONEq(t, "null", string(e.Data))
		})
	}
	for range 100 {
		require.Equal(t, 200, node.call(t, http.MethodPost, "/js/a/notes", `{"text":"n"}`, "x-token", token).Code)
	}
	require.Equal(t, 400, node.call(t, http.MethodPost, "/js/a/notes", `{"text":"n"}`, "x-token", token).Code, "one note too many")
}

func TestWhoamiTellsWhatTheGatewaySent(t *testing.T) {
	node := startNode(t, t.TempDir())
	e := node.call(t, http.MethodGet, "/js/a/whoami?q=%E4", "",
		"x-token", node.login(t, "ann").Token, "X-Gateway-Node", "node-1", "X-User-Id", "7", "X-Request-Id", "r-1")
	require.JSONEq(t, `{"node":"node-1","username":"ann","uri":"/js/a/whoami?q=%E4",
		"headers":{"X-Gateway-Node":["node-1"],"X-User-Id":["7"],"X-Request-Id":["r-1"]}}`, string(e.Data))
}

func TestANodeStreams(t *testing.T) {
	node := startNode(t, t.TempDir())
	query := "?x-token=" + node.login(t, "ann").Token

	var events []string
	for lines := bufio.NewScanner(node.open(t, http.MethodGet, "/js/a/events"+query, "").Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			events = append(events, data)
		}
	}
	require.Equal(t, []string{"1 for ann from node-1", "2 for ann from node-1", "3 for ann from node-1"}, events)

	conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(node.url, "http")+"/js/a/ws"+query, nil)
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte("hello")))
	_, message, err := conn.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "node-1 heard: hello", string(message))
}
