package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/httpapi"
	"github.com/homenode/homenode/bindsvc/internal/guard"
)

// userTable is the nodes' own users and their sessions.
type userTable struct {
	mu     sync.Mutex
	rows   map[string]gateway.User
	tokens map[string]string
	err    error
}

func (u *userTable) add(user gateway.User, token string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rows[user.ID], u.tokens[token] = user, user.ID
}

func (u *userTable) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = err
}

func (u *userTable) UserByToken(_ context.Context, _, token string) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if id, ok := u.tokens[token]; ok || u.err != nil {
		return id, u.err
	}
	return "", gateway.ErrNotFound
}

func (u *userTable) UserByID(_ context.Context, id string) (gateway.User, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if user, ok := u.rows[id]; ok || u.err != nil {
		return user, u.err
	}
	return gateway.User{}, gateway.ErrNotFound
}

func (u *userTable) CountUsers(context.Context) (int64, error) { return int64(len(u.rows)), nil }

func (u *userTable) EachUser(_ context.Context, fn func(gateway.User) error) error {
	for _, id := range slices.Sorted(maps.Keys(u.rows)) {
		if err := fn(u.rows[id]); err != nil {
			return err
		}
	}
	return nil
}

func TestAdministrators(t *testing.T) {
	b := setup(t, nil)
	for _, header := range []map[string]string{nil, {"x-token": "wrong"}, {"x-token": secret}, {"Authorization": "Bearer wrong"}} {
		requireRefused(t, send(b.admin, http.MethodGet, "/gateway/admin/status", header, ""), gateway.Unauthenticated)
	}
	require.Equal(t, http.StatusOK, send(b.admin, http.MethodGet, "/gateway/admin/status", map[string]string{"Authorization": "Bearer " + adminToken}, "").Code)

	nobody := setup(t, func(o *httpapi.Options) { o.AdminToken = "" })
	requireRefused(t, send(nobody.admin, http.MethodGet, "/gateway/admin/status", map[string]string{"x-token": ""}, ""), gateway.Unauthenticated)
	off := setup(t, func(o *httpapi.Options) { o.AdminEnabled = false })
	for _, path := range []string{"/status", "/openapi.json", "/services"} {
		requireRefused(t, off.call(http.MethodGet, path, ""), gateway.NotFound)
	}
}

func TestTheWhitelist(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, text := range list {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	tests := map[string]struct {
		peer, forwarded string
		allowed         bool
	}{
		"allowed":                           {"10.1.2.3:1", "", true},
		"v6":                                {"[fd00::7]:1", "", true},
		"v4-mapped":                         {"[::ffff:10.1.2.3]:1", "", true},
		"another":                           {"192.0.2.1:1", "", false},
		"forged by a peer that is no proxy": {"192.0.2.1:1", "10.1.2.3", false},
		"through the proxy":                 {"127.0.0.1:1", "10.1.2.3", true},
		"forged through the proxy":          {"127.0.0.1:1", "10.1.2.3, 192.0.2.1", false},
		"through two proxies":               {"127.0.0.1:1", "10.1.2.3, 127.0.0.9", true},
		"garbage":                           {"127.0.0.1:1", "10.1.2.3, x", false},
		"with a port":                       {"127.0.0.1:1", "10.1.2.3:4711", true},
		"v6 with a port":                    {"127.0.0.1:1", "[fd00::7]:4711", true},
		"another with a port":               {"127.0.0.1:1", "192.0.2.1:4711", false},
		"empty":                             {"127.0.0.1:1", " ", false},
		"the proxy itself":                  {"127.0.0.1:1", "", false},
	}
	b := setup(t, func(o *httpapi.Options) {
		o.AdminWhitelist, o.TrustedProxies = prefixes("10.0.0.0/8", "fd00::/8"), prefixes("127.0.0.0/8")
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			request := httptest.NewRequest(http.MethodGet, "/gateway/admin/status", nil)
			request.RemoteAddr = test.peer
			request.Header.Set("x-token", adminToken)
			if test.forwarded != "" {
				request.Header.Set("X-Forwarded-For", test.forwarded)
			}
			recorder := httptest.NewRecorder()
			b.admin.ServeHTTP(recorder, request)
			if test.allowed {
				require.Equal(t, http.StatusOK, recorder.Code)
			} else {
				requireRefused(t, recorder, gateway.Forbidden)
			}
		})
	}
}

