package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/binding"
	"github.com/homenode/homenode/bindsvc/internal/decide"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/httpapi"
	"github.com/homenode/homenode/bindsvc/internal/outage"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/registry"
	"github.com/homenode/homenode/bindsvc/internal/session"
	"github.com/homenode/homenode/bindsvc/internal/sqlite"
	"github.com/homenode/homenode/bindsvc/internal/traefikconf"
)

const (
	secret     = "a-test-secret-of-32-characters-0"
	adminToken = "an-admin-token-of-32-characters0"
	policyKey  = "a-policy-key-of-32-characters000"
)

// bundle is a whole binding service over the embedded store, without sockets.
type bundle struct {
	internal http.Handler
	admin    http.Handler
	store    gateway.Store
	nodes    *registry.Registry
	users    *userTable
	policies *policy.Keeper
}

func setup(t testing.TB, change func(*httpapi.Options)) *bundle {
	t.Helper()
	return setupCached(t, change, nil)
}

// setupCached has a cache of policies beside the embedded store, unless it is nil.
func setupCached(t testing.TB, change func(*httpapi.Options), cache gateway.PolicyCache) *bundle {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "homenode.db"), sqlite.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(backend.Close)
	nodes := registry.New(store, registry.Options{
		PollInterval: time.Hour,
		Health:       registry.HealthOptions{Interval: time.Hour, Timeout: time.Second, Failures: 3, Successes: 1},
		Seed: func() ([]gateway.Service, []gateway.Node) {
			return []gateway.Service{{ID: "ai", PathPrefix: "/js/a", LoginPath: "/sys/login", HealthPath: "/h", Enabled: true, Login: gateway.DefaultLoginFields()}},
				[]gateway.Node{{ID: "n1", ServiceID: "ai", BaseURL: backend.URL, Enabled: true}, {ID: "n2", ServiceID: "ai", BaseURL: backend.URL, Enabled: true}}
		},
	}, log, time.Now)
	gate := func() *outage.Gate { return &outage.Gate{Limit: 5 * time.Second, Pause: time.Second} }
	b := &bundle{store: store, nodes: nodes, users: &userTable{rows: map[string]gateway.User{}, tokens: map[string]string{}}}
	sessions := session.NewResolver(store, b.users, gate(), gate(), session.Names{Cache: "SQL", Authority: "sa-token"}, log, time.Now)
	t.Cleanup(sessions.Close)
	bindings := binding.NewDirectory(store, nil, binding.Gates{Read: gate(), Write: gate(), Shared: gate()}, log)
	t.Cleanup(bindings.Close)
	bindings.Live(context.Background(), true)
	subjects := guard.NewDirectory(sessions, log, time.Now)
	t.Cleanup(subjects.Close)
	roles := guard.NewRoles(store, gate(), time.Now)
	t.Cleanup(roles.Close)
	buckets := guard.NewBuckets(time.Now)
	t.Cleanup(buckets.Close)
	sealer, err := policy.NewSealer(policyKey)
	require.NoError(t, err)
	b.policies = policy.NewKeeper(policy.Parts{
		Store: store, Cache: cache, Sealer: sealer, Guards: guard.Names(), Changed: subjects.Follow, Log: log, Now: time.Now,
		Services: func(id string) bool { _, ok := nodes.Snapshot().Service(id); return ok },
	})
	guards := guard.NewChain(guard.Parts{Subjects: subjects, Revocations: store, Nonces: buckets, Limiter: buckets, Roles: roles}, b.policies.Snapshot, log, time.Now)
	options := httpapi.Options{
		Secret: secret, AdminToken: adminToken, AdminEnabled: true, Messages: "zh",
		TokenSources: []string{"header:x-token", "bearer", "cookie:x-token", "query:x-token"},
		MaxAge:       time.Minute, StaleIfError: 5 * time.Minute, TraefikPoll: 5 * time.Second,
		Traefik: traefikconf.Settings{Plugin: "homenode", Endpoint: "http://127.0.0.1:9090", ServiceURL: "http://127.0.0.1:9090", EntryPoints: []string{"web"}},
	}
	if change != nil {
		change(&options)
	}
	server, err := httpapi.New(options, httpapi.Parts{
		Registry: nodes, Decider: decide.New(nodes, guards, bindings), Sessions: sessions, Bindings: bindings, Store: store, Users: b.users,
		Policies: b.policies, Guards: guards, Revoked: store, Subjects: subjects, Log: log,
	})
	require.NoError(t, err)
	b.internal, b.admin = server.Internal(), server.Admin()

	require.Equal(t, http.StatusServiceUnavailable, b.v1(http.MethodGet, "/v1/traefik", nil, "").Code, "not before the registry is loaded")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- nodes.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	<-nodes.Ready()
	require.NoError(t, b.policies.Refresh(ctx))
	return b
}

