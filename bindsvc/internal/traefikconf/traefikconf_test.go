package traefikconf

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

func build(services []gateway.Service, nodes []gateway.Node, change func(*Settings)) HTTP {
	return buildWith(policy.Empty(), services, nodes, change)
}

func buildWith(policies *policy.Snapshot, services []gateway.Service, nodes []gateway.Node, change func(*Settings)) HTTP {
	s := Settings{
		Plugin: "homenode", Endpoint: "http://127.0.0.1:9090", ServiceURL: "http://127.0.0.1:9090", AdminURL: "http://127.0.0.1:9091",
		EntryPoints: []string{"web"}, NoRoute: true, CircuitBreaker: "NetworkErrorRatio() > 0.30",
	}
	if change != nil {
		change(&s)
	}
	return Build(registry.NewSnapshot(services, nodes), policies, s).HTTP
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
			require.Regexp(t, "&& Header\\(`(X-Gateway-Node|X-Homenode-Pool)`, `[^`]+`\\)( && Header\\(`X-Homenode-Client`, `1`\\))?$", router.Rule, name)
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
	require.Equal(t, []string{"node-1~node", fallbackName}, child.Middlewares)
	require.Equal(t, []string{"node-1~node", breakerName}, http.Services["ai-node-1"].Middlewares, "one breaker per node, not per router")
	require.NotContains(t, http.Routers, "ai-node-1~client", "no client reads business codes")
	require.NotContains(t, http.Middlewares, clientFallbackName)
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
	require.Equal(t, []WeightedService{{Name: "node-1@docker", Weight: 1}}, http.Services["ai-node-1"].Weighted.Services)
	require.Equal(t, []string{"node-1~node", breakerName}, http.Services["ai-node-1"].Middlewares)
	require.Equal(t, "ai-node-1", http.Routers["ai-node-1"].Service)
	require.Equal(t, "ai-node-1", http.Services["ai~pool"].Weighted.Services[0].Name)
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

// policies returns the snapshot of the policies, by kind, each for the services that its body names.
func policies(t *testing.T, bodies map[gateway.PolicyKind]string) *policy.Snapshot {
	t.Helper()
	var changes []gateway.PolicyChange
	for kind, body := range bodies {
		changes = append(changes, gateway.PolicyChange{Kind: kind, ID: "main", Body: json.RawMessage(body)})
	}
	snapshot := policy.NewKeeper(policy.Parts{}).Would(changes)
	require.Empty(t, snapshot.Problems)
	return snapshot
}

func TestABreakerOfItsOwn(t *testing.T) {
	const expression = "ResponseCodeRatio(500, 600, 0, 600) > 0.30"
	services := []gateway.Service{service("ai", "/js/a"), service("other", "/js/b")}
	nodes := []gateway.Node{node("node-1", "ai"), node("node-2", "other")}
	of := func(http HTTP, name string) []any {
		var expressions []any
		for _, middleware := range http.Services[name].Middlewares {
			if breaker, ok := http.Middlewares[middleware]["circuitBreaker"]; ok {
				expressions = append(expressions, breaker.(map[string]any)["expression"])
			}
		}
		return expressions
	}
	own := policies(t, map[gateway.PolicyKind]string{gateway.PolicyDegradation: `{"services":["ai"],"breaker":"` + expression + `"}`})

	http := buildWith(own, services, nodes, nil)
	requireGuarded(t, http)
	require.Equal(t, []any{expression}, of(http, "ai-node-1"))
	require.Equal(t, []any{"NetworkErrorRatio() > 0.30"}, of(http, "other-node-2"))

	http = buildWith(own, services, nodes, func(s *Settings) { s.CircuitBreaker = "" })
	require.Equal(t, []any{expression}, of(http, "ai-node-1"))
	require.Empty(t, of(http, "other-node-2"))

	http = buildWith(own, services, nodes, func(s *Settings) { s.CircuitBreaker = expression })
	require.Equal(t, http.Services["other-node-2"].Middlewares[1:], http.Services["ai-node-1"].Middlewares[1:], "the same one where they do not differ")

	off := policies(t, map[gateway.PolicyKind]string{gateway.PolicyDegradation: `{"enabled":false,"breaker":"` + expression + `"}`})
	require.Equal(t, build(services, nodes, nil), buildWith(off, services, nodes, nil))
}

func TestABreakerOfAServiceThatIsCalledHomenode(t *testing.T) {
	const expression = "ResponseCodeRatio(500, 600, 0, 600) > 0.30"
	own := policies(t, map[gateway.PolicyKind]string{gateway.PolicyDegradation: `{"services":["homenode"],"breaker":"` + expression + `"}`})
	http := buildWith(own, []gateway.Service{service("homenode", "/js/a"), service("other", "/js/b")}, []gateway.Node{node("node-1", "homenode")}, nil)
	requireGuarded(t, http)
	require.Equal(t, breaker("NetworkErrorRatio() > 0.30"), http.Middlewares[breakerName], "the others keep theirs")
	require.Equal(t, breaker(expression), http.Middlewares[http.Services["homenode-node-1"].Middlewares[1]])
}

func TestClientsThatReadBusinessCodes(t *testing.T) {
	services := []gateway.Service{service("ai", "/js/a"), service("other", "/js/b")}
	nodes := []gateway.Node{node("node-1", "ai"), node("node-2", "other")}
	http := buildWith(policies(t, map[gateway.PolicyKind]string{
		gateway.PolicyAnswers: `{"services":["ai"],"sourceHeader":"X-Client","clientSources":["app"]}`,
	}), services, nodes, nil)
	requireGuarded(t, http)

	usual, client := http.Routers["ai-node-1"], http.Routers["ai-node-1~client"]
	require.Equal(t, usual.Rule+" && Header(`X-Homenode-Client`, `1`)", client.Rule)
	require.Greater(t, client.Priority, usual.Priority)
	require.Equal(t, usual.ParentRefs, client.ParentRefs)
	require.Equal(t, usual.Service, client.Service, "and so the same circuit breaker")
	require.Equal(t, []string{"node-1~node", clientFallbackName}, client.Middlewares)
	require.NotContains(t, http.Routers, "other-node-2~client")

	encoded, err := json.Marshal(http.Middlewares)
	require.NoError(t, err)
	var middlewares map[string]struct{ Errors map[string]any }
	require.NoError(t, json.Unmarshal(encoded, &middlewares))
	carried := []any{"Accept-Language", "X-Request-Id", "X-Homenode-Fallback", "X-Homenode-Client"}
	require.Equal(t, map[string]any{
		"status": []any{"502-504"}, "service": internalService, "query": "/v1/fallback?status={status}", "errorRequestHeaders": carried,
	}, middlewares[fallbackName].Errors, "no {url}, and no other header of the client's")
	require.Equal(t, map[string]any{
		"status": []any{"502-504"}, "service": internalService, "query": "/v1/fallback?status={originalStatus}", "errorRequestHeaders": carried,
		"statusRewrites": map[string]any{"502-504": 200.0},
	}, middlewares[clientFallbackName].Errors)

	none := policies(t, map[gateway.PolicyKind]string{gateway.PolicyAnswers: `{"codes":{"RATE_LIMITED":42901}}`})
	require.Equal(t, build(services, nodes, nil), buildWith(none, services, nodes, nil), "codes alone change nothing here")
}

// While the binding service cannot be asked nothing may go around a guard that fails closed.
func TestAClosedServiceHasNoPool(t *testing.T) {
	services := []gateway.Service{service("ai", "/js/a"), service("other", "/js/b")}
	nodes := []gateway.Node{node("node-1", "ai"), node("node-2", "other")}
	for kind, body := range map[gateway.PolicyKind]string{
		gateway.PolicyIdentity:  `{"services":["ai"],"mode":"token"}`,
		gateway.PolicySignature: `{"services":["ai"],"paths":["/js/a/open/**"]}`,
		gateway.PolicyAccess:    `{"services":["ai"],"type":"rbac","path":"/js/a/x","roles":["admin"]}`,

		gateway.PolicyMaintenance: `{"services":["ai"]}`,
	} {
		http := buildWith(policies(t, map[gateway.PolicyKind]string{kind: body}), services, nodes, nil)
		requireGuarded(t, http)
		require.NotContains(t, http.Routers, "ai~pool", kind)
		require.NotContains(t, http.Services, "ai~pool", kind)
		require.Equal(t, true, http.Middlewares["ai~plugin"]["plugin"].(map[string]any)["homenode"].(map[string]any)["closed"], kind)
		require.Contains(t, http.Routers, "other~pool", kind)
	}
	open := map[gateway.PolicyKind]string{
		gateway.PolicyIdentity: `{"mode":"passthrough","blacklist":true}`, gateway.PolicyMaintenance: `{"paths":["/js/a/x"]}`, gateway.PolicyRateLimit: `{"path":"/js/a","rate":1}`,
	}
	require.Equal(t, build(services, nodes, nil), buildWith(policies(t, open), services, nodes, nil))
}