func TestServicesAndNodes(t *testing.T) {
	b := setup(t, nil)
	ok := func(r *httptest.ResponseRecorder) envelope {
		t.Helper()
		require.Equal(t, http.StatusOK, r.Code, r.Body.String())
		e, _ := open(t, r)
		require.Equal(t, 200, e.Code)
		return e
	}
	ok(b.call(http.MethodPost, "/services", `{"id":"doc","name":"Docs","pathPrefix":"/doc","loginPath":"/login","healthPath":"/h","enabled":1}`))
	requireRefused(t, b.call(http.MethodPost, "/services", `{"id":"doc","pathPrefix":"/doc2"}`), gateway.Conflict)
	requireRefused(t, b.call(http.MethodPost, "/services", `{"id":"doc2","pathPrefix":"/doc"}`), gateway.Conflict)
	requireRefused(t, b.call(http.MethodPost, "/services", `{"id":"x","pathPrefix":"doc"}`), gateway.Validation)
	requireRefused(t, b.call(http.MethodPost, "/services", `{"id":"x","pathPrefix":"/x","colour":"red"}`), gateway.Validation)
	requireRefused(t, b.call(http.MethodPost, "/services", `{"id":"x","pathPrefix":"/x","enabled":"yes"}`), gateway.Validation)
	requireRefused(t, b.call(http.MethodPost, "/services", strings.Repeat(" ", 1<<20)), gateway.TooLarge)

	ok(b.call(http.MethodPost, "/services/doc/nodes", `{"id":"d1","name":"one","baseUrl":"http://127.0.0.1:1/","enabled":true,"remark":"r"}`))
	requireRefused(t, b.call(http.MethodPost, "/services/none/nodes", `{"id":"d2","baseUrl":"http://127.0.0.1:1"}`), gateway.Conflict)
	requireRefused(t, b.call(http.MethodPost, "/services/doc/nodes", `{"id":"d1","baseUrl":"http://127.0.0.1:1"}`), gateway.Conflict)
	requireRefused(t, b.call(http.MethodPost, "/services/doc/nodes", `{"id":"d2","baseUrl":"http://127.0.0.1:1/path"}`), gateway.Validation)
	requireRefused(t, b.call(http.MethodPut, "/services/doc", `{"defaultNodeId":"n1"}`), gateway.Conflict)
	ok(b.call(http.MethodPut, "/services/doc", `{"defaultNodeId":"d1"}`))
	service, found := b.nodes.Snapshot().Service("doc")
	require.True(t, found, "the instance that writes refreshes at once")
	require.Equal(t, "d1", service.DefaultNodeID)
	_, view := open(t, b.call(http.MethodPut, "/services/doc", `{}`))
	require.NotContains(t, view["createTime"], "0001-")
	require.Equal(t, "Docs", service.Name, "what is not given stays")
	requireRefused(t, b.call(http.MethodDelete, "/nodes/d1", ""), gateway.Conflict)
	ok(b.call(http.MethodPut, "/services/doc", `{"defaultNodeId":null,"name":"D"}`))
	requireRefused(t, b.call(http.MethodPut, "/services/doc", `{"id":"other"}`), gateway.Validation)
	requireRefused(t, b.call(http.MethodPut, "/services/none", `{}`), gateway.NotFound)
	requireRefused(t, b.call(http.MethodPut, "/nodes/none", `{}`), gateway.NotFound)
	requireRefused(t, b.call(http.MethodDelete, "/services/doc", ""), gateway.Conflict)
	ok(b.call(http.MethodPut, "/nodes/d1", `{"enabled":0}`))
	disabled := b.call(http.MethodPost, "/nodes/d1/check", "")
	requireRefused(t, disabled, gateway.NotFound)
	require.Contains(t, disabled.Body.String(), `no enabled node \"d1\"`, "the node is there: what is missing is said")
	ok(b.call(http.MethodPut, "/nodes/d1", `{"enabled":1}`))
	_, health := open(t, b.call(http.MethodPost, "/nodes/d1/check", ""))
	require.Equal(t, "DOWN", health["state"])
	ok(b.call(http.MethodDelete, "/nodes/d1", ""))
	ok(b.call(http.MethodDelete, "/services/doc", ""))
	requireRefused(t, b.call(http.MethodDelete, "/services/doc", ""), gateway.NotFound)
	ok(b.call(http.MethodPost, "/reload", ""))
	ok(b.call(http.MethodGet, "/services", ""))
}

func TestNotFoundSaysWhatIsMissing(t *testing.T) {
	b := setup(t, nil)
	for _, c := range []struct{ method, path, body, missing string }{
		{http.MethodGet, "/services/none", "", `there is no service "none"`},
		{http.MethodPut, "/services/none", "{}", `there is no service "none"`},
		{http.MethodDelete, "/services/none", "", `there is no service "none"`},
		{http.MethodGet, "/nodes/none", "", `there is no node "none"`},
		{http.MethodPut, "/nodes/none", "{}", `there is no node "none"`},
		{http.MethodDelete, "/nodes/none", "", `there is no node "none"`},
		{http.MethodPost, "/nodes/none/check", "", `there is no enabled node "none"`},
		{http.MethodDelete, "/routes/999", "", "there is no binding 999"},
		{http.MethodGet, "/imports/77", "", "there is no import 77"},
		{http.MethodPost, "/imports/77/undo", "", "there is no import 77"},
		{http.MethodPost, "/routes/import?serviceId=ai&nodeId=n1&importId=77", "userId\n1\n", "there is no import 77"},
		{http.MethodGet, "/policies/apps/none", "", `there is no policy "none" of kind apps`},
		{http.MethodDelete, "/policies/apps/none", "", `there is no policy "none" of kind apps`},
		{http.MethodDelete, "/policies/apps/none?dryRun=true", "", `there is no policy "none" of kind apps`},
		{http.MethodGet, "/roles/none/7", "", `there is no service "none"`},
		{http.MethodPut, "/roles/none/7", `{"roles":[]}`, `there is no service "none"`},
		{http.MethodPost, "/sessions/kick-out", `{"serviceId":"none","userId":7}`, `there is no service "none"`},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			r := b.call(c.method, c.path, c.body)
			requireRefused(t, r, gateway.NotFound)
			e, _ := open(t, r)
			require.Contains(t, e.Message, c.missing)
		})
	}
}

