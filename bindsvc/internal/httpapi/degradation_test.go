package httpapi_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/decide"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/httpapi"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/registry"
	"github.com/homenode/homenode/bindsvc/internal/sqlite"
)

const (
	degradation = `{"services":["ai"],"core":["^/js/a/orders(/|$)"],"coreCode":70001,"coreMessage":{"zh":"请重试","en":"Try again"},` +
		`"code":70002,"message":{"zh":"服务繁忙中","en":"Busy"}}`
	answers = `{"services":["ai"],"sourceHeader":"X-Client","clientSources":["app"]}`
)

// degrading is a service that routes anonymous requests to the one node of "ai", below
// /js/a, and the one of "plain", below /plain, under the policies.
func degrading(t testing.TB, nodeURL string, policies map[gateway.PolicyKind]string) http.Handler {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "homenode.db"), sqlite.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	service := func(id, prefix string) gateway.Service {
		return gateway.Service{ID: id, PathPrefix: prefix, LoginPath: "/login", HealthPath: "/h", Enabled: true, Login: gateway.DefaultLoginFields()}
	}
	nodes := registry.New(store, registry.Options{
		PollInterval: time.Hour,
		Health:       registry.HealthOptions{Interval: time.Hour, Timeout: time.Second, Failures: 3, Successes: 1},
		Seed: func() ([]gateway.Service, []gateway.Node) {
			return []gateway.Service{service("ai", "/js/a"), service("plain", "/plain")}, []gateway.Node{
				{ID: "n1", ServiceID: "ai", BaseURL: nodeURL, Enabled: true}, {ID: "n2", ServiceID: "plain", BaseURL: nodeURL, Enabled: true},
			}
		},
	}, log, time.Now)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- nodes.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	<-nodes.Ready()

	keeper := policy.NewKeeper(policy.Parts{Store: store, Log: log, Now: time.Now})
	var wishes []policy.Wish
	for kind, body := range policies {
		wishes = append(wishes, policy.Wish{Kind: kind, ID: "main", Body: json.RawMessage(body)})
	}
	_, err = keeper.Change(ctx, wishes)
	require.NoError(t, err)
	require.NoError(t, keeper.Refresh(ctx))
	guards := guard.NewChain(guard.Parts{}, keeper.Snapshot, log, time.Now)
	server, err := httpapi.New(httpapi.Options{Secret: secret, Messages: "zh", TraefikPoll: 5 * time.Second}, httpapi.Parts{
		Registry: nodes, Decider: decide.New(nodes, guards, nil), Store: store, Policies: keeper, Guards: guards, Log: log,
	})
	require.NoError(t, err)
	return server.Internal()
}

func aNode(t testing.TB) string {
	t.Helper()
	node := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(node.Close)
	return node.URL
}

// bothPolicies are those of "ai".
var bothPolicies = map[gateway.PolicyKind]string{gateway.PolicyDegradation: degradation, gateway.PolicyAnswers: answers}

