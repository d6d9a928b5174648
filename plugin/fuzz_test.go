package plugin

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
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

// Whatever the binding service says that it needs, only what this plugin knows is heeded, and no request makes a
// question that a header cannot carry or that says something else than the request.
func FuzzNeed(f *testing.F) {
	m := fuzzed(f)
	for _, needed := range []string{"address,query,form,source:X-Client", "query", "source: a", "source:\x00", ",,", "query:,address "} {
		f.Add(needed, "a=b&c=%20", "app")
	}
	f.Add("query,source:X-Client", " \x00\xff\u00e4\r\n", " \x00\xff\r\n")
	f.Fuzz(func(t *testing.T, needed, query, client string) {
		n := parseNeed(needed)
		if n.source != "" && (!isFieldName(n.source) || !strings.Contains(strings.ToLower(needed), "source:"+strings.ToLower(n.source))) {
			t.Errorf("source header %q of %q", n.source, needed)
		}
		if n.query && !strings.Contains(needed, "query") || n.address && !strings.Contains(needed, "address") || n.form && !strings.Contains(needed, "form") {
			t.Errorf("%+v of %q", n, needed)
		}
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.URL.RawQuery = query
		req.Header[n.source] = []string{client}
		call, err := m.client.newQuestion(t.Context(), req, &question{requestID: "id", service: "ai"}, n)
		if err != nil {
			return
		}
		for _, name := range []string{headerQuery, headerSource} {
			values, told := call.Header[name]
			if told != (name == headerQuery && n.query || name == headerSource && n.source != "") {
				t.Fatalf("%s told: %v", name, told)
			}
			if told && (len(values) != 1 || strings.Trim(values[0], printable) != "") {
				t.Errorf("%s: %q", name, values)
			}
		}
		if told := call.Header.Get(headerQuery); n.query && !reflect.DeepEqual(parsed(query), parsed(told)) {
			t.Errorf("%q is told as %q", query, told)
		}
		if told, err := url.QueryUnescape(call.Header.Get(headerSource)); err != nil || len(told) > maxSource || !strings.HasPrefix(client, told) {
			t.Errorf("%q is told as %q (%v)", client, told, err)
		}
	})
}

func parsed(query string) url.Values {
	values, _ := url.ParseQuery(query)
	return values
}

// Whatever a form is, the node gets it byte for byte, and so does the binding service, or it is told why not.
func FuzzForm(f *testing.F) {
	m := fuzzed(f)
	f.Add([]byte("a=b&c=%E4"), formType, "")
	f.Add([]byte("\x00\xff"), "Application/X-Www-Form-Urlencoded ; charset=GBK", "identity")
	f.Add([]byte("\x1f\x8b"), formType+",", "gzip")
	f.Add([]byte(strings.Repeat("x", maxPeeked+1)), "text/plain", "")
	f.Fuzz(func(t *testing.T, body []byte, contentType, encoding string) {
		req := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		req.Header["Content-Type"] = []string{contentType}
		req.Header["Content-Encoding"] = []string{encoding}
		plain := strings.ToLower(strings.TrimSpace(contentType))
		if isForm(req) && !strings.HasPrefix(plain, formType) && !strings.HasPrefix(plain, multipartType) {
			t.Errorf("%q taken for a form", contentType)
		}
		q := &question{requestID: "id", service: "ai", form: m.readForm(req)}
		call, err := m.client.newQuestion(t.Context(), req, q, &need{})
		if err != nil {
			t.Fatal(err)
		}
		var told []byte
		if call.Body != nil {
			if told, err = io.ReadAll(call.Body); err != nil {
				t.Fatal(err)
			}
		}
		switch problem := call.Header.Get(headerForm); {
		case problem == "" && (call.Method != http.MethodPost || !bytes.Equal(told, body) || call.ContentLength != int64(len(body))):
			t.Errorf("%s with %q for %q", call.Method, told, body)
		case problem == "too-large" && len(body) <= maxPeeked, problem == "encoded" && encoding == "", problem == "unreadable" && len(body) > 0 && !strings.Contains(plain, multipartType):
			t.Errorf("%d bytes, %q: %s", len(body), encoding, problem)
		case problem != "" && (call.Method != http.MethodGet || len(told) > 0):
			t.Errorf("%s with %q, though %s", call.Method, told, problem)
		}
		replayed, err := io.ReadAll(req.Body)
		if err != nil || !bytes.Equal(replayed, body) {
			t.Errorf("the node would get %q (%v)", replayed, err)
		}
	})
}

// Whatever a node answers to a logout, it is judged, and of a response that is no JSON object the status decides.
func FuzzLogoutResponse(f *testing.F) {
	m := fuzzed(f)
	for _, seed := range []string{`{"code":200}`, `{"code":null}`, `{"code":500}`, `[]`, "", `{"code":200}x`} {
		f.Add([]byte(seed), "", 200)
	}
	f.Add([]byte("\x1f\x8b"), "gzip", 204)
	f.Fuzz(func(t *testing.T, body []byte, encoding string, status int) {
		held := &capture{status: status, header: http.Header{"Content-Encoding": {encoding}}}
		held.body.Write(body)
		problem := m.login.judgeLogout(held)
		if (status < 200 || status > 299) && problem == "" {
			t.Errorf("status %d is a success", status)
		}
		if _, ok := parseObject(body); status == 200 && encoding == "" && !ok && problem != "" {
			t.Errorf("%q: %s", body, problem)
		}
	})
}
