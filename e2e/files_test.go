package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/traefikproc"
)

// repositoryFile returns a file of the checkout with every old text replaced by the
// new one after it. An old text that is not there fails the test: the file and the
// test no longer speak of the same thing.
func repositoryFile(t *testing.T, name string, oldNew ...string) string {
	t.Helper()
	root, err := traefikproc.Root()
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	content := string(raw)
	for i := 0; i < len(oldNew); i += 2 {
		require.Contains(t, content, oldNew[i], name)
		content = strings.ReplaceAll(content, oldNew[i], oldNew[i+1])
	}
	return content
}

// The gateway by hand: traefik/dynamic.yml for the file provider, no HTTP provider.
func TestTheFileProvidersExampleIsAWholeGateway(t *testing.T) {
	nodes := []*node{startNode(t, "node-1"), startNode(t, "node-2")}
	binding := startHomenode(t, stores{}, nodes, settings{extra: "decision: {maxAge: 0s, staleIfError: 0s}\n"})
	dynamic := repositoryFile(t, "traefik/dynamic.yml",
		"http://10.0.0.11:8080", nodes[0].url(), "http://10.0.0.12:8080", nodes[1].url(),
		"http://127.0.0.1:9090", binding.internal, "http://127.0.0.1:9091", binding.admin)
	traefik, err := traefikproc.Start(t.Context(), traefikproc.Options{
		Binary: programs.traefik, Dir: t.TempDir(), Secret: secret, DynamicFile: dynamic,
		EntryPoints: map[string]string{"web": ""},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		traefik.Kill()
		if t.Failed() {
			t.Logf("Traefik:\n%s", traefik.LogTail(60))
		}
	})
	s := &stack{nodes: nodes, binding: binding, traefik: traefik, client: newClient(traefik.URL("web"))}
	s.waitRouted(t, s.client)

	users := s.usersByNode(t, 3)
	for home, names := range users {
		for _, name := range names {
			require.Equal(t, home, binding.routes(t)[name], "the login bound")
			a := s.client.get("/js/a/whoami", tokenOf(name))
			require.Equal(t, home, a.node(), a)
			require.Equal(t, home, a.header.Get("X-Gateway-Node"))
			for _, forged := range []string{"X-Gateway-Node", "X_Gateway_Node", "X-User-Id", "X-Homenode-Pool"} {
				for _, value := range []string{"node-1", "node-2", "ai"} {
					a := s.client.do(http.MethodGet, "/js/a/whoami", tokenOf(name), nil, func(r *http.Request) { r.Header[forged] = []string{value} })
					require.Equal(t, home, a.node(), "%s: %s changes nothing: %s", forged, value, a)
					require.Equal(t, []string{userID(name)}, decodeEcho(t, a).Header["X-User-Id"])
				}
			}
		}
	}
	for path, status := range map[string]int{"/js/apple": http.StatusNotFound, "/v1/decide": http.StatusNotFound, "/gateway/admin/status": http.StatusUnauthorized} {
		require.Equal(t, status, s.client.get(path, "").status, path)
	}
	require.Equal(t, "NO_ROUTE", s.client.get("/js/apple", "").reason())

	nodes[0].stop()
	a := s.client.get("/js/a/whoami", tokenOf(users["node-1"][0]))
	require.Empty(t, a.node(), "no other node is tried: %s", a)
	require.Contains(t, []string{"NODE_UNREACHABLE", "NODE_DOWN"}, a.reason(), "the fallback answers: %s", a)
	nodes[0].up(t)
	require.Eventually(t, func() bool { return s.client.get("/js/a/whoami", tokenOf(users["node-1"][0])).node() == "node-1" }, 15*time.Second, 20*time.Millisecond)

	binding.administer(t, http.MethodPost, "/services/ai/nodes", map[string]any{"id": "node-3", "name": "in no file", "baseUrl": nodes[1].url(), "enabled": true})
	binding.administer(t, http.MethodPost, "/routes/bind", map[string]any{"serviceId": "ai", "userId": userID(users["node-2"][0]), "nodeId": "node-3"})
	require.Eventually(t, func() bool {
		a := s.client.get("/js/a/whoami", tokenOf(users["node-2"][0]))
		require.Empty(t, a.node(), "no other node is tried: %s", a)
		return a.status == http.StatusServiceUnavailable && a.reason() == "NODE_UNKNOWN"
	}, 30*time.Second, 50*time.Millisecond, "the catch-all child answers for a node that the file does not have")

	binding.Kill()
	seen := map[string]bool{}
	for range 10 {
		a := s.client.get("/js/a/whoami", "")
		require.Equal(t, http.StatusOK, a.status, a)
		seen[a.node()] = true
	}
	require.Len(t, seen, 2, "anonymous requests use the pool while the binding service is down")
	require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", s.client.get("/js/a/whoami", tokenOf(users["node-2"][1])).reason())
}