func TestBindings(t *testing.T) {
	b := setup(t, nil)
	bind := func(body string) *httptest.ResponseRecorder { return b.call(http.MethodPost, "/routes/bind", body) }
	_, row := open(t, bind(`{"serviceId":"ai","userId":9007199254740993,"username":"Ann","nodeId":"n1"}`))
	require.Equal(t, "9007199254740993", row["userId"])
	require.EqualValues(t, 1, row["epoch"])
	_, row = open(t, bind(`{"serviceId":"ai","userId":"9007199254740993","nodeId":"n2"}`))
	require.EqualValues(t, 2, row["epoch"])
	require.Equal(t, "n2", row["nodeId"])
	_, row = open(t, bind(`{"serviceId":"ai","username":"bob","nodeId":"n2"}`))
	require.Nil(t, row["userId"])
	requireRefused(t, bind(`{"serviceId":"ai","userId":9007199254740993,"username":"bob","nodeId":"n2"}`), gateway.Conflict)
	requireRefused(t, bind(`{"serviceId":"ai","username":"bob","nodeId":"n9"}`), gateway.Conflict)
	requireRefused(t, bind(`{"serviceId":"ai","nodeId":"n1"}`), gateway.Validation)
	requireRefused(t, bind(`{"serviceId":"ai","userId":true,"nodeId":"n1"}`), gateway.Validation)
	requireRefused(t, b.call(http.MethodDelete, "/nodes/n2", ""), gateway.Conflict)

	_, page := open(t, b.call(http.MethodGet, "/routes?serviceId=ai&keyword=BO&page=1&size=10", ""))
	require.EqualValues(t, 1, page["total"])
	_, page = open(t, b.call(http.MethodGet, "/routes?keyword=%25", ""))
	require.EqualValues(t, 0, page["total"], "a wildcard has no meaning")
	for _, query := range []string{"page=0", "size=201", "page=x", "size=-1"} {
		requireRefused(t, b.call(http.MethodGet, "/routes?"+query, ""), gateway.Validation)
	}
	requireRefused(t, b.call(http.MethodDelete, "/routes/999", ""), gateway.NotFound)
	requireRefused(t, b.call(http.MethodDelete, "/routes/x", ""), gateway.Validation)
	require.Equal(t, http.StatusOK, b.call(http.MethodDelete, "/routes/1", "").Code)
}

// checked sends requests to a handler and fails the test for a response that is
// not as the document says. It notes which operations were answered 200.
type checked struct {
	t        *testing.T
	handler  http.Handler
	router   routers.Router
	answered map[string]bool
}

func newChecked(t *testing.T, handler http.Handler) (*checked, *openapi3.T) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Document)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(context.Background()))
	router, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.PlainBodyDecoder)
	return &checked{t: t, handler: handler, router: router, answered: map[string]bool{}}, doc
}

