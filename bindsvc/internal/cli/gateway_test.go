package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

const adminToken = "the-administrators-token"

// fakeGateway is an admin API that answers as it is told. It holds every request,
// and every JSON answer of its own, against the document.
type fakeGateway struct {
	*httptest.Server
	t       *testing.T
	router  routers.Router
	answers map[string]http.HandlerFunc // by operationId
	env     map[string]string

	mu   sync.Mutex // a request that broke off may still be at it when its command is done
	came []asked
}

// asked is one request that came.
type asked struct {
	operation string
	url       string
	header    http.Header
	body      string
}

// documentRouter finds the operation of a request in the document, which must be valid itself.
var documentRouter = sync.OnceValues(func() (routers.Router, error) {
	document, err := openapi3.NewLoader().LoadFromData(api.Document)
	if err != nil {
		return nil, err
	}
	if err := document.Validate(context.Background()); err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(document)
})

// setup starts a gateway and settings that lead to it. What it is not told to answer must not be asked.
func setup(t *testing.T) *fakeGateway {
	t.Helper()
	router, err := documentRouter()
	require.NoError(t, err)
	g := &fakeGateway{t: t, router: router, answers: map[string]http.HandlerFunc{}}
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	g.env = map[string]string{"HOMENODE_ADMIN_URL": g.URL, "HOMENODE_ADMIN_TOKEN": adminToken}
	return g
}

func (g *fakeGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, params, err := g.router.FindRoute(r)
	if err != nil {
		g.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Errorf("body: %v", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: authenticated, RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true},
	}
	if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
		g.t.Errorf("%s %s breaks the document: %v", r.Method, r.URL, err)
	}
	for name := range r.URL.Query() {
		if route.Operation.Parameters.GetByInAndName("query", name) == nil {
			g.t.Errorf("%s: the document has no parameter %q", route.Operation.OperationID, name)
		}
	}
	g.record(asked{route.Operation.OperationID, r.URL.String(), r.Header.Clone(), string(body)})
	answer, ok := g.answers[route.Operation.OperationID]
	if !ok {
		g.t.Errorf("%s must not be asked", route.Operation.OperationID)
		http.NotFound(w, r)
		return
	}
	checked := &checkedWriter{ResponseWriter: w}
	answer(checked, r)
	g.verify(input, checked)
}

func (g *fakeGateway) record(a asked) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.came = append(g.came, a)
}

// asked are the requests that came, in order.
func (g *fakeGateway) asked() []asked {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.came)
}

func authenticated(_ context.Context, input *openapi3filter.AuthenticationInput) error {
	if input.SecuritySchemeName == "token" && input.RequestValidationInput.Request.Header.Get("x-token") != "" {
		return nil
	}
	return fmt.Errorf("no token")
}

func (g *fakeGateway) verify(input *openapi3filter.RequestValidationInput, w *checkedWriter) {
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		return
	}
	err := openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: w.status, Header: w.Header(), Body: io.NopCloser(&w.body),
	})
	if err != nil {
		g.t.Errorf("the answer of the test breaks the document: %v", err)
	}
}

type checkedWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *checkedWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *checkedWriter) Write(b []byte) (int, error) {
	w.body.Write(b)
	return w.ResponseWriter.Write(b)
}

func (w *checkedWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

func data(value any) http.HandlerFunc {
	return envelope(http.StatusOK, map[string]any{"code": http.StatusOK, "message": "OK", "data": value})
}

func refuse(status int, reason, message string) http.HandlerFunc {
	return envelope(status, map[string]any{"code": status, "message": message, "data": map[string]any{"reason": reason, "requestId": "r-1"}})
}

func envelope(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

// outcome is what a command did.
type outcome struct {
	code     int
	out, err string
}

func (g *fakeGateway) run(args ...string) outcome {
	return g.runWith(context.Background(), "", args...)
}

func (g *fakeGateway) runWith(ctx context.Context, stdin string, args ...string) outcome {
	g.t.Helper()
	for _, arg := range args {
		require.NotContains(g.t, arg, adminToken)
	}
	o := run(ctx, func(name string) string { return g.env[name] }, stdin, args...)
	for _, a := range g.asked() {
		require.NotContains(g.t, a.url, adminToken)
		require.Equal(g.t, g.env["HOMENODE_ADMIN_TOKEN"], a.header.Get("x-token"))
	}
	require.NotContains(g.t, o.out+o.err, adminToken)
	return o
}

func run(ctx context.Context, getenv func(string) string, stdin string, args ...string) outcome {
	root := &cobra.Command{Use: "homenode", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(cli.Commands(getenv)...)
	cli.Strict(root)
	var out, errs bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	err := root.ExecuteContext(ctx)
	if err != nil {
		errs.WriteString(err.Error())
	}
	return outcome{cli.ExitCode(err), out.String(), errs.String()}
}

// done runs a command that must succeed.
func (g *fakeGateway) done(args ...string) outcome {
	g.t.Helper()
	o := g.run(args...)
	require.Equal(g.t, cli.ExitDone, o.code, o.err)
	return o
}

// operations are the operations that were asked for, in order.
func (g *fakeGateway) operations() (names []string) {
	for _, a := range g.asked() {
		names = append(names, a.operation)
	}
	return names
}

func (g *fakeGateway) last() asked {
	g.t.Helper()
	all := g.asked()
	require.NotEmpty(g.t, all)
	return all[len(all)-1]
}

// fields are a line's words.
func fields(line string) []string { return strings.Fields(line) }

func lines(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }

func to[T any](value T) *T { return &value }

var moment = time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)

func service(id string) api.Service {
	return api.Service{
		ID: id, Name: "AI 服务", PathPrefix: "/js/a", LoginPath: "/sys/login", HealthPath: "/actuator/health", Enabled: true,
		Placement: api.RoundRobin, CreateTime: moment, UpdateTime: moment, Etag: `"s-1"`,
	}
}

func node(id string) api.Node {
	return api.Node{
		ID: id, ServiceID: "ai", Name: "节点", BaseURL: "http://10.0.0.7:8980", Enabled: true, AcceptNew: true, Weight: 1,
		CreateTime: moment, UpdateTime: moment, Etag: `"n-1"`, Health: api.Health{State: api.UP, Since: to(moment)},
	}
}

func binding(id int64, user, name *string) api.Binding {
	return api.Binding{ID: id, ServiceID: "ai", UserID: user, Username: name, NodeID: "node-1", Epoch: 1, CreateTime: moment, UpdateTime: moment}
}

// lastQuery is a value of the last request's query.
func (g *fakeGateway) lastQuery(name string) string {
	g.t.Helper()
	u, err := url.Parse(g.last().url)
	require.NoError(g.t, err)
	return u.Query().Get(name)
}
