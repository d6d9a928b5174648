package cli_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func TestListServices(t *testing.T) {
	s := service("ai")
	s.Nodes = &[]api.Node{node("node-1"), node("node-2")}
	s.DefaultNodeID = to("node-1")
	for _, args := range [][]string{{"services"}, {"services", "list"}} {
		g := setup(t)
		g.answers["listServices"] = data([]api.Service{s})
		table := lines(g.done(args...).out)
		require.Len(t, table, 2)
		require.Equal(t, []string{"ai", "AI", "服务", "/js/a", "/sys/login", "/actuator/health", "node-1", "round-robin", "yes", "2"}, fields(table[1]))

		var parsed []api.Service
		require.NoError(t, json.Unmarshal([]byte(g.done(append(args, "-o", "json")...).out), &parsed))
		require.Equal(t, []api.Service{s}, parsed)
	}
}

func TestAddService(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		body  string
	}{
		{"least", nil, `{"id":"ai","pathPrefix":"/js/a"}`},
		{"all", []string{
			"--name", "AI", "--login-path", "/l", "--logout-path", "/o", "--health-path", "/h", "--placement", "weighted", "--default-node", "node-1", "--disabled",
		}, `{"id":"ai","pathPrefix":"/js/a","name":"AI","loginPath":"/l","logoutPath":"/o","healthPath":"/h","placement":"weighted","defaultNodeId":"node-1","enabled":false}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["createService"] = data(service("ai"))
			o := g.done(append([]string{"services", "add", "ai", "--path-prefix", "/js/a"}, c.flags...)...)
			require.Contains(t, o.out, "/js/a")
			require.JSONEq(t, c.body, g.last().body)
		})
	}
}

func TestChangesStartFromWhatTheAdministratorSaw(t *testing.T) {
	for _, c := range []struct {
		name       string
		args       []string
		operations []string
		etag, body string
	}{
		{"clear the default node", []string{"services", "set", "ai", "--default-node", ""}, []string{"getService", "updateService"}, `"s-1"`, `{"defaultNodeId":null}`},
		{"set the default node", []string{"services", "set", "ai", "--default-node", "node-1"}, []string{"getService", "updateService"}, `"s-1"`, `{"defaultNodeId":"node-1"}`},
		{"enable", []string{"services", "set", "ai", "--enabled"}, []string{"getService", "updateService"}, `"s-1"`, `{"enabled":true}`},
		{"disable", []string{"services", "set", "ai", "--enabled=false"}, []string{"getService", "updateService"}, `"s-1"`, `{"enabled":false}`},
		{"empty texts", []string{"services", "set", "ai", "--name", "", "--logout-path="}, []string{"getService", "updateService"}, `"s-1"`, `{"name":"","logoutPath":""}`},
		{"drain", []string{"nodes", "set", "node-1", "--accept-new=false", "--weight", "3"}, []string{"getNode", "updateNode"}, `"n-1"`, `{"acceptNew":false,"weight":3}`},
		{"disable a node", []string{"nodes", "set", "node-1", "--disabled", "--remark", "换盘"}, []string{"getNode", "updateNode"}, `"n-1"`, `{"enabled":false,"remark":"换盘"}`},
		{
			"move a node", []string{"nodes", "set", "node-1", "--base-url", "http://b:1", "--name", "n", "--traefik-service", "n@docker", "--enabled"},
			[]string{"getNode", "updateNode"}, `"n-1"`, `{"baseUrl":"http://b:1","name":"n","traefikService":"n@docker","enabled":true}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["getService"], g.answers["updateService"] = data(service("ai")), data(service("ai"))
			g.answers["getNode"], g.answers["updateNode"] = data(node("node-1")), data(node("node-1"))
			g.done(c.args...)
			require.Equal(t, c.operations, g.operations())
			require.Equal(t, c.etag, g.last().header.Get("If-Match"))
			require.JSONEq(t, c.body, g.last().body)
		})
	}
}