func (c *checked) Do(request *http.Request) (*http.Response, error) {
	if request.Header.Get("x-token") == "" {
		request.Header.Set("x-token", adminToken)
	}
	if request.Body == nil {
		request.Body = http.NoBody
	}
	request.RemoteAddr = "127.0.0.1:1"
	recorder := httptest.NewRecorder()
	c.handler.ServeHTTP(recorder, request)
	response := recorder.Result()
	body, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	route, parameters, err := c.router.FindRoute(request)
	require.NoError(c.t, err, request.URL)
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: request, PathParams: parameters, Route: route},
		Status:                 response.StatusCode, Header: response.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	input.SetBodyBytes(body)
	require.NoError(c.t, openapi3filter.ValidateResponse(context.Background(), input), "%s %s: %s", request.Method, request.URL, body)
	if response.StatusCode == http.StatusOK {
		c.answered[route.Operation.OperationID] = true
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

func newClient(t *testing.T, b *bundle) (*api.ClientWithResponses, *checked, *openapi3.T) {
	t.Helper()
	checked, doc := newChecked(t, b.admin)
	client, err := api.NewClientWithResponses("http://gateway"+api.Prefix, api.WithHTTPClient(checked))
	require.NoError(t, err)
	return client, checked, doc
}

func pointer[T any](value T) *T { return &value }

// Every operation of the document, through the generated client, each answer checked
// against the document.
func TestEveryOperationOfTheDocument(t *testing.T) {
	b := setup(t, nil)
	client, checked, doc := newClient(t, b)
	ctx := t.Context()
	b.users.add(gateway.User{ID: "1", Username: "root", IsAdmin: true, Active: true}, "root-token")
	b.users.add(gateway.User{ID: "2", Username: "two", Active: true}, "two-token")
	b.users.add(gateway.User{ID: "3", Username: "gone"}, "gone-token")

	document, err := client.GetDocumentWithResponse(ctx)
	require.NoError(t, err)
	served, err := openapi3.NewLoader().LoadFromData(document.Body)
	require.NoError(t, err)
	require.NoError(t, served.Validate(ctx))
	require.Len(t, served.Paths.Map(), len(doc.Paths.Map()))

	created, err := client.CreateServiceWithResponse(ctx, api.NewService{ID: "doc", PathPrefix: "/doc", Placement: pointer(api.Weighted)})
	require.NoError(t, err)
	require.NotNil(t, created.JSON200, string(created.Body))
	require.Equal(t, api.Weighted, created.JSON200.Data.Placement)
	again, err := client.CreateServiceWithResponse(ctx, api.NewService{ID: "doc", PathPrefix: "/doc", Placement: pointer(api.Weighted)})
	require.NoError(t, err)
	require.Equal(t, created.JSON200.Data.Etag, again.JSON200.Data.Etag, "a retry is answered alike")
	node := api.NewNode{ID: "d1", BaseURL: "http://127.0.0.1:1", Weight: pointer(3), AcceptNew: pointer(api.Flag(false))}
	added, err := client.CreateNodeWithResponse(ctx, "doc", node)
	require.NoError(t, err)
	require.Equal(t, 3, added.JSON200.Data.Weight)
	require.False(t, added.JSON200.Data.AcceptNew)
	repeated, err := client.CreateNodeWithResponse(ctx, "doc", node)
	require.NoError(t, err)
	require.Equal(t, added.JSON200.Data.Etag, repeated.JSON200.Data.Etag)
	require.Equal(t, added.JSON200.Data.Etag, repeated.HTTPResponse.Header.Get("ETag"))

	one, err := client.GetServiceWithResponse(ctx, "doc")
	require.NoError(t, err)
	changed, err := client.UpdateServiceWithResponse(ctx, "doc", &api.UpdateServiceParams{IfMatch: &one.JSON200.Data.Etag},
		api.ServiceChange{Name: pointer("Docs"), DefaultNodeID: api.NullableText{Given: true, Value: "d1"}})
	require.NoError(t, err)
	require.Equal(t, "d1", *changed.JSON200.Data.DefaultNodeID)
	late, err := client.UpdateServiceWithResponse(ctx, "doc", &api.UpdateServiceParams{IfMatch: &one.JSON200.Data.Etag}, api.ServiceChange{Name: pointer("lost")})
	require.NoError(t, err)
	require.Equal(t, http.StatusPreconditionFailed, late.StatusCode())
	require.Equal(t, "PRECONDITION_FAILED", late.JSONDefault.Data.Reason)
	cleared, err := client.UpdateServiceWithResponse(ctx, "doc", nil, api.ServiceChange{DefaultNodeID: api.NullableText{Given: true}})
	require.NoError(t, err)
	require.Nil(t, cleared.JSON200.Data.DefaultNodeID)
	require.Equal(t, "Docs", cleared.JSON200.Data.Name)

	read, err := client.GetNodeWithResponse(ctx, "d1")
	require.NoError(t, err)
	nodeChanged, err := client.UpdateNodeWithResponse(ctx, "d1", &api.UpdateNodeParams{IfMatch: &read.JSON200.Data.Etag}, api.NodeChange{Remark: pointer("r")})
	require.NoError(t, err)
	require.Equal(t, "r", nodeChanged.JSON200.Data.Remark)
	nodeLate, err := client.UpdateNodeWithResponse(ctx, "d1", &api.UpdateNodeParams{IfMatch: &read.JSON200.Data.Etag}, api.NodeChange{Remark: pointer("lost")})
	require.NoError(t, err)
	require.Equal(t, http.StatusPreconditionFailed, nodeLate.StatusCode())

	nodes, err := client.ListNodesWithResponse(ctx, &api.ListNodesParams{ServiceID: pointer("doc")})
	require.NoError(t, err)
	require.Len(t, nodes.JSON200.Data, 1)
	services, err := client.ListServicesWithResponse(ctx)
	require.NoError(t, err)
	require.Len(t, services.JSON200.Data, 2)
	health, err := client.CheckNodeWithResponse(ctx, "d1")
	require.NoError(t, err)
	require.Equal(t, api.DOWN, health.JSON200.Data.State)

	bound, err := client.BindWithResponse(ctx, api.BindRequest{ServiceID: "ai", UserID: "2", Username: pointer("two"), NodeID: "n2"})
	require.NoError(t, err)
	require.Equal(t, "n2", bound.JSON200.Data.NodeID)
	routes, err := client.ListRoutesWithResponse(ctx, &api.ListRoutesParams{Keyword: pointer("TW")})
	require.NoError(t, err)
	require.EqualValues(t, 1, routes.JSON200.Data.Total)

	dry, err := client.ImportExistingWithResponse(ctx, &api.ImportExistingParams{DryRun: pointer(true)}, api.ImportExistingRequest{ServiceID: "ai", NodeID: "n1"})
	require.NoError(t, err)
	require.Equal(t, api.ImportCounts{Read: 3, Bound: 1, Skipped: 1, Conflicts: 1}, dry.JSON200.Data.Counts)
	require.Nil(t, dry.JSON200.Data.ImportID)
	imported, err := client.ImportExistingWithResponse(ctx, nil, api.ImportExistingRequest{ServiceID: "ai", NodeID: "n1"})
	require.NoError(t, err)
	require.Equal(t, dry.JSON200.Data.Counts, imported.JSON200.Data.Counts)
	require.Equal(t, api.BOUNDELSEWHERE, imported.JSON200.Data.Conflicts[0].Reason)
	file, err := client.ImportFileWithBodyWithResponse(ctx, &api.ImportFileParams{ServiceID: "ai"}, "text/csv", strings.NewReader("username,nodeId,userId\nzoe,n1,9\nyan,n9,8\n"))
	require.NoError(t, err)
	require.Equal(t, api.ImportCounts{Read: 2, Bound: 1, Invalid: 1}, file.JSON200.Data.Counts)
	imports, err := client.ListImportsWithResponse(ctx, &api.ListImportsParams{ServiceID: pointer("ai")})
	require.NoError(t, err)
	require.EqualValues(t, 2, imports.JSON200.Data.Total)
	record, err := client.GetImportWithResponse(ctx, *file.JSON200.Data.ImportID)
	require.NoError(t, err)
	require.Equal(t, api.DONE, record.JSON200.Data.State)
	undone, err := client.UndoImportWithResponse(ctx, *file.JSON200.Data.ImportID)
	require.NoError(t, err)
	require.EqualValues(t, 1, undone.JSON200.Data.Removed)

	explained, err := client.ExplainWithResponse(ctx, &api.ExplainParams{XExplainToken: pointer("two-token"), Path: pointer("/js/a/cases?q=1")})
	require.NoError(t, err)
	require.True(t, explained.JSON200.Data.Verdict.Forward)
	require.Equal(t, "n2", *explained.JSON200.Data.Verdict.NodeID)
	require.NotContains(t, string(explained.Body), "two-token")
	missing, err := client.ExplainWithResponse(ctx, &api.ExplainParams{Path: pointer("/nowhere")})
	require.NoError(t, err)
	require.Equal(t, "NO_ROUTE", *missing.JSON200.Data.Verdict.Reason)

	status, err := client.GetStatusWithResponse(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, *status.JSON200.Data.Services[0].Bindings)
	require.Len(t, status.JSON200.Data.Guards, len(guard.Names()))
	gone, err := client.UnbindWithResponse(ctx, bound.JSON200.Data.ID)
	require.NoError(t, err)
	require.Equal(t, "n2", gone.JSON200.Data.NodeID)
	audit, err := client.ListAuditWithResponse(ctx, &api.ListAuditParams{ServiceID: pointer("ai"), UserID: pointer("2"), Action: pointer("binding")})
	require.NoError(t, err)
	require.EqualValues(t, 2, audit.JSON200.Data.Total, string(audit.Body))
	require.Equal(t, "binding.delete", audit.JSON200.Data.Records[0].Action)
	require.Equal(t, gateway.ActorAdminToken, audit.JSON200.Data.Records[0].Actor)
	past, err := client.BindingAtWithResponse(ctx, &api.BindingAtParams{ServiceID: "ai", UserID: pointer("2"), At: bound.JSON200.Data.CreateTime.Add(time.Microsecond)})
	require.NoError(t, err)
	require.Equal(t, "n2", past.JSON200.Data.NodeID)
	nowhere, err := client.BindingAtWithResponse(ctx, &api.BindingAtParams{ServiceID: "ai", UserID: pointer("2"), At: time.Now()})
	require.NoError(t, err)
	require.Nil(t, nowhere.JSON200.Data)

	requirePolicyOperations(t, client)

	deletedNode, err := client.DeleteNodeWithResponse(ctx, "d1")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, deletedNode.StatusCode())
	deleted, err := client.DeleteServiceWithResponse(ctx, "doc")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, deleted.StatusCode())
	reloaded, err := client.ReloadWithResponse(ctx)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, reloaded.StatusCode())

	for _, path := range doc.Paths.Map() {
		for method, operation := range path.Operations() {
			require.True(t, checked.answered[operation.OperationID], "%s %s was never answered 200", method, operation.OperationID)
		}
	}
}

