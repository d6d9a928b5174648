package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/traefikproc"
)

func decodeEcho(t *testing.T, a answer) echoAnswer {
	t.Helper()
	require.NoError(t, a.err)
	var echo echoAnswer
	require.NoError(t, json.Unmarshal(a.body, &echo), "%s", a)
	return echo
}

var guardedNames = []string{"X-Gateway-Node", "X-User-Id", "X-Channel", "X-Source", "X-Binding-Epoch", "X-Homenode-Pool", "X-Homenode-Service", "X-Homenode-Anything"}

// spellings are those that some backend folds into the name.
func spellings(name string) []string {
	return []string{
		name, strings.ToLower(name), strings.ToUpper(name), strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, "-", "."),
		strings.ReplaceAll(name, "-", "~"), strings.Replace(name, "-", "_", 1), strings.ToLower(strings.ReplaceAll(name, "-", "_")),
		strings.ReplaceAll(name, "-", "!"), strings.ReplaceAll(name, "-", "|"),
	}
}

type listedRouter struct {
	Name       string   `json:"name"`
	Rule       string   `json:"rule"`
	Service    string   `json:"service"`
	ParentRefs []string `json:"parentRefs"`
	Status     string   `json:"status"`
}

func listRouters(t *testing.T, p *traefikproc.Process) []listedRouter {
	t.Helper()
	response, err := http.Get(p.APIURL() + "/api/http/routers?per_page=1000")
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	var routers []listedRouter
	require.NoError(t, json.NewDecoder(response.Body).Decode(&routers))
	return routers
}

var pathInRule = regexp.MustCompile("Path(?:Prefix)?\\(`([^`]+)`\\)")

// On every router that Traefik lists, no header of the client's chooses a node,
// whatever its spelling.
func TestForgedHeadersChooseNothing(t *testing.T) {
	for _, strategy := range []string{"keep", "delete"} { // of the entry point; the plugin must not depend on it
		t.Run("alias headers: "+strategy, func(t *testing.T) {
			s := &stack{}
			for _, name := range []string{"node-1", "node-2", "node-3"} {
				s.nodes = append(s.nodes, startNode(t, name))
			}
			s.binding = startHomenode(t, stores{}, s.nodes, settings{})
			s.traefik = startTraefik(t, s.binding, traefikproc.Options{AliasHeaders: strategy})
			s.client = newClient(s.traefik.URL("web"))
			s.waitRouted(t, s.client)
			users := s.usersByNode(t, 2)
			home := "node-1"
			token, other := tokenOf(users[home][0]), "node-2"

			routers := listRouters(t, s.traefik)
			require.GreaterOrEqual(t, len(routers), 7)
			for _, router := range routers {
				if strings.HasSuffix(router.Name, "@internal") {
					continue
				}
				require.Equal(t, "enabled", router.Status, router.Name)
				path := pathInRule.FindStringSubmatch(router.Rule)[1]
				for _, name := range guardedNames {
					for _, spelling := range spellings(name) {
						value := other
						if name == "X-Homenode-Pool" || name == "X-Homenode-Service" {
							value = "ai"
						}
						forge := func(r *http.Request) { r.Header[spelling] = []string{value, value} }
						for _, method := range []string{http.MethodGet, http.MethodOptions} {
							a := s.client.do(method, path, token, nil, forge)
							require.NoError(t, a.err)
							if a.node() == "" {
								continue // answered by the gateway: no node was reached
							}
							require.Equal(t, home, a.node(), "%s: %s on %s", spelling, a, router.Name)
							requireClean(t, decodeEcho(t, a), home, name)
						}
						login := s.client.do(http.MethodPost, "/js/a/sys/login", "", []byte(`{"username":"`+users[home][0]+`"}`), forge)
						require.Equal(t, home, login.node(), spelling)
					}
				}
			}
			for _, spelling := range spellings("X-Gateway-Node") {
				seen := map[string]bool{}
				for range 3 {
					seen[s.client.do(http.MethodGet, "/js/a/whoami", "", nil, func(r *http.Request) { r.Header[spelling] = []string{other} }).node()] = true
				}
				require.Len(t, seen, 3, "an anonymous request is placed in turn, not by %s", spelling)
			}
		})
	}
}