func TestTheFallbackAnswersByTheOriginalPath(t *testing.T) {
	service := degrading(t, aNode(t), bothPolicies)
	for status, reason := range map[int]string{502: "NODE_UNREACHABLE", 503: "DEGRADED", 504: "NODE_TIMEOUT"} {
		for name, test := range map[string]struct {
			header, url string
			code        int // 0: the status
			zh, en      string
		}{
			"core":                    {header: "ai;core", code: 70001, zh: "请重试", en: "Try again"},
			"another path":            {header: "ai", code: 70002, zh: "服务繁忙中", en: "Busy"},
			"no policy":               {header: "plain"},
			"a core path, no policy":  {header: "plain;core"},
			"an unknown service":      {header: "nobody"},
			"malformed":               {header: "ai;core;core"},
			"malformed, with a url":   {header: "; drop", url: "http://x/js/a/orders"},
			"huge":                    {header: strings.Repeat("ai", 100_000)},
			"nothing told":            {},
			"core by url":             {url: "http://x/js/a/orders/7?x-token=secret#/js/a/list", code: 70001, zh: "请重试", en: "Try again"},
			"another by url":          {url: "https://x/js/a/list?/js/a/orders", code: 70002, zh: "服务繁忙中", en: "Busy"},
			"by a path":               {url: "/js/a/orders", code: 70001, zh: "请重试", en: "Try again"},
			"by an odd spelling":      {url: "/js/a/./x/..//orders/;v=1/", code: 70001, zh: "请重试", en: "Try again"},
			"by an encoded path":      {url: "http://x/js/a/%6frders", code: 70001, zh: "请重试", en: "Try again"},
			"url of no policy":        {url: "http://x/plain/orders"},
			"url of no service":       {url: "http://x/js/apple"},
			"the header decides":      {header: "ai", url: "http://x/js/a/orders", code: 70002, zh: "服务繁忙中", en: "Busy"},
			"url that is none":        {url: "http://[::1/%zz"},
			"url without a path":      {url: "javascript:alert(1)"},
			"url with a control byte": {url: "http://x/js/a/orders\r\nX-Forged: 1"},
			"huge url":                {url: "http://x/js/a/orders?" + strings.Repeat("q", 200_000)},
		} {
			for language, message := range map[string]string{"zh-CN": test.zh, "en": test.en} {
				t.Run(strconv.Itoa(status)+" "+name+" "+language, func(t *testing.T) {
					header := map[string]string{"Accept-Language": language}
					if test.header != "" {
						header["X-Homenode-Fallback"] = test.header
					}
					r := send(service, http.MethodGet, "/v1/fallback?status="+strconv.Itoa(status)+"&url="+url.QueryEscape(test.url), header, "")
					require.Equal(t, status, r.Code)
					require.Equal(t, reason, r.Header().Get("X-Gateway-Reason"))
					require.NotEmpty(t, r.Header().Get("Retry-After"))
					require.Empty(t, r.Header().Get("X-Forged"))
					e, data := open(t, r)
					require.Equal(t, reason, data["reason"])
					require.NotContains(t, r.Body.String(), "secret")
					if test.code == 0 {
						require.Equal(t, status, e.Code)
						require.NotContains(t, []string{"", "请重试", "Try again", "服务繁忙中", "Busy"}, e.Message)
						return
					}
					require.Equal(t, test.code, e.Code)
					require.Equal(t, message, e.Message)
				})
			}
		}
	}
}

func TestTwoFallbackHeadersSayNothing(t *testing.T) {
	service := degrading(t, aNode(t), bothPolicies)
	request := httptest.NewRequest(http.MethodGet, "/v1/fallback?status=503", nil)
	request.Header["X-Homenode-Fallback"] = []string{"ai;core", "ai"}
	r := httptest.NewRecorder()
	service.ServeHTTP(r, request)
	requireRefused(t, r, gateway.Degraded)
}

func TestWhatADegradationPolicyLeavesOut(t *testing.T) {
	service := degrading(t, aNode(t), map[gateway.PolicyKind]string{gateway.PolicyDegradation: `{"core":["^/js/a/orders"],"message":{"en":"Busy"}}`})
	for told, message := range map[string]string{"ai;core": "The service is busy. Please try again later.", "ai": "Busy"} {
		r := send(service, http.MethodGet, "/v1/fallback?status=503", map[string]string{"X-Homenode-Fallback": told, "Accept-Language": "en"}, "")
		requireRefused(t, r, gateway.Degraded)
		e, _ := open(t, r)
		require.Equal(t, message, e.Message)
	}
}

func TestClientsOfBusinessCodesGetHTTP200(t *testing.T) {
	service := degrading(t, aNode(t), bothPolicies)
	for told, code := range map[string]int{"ai;core": 70001, "ai": 70002, "": 502} {
		r := send(service, http.MethodGet, "/v1/fallback?status=502", map[string]string{"X-Homenode-Fallback": told, "X-Homenode-Client": "1"}, "")
		require.Equal(t, http.StatusOK, r.Code)
		require.Equal(t, "NODE_UNREACHABLE", r.Header().Get("X-Gateway-Reason"))
		e, _ := open(t, r)
		require.Equal(t, code, e.Code)
	}
	r := send(service, http.MethodGet, "/v1/fallback/not-known?url=/js/a/list", map[string]string{"X-Homenode-Fallback": "ai;core", "X-Homenode-Client": "1"}, "")
	require.Equal(t, http.StatusOK, r.Code)
	e, data := open(t, r)
	require.Equal(t, 70001, e.Code)
	require.Equal(t, "NODE_UNKNOWN", data["reason"])
	requireRefused(t, send(service, http.MethodGet, "/v1/fallback/not-known?url=/js/a/orders", nil, ""), gateway.NodeUnknown)
}