func TestBadInputIsRefusedByName(t *testing.T) {
	b := setup(t, nil)
	before := b.dump(t)
	for _, bad := range []struct{ method, path, body, detail string }{
		{"POST", "/services", `{"id":"x","pathPrefix":"/x","colour":"red"}`, "colour"},
		{"POST", "/services", `{"id":"x","pathPrefix":"/x","placement":"best"}`, "placement"},
		{"POST", "/services", `{"id":"x y","pathPrefix":"/x"}`, "id"},
		{"POST", "/services", `{"pathPrefix":"/x"}`, "id"},
		{"POST", "/services", `{"id":"x","pathPrefix":"/x","login":{"tokens":"a"}}`, "tokens"},
		{"POST", "/services", `[]`, ""},
		{"POST", "/services", ``, ""},
		{"POST", "/services", `{"id":"x","pathPrefix":"/x"}{}`, ""},
		{"POST", "/services", strings.Repeat("[", 10000), ""},
		{"POST", "/services/ai/nodes", `{"id":"n9","baseUrl":"http://h","weight":0}`, "weight"},
		{"POST", "/services/ai/nodes", `{"id":"n9","baseUrl":"http://h","weight":1001}`, "weight"},
		{"POST", "/services/ai/nodes", `{"id":"n9","baseUrl":"http://h","acceptNew":"no"}`, "acceptNew"},
		{"PUT", "/nodes/n1", `{"baseUrl":null}`, "baseUrl"},
		{"PUT", "/nodes/n1", `{"enabled":2}`, "enabled"},
		{"POST", "/routes/bind", `{"serviceId":"ai","userId":{},"nodeId":"n1"}`, "userId"},
		{"POST", "/routes/bind", `{"serviceId":"ai","userId":"a\u0000b","nodeId":"n1"}`, "NUL"},
		{"POST", "/routes/bind", `{"serviceId":"ai","username":"` + strings.Repeat("x", 256) + `","nodeId":"n1"}`, "username"},
		{"GET", "/routes?keyword=" + strings.Repeat("x", 256), "", "keyword"},
		{"GET", "/routes?serviceID=ai", "", "serviceID"},
		{"GET", "/routes?page=1&page=2", "", "page"},
		{"GET", "/routes?size=x", "", "size"},
		{"GET", "/audit?since=yesterday", "", "since"},
		{"GET", "/audit/binding?serviceId=ai&at=2026-01-01T00:00:00Z", "", "userId"},
		{"GET", "/routes?keyword=%00", "", "keyword"},
		{"GET", "/audit?userId=%ff", "", "userId"},
		{"PUT", "/nodes/%00", `{}`, "nodeId"},
		{"DELETE", "/services/%ff", "", "serviceId"},
		{"GET", "/explain?serviceId=ai&userId=%00", "", "userId"},
		{"PUT", "/nodes/n1", `{"remark":"a\u0000b"}`, "NUL"},
		{"PUT", "/nodes/n1", "{\"remark\":\"a\xff\"}", "UTF-8"},
		{"GET", "/explain?token=a&userId=b&serviceId=ai", "", "one of"},
		{"GET", "/explain", "", "serviceId"},
		{"GET", "/explain?path=js", "", "path"},
		{"GET", "/explain?path=/js/a&method=G%20T", "", "method"},
		{"POST", "/routes/import-existing", `{"serviceId":"ai"}`, "nodeId"},
		{"POST", "/routes/import?serviceId=ai", "colour,userId\n1,2\n", "colour"},
		{"POST", "/routes/import?serviceId=ai", "", "empty"},
		{"POST", "/routes/import?serviceId=ai", "nodeId\nn1\n", "userId"},
		{"POST", "/routes/import?serviceId=ai", "userId;nodeId\n1;n1\n", "commas"},
		{"POST", "/routes/import?serviceId=ai", "userId\n\"" + strings.Repeat("x", 1<<20) + "\n", "quote"},
		{"POST", "/routes/import", "userId\n1\n", "serviceId"},
		{"GET", "/explain?serviceId=ai&address=here", "", "address"},
		{"PUT", "/policies/quotas/x", `{}`, "kind"},
		{"PUT", "/policies/guards/firewall", `{"enabled":false}`, "id: want one of maintenance"},
		{"PUT", "/policies/guards/access", `{"enabled":"no"}`, "enabled"},
		{"PUT", "/policies/guards/access", `{"services":["ai"]}`, "services"},
		{"PUT", "/policies/guards/access", `{"enabled":true}{}`, "JSON"},
		{"PUT", "/policies/guards/access", `[]`, "object"},
		{"PUT", "/policies/maintenance/m", `{"paths":["js"]}`, "paths.0"},
		{"PUT", "/policies/maintenance/m", `{"paths":["/js/{a"]}`, "paths[0]"},
		{"PUT", "/policies/maintenance/m", `{"services":["none"]}`, "services[0]"},
		{"PUT", "/policies/maintenance/m", `{"testers":{"addresses":["here"]}}`, "testers.addresses[0]"},
		{"PUT", "/policies/maintenance/m", `{"end":"tomorrow"}`, "end"},
		{"PUT", "/policies/maintenance/m", `{"end":"2026-02-30T00:00:00Z"}`, "end"},
		{"PUT", "/policies/maintenance/m", `{"start":"2026-01-02T00:00:00Z","end":"2026-01-01T00:00:00Z"}`, "end"},
		{"POST", "/policies/maintenance", `{"policies":[{"id":"history","body":{}}]}`, "policies.0.id"},
		{"PUT", "/policies/maintenance/a%20b", `{}`, "policyId"},
		{"PUT", "/policies/identity/i", `{}`, "mode"},
		{"PUT", "/policies/identity/i", `{"mode":"guess"}`, "mode"},
		{"PUT", "/policies/identity/i", `{"mode":"jwt"}`, "jwt"},
		{"PUT", "/policies/identity/i", `{"mode":"jwt","jwt":{"algorithms":["none"],"keys":[{"value":"a-secret-of-16-or-more"}]}}`, "algorithms"},
		{"PUT", "/policies/identity/i", `{"mode":"jwt","jwt":{"algorithms":["HS256"],"keys":[{"value":"short"}]}}`, "jwt.keys[0].value"},
		{"PUT", "/policies/identity/i", `{"mode":"jwt","jwt":{"algorithms":["HS256"],"leeway":"5 minutes"}}`, "jwt.leeway"},
		{"PUT", "/policies/identity/i", `{"mode":"token","blacklistFailure":"maybe"}`, "blacklistFailure"},
		{"PUT", "/policies/apps/a", `{"secrets":[]}`, "secrets"},
		{"PUT", "/policies/apps/a", `{"secrets":[{"value":"short"}]}`, "secrets[0].value"},
		{"PUT", "/policies/apps/a", `{"secrets":[{"id":"1"}]}`, "secrets[0].value"},
		{"PUT", "/policies/apps/a", `{"secrets":[{"sealed":"v1.x.y"}]}`, "secrets.0: property \\\"sealed\\\""},
		{"PUT", "/policies/signature/s", `{"paths":[]}`, "paths"},
		{"PUT", "/policies/signature/s", `{"paths":["/a"],"ttl":"1y"}`, "ttl"},
		{"PUT", "/policies/signature/s", `{"paths":["/a"],"ttl":"25h"}`, "ttl"},
		{"PUT", "/policies/signature/s", `{"paths":["/a"],"signParam":"client-id"}`, "signParam"},
		{"PUT", "/policies/rate-limit/r", `{"path":"/a","rate":0}`, "rate"},
		{"PUT", "/policies/rate-limit/r", `{"path":"/a","rate":1,"by":"colour"}`, "by"},
		{"PUT", "/policies/rate-limit/r", `{"path":"/a","rate":1,"burts":3}`, "burts"},
		{"PUT", "/policies/rate-limit/r", `{"path":"/a","rate":"many","method":"get"}`, "method"},
		{"PUT", "/policies/access/a", `{"type":"rbac","path":"/a"}`, "roles"},
		{"PUT", "/policies/access/a", `{"type":"grey","path":"/a","percent":101}`, "percent"},
		{"PUT", "/policies/access/a", `{"type":"method","path":"/a","methods":["get"]}`, "methods.0"},
		{"PUT", "/policies/degradation/d", `{"core":["("]}`, "core[0]"},
		{"PUT", "/policies/degradation/d", `{"code":-1}`, "code"},
		{"PUT", "/policies/degradation/d", `{"breaker":"LatencyAtQuantileMS(50.0) > 100"}`, "breaker"},
		{"PUT", "/policies/degradation/d", `{"shadow":true}`, "shadow"},
		{"PUT", "/policies/answers/a", `{"codes":{"TEAPOT":1}}`, "codes.TEAPOT"},
		{"PUT", "/policies/answers/a", `{"codes":{"MAINTENANCE":0}}`, "codes.MAINTENANCE"},
		{"PUT", "/policies/answers/a", `{"sourceHeader":"X-User-Id"}`, "sourceHeader"},
		{"PUT", "/policies/answers/a?dryRun=true", `{"sourceHeader":"X User"}`, "sourceHeader"},
		{"POST", "/policies/rate-limit", `{}`, "policies"},
		{"POST", "/policies/rate-limit", `{"policies":[{"id":"a","body":{"path":"/a","rate":1}},{"id":"b","body":{"path":"/a","rate":-1}}]}`, "policies.1.body: rate"},
		{"POST", "/policies/rate-limit", `{"policies":[{"id":"a","body":{"path":"/a","rate":1}},{"id":"b","body":{"path":"/{","rate":1}}]}`, "b: path"},
		{"POST", "/policies/rate-limit", `{"policies":[{"id":"a","body":{"path":"/a","rate":1}},{"id":"a","body":{"path":"/a","rate":1}}]}`, "policies.1.id"},
		{"POST", "/policies/rate-limit", `{"policies":[{"id":"a","body":7}]}`, "policies.0.body"},
		{"POST", "/policies/rate-limit", `{"policies":[{"id":"a","body":null}]}`, "policies.0.body"},
		{"POST", "/policies/rate-limit", `{"policies":7}`, "policies"},
		{"POST", "/policies/rate-limit", `7`, ""},
		{"POST", "/policies/identity", `{"policies":[{"id":"a","body":{"mode":"token"}},{"id":"b","body":{"mode":"token"}}]}`, "b: services"},
		{"POST", "/policies/access/rollback", `{"revision":-1}`, "revision"},
		{"POST", "/policies/access/rollback", `{"revision":99}`, "revision"},
		{"POST", "/policies/access/rollback?dryRun=true", `{"revision":99}`, "revision"},
		{"PUT", "/roles/ai/7", `{"roles":["a role"]}`, "roles.0"},
		{"PUT", "/roles/ai/7", `{"roles":["a","a"]}`, "roles"},
		{"PUT", "/roles/ai/%00", `{"roles":[]}`, "userId"},
		{"POST", "/sessions/kick-out", `{"serviceId":"ai"}`, "userId"},
		{"POST", "/sessions/kick-out", `{"serviceId":"ai","userId":true}`, "userId"},
		{"POST", "/sessions/kick-out", `{"serviceId":"ai","userId":""}`, "userId"},
	} {
		t.Run(bad.method+" "+bad.path[:min(40, len(bad.path))]+" "+bad.body[:min(40, len(bad.body))], func(t *testing.T) {
			r := b.call(bad.method, bad.path, bad.body)
			requireRefused(t, r, gateway.Validation)
			require.Contains(t, r.Body.String(), bad.detail)
		})
	}
	requireRefused(t, b.call(http.MethodPost, "/services", `"`+strings.Repeat("x", 10<<20)+`"`), gateway.TooLarge)
	requireRefused(t, b.call(http.MethodPost, "/routes/import?serviceId=none", "userId\n1\n"), gateway.Conflict)
	requireRefused(t, b.call(http.MethodPost, "/routes/import?serviceId=ai&nodeId=n9", "userId\n1\n"), gateway.Conflict)
	requireRefused(t, b.call(http.MethodPost, "/routes/import?serviceId=ai&nodeId=n1&importId=77", "userId\n1\n"), gateway.NotFound)
	requireRefused(t, b.call(http.MethodPost, "/imports/77/undo", ""), gateway.NotFound)
	requireRefused(t, b.call(http.MethodPatch, "/services/ai", "{}"), gateway.NotFound)
	requireRefused(t, b.call(http.MethodGet, "/none", ""), gateway.NotFound)
	for _, hostile := range []string{"%", "_", "'", "';DROP TABLE gateway_user_route;--", "\\", "%' OR 1=1"} {
		r := send(b.admin, http.MethodGet, "/gateway/admin/routes", map[string]string{"x-token": adminToken}, "")
		require.Equal(t, http.StatusOK, r.Code)
		request := httptest.NewRequest(http.MethodGet, "/gateway/admin/routes", nil)
		request.URL.RawQuery = "keyword=" + strings.NewReplacer("%", "%25", "\\", "%5C", "'", "%27", ";", "%3B", " ", "%20", "=", "%3D").Replace(hostile)
		request.Header.Set("x-token", adminToken)
		recorder := httptest.NewRecorder()
		b.admin.ServeHTTP(recorder, request)
		require.Equal(t, http.StatusOK, recorder.Code, hostile)
		_, page := open(t, recorder)
		require.EqualValues(t, 0, page["total"], hostile)
	}
	require.Equal(t, before, b.dump(t), "nothing has changed")
}

