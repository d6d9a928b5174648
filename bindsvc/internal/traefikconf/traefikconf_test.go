package traefikconf

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

func build(services []gateway.Service, nodes []gateway.Node, change func(*Settings)) HTTP {
	s := Settings{
		Plugin: "homenode", Endpoint: "http://127.0.0.1:9090", ServiceURL: "http://127.0.0.1:9090", AdminURL: "http://127.0.0.1:9091",
		EntryPoints: []string{"web"}, NoRoute: true, CircuitBreaker: "NetworkErrorRatio() > 0.30",
	}
	if change != nil {
		change(&s)
	}
	return Build(registry.NewSnapshot(services, nodes), s).HTTP
}

func service(id, prefix string) gateway.Service {
	return gateway.Service{ID: id, PathPrefix: prefix, LoginPath: "/sys/login", HealthPath: "/health", Enabled: true, Login: gateway.DefaultLoginFields()}
}

func node(id, serviceID string) gateway.Node {
	return gateway.Node{ID: id, ServiceID: serviceID, BaseURL: "http://127.0.0.1:1", Enabled: true}
}

// Every router that leads to a node must be a child of a router with the plugin,
// repeat its rule, and match only on headers that the plugin alone can set.
func requireGuarded(t *testing.T, http HTTP) {
	t.Helper()
	for name, router := range http.Routers {
		require.NotEmpty(t, router.Rule, name)
		require.Positive(t, router.Priority, name)
		for _, middleware := range router.Middlewares {
			require.Contains(t, http.Middlewares, middleware, name)
		}
		if len(router.ParentRefs) == 0 {
			public := router.Service == internalService || router.Service == adminService
			if !public {
				require.Empty(t, router.Service, "%s leads to a node without a parent", name)
				require.Len(t, router.Middlewares, 1, name)
				require.Contains(t, http.Middlewares[router.Middlewares[0]], "plugin", name)
			}
			continue
		}
		require.Len(t, router.ParentRefs, 1, name)
		parent := http.Routers[router.ParentRefs[0]]
		require.NotNil(t, parent, name)
		require.Empty(t, parent.ParentRefs, name)
		require.Contains(t, router.Rule, parent.Rule, name)
		require.Empty(t, router.EntryPoints, name)
		require.Nil(t, router.TLS, name)
		if router.Service != internalService {
			require.Regexp(t, "&& Header\\(`(X-Gateway-Node|X-Homenode-Pool)`, `[^`]+`\\)$", router.Rule, name)
		}
		if !strings.Contains(router.Service, "@") {
			require.Contains(t, http.Services, router.Service, name)
		}
	}
}

func TestOneServiceTwoNodes(t *testing.T) {
	off := node("node-3", "ai")
	off.Enabled = false
	http := build([]gateway.Service{service("ai", "/js/a")}, []gateway.Node{node("node-1", "ai"), node("node-2", "ai"), off}, nil)
	requireGuarded(t, http)

	parent := http.Routers["ai"]
	require.Equal(t, "Path(`/js/a`) || PathPrefix(`/js/a/`)", parent.Rule)
	child := http.Routers["ai-node-1"]
	require.Equal(t, "("+parent.Rule+") && Header(`X-Gateway-Node`, `node-1`)", child.Rule)
	require.Equal(t, []string{"node-1~node", fallbackName, breakerName}, child.Middlewares)
	require.NotContains(t, http.Routers, "ai-node-3", "a disabled node has no router")
	require.Len(t, http.Services["ai~pool"].Weighted.Services, 2)
	require.Less(t, http.Routers["ai~not-known"].Priority, child.Priority)
}

func TestOfNestedPrefixesTheLongestWins(t *testing.T) {
	http := build([]gateway.Service{service("a", "/js"), service("b", "/js/a"), service("root", "/")}, nil, nil)
	requireGuarded(t, http)
	require.Greater(t, http.Routers["b"].Priority, http.Routers["a"].Priority)
	require.Greater(t, http.Routers["a"].Priority, http.Routers["root"].Priority)
	require.Greater(t, http.Routers["root"].Priority, http.Routers[noRouteName].Priority)
	require.Equal(t, 1, http.Routers[noRouteName].Priority)
}

func TestNamesNeverCollide(t *testing.T) {
	http := build(
		[]gateway.Service{service("a", "/a"), service("a-b", "/b"), service("a-x", "/x")},
		[]gateway.Node{node("b-c", "a"), node("c", "a-b"), node("x", "a")}, nil)
	requireGuarded(t, http)
	leads := map[string]string{}
	for name, router := range http.Routers {
		if at := strings.Index(router.Rule, "X-Gateway-Node"); at >= 0 {
			leads[router.Rule[at:]] = name
		}
	}
	require.Len(t, leads, 3, "each node has a router of its own")
	require.Empty(t, http.Routers["a-x"].ParentRefs, "a service keeps its name")
}

func TestADisabledServiceHasNoRoute(t *testing.T) {
	off := service("ai", "/js/a")
	off.Enabled = false
	http := build([]gateway.Service{off}, []gateway.Node{node("node-1", "ai")}, nil)
	require.NotContains(t, http.Routers, "ai")
	closed := http.Routers["ai~closed"]
	require.Equal(t, internalService, closed.Service)
	require.Equal(t, []string{noRouteName}, closed.Middlewares, "its paths do not fall to a shorter prefix")
	require.Len(t, http.Services, 2)
}

func TestANodeOfAnotherProvider(t *testing.T) {
	docker := node("node-1", "ai")
	docker.TraefikService = "node-1@docker"
	http := build([]gateway.Service{service("ai", "/js/a")}, []gateway.Node{docker}, nil)
	requireGuarded(t, http)
	require.Equal(t, "node-1@docker", http.Routers["ai-node-1"].Service)
	require.Equal(t, "node-1@docker", http.Services["ai~pool"].Weighted.Services[0].Name)
}

func TestExtraRuleCannotWidenAPrefix(t *testing.T) {
	http := build([]gateway.Service{service("ai", "/js/a")}, []gateway.Node{node("node-1", "ai")}, func(s *Settings) {
		s.Rule = "Host(`a.example`) || Host(`b.example`)"
	})
	requireGuarded(t, http)
	require.Equal(t, "(Host(`a.example`) || Host(`b.example`)) && (Path(`/js/a`) || PathPrefix(`/js/a/`))", http.Routers["ai"].Rule)
}

func TestAnEmptyRegistryIsStillAConfiguration(t *testing.T) {
	http := build(nil, nil, func(s *Settings) { s.NoRoute, s.AdminURL, s.CircuitBreaker = false, "", "" })
	encoded, err := json.Marshal(Configuration{HTTP: http})
	require.NoError(t, err)
	require.NotContains(t, string(encoded), "{}", "Traefik rejects empty sections")
	require.Contains(t, string(encoded), internalService)
}

func TestAnEmptyTLSSectionIsTLS(t *testing.T) {
	http := build([]gateway.Service{service("ai", "/js/a")}, nil, func(s *Settings) { s.TLS = map[string]any{} })
	encoded, err := json.Marshal(http.Routers["ai"])
	require.NoError(t, err)
	require.Contains(t, string(encoded), `"tls":{}`)
	encoded, err = json.Marshal(http.Routers["ai~not-known"])
	require.NoError(t, err)
	require.NotContains(t, string(encoded), "tls", "a child has none")
}

func TestTheSecretIsNotInIt(t *testing.T) {
	encoded, err := json.Marshal(build([]gateway.Service{service("ai", "/js/a")}, nil, nil))
	require.NoError(t, err)
	require.NotContains(t, strings.ToLower(string(encoded)), "secret")
}