func send(handler http.Handler, method, target string, header map[string]string, body string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, target, strings.NewReader(body))
	for name, value := range header {
		request.Header.Set(name, value)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder
}

func (b *bundle) v1(method, target string, header map[string]string, body string) *httptest.ResponseRecorder {
	all := map[string]string{"Authorization": "Bearer " + secret}
	for name, value := range header {
		all[name] = value
	}
	return send(b.internal, method, target, all, body)
}

func (b *bundle) decide(header map[string]string) *httptest.ResponseRecorder {
	return b.v1(http.MethodGet, "/v1/decide", header, "")
}

func (b *bundle) call(method, path, body string) *httptest.ResponseRecorder {
	return send(b.admin, method, "/gateway/admin"+path, map[string]string{"x-token": adminToken}, body)
}

type envelope struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

func open(t *testing.T, r *httptest.ResponseRecorder) (envelope, map[string]any) {
	t.Helper()
	var e envelope
	require.NoError(t, json.Unmarshal(r.Body.Bytes(), &e), r.Body.String())
	data := map[string]any{}
	_ = json.Unmarshal(e.Data, &data)
	return e, data
}

func requireRefused(t *testing.T, r *httptest.ResponseRecorder, reason gateway.Reason) {
	t.Helper()
	require.Equal(t, reason.Status(), r.Code, r.Body.String())
	require.Equal(t, string(reason), r.Header().Get("X-Gateway-Reason"))
	e, data := open(t, r)
	require.Equal(t, r.Code, e.Code)
	require.NotEmpty(t, e.Message)
	require.Equal(t, string(reason), data["reason"])
	require.Equal(t, r.Header().Get("X-Request-Id"), data["requestId"])
}

const annLogin = `{"service":"ai","node":"n2","username":"Ann","token":"t-ann","userId":"9007199254740993","loginUsername":"138","requestId":"r"}`

func TestLoginThenDecide(t *testing.T) {
	b := setup(t, nil)
	r := b.v1(http.MethodPost, "/v1/logins", nil, annLogin)
	require.Equal(t, http.StatusOK, r.Code, r.Body.String())
	require.JSONEq(t, `{"node":"n2","created":true}`, r.Body.String())
	r = b.v1(http.MethodPost, "/v1/logins", nil, strings.Replace(annLogin, `"n2"`, `"n1"`, 1))
	require.JSONEq(t, `{"node":"n2","created":false}`, r.Body.String(), "idempotent, and the first writer has won")

	for name, header := range map[string]map[string]string{
		"from the plugin":        {"X-Homenode-Service": "ai", "X-Homenode-Token": url.QueryEscape("t-ann")},
		"header":                 {"X-Forwarded-Uri": "/js/a/x", "x-token": "t-ann"},
		"bearer":                 {"X-Forwarded-Uri": "/js/a/x", "X-Forwarded-Authorization": "bearer t-ann"},
		"cookie":                 {"X-Forwarded-Uri": "/js/a/x", "Cookie": "a=b; x-token=t-ann"},
		"query":                  {"X-Forwarded-Uri": "/js/a/x?x-token=t-ann"},
		"a login by name":        {"X-Homenode-Service": "ai", "X-Homenode-Username": "ANN"},
		"a login by typed alias": {"X-Homenode-Service": "ai", "X-Homenode-Username": "138"},
	} {
		r := b.decide(header)
		require.Equal(t, http.StatusOK, r.Code, name)
		require.Equal(t, "n2", r.Header().Get("X-Gateway-Node"), name)
		require.Equal(t, "1", r.Header().Get("X-Binding-Epoch"), name)
		require.Empty(t, r.Body.String(), name)
		if strings.HasPrefix(name, "a login") {
			require.Equal(t, "no-store", r.Header().Get("Cache-Control"), name)
		} else {
			require.Equal(t, "9007199254740993", r.Header().Get("X-User-Id"), name)
			require.Equal(t, "private, max-age=60, stale-if-error=300", r.Header().Get("Cache-Control"), name)
		}
	}
	anonymous := b.decide(map[string]string{"X-Homenode-Service": "ai"})
	require.Equal(t, http.StatusOK, anonymous.Code)
	require.Equal(t, "no-store", anonymous.Header().Get("Cache-Control"))
	require.Empty(t, anonymous.Header().Get("X-User-Id"))
}

