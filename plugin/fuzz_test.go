package plugin

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"
)

func fuzzed(tb testing.TB) *Middleware {
	tb.Helper()
	config := CreateConfig()
	config.Service, config.Endpoint, config.Secret, config.LoginPath = "ai", "http://127.0.0.1:1", "a-secret-of-16-characters", "/login"
	handler, err := New(tb.Context(), http.NotFoundHandler(), config, "fuzz")
	if err != nil {
		tb.Fatal(err)
	}
	return handler.(*Middleware)
}

// Whatever a login's body is, the node gets it byte for byte, and the username is one that stores can hold.
func FuzzLoginRequest(f *testing.F) {
	m := fuzzed(f)
	for _, seed := range []string{`{"username":"ann"}`, `{"username":9007199254740993}`, "\xef\xbb\xbf{\"username\":\"a\"}", `{"username":"\ud800"}`, "", "{", strings.Repeat("[", 1000)} {
		f.Add([]byte(seed), "")
	}
	f.Add([]byte(`{"username":"a"}`), "gzip")
	f.Fuzz(func(t *testing.T, body []byte, encoding string) {
		req := httptest.NewRequest(http.MethodPost, "/login", bytes.NewReader(body))
		req.Header["Content-Encoding"] = []string{encoding}
		username := m.readUsername(req, "id")
		if !utf8.ValidString(username) || utf8.RuneCountInString(username) > 255 || strings.ContainsAny(username, "\x00\uFFFD") {
			t.Errorf("username %q", username)
		}
		replayed, err := io.ReadAll(req.Body)
		if err != nil || !bytes.Equal(replayed, body) {
			t.Errorf("the node would get %q (%v)", replayed, err)
		}
	})
}

// Whatever a node answers, what is taken for a login is complete.
func FuzzLoginResponse(f *testing.F) {
	m := fuzzed(f)
	for _, seed := range []string{
		`{"code":200,"data":{"token":"t","userId":9223372036854775807,"username":"ann"}}`,
		`{"code":"200","data":{"token":"t","userId":"u-1"}}`, `{"code":200,"data":{"token":"t","userId":null}}`, `{"code":200,"data":[]}`, "{}", "",
	} {
		f.Add([]byte(seed), "")
	}
	f.Add([]byte("\x1f\x8b"), "gzip")
	f.Fuzz(func(t *testing.T, body []byte, encoding string) {
		plain, err := decoded(body, []string{encoding})
		if err != nil {
			return
		}
		if len(plain) > maxHeld {
			t.Fatalf("%d bytes decoded", len(plain))
		}
		result, problem := m.login.judge(plain)
		if problem == "" && (result.Token == "" || result.UserID == "" || strings.ContainsAny(result.UserID, "\x00\r\n") || strings.ContainsAny(result.Username, "\x00\uFFFD")) {
			t.Errorf("a login without what it takes: user %q, name %q", result.UserID, result.Username)
		}
	})
}

// No spelling of a guarded header survives, and no other header is touched.
func FuzzStrip(f *testing.F) {
	m := fuzzed(f)
	for _, seed := range []string{"X-Gateway-Node", "x_gateway.node", "X-Homenode-", "X~HOMENODE~Pool", "X-Token", "Accept", "X-Real-Ip", "X_Request_Id", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		header := http.Header{name: {"forged"}}
		m.guarded.strip(header)
		folded := fold(name)
		guarded := strings.HasPrefix(folded, foldedPrefix) || folded == fold(headerRequest) && name != headerRequest
		for _, own := range decisionHeaders {
			guarded = guarded || folded == fold(own)
		}
		if _, left := header[name]; left == guarded {
			t.Errorf("%q: guarded %v, left %v", name, guarded, left)
		}
	})
}

// Any token that a client can send is found, and can be sent on.
func FuzzToken(f *testing.F) {
	m := fuzzed(f)
	f.Add("t", "a=b; x-token=c", "x-token=q", "Bearer b")
	f.Add("", "", "x-token=%00%0d%0a", "bearer")
	f.Fuzz(func(t *testing.T, token, cookie, query, authorization string) {
		req := &http.Request{Method: http.MethodGet, RequestURI: "/", RemoteAddr: "127.0.0.1:1", Host: "h", Header: http.Header{
			"X-Token": {token}, "Cookie": {cookie}, "Authorization": {authorization},
		}}
		req.URL = httptest.NewRequest(http.MethodGet, "/", nil).URL
		req.URL.RawQuery = query
		found := m.token(req)
		if token != "" && found != token {
			t.Errorf("the first source has %q, found %q", token, found)
		}
		call, err := m.client.newQuestion(t.Context(), req, &question{requestID: "id", service: "ai", token: found}, &need{})
		if err != nil {
			return
		}
		for _, value := range call.Header[headerToken] {
			if strings.ContainsAny(value, "\x00\r\n") {
				t.Errorf("token sent as %q", value)
			}
		}
	})
}
