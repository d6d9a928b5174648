package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

var warmUp sync.Once

// warm serves every kind of request once, with a node and a binding service that are functions of this file.
// Yaegi works out the types of functions at their first call and without a lock: two first requests at once
// would race.
func warm() {
	config := CreateConfig()
	// One by one: Yaegi loses the values when fields are assigned several at once.
	config.Service = "warm"
	config.Endpoint = "http://localhost"
	config.Secret = newID()
	config.LoginPath = "/login"
	config.LogoutPath = "/logout"
	s, err := config.verify()
	if err != nil {
		panic(err) // New makes an error of it: a warm-up that does nothing would go unnoticed
	}
	c := newClient(s.endpoint, s.secret)
	c.transport.RegisterProtocol("warm", &warmService{})
	c.base = "warm://service"
	c.complainedAt.Store(time.Now().Add(time.Hour).UnixNano()) // the failures are wanted
	m := newMiddleware(http.HandlerFunc(warmNode), config, s, c)

	m.warmRequest(context.Background(), http.MethodPost, "/login", strings.NewReader(`{"username":"warm"}`), "")
	m.warmRequest(context.Background(), http.MethodPost, "/login", &failingReader{err: io.ErrUnexpectedEOF}, "")
	m.warmRequest(context.Background(), http.MethodPost, "/logout", nil, "bound")
	m.warmRequest(context.Background(), http.MethodPost, "/", strings.NewReader("a=b"), "asked")
	m.warmRequest(context.Background(), http.MethodPost, "/", &failingReader{err: io.ErrUnexpectedEOF}, "asked")
	for _, token := range []string{"", "bound", "rejected", "asked", "unanswered", "left alone"} {
		m.warmRequest(context.Background(), http.MethodGet, "/", nil, token)
	}
	c.restUntil.Store(1)

	gone, leave := context.WithCancel(context.Background())
	leave()
	m.warmRequest(gone, http.MethodGet, "/", nil, "unanswered")
	c.transport.DialContext(gone, "tcp", "127.0.0.1:0")

	r := &report{keys: []string{tokenKey(m.service, "bound")}, arrived: gone, arrive: leave}
	c.addPending(r)
	m.warmRequest(context.Background(), http.MethodGet, "/", nil, "bound")
	c.removePending(r)
}

func (m *Middleware) warmRequest(ctx context.Context, method, path string, body io.Reader, token string) {
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path+"?page=\xff", body)
	if err != nil {
		return
	}
	req.Header = http.Header{
		"X-Token": []string{token}, "Cookie": []string{"a=1"}, "Authorization": []string{"Bearer"}, "Accept-Language": []string{"en"},
		"X_Gateway_Node": []string{"forged"}, "Content-Type": []string{formType},
	}
	m.ServeHTTP(&warmClient{header: http.Header{}}, req)
}

// warmNode lets everybody log in and out.
func warmNode(rw http.ResponseWriter, req *http.Request) {
	if req.Body != nil {
		io.Copy(io.Discard, req.Body)
		req.Body.Close()
	}
	io.WriteString(rw, `{"code":200,"data":{"token":"warm","userId":1,"username":"warm"}}`)
}

// warmService is a binding service that does as the token says.
type warmService struct{}

// RoundTrip implements http.RoundTripper.
func (w *warmService) RoundTrip(call *http.Request) (*http.Response, error) {
	response := &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{headerNode: []string{"warm"}},
		Body:       io.NopCloser(bytes.NewReader(nil)),
	}
	switch call.Header.Get(headerToken) {
	case "asked":
		if call.Body != nil {
			call.GetBody()
		}
		response.StatusCode = http.StatusPreconditionRequired
		response.Header = http.Header{headerReason: []string{"warm"}, headerNeed: []string{"address,query,form,source:X-Token"}}
	case "rejected":
		response.StatusCode = http.StatusServiceUnavailable
		response.Header = http.Header{headerReason: []string{"warm"}}
	case "unanswered":
		return nil, errors.New("unanswered")
	}
	return response, nil
}

type warmClient struct{ header http.Header }

func (w *warmClient) Header() http.Header         { return w.header }
func (w *warmClient) Write(p []byte) (int, error) { return len(p), nil }
func (w *warmClient) WriteHeader(status int)      {}