func TestALoginWithAnOddNameCountsAllTheSame(t *testing.T) {
	b := setup(t, nil)
	for user, name := range map[string]string{"1": strings.Repeat("a", 256), "2": `a\u0000b`, "3": `anna\t`} {
		r := b.v1(http.MethodPost, "/v1/logins", nil, `{"service":"ai","node":"n2","userId":"`+user+`","token":"t`+user+`","username":"`+name+`","loginUsername":"`+name+`"}`)
		require.JSONEq(t, `{"node":"n2","created":true}`, r.Body.String())
		require.Equal(t, user, b.decide(map[string]string{"X-Homenode-Service": "ai", "X-Homenode-Token": "t" + user}).Header().Get("X-User-Id"))
	}
	r := b.decide(map[string]string{"X-Homenode-Service": "ai", "X-Homenode-Username": "anna%09"})
	require.Equal(t, "n2", r.Header().Get("X-Gateway-Node"))
	require.NotEmpty(t, r.Header().Get("X-Binding-Epoch"))
}

func TestRefusals(t *testing.T) {
	b := setup(t, nil)
	requireRefused(t, b.decide(map[string]string{"X-Forwarded-Uri": "/nowhere"}), gateway.NoRoute)
	requireRefused(t, b.decide(map[string]string{"X-Forwarded-Uri": "/js/apple"}), gateway.NoRoute)
	requireRefused(t, b.decide(nil), gateway.Validation)
	requireRefused(t, b.decide(map[string]string{"X-Forwarded-Uri": "::"}), gateway.Validation)
	requireRefused(t, b.decide(map[string]string{"X-Homenode-Service": "ai", "X-Homenode-Username": "%zz"}), gateway.Validation)
	requireRefused(t, b.v1(http.MethodGet, "/v1/nothing", nil, ""), gateway.NotFound)
	for name, body := range map[string]string{
		"empty": "", "not JSON": "{", "an array": "[]", "two values": annLogin + annLogin, "unknown field": `{"services":"ai"}`,
		"no user id": `{"service":"ai","node":"n1","token":"t"}`, "no token": `{"service":"ai","node":"n1","userId":"7"}`,
		"no node": `{"service":"ai","userId":"7","token":"t"}`, "wrong type": `{"service":"ai","node":"n1","userId":7,"token":"t"}`,
		"control character": `{"service":"ai","node":"n1","userId":"7\u0000","token":"t"}`,
		"unknown service":   `{"service":"x","node":"n1","userId":"7","token":"t"}`,
	} {
		t.Run(name, func(t *testing.T) {
			requireRefused(t, b.v1(http.MethodPost, "/v1/logins", nil, body), gateway.Validation)
		})
	}
	requireRefused(t, b.v1(http.MethodPost, "/v1/logins", nil, `{"token":"`+strings.Repeat("t", 1<<20)+`"}`), gateway.TooLarge)
	requireRefused(t, b.v1(http.MethodPost, "/v1/logins", nil, `{"service":"ai","node":"n9","userId":"7","token":"t"}`), gateway.Conflict)
}

func TestTheSharedSecret(t *testing.T) {
	b := setup(t, nil)
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + secret, secret} {
		for _, path := range []string{"/v1/decide", "/v1/traefik"} {
			r := send(b.internal, http.MethodGet, path, map[string]string{"Authorization": header}, "")
			require.Equal(t, http.StatusUnauthorized, r.Code)
			require.Empty(t, r.Header().Get("X-Gateway-Reason"), "no verdict on a client")
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/fallback?status=502&url=x"} {
		require.NotEqual(t, http.StatusUnauthorized, send(b.internal, http.MethodGet, path, nil, "").Code, path)
	}
}

