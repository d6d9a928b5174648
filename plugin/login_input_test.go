package plugin_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func zip(text string) string {
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	_, _ = io.WriteString(writer, text)
	_ = writer.Close()
	return buffer.String()
}

// First, so that the interpreter meets it unprepared when this test runs alone: the race detector watches.
func TestFirstLoginsAtOnce(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(respondWith(200, aliceResponse))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				r, err := send(context.Background(), b.gateway.URL, http.MethodPost, "/js/a/sys/login", strings.NewReader(aliceRequest))
				if err != nil || r.body != aliceResponse {
					t.Errorf("%v, %v", r, err)
				}
			})
		}
		all.Wait()
		require.Len(t, b.service.logins(), 8)
	})
}

func TestALoginWaitsForItsOwnBinding(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(func(rw http.ResponseWriter, req *http.Request) {
			_, _ = fmt.Fprintf(rw, `{"code":200,"data":{"token":%q,"userId":1}}`, req.Header.Get("X-Name"))
		})
		waiting, proceed := make(chan struct{}), make(chan struct{})
		b.service.onLogin(func(_ http.ResponseWriter, req *http.Request) {
			if req.Header.Get("X-Request-Id") == "slow" {
				close(waiting)
				<-proceed
			}
		})
		login := func(id string) error {
			_, err := send(context.Background(), b.gateway.URL, http.MethodPost, "/js/a/sys/login", nil, "X-Request-Id: "+id, "X-Name: "+id)
			return err
		}
		answered := make(chan error, 1)
		go func() { answered <- login("slow") }()
		<-waiting
		var others sync.WaitGroup
		for n := range 20 {
			others.Go(func() {
				if err := login(fmt.Sprintf("quick-%d", n)); err != nil {
					t.Error(err)
				}
			})
		}
		others.Wait()
		require.Empty(t, answered, "answered before it was bound")
		close(proceed)
		require.NoError(t, <-answered)
	})
}