func TestAChangeThatSomebodyElseOvertookIsRefused(t *testing.T) {
	g := setup(t)
	g.answers["getService"], g.answers["getNode"] = data(service("ai")), data(node("node-1"))
	g.answers["updateService"] = refuse(http.StatusPreconditionFailed, "PRECONDITION_FAILED", "changed")
	g.answers["updateNode"] = g.answers["updateService"]
	for _, args := range [][]string{{"services", "set", "ai", "--name", "x"}, {"nodes", "set", "node-1", "--name", "x"}} {
		o := g.run(args...)
		require.Equal(t, cli.ExitFailed, o.code)
		require.Contains(t, o.err, "look at it again")
	}
}

func TestChangeOfWhatDoesNotExist(t *testing.T) {
	g := setup(t)
	g.answers["getNode"] = refuse(http.StatusNotFound, "NOT_FOUND", "no such node")
	o := g.run("nodes", "set", "node-9", "--weight", "2")
	require.Equal(t, cli.ExitFailed, o.code)
	require.Contains(t, o.err, "no such node (NOT_FOUND, request r-1)")
}

func TestDelete(t *testing.T) {
	g := setup(t)
	g.answers["deleteService"], g.answers["deleteNode"] = data(nil), data(nil)
	require.Equal(t, "service ai is deleted\n", g.done("services", "delete", "ai").out)
	require.Equal(t, "node node-1 is deleted\n", g.done("nodes", "delete", "node-1").out)
	require.Equal(t, "null\n", g.done("nodes", "delete", "node-1", "-o", "json").out)
	require.Equal(t, []string{"deleteService", "deleteNode", "deleteNode"}, g.operations())
}

func TestNodes(t *testing.T) {
	g := setup(t)
	g.answers["listNodes"] = data([]api.Node{node("node-1")})
	table := lines(g.done("nodes").out)
	require.Equal(t, []string{"node-1", "ai", "节点", "http://10.0.0.7:8980", "UP", "yes", "yes", "1"}, fields(table[1]))
	require.NotContains(t, g.last().url, "serviceId")
	g.done("nodes", "list", "--service", "ai")
	require.Contains(t, g.last().url, "serviceId=ai")
	g.done("nodes", "--service", "ai")
	require.Contains(t, g.last().url, "serviceId=ai")

	g.answers["createNode"] = data(node("node-2"))
	g.done("nodes", "add", "ai", "node-2", "--base-url", "http://b:1", "--name", "n", "--weight", "2", "--accept-new=false",
		"--traefik-service", "n@docker", "--remark", "r", "--disabled")
	require.Contains(t, g.last().url, "/services/ai/nodes")
	require.JSONEq(t, `{"id":"node-2","baseUrl":"http://b:1","name":"n","weight":2,"acceptNew":false,"traefikService":"n@docker","remark":"r","enabled":false}`, g.last().body)
	g.done("nodes", "add", "ai", "node-2", "--base-url", "http://b:1")
	require.JSONEq(t, `{"id":"node-2","baseUrl":"http://b:1"}`, g.last().body)
}

func TestCheckNode(t *testing.T) {
	g := setup(t)
	g.answers["checkNode"] = data(api.Health{State: api.DOWN, Since: to(moment), CheckedAt: to(moment), Failures: 3, LastError: "connection refused"})
	o := g.done("nodes", "check", "node-1")
	require.Regexp(t, `node-1 +DOWN +\S+ \S+ +\S+ \S+ +3 +connection refused`, o.out)
	var health api.Health
	require.NoError(t, json.Unmarshal([]byte(g.done("nodes", "check", "node-1", "-o", "json").out), &health))
	require.Equal(t, api.DOWN, health.State)
}

func TestReload(t *testing.T) {
	g := setup(t)
	g.answers["reload"] = data(nil)
	require.Contains(t, g.done("reload").out, "read")
}