func TestTheDecisionTellsTheFallback(t *testing.T) {
	ask := func(service http.Handler, path, source string) http.Header {
		r := send(service, http.MethodGet, "/v1/decide", map[string]string{"Authorization": "Bearer " + secret, "X-Forwarded-Uri": path, "X-Client": source}, "")
		require.Equal(t, http.StatusOK, r.Code, r.Body.String())
		return r.Header()
	}
	service := degrading(t, aNode(t), bothPolicies)
	require.Equal(t, "ai;core", ask(service, "/js/a/orders/7?token=t", "").Get("X-Homenode-Fallback"))
	require.Equal(t, "ai", ask(service, "/js/a/ordersomething", "").Get("X-Homenode-Fallback"))
	require.NotContains(t, ask(service, "/plain/orders", ""), "X-Homenode-Fallback", "nothing is agreed for it")
	for source, want := range map[string]string{"app": "1", "web": "", "": ""} {
		require.Equal(t, want, ask(service, "/js/a/x", source).Get("X-Homenode-Client"), source)
		require.Empty(t, ask(service, "/plain/x", source).Get("X-Homenode-Client"))
	}
	require.Equal(t, "ai", ask(degrading(t, aNode(t), map[gateway.PolicyKind]string{gateway.PolicyAnswers: answers}), "/js/a/orders", "").Get("X-Homenode-Fallback"))
	require.NotContains(t, ask(degrading(t, aNode(t), nil), "/js/a/orders", "app"), "X-Homenode-Fallback")
}

// What the gateway itself knows of a failing node is answered like what Traefik finds out.
func TestADecisionAboutAFailingNode(t *testing.T) {
	nobody := httptest.NewServer(nil)
	nobody.Close()
	ask := func(service http.Handler, path, source string) (*httptest.ResponseRecorder, envelope) {
		r := send(service, http.MethodGet, "/v1/decide", map[string]string{
			"Authorization": "Bearer " + secret, "X-Forwarded-Uri": path, "X-Client": source, "Accept-Language": "en",
		}, "")
		require.Equal(t, http.StatusServiceUnavailable, r.Code)
		require.Equal(t, "NO_HEALTHY_NODE", r.Header().Get("X-Gateway-Reason"))
		e, _ := open(t, r)
		return r, e
	}
	service := degrading(t, nobody.URL, bothPolicies)
	for source, clientStatus := range map[string]string{"app": "200", "web": ""} {
		r, e := ask(service, "/js/a/orders", source)
		require.Equal(t, clientStatus, r.Header().Get("X-Homenode-Client-Status"))
		require.Equal(t, 70001, e.Code)
		require.Equal(t, "Try again", e.Message)
		r, e = ask(service, "/js/a/list", source)
		require.Equal(t, clientStatus, r.Header().Get("X-Homenode-Client-Status"))
		require.Equal(t, 70002, e.Code)
		require.Equal(t, "Busy", e.Message)
		r, e = ask(service, "/plain/orders", source)
		require.Empty(t, r.Header().Get("X-Homenode-Client-Status"))
		require.Equal(t, http.StatusServiceUnavailable, e.Code)
	}
	r, e := ask(degrading(t, nobody.URL, map[gateway.PolicyKind]string{gateway.PolicyAnswers: answers}), "/js/a/orders", "app")
	require.Equal(t, "200", r.Header().Get("X-Homenode-Client-Status"), "as Traefik's fallback")
	require.Equal(t, http.StatusServiceUnavailable, e.Code)
}

func FuzzFallback(f *testing.F) {
	service := degrading(f, aNode(f), bothPolicies)
	f.Add("503", "http://x/js/a/orders?a=b", "ai;core", "1")
	f.Add("502", "//js/a", ";core", "")
	f.Add("-1", "%zz", "ai;", "0")
	f.Fuzz(func(t *testing.T, status, address, told, client string) {
		r := send(service, http.MethodGet, "/v1/fallback?status="+url.QueryEscape(status)+"&url="+url.QueryEscape(address),
			map[string]string{"X-Homenode-Fallback": told, "X-Homenode-Client": client}, "")
		require.NotEmpty(t, r.Header().Get("X-Gateway-Reason"))
		e, _ := open(t, r)
		require.NotEmpty(t, e.Message)
		require.NotZero(t, e.Code)
	})
}