// dump is everything that an administrator could change.
func (b *bundle) dump(t *testing.T) string {
	t.Helper()
	services, nodes, err := b.store.LoadRegistry(t.Context())
	require.NoError(t, err)
	bindings, _, err := b.store.ListBindings(t.Context(), gateway.BindingFilter{Limit: 1000})
	require.NoError(t, err)
	policies, revision, err := b.store.LoadPolicies(t.Context())
	require.NoError(t, err)
	roles, _, err := b.store.ListRoles(t.Context(), gateway.UserRoleFilter{Limit: 1000})
	require.NoError(t, err)
	encoded, err := json.Marshal([]any{services, nodes, bindings, policies, revision, roles})
	require.NoError(t, err)
	return string(encoded)
}

func TestAdministratorsOfTheUserTable(t *testing.T) {
	b := setup(t, nil)
	b.users.add(gateway.User{ID: "1", Username: "root", IsAdmin: true, Active: true}, "root-token")
	b.users.add(gateway.User{ID: "2", Username: "user", Active: true}, "user-token")
	b.users.add(gateway.User{ID: "3", Username: "fired", IsAdmin: true}, "fired-token")
	bind := func(token string) *httptest.ResponseRecorder {
		return send(b.admin, http.MethodPost, "/gateway/admin/routes/bind", map[string]string{"x-token": token}, `{"serviceId":"ai","userId":"7","nodeId":"n1"}`)
	}
	require.Equal(t, http.StatusOK, bind("root-token").Code)
	requireRefused(t, bind("user-token"), gateway.Forbidden)
	requireRefused(t, bind("fired-token"), gateway.Forbidden)
	requireRefused(t, bind("expired-token"), gateway.Unauthenticated)
	b.users.fail(errors.New("down"))
	requireRefused(t, bind("root-token"), gateway.StoreUnavailable)
	require.Equal(t, http.StatusOK, bind(adminToken).Code, "the bootstrap token needs no store")
	b.users.fail(nil)

	entries, _, err := b.store.ListAudit(t.Context(), gateway.AuditFilter{Limit: 10, Action: gateway.ActionDenied})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, "user:3", entries[0].Actor.Name)
	require.Equal(t, "192.0.2.1", entries[0].Actor.Address)
	entries, _, err = b.store.ListAudit(t.Context(), gateway.AuditFilter{Limit: 10, UserID: "7"})
	require.NoError(t, err)
	require.Len(t, entries, 1, "the second bind changed nothing")
	require.Equal(t, "user:1", entries[0].Actor.Name)
}