// requireClean wants exactly the gateway's value of a guarded header at the node, in one spelling.
func requireClean(t *testing.T, echo echoAnswer, home, name string) {
	t.Helper()
	folded := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return '-'
		}, strings.ToLower(s))
	}
	for got, values := range echo.Header {
		if folded(got) != folded(name) {
			continue
		}
		require.Equal(t, name, got, "a forged spelling reached the node")
		require.Len(t, values, 1)
		if name == "X-Gateway-Node" {
			require.Equal(t, home, values[0])
		}
		require.False(t, strings.HasPrefix(name, "X-Homenode-"), "%s reached the node", name)
	}
}

// While the binding service is down too, a token never travels in the pool.
func TestTheForgedPoolMark(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	loginOK(t, s.client, "ann")
	s.binding.Kill()
	for _, spelling := range spellings("X-Homenode-Pool") {
		a := s.client.do(http.MethodGet, "/js/a/whoami", tokenOf("ann"), nil, func(r *http.Request) { r.Header[spelling] = []string{"ai"} })
		require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", a.reason(), spelling)
	}
}

// No input changes what client and node say to each other: the node gets the body
// byte for byte, the client the node's answer.
func TestOddLoginRequests(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	home := loginOK(t, s.client, "ann")
	zipped := bytes.Buffer{}
	writer := gzip.NewWriter(&zipped)
	_, _ = writer.Write([]byte(`{"username":"ann"}`))
	require.NoError(t, writer.Close())

	tests := map[string]struct {
		body   []byte
		change func(*http.Request)
		home   bool // the name was read: it must be ann's node
	}{
		"empty":                   {body: []byte{}},
		"64 KiB":                  {body: padded(`{"username":"ann","p":"`, `"}`, 64<<10), home: true},
		"64 KiB + 1":              {body: padded(`{"username":"ann","p":"`, `"}`, 64<<10+1)},
		"5 MiB":                   {body: padded(`{"username":"ann","p":"`, `"}`, 5<<20)},
		"not JSON":                {body: []byte(`username=ann`)},
		"trailing garbage":        {body: []byte(`{"username":"ann"} x`)},
		"an array":                {body: []byte(`["ann"]`)},
		"deep nesting":            {body: []byte(strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000))},
		"username null":           {body: []byte(`{"username":null}`)},
		"username number":         {body: []byte(`{"username":9007199254740993}`)},
		"username of 300":         {body: []byte(`{"username":"` + strings.Repeat("a", 300) + `"}`)},
		"username with NUL":       {body: []byte(`{"username":"a\u0000b"}`)},
		"username emoji":          {body: []byte(`{"username":"😀"}`)},
		"two usernames":           {body: []byte(`{"username":"bob","username":"ann"}`), home: true},
		"GBK":                     {body: []byte("{\"username\":\"\xd5\xc5\xc8\xfd\"}")},
		"a BOM":                   {body: []byte("\xef\xbb\xbf" + `{"username":"ann"}`), home: true},
		"in capitals":             {body: []byte(`{"username":"ANN"}`), home: true},
		"gzip":                    {body: zipped.Bytes(), change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }},
		"chunked":                 {body: []byte(`{"username":"ann"}`), change: func(r *http.Request) { r.ContentLength = -1 }, home: true},
		"Expect: 100-continue":    {body: []byte(`{"username":"ann"}`), change: func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, home: true},
		"with somebody's token":   {body: []byte(`{"username":"ann"}`), change: func(r *http.Request) { r.Header.Set("x-token", "old") }, home: true},
		"a wrong Content-Type":    {body: []byte(`{"username":"ann"}`), change: func(r *http.Request) { r.Header.Set("Content-Type", "image/png") }, home: true},
		"gzip wanted in response": {body: []byte(`{"username":"ann"}`), change: func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip, br") }, home: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var atNode []byte
			for _, n := range s.nodes {
				n.captureLogin(func(_ http.ResponseWriter, body []byte) bool { atNode = body; return false })
			}
			a := s.client.do(http.MethodPost, "/js/a/sys/login", "", test.body, test.change)
			require.NoError(t, a.err)
			require.Equal(t, http.StatusOK, a.status, a)
			require.NotEmpty(t, a.node())
			require.True(t, bytes.Equal(test.body, atNode), "the body arrived as it was sent")
			if test.home {
				require.Equal(t, home, a.node())
			}
		})
	}
}