func TestFallback(t *testing.T) {
	b := setup(t, nil)
	for status, want := range map[string]gateway.Reason{"502": gateway.NodeUnreachable, "503": gateway.Degraded, "504": gateway.NodeTimeout} {
		r := send(b.internal, http.MethodGet, "/v1/fallback?status="+status+"&url=http%3A%2F%2Fx%2Fjs%2Fa", nil, "")
		requireRefused(t, r, want)
		require.NotEmpty(t, r.Header().Get("Retry-After"))
	}
	requireRefused(t, send(b.internal, http.MethodPost, "/v1/fallback/no-route", nil, "body"), gateway.NoRoute)
	requireRefused(t, send(b.internal, http.MethodDelete, "/v1/fallback/not-known", nil, ""), gateway.NodeUnknown)
	for _, status := range []string{"", "x", "200", "9999"} {
		requireRefused(t, send(b.internal, http.MethodGet, "/v1/fallback?status="+status, nil, ""), gateway.Validation)
	}
}

func TestLanguages(t *testing.T) {
	b := setup(t, nil)
	english := setup(t, func(o *httpapi.Options) { o.Messages = "en" })
	message := func(b *bundle, accept string) string {
		e, _ := open(t, send(b.internal, http.MethodGet, "/v1/fallback/no-route", map[string]string{"Accept-Language": accept}, ""))
		return e.Message
	}
	for accept, zh := range map[string]bool{
		"": true, "zh": true, "zh-CN,zh;q=0.9": true, "en": false, "en-US,en;q=0.9,zh;q=0.8": false, "fr": true,
		"en;q=0.1, zh;q=0.9": true, "fr, en;q=0.5": false, "!!!": true, strings.Repeat("en,", 1000): true,
	} {
		require.Equal(t, zh, strings.Contains(message(b, accept), "不存在"), "%.40q", accept)
	}
	require.Contains(t, message(english, ""), "No service")
	require.Contains(t, message(english, "zh"), "不存在")
}

func TestMetricsNameServicesAndReasonsOnly(t *testing.T) {
	b := setup(t, nil)
	b.v1(http.MethodPost, "/v1/logins", nil, annLogin)
	b.decide(map[string]string{"X-Homenode-Service": "ai", "X-Homenode-Token": "t-ann"})
	b.decide(map[string]string{"X-Homenode-Service": "made-up-by-a-caller"})
	r := send(b.internal, http.MethodGet, "/metrics", nil, "")
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `homenode_decisions_total{result="bound",service="ai"} 1`)
	require.Contains(t, string(body), `homenode_logins_total{result="created",service="ai"} 1`)
	require.Contains(t, string(body), `homenode_node_up{node="n1",service="ai"} 1`)
	for _, never := range []string{"t-ann", "made-up", secret, adminToken, "9007199254740993"} {
		require.NotContains(t, string(body), never)
	}
}

func FuzzDecide(f *testing.F) {
	b := setup(f, nil)
	f.Add("ai", "/js/a/x?x-token=t", "GET", "t", "", false)
	f.Add("", "/js/a/sys/login", "POST", "", "ann", true)
	f.Add("", "/%zz", "", "%zz", "%00", true)
	f.Fuzz(func(t *testing.T, service, uri, method, token, username string, login bool) {
		header := map[string]string{"X-Homenode-Service": service, "X-Forwarded-Uri": uri, "X-Forwarded-Method": method, "X-Homenode-Token": token, "x-token": token, "Cookie": "x-token=" + token}
		if login {
			header["X-Homenode-Username"] = username
		}
		r := b.decide(header)
		if r.Code == http.StatusOK {
			require.Contains(t, []string{"n1", "n2"}, r.Header().Get("X-Gateway-Node"))
			require.Empty(t, r.Header().Get("X-User-Id"), "nobody has logged in")
		} else {
			require.NotEqual(t, http.StatusInternalServerError, r.Code, r.Body.String())
			require.NotEmpty(t, r.Header().Get("X-Gateway-Reason"))
			require.Empty(t, r.Header().Get("X-Gateway-Node"))
		}
	})
}

func FuzzLogin(f *testing.F) {
	b := setup(f, nil)
	f.Add(annLogin)
	f.Add(`{"service":"ai","node":"n1","token":"` + "\x00" + `","userId":"\ud800"}`)
	f.Fuzz(func(t *testing.T, body string) {
		r := b.v1(http.MethodPost, "/v1/logins", nil, body)
		require.Contains(t, []int{http.StatusOK, http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge}, r.Code, r.Body.String())
	})
}