func TestUsernameOfALoginRequest(t *testing.T) {
	cases := map[string]struct {
		body    string
		headers []string
		want    string
	}{
		"usual":                {`{"username":"alice","password":"` + password + `"}`, nil, "alice"},
		"number":               {`{"username":13800138000}`, nil, "13800138000"},
		"beyond 2^53":          {`{"username":9007199254740993}`, nil, "9007199254740993"},
		"two keys":             {`{"username":"first","username":"last"}`, nil, "last"},
		"the last is null":     {`{"username":"first","username":null}`, nil, ""},
		"another case":         {`{"Username":"alice"}`, nil, ""},
		"emoji and Chinese":    {`{"username":"张三😀"}`, nil, "张三😀"},
		"CR and LF":            {`{"username":"a\r\nX-Gateway-Node: n"}`, nil, "a\r\nX-Gateway-Node: n"},
		"byte order mark":      {"\xef\xbb\xbf" + `{"username":"alice"}`, nil, "alice"},
		"identity":             {`{"username":"alice"}`, []string{"Content-Encoding: identity"}, "alice"},
		"255 characters":       {`{"username":"` + strings.Repeat("张", 255) + `"}`, nil, strings.Repeat("张", 255)},
		"256 characters":       {`{"username":"` + strings.Repeat("a", 256) + `"}`, nil, ""},
		"1 MB":                 {`{"username":"` + strings.Repeat("a", 1<<20) + `"}`, nil, ""},
		"null":                 {`{"username":null}`, nil, ""},
		"list":                 {`{"username":["alice"]}`, nil, ""},
		"empty name":           {`{"username":""}`, nil, ""},
		"NUL":                  {`{"username":"a\u0000"}`, nil, ""},
		"lone surrogate":       {`{"username":"a\ud800"}`, nil, ""},
		"GBK":                  {"{\"username\":\"\xd5\xc5\xc8\xfd\"}", nil, ""},
		"garbage behind":       {`{"username":"alice"} x`, nil, ""},
		"list of objects":      {`[{"username":"alice"}]`, nil, ""},
		"deep":                 {`{"a":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `,"username":"alice"}`, nil, ""},
		"form":                 {"username=alice&password=p", nil, ""},
		"empty":                {"", nil, ""},
		"gzip":                 {zip(`{"username":"alice"}`), []string{"Content-Encoding: gzip"}, ""},
		"cut within 64 KiB":    {`{"username":"alice"`, nil, ""},
		"64 KiB + 1":           {`{"username":"alice"}` + strings.Repeat(" ", 64<<10+1-20), nil, ""},
		"exactly 64 KiB":       {`{"username":"alice"}` + strings.Repeat(" ", 64<<10-20), nil, "alice"},
		"gzip, wrongly marked": {zip(`{"username":"alice"}`), nil, ""},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range cases {
			require.Equal(t, 200, b.login(c.body, append(c.headers, "X-Token: "+token)...).status, name)
			require.True(t, c.body == b.atNode().body, name)
			asked := b.service.questions()
			header := asked[len(asked)-1].Header
			require.Len(t, header["X-Homenode-Username"], 1, "%s: present, if empty", name)
			username, err := url.QueryUnescape(header.Get("X-Homenode-Username"))
			require.NoError(t, err, name)
			require.Equal(t, c.want, username, name)
			require.NotContains(t, header, "X-Homenode-Token", "a login has no token")
		}
	})
}

func TestLoginResponsesThatSucceed(t *testing.T) {
	cases := map[string]struct {
		body, encoding   string
		userID, username string
	}{
		"code as text":         {body: `{"code":"200","data":{"token":"t","userId":"u-1","username":"A"}}`, userID: "u-1", username: "A"},
		"no username":          {body: `{"code":200,"data":{"token":"t","userId":1}}`, userID: "1"},
		"username null":        {body: `{"code":200,"data":{"token":"t","userId":1,"username":null}}`, userID: "1"},
		"username with a NUL":  {body: `{"code":200,"data":{"token":"t","userId":1,"username":"a\u0000"}}`, userID: "1"},
		"username too long":    {body: `{"code":200,"data":{"token":"t","userId":1,"username":"` + strings.Repeat("a", 256) + `"}}`, userID: "1"},
		"username a number":    {body: `{"code":200,"data":{"token":"t","userId":1,"username":138}}`, userID: "1", username: "138"},
		"userId beyond 2^53":   {body: `{"code":200,"data":{"token":"t","userId":9007199254740993}}`, userID: "9007199254740993"},
		"duplicate keys":       {body: `{"code":500,"data":{"token":"x","userId":9},"code":200,"data":{"token":"t","userId":1}}`, userID: "1"},
		"byte order mark":      {body: "\xef\xbb\xbf" + `{"code":200,"data":{"token":"t","userId":1}}`, userID: "1"},
		"gzip":                 {body: zip(`{"code":200,"data":{"token":"t","userId":1}}`), encoding: "gzip", userID: "1"},
		"x-gzip":               {body: zip(`{"code":200,"data":{"token":"t","userId":1}}`), encoding: "X-GZIP", userID: "1"},
		"exactly 256 KiB long": {body: `{"code":200,"data":{"token":"t","userId":1}}` + strings.Repeat(" ", 256<<10-44), userID: "1"},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range cases {
			b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "text/html; charset=GBK")
				if c.encoding != "" {
					rw.Header().Set("Content-Encoding", c.encoding)
				}
				rw.WriteHeader(http.StatusCreated)
				for _, part := range strings.SplitAfter(c.body, ",") { // in chunks
					_, _ = io.WriteString(rw, part)
					rw.(http.Flusher).Flush()
				}
			})
			before := len(b.service.logins())
			r := b.login("not JSON")
			require.Equal(t, http.StatusCreated, r.status, name)
			require.True(t, c.body == r.body, name)
			require.Equal(t, c.encoding, r.header.Get("Content-Encoding"), name)

			posts := b.service.logins()
			require.Len(t, posts, before+1, name)
			posted := posts[before].body
			require.Equal(t, "t", posted["token"], name)
			require.Equal(t, c.userID, posted["userId"], name)
			require.Equal(t, c.username, posted["username"], name)
			require.Empty(t, posted["loginUsername"], name)
		}
	})
}

// Whatever the plugin does to a login, node and client see what a bare proxy would have shown them.
func TestALoginLooksLikeThroughABareProxy(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
			rw.Header().Set("X-Odd", "ä")
			rw.Header().Set("Content-Length", fmt.Sprint(len(aliceResponse)))
			_, _ = io.WriteString(rw, aliceResponse)
		})
		var responses []response
		var requests []received
		for _, base := range []string{b.bare.URL, b.gateway.URL} {
			r, err := send(context.Background(), base, http.MethodPost, "/js/a/sys/login?q=%E4&r", strings.NewReader(aliceRequest),
				"Content-Type: application/json", "X-Twice: 1", "X-Twice: 2", "X-Request-Id: id-1", "Accept-Encoding: identity")
			require.NoError(t, err)
			responses, requests = append(responses, r), append(requests, b.atNode())
		}
		delete(requests[1].header, "X-Gateway-Node")
		require.Equal(t, requests[0], requests[1])
		require.Equal(t, "id-1", responses[1].header.Get("X-Request-Id"))
		delete(responses[1].header, "X-Request-Id")
		for _, r := range responses {
			delete(r.header, "Date")
		}
		require.Equal(t, responses[0], responses[1])
	})
}

func TestUnannouncedTrailersSurvive(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, aliceResponse)
			rw.(http.Flusher).Flush()
			rw.Header().Set(http.TrailerPrefix+"X-Sum", "42")
		})
		r := b.login(aliceRequest)
		require.Equal(t, aliceResponse, r.body)
		require.Equal(t, "42", r.trailer.Get("X-Sum"))
		require.Len(t, b.service.logins(), 1)
	})
}

func TestABodyThatBreaksOffBreaksOffForTheNodeToo(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for _, server := range []*httptest.Server{b.bare, b.gateway} {
			before := b.nodeRequests()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			require.NoError(t, err)
			_, err = io.WriteString(conn, "POST /js/a/sys/login HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nbroken\r\n")
			require.NoError(t, err)
			_, err = http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			require.Eventually(t, func() bool { return b.nodeRequests() > before }, 5*time.Second, 5*time.Millisecond)
			require.True(t, b.atNode().bodyError)
			require.Equal(t, "hello", b.atNode().body)
		}
	})
}

// The binding service restarts while the node is at work: the login is answered, and bound when it is back.
func TestALoginSurvivesARestartOfTheBindingService(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"bindTimeout": "50ms"})
		address := b.service.server.Listener.Addr().String()
		b.onNode(func(rw http.ResponseWriter, req *http.Request) {
			b.service.server.Close()
			respondWith(200, aliceResponse)(rw, req)
		})
		require.Equal(t, aliceResponse, b.login(aliceRequest).body)
		require.Empty(t, b.service.logins())

		listener, err := net.Listen("tcp", address)
		require.NoError(t, err)
		again := &httptest.Server{Listener: listener, Config: &http.Server{Handler: b.service}}
		again.Start()
		defer again.Close()
		require.Eventually(t, func() bool { return len(b.service.logins()) == 1 }, 10*time.Second, 10*time.Millisecond)
	})
}

// A WebSocket's handshake and its bytes pass as through a bare proxy.
func TestUpgradedConnections(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.onNode(func(rw http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = buffered.Flush()
			line, _ := buffered.ReadString('\n')
			_, _ = io.WriteString(conn, line)
		})
		conn, err := net.Dial("tcp", b.gateway.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /js/a/ws?x-token="+token+" HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		require.NoError(t, err)
		reader := bufio.NewReader(conn)
		resp, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
		_, err = io.WriteString(conn, "hello\n")
		require.NoError(t, err)
		line, err := reader.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "hello\n", line)
	})
}