func padded(before, after string, size int) []byte {
	return []byte(before + strings.Repeat("x", size-len(before)-len(after)) + after)
}

func TestOddLoginResponses(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	write := func(status int, header map[string]string, body string) func(http.ResponseWriter) {
		return func(rw http.ResponseWriter) {
			for name, value := range header {
				rw.Header().Set(name, value)
			}
			rw.WriteHeader(status)
			_, _ = io.WriteString(rw, body)
		}
	}
	zip := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(text))
		_ = w.Close()
		return b.String()
	}
	success := func(name string) string { return string(loginBody(name)) }
	tests := map[string]struct {
		respond func(http.ResponseWriter)
		status  int
		body    string
		bound   string // the username that is bound then; empty = nobody
	}{
		"256 KiB":        {write(200, nil, success("a")+strings.Repeat(" ", 256<<10-len(success("a")))), 200, success("a") + strings.Repeat(" ", 256<<10-len(success("a"))), "a"},
		"256 KiB + 1":    {write(200, nil, success("b")+strings.Repeat(" ", 256<<10+1-len(success("b")))), 200, success("b") + strings.Repeat(" ", 256<<10+1-len(success("b"))), ""},
		"gzip":           {write(200, map[string]string{"Content-Encoding": "gzip"}, zip(success("c"))), 200, zip(success("c")), "c"},
		"a gzip bomb":    {write(200, map[string]string{"Content-Encoding": "gzip"}, zip(success("d")+strings.Repeat(" ", 50<<20))), 200, zip(success("d") + strings.Repeat(" ", 50<<20)), ""},
		"a BOM":          {write(201, map[string]string{"Content-Type": "text/plain"}, "\xef\xbb\xbf"+success("e")), 201, "\xef\xbb\xbf" + success("e"), "e"},
		"not JSON":       {write(200, nil, "<html>"), 200, "<html>", ""},
		"204":            {write(204, nil, ""), 204, "", ""},
		"401":            {write(401, nil, success("f")), 401, success("f"), ""},
		"the node's 500": {write(500, nil, success("f")), 500, success("f"), ""},
		"userId null":    {write(200, nil, `{"code":200,"data":{"token":"tok-x","userId":null,"username":"g"}}`), 200, `{"code":200,"data":{"token":"tok-x","userId":null,"username":"g"}}`, ""},
		"userId text":    {write(200, nil, `{"code":"200","data":{"token":"tok-h","userId":"5f0e6f1c-uuid","username":"h"}}`), 200, `{"code":"200","data":{"token":"tok-h","userId":"5f0e6f1c-uuid","username":"h"}}`, "h"},
		"no username":    {write(200, nil, `{"code":200,"data":{"token":"tok-i","userId":18446744073709551615}}`), 200, `{"code":200,"data":{"token":"tok-i","userId":18446744073709551615}}`, ""},
		"another code":   {write(200, nil, strings.Replace(success("j"), "200", "201", 1)), 200, strings.Replace(success("j"), "200", "201", 1), ""},
		"103 before 200": {func(rw http.ResponseWriter) {
			rw.Header().Set("Link", "</x.css>; rel=preload")
			rw.WriteHeader(http.StatusEarlyHints)
			write(200, nil, success("k"))(rw)
		}, 200, success("k"), "k"},
		"chunked in pieces": {func(rw http.ResponseWriter) {
			for _, piece := range strings.SplitAfter(success("l"), ",") {
				_, _ = io.WriteString(rw, piece)
				rw.(http.Flusher).Flush()
			}
		}, 200, success("l"), "l"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			before := s.binding.routes(t)
			for _, n := range s.nodes {
				n.captureLogin(func(rw http.ResponseWriter, _ []byte) bool { test.respond(rw); return true })
			}
			a := s.client.do(http.MethodPost, "/js/a/sys/login", "", []byte(`{"username":"typed-`+test.bound+`"}`), nil)
			require.NoError(t, a.err)
			require.Equal(t, test.status, a.status)
			require.True(t, test.body == string(a.body), "the response arrived as the node wrote it: %s", a)
			require.NotEmpty(t, a.header.Get("X-Request-Id"), "on a login even after a 103")
			require.Equal(t, a.node(), a.header.Get("X-Gateway-Node"))
			after := s.binding.routes(t)
			if test.bound != "" {
				require.Equal(t, a.node(), after[test.bound])
			} else {
				delete(after, "") // bound by user id alone
				delete(before, "")
				require.Equal(t, before, after)
			}
		})
	}
	t.Run("aborted half-way", func(t *testing.T) {
		for _, n := range s.nodes {
			n.captureLogin(func(rw http.ResponseWriter, _ []byte) bool {
				rw.Header().Set("Content-Length", fmt.Sprint(len(success("z"))))
				_, _ = io.WriteString(rw, success("z")[:20])
				rw.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			})
		}
		before := s.binding.routes(t)
		a := s.client.login("z")
		require.Error(t, a.err, "the client sees that it was cut")
		require.Equal(t, before, s.binding.routes(t))
	})
	t.Run("HEAD", func(t *testing.T) {
		a := s.client.do(http.MethodHead, "/js/a/sys/login", "", nil, nil)
		require.NoError(t, a.err)
		require.Empty(t, a.body)
	})
}