func TestWrongTokensAreLimitedByAddress(t *testing.T) {
	b := setup(t, nil)
	b.users.add(gateway.User{ID: "1", Username: "root", IsAdmin: true, Active: true}, "root-token")
	call := func(peer, forwarded, token string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, "/gateway/admin/status", nil)
		request.RemoteAddr = peer
		request.Header.Set("x-token", token)
		if forwarded != "" {
			request.Header.Set("X-Forwarded-For", forwarded)
		}
		recorder := httptest.NewRecorder()
		b.admin.ServeHTTP(recorder, request)
		return recorder
	}
	for i := range 10 {
		requireRefused(t, call(fmt.Sprintf("[2001:db8::%d]:1", i), "", "wrong"), gateway.Unauthenticated)
	}
	for _, token := range []string{"wrong", "root-token"} {
		limited := call("[2001:db8::99]:1", "", token)
		requireRefused(t, limited, gateway.RateLimited)
		require.NotEmpty(t, limited.Header().Get("Retry-After"))
	}
	require.Equal(t, http.StatusOK, call("[2001:db8::99]:1", "", adminToken).Code, "nobody locks the bootstrap token out")
	require.Equal(t, http.StatusOK, call("[2001:db8:1::1]:1", "", "root-token").Code, "another network")
	// Through a proxy that is not trusted: its own machine is not locked out.
	for range 10 {
		requireRefused(t, call("127.0.0.1:1", "192.0.2.1", "wrong"), gateway.Unauthenticated)
	}
	requireRefused(t, call("127.0.0.1:1", "192.0.2.2", "root-token"), gateway.RateLimited)
	require.Equal(t, http.StatusOK, call("127.0.0.1:1", "", "root-token").Code)
}