// traefik/traefik.yml starts a gateway: Traefik ignores no line of it, polls with the
// secret and loads the plugin.
func TestTheStaticConfigurationForProduction(t *testing.T) {
	nodes := []*node{startNode(t, "node-1"), startNode(t, "node-2")}
	binding := startHomenode(t, stores{}, nodes, settings{})
	web, api := freeAddr(t), freeAddr(t)
	traefik, err := traefikproc.Start(t.Context(), traefikproc.Options{
		Binary: programs.traefik, Dir: t.TempDir(), Secret: secret, EntryPoints: map[string]string{"web": web}, APIAddr: api,
		Static: repositoryFile(t, "traefik/traefik.yml",
			`":80"`, fmt.Sprintf("%q", web), "127.0.0.1:8080", api,
			"http://127.0.0.1:9090", binding.internal, "put-the-shared-secret-here", secret),
	})
	require.NoError(t, err, "Traefik refuses unknown keys, and starts without no plugin")
	t.Cleanup(func() {
		traefik.Kill()
		if t.Failed() {
			t.Logf("Traefik:\n%s", traefik.LogTail(60))
		}
	})
	s := &stack{nodes: nodes, binding: binding, traefik: traefik, client: newClient(traefik.URL("web"))}
	s.waitRouted(t, s.client)
	home := loginOK(t, s.client, "ann")
	a := s.client.do(http.MethodGet, "/js/a/whoami", tokenOf("ann"), nil, func(r *http.Request) {
		r.Header["X~Tenant"] = []string{"forged"}
		r.Header["X_Tenant"] = []string{"forged"}
	})
	require.Equal(t, home, a.node())
	for name := range decodeEcho(t, a).Header {
		require.NotContains(t, name, "Tenant", "aliasHeadersStrategy: delete")
	}
	require.Equal(t, http.StatusNotFound, statusOf(traefik.APIURL()+"/api/rawdata"), "Traefik's API is off")
}

// By default Traefik gives a request, its body included, a minute to arrive, and
// answers a longer upload with 504. The configurations take that limit away.
func TestAnUploadMayTakeAsLongAsItNeeds(t *testing.T) {
	web, api, nobody := freeAddr(t), freeAddr(t), "http://"+freeAddr(t)
	composed, _ := compose(t, composeSecrets)
	environment := replaced(t, composed.Services["traefik"].Environment, map[string]string{
		"TRAEFIK_ENTRYPOINTS_WEB_ADDRESS": web, "TRAEFIK_ENTRYPOINTS_TRAEFIK_ADDRESS": api,
		"TRAEFIK_PROVIDERS_HTTP_ENDPOINT": nobody, "TRAEFIK_PROVIDERS_DOCKER_ENDPOINT": nobody,
	})
	environment["TRAEFIK_API_INSECURE"] = "true"
	for name, options := range map[string]traefikproc.Options{
		"docker-compose.yml": {Environment: environment},
		"traefik/traefik.yml": {Static: repositoryFile(t, "traefik/traefik.yml",
			`":80"`, fmt.Sprintf("%q", web), "127.0.0.1:8080", api, "http://127.0.0.1:9090", nobody, "#   api: {", "api: {")},
		"of the demo and the tests": {Endpoint: nobody, PollInterval: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			options.Binary, options.Dir, options.Secret, options.APIAddr = programs.traefik, t.TempDir(), secret, api
			options.EntryPoints = map[string]string{"web": web}
			traefik, err := traefikproc.Start(t.Context(), options)
			require.NoError(t, err)
			t.Cleanup(traefik.Kill)
			entryPoint := get(t, traefik.APIURL()+"/api/entrypoints/web")
			require.Contains(t, entryPoint, `"idleTimeout":"3m0s"`)
			require.NotContains(t, entryPoint, "readTimeout", "left out where there is none")
		})
	}
}