// Tokens that no store can know go on as anonymous, and take nothing down.
func TestOddTokens(t *testing.T) {
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{})
		home := loginOK(t, s.client, "ann")
		for name, change := range map[string]func(*http.Request){
			"empty":          func(r *http.Request) { r.Header.Set("x-token", "") },
			"10 KB":          func(r *http.Request) { r.Header.Set("x-token", strings.Repeat("t", 10_000)) },
			"70 KB":          func(r *http.Request) { r.Header.Set("x-token", strings.Repeat("t", 70_000)) },
			"NUL in query":   func(r *http.Request) { r.URL.RawQuery = "x-token=a%00b" },
			"CR LF in query": func(r *http.Request) { r.URL.RawQuery = "x-token=a%0d%0aX-Gateway-Node:%20node-2" },
			"broken escape":  func(r *http.Request) { r.URL.RawQuery = "x-token=%zz" },
			"Latin-1":        func(r *http.Request) { r.Header.Set("x-token", "\xe4\xf6") },
			"key of another": func(r *http.Request) { r.Header.Set("x-token", "../"+tokenOf("ann")) },
		} {
			a := s.client.do(http.MethodGet, "/js/a/whoami", "", nil, change)
			require.Equal(t, http.StatusOK, a.status, "%s: %s", name, a)
			require.Empty(t, decodeEcho(t, a).Header["X-User-Id"], name)
		}
		require.Equal(t, home, s.client.do(http.MethodGet, "/js/a/whoami", "", nil, func(r *http.Request) {
			r.Header["X-Token"] = []string{tokenOf("ann"), "another"}
		}).node(), "the first counts")
	})
}

// Bytes that no client library sends.
func TestRawRequests(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	addr := strings.TrimPrefix(s.traefik.URL("web"), "http://")
	for _, raw := range []string{
		"GET /js/a/whoami HTTP/1.1\r\nHost: x\r\nx-token: a\x00b\r\nConnection: close\r\n\r\n",
		"GET /js/a/whoami HTTP/1.1\r\nHost: x\r\nX-Gateway-Node : node-2\r\nConnection: close\r\n\r\n",
		"GET /js/a/whoami HTTP/1.1\r\nHost: x\r\n X-Gateway-Node: node-2\r\nConnection: close\r\n\r\n",
		"POST /js/a/sys/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = io.WriteString(conn, raw)
		require.NoError(t, err)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, "%q", raw)
		require.Less(t, response.StatusCode, 500, "%q", raw)
		_ = conn.Close()
	}
	// A client that hangs up in the middle of its login body.
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST /js/a/sys/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"username\":")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	loginOK(t, s.client, "ann")
}