func TestImportReports(t *testing.T) {
	b := setup(t, nil)
	const content = "userId,username,nodeId\n1,ann,n1\n1,again,n1\n2,ANN,n1\n3,=cmd(),n9\n4,dan,\n1.2E+17,eve,n1\n5,\"fay\n6,gus,n1\n"
	ask := func(accept, query string) *httptest.ResponseRecorder {
		return send(b.admin, http.MethodPost, "/gateway/admin/routes/import?serviceId=ai"+query, map[string]string{"x-token": adminToken, "Accept": accept}, content)
	}
	lines := strings.Split(strings.TrimSpace(ask("application/x-ndjson", "&dryRun=true").Body.String()), "\n")
	var reasons []string
	var last api.ImportEvent
	for _, line := range lines {
		var event api.ImportEvent
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		if event.Conflict != nil {
			reasons = append(reasons, fmt.Sprintf("%d %s", event.Conflict.Line, event.Conflict.Reason))
		}
		last = event
	}
	require.Equal(t, []string{"3 DUPLICATE", "4 DUPLICATE", "5 INVALID", "6 INVALID", "7 INVALID", "8 INVALID"}, reasons)
	require.Equal(t, api.Done, last.Event)
	require.Equal(t, api.ImportCounts{Read: 7, Bound: 1, Conflicts: 2, Invalid: 4}, *last.Counts)
	table := ask("text/csv", "").Body.String()
	require.Contains(t, table, "line,userId,username,nodeId,reason")
	require.Contains(t, table, "5,3,'=cmd(),n9,INVALID", "no spreadsheet runs it")
	_, page := open(t, b.call(http.MethodGet, "/routes", ""))
	require.EqualValues(t, 1, page["total"])
}

// Whatever an administrator, or somebody who is none, sends: never an internal error.
func FuzzAdmin(f *testing.F) {
	b := setup(f, nil)
	f.Add("POST", "/services", "", `{"id":"x","pathPrefix":"/x"}`, "10.1.2.3:1, [::1]", adminToken)
	f.Add("GET", "/explain", "path=/js/a/%2e&method=post&username=%00", "", "", adminToken)
	f.Add("POST", "/routes/import", "serviceId=ai", "userId\n\"", "garbage", adminToken)
	f.Add("PUT", "/nodes/%00", "", `{"weight":1e9}`, "", "wrong")
	f.Add("PUT", "/policies/rate-limit/x", "dryRun=true", `{"path":"/a/{b}","rate":1e-9,"per":"1h"}`, "", adminToken)
	f.Add("POST", "/policies/apps", "", `{"policies":[{"id":"a","body":{"secrets":[{"value":null}]}}],"replace":true}`, "", adminToken)
	f.Add("PUT", "/roles/ai/%2F", "", `{"roles":["a","a"]}`, "", adminToken)
	f.Fuzz(func(t *testing.T, method, path, query, body, forwarded, token string) {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://gateway/gateway/admin"+path, strings.NewReader(body))
		if err != nil {
			return // no HTTP server would have let it in
		}
		request.URL.RawQuery, request.RemoteAddr = query, "192.0.2.1:1"
		request.Header.Set("X-Forwarded-For", forwarded)
		request.Header.Set("x-token", token)
		recorder := httptest.NewRecorder()
		b.admin.ServeHTTP(recorder, request)
		require.NotEqual(t, http.StatusInternalServerError, recorder.Code, recorder.Body.String())
		require.NotContains(t, recorder.Body.String(), adminToken)
		if token != adminToken && !strings.HasPrefix(request.URL.Path, "/gateway/admin/openapi.json") {
			require.NotEqual(t, http.StatusOK, recorder.Code)
		}
	})
}
