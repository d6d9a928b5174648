package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/proc"
	"github.com/homenode/homenode/internal/traefikproc"
)

// composition is docker-compose.yml as far as the tests look at it.
type composition struct {
	Name     string               `yaml:"name"`
	Services map[string]container `yaml:"services"`
	Volumes  map[string]any       `yaml:"volumes"`
}

type container struct {
	Image         string                       `yaml:"image"`
	Build         string                       `yaml:"build"`
	ContainerName string                       `yaml:"container_name"`
	Command       []string                     `yaml:"command"`
	Environment   map[string]string            `yaml:"environment"`
	Labels        map[string]string            `yaml:"labels"`
	Ports         []string                     `yaml:"ports"`
	Volumes       []string                     `yaml:"volumes"`
	Healthcheck   map[string]any               `yaml:"healthcheck"`
	DependsOn     map[string]map[string]string `yaml:"depends_on"`
}

var composeVariable = regexp.MustCompile(`\$\{([A-Z_]+)(:[?-])?([^}]*)\}|\$\$`)

// compose reads docker-compose.yml as docker compose does with these variables; the
// second result is every variable that must be set but is not.
func compose(t *testing.T, variables map[string]string) (composition, []string) {
	t.Helper()
	var missing []string
	content := composeVariable.ReplaceAllStringFunc(repositoryFile(t, "docker-compose.yml"), func(found string) string {
		parts := composeVariable.FindStringSubmatch(found)
		value := variables[parts[1]]
		switch {
		case found == "$$":
			return "$"
		case value == "" && parts[2] == ":-":
			return parts[3]
		case value == "" && parts[2] == ":?":
			missing = append(missing, parts[1])
		}
		return value
	})
	var c composition
	require.NoError(t, yaml.Unmarshal([]byte(content), &c))
	return c, missing
}

var composeSecrets = map[string]string{
	"HOMENODE_SECRET": secret, "HOMENODE_ADMIN_TOKEN": adminToken, "POSTGRES_PASSWORD": "a-password-for-postgres", "REDIS_PASSWORD": "a-password-for-redis",
}

func TestComposeAsksForEverySecretOfTheExample(t *testing.T) {
	_, missing := compose(t, nil)
	asked := map[string]bool{}
	for _, name := range missing {
		asked[name] = true
	}
	inExample := map[string]bool{}
	for _, line := range strings.Split(repositoryFile(t, ".env.example"), "\n") {
		if name, isEmpty := strings.CutSuffix(line, "="); isEmpty && !strings.HasPrefix(line, "#") {
			inExample[name] = true
		}
	}
	require.Equal(t, inExample, asked)
	for name := range composeSecrets {
		require.Contains(t, asked, name)
	}
}

func TestComposeFitsItsFilesAndTheRegistry(t *testing.T) {
	c, missing := compose(t, composeSecrets)
	require.Empty(t, missing)
	root, err := traefikproc.Root()
	require.NoError(t, err)

	var published []string
	for name, service := range c.Services {
		require.NotEmpty(t, service.Image, name)
		require.NotEmpty(t, service.Healthcheck, "%s: a health check, or the decision that there is none", name)
		for _, port := range service.Ports {
			published = append(published, name+" "+port)
		}
		for needed, condition := range service.DependsOn {
			require.Contains(t, c.Services, needed)
			require.Equal(t, "service_healthy", condition["condition"])
			require.NotContains(t, c.Services[needed].Healthcheck, "disable", "%s waits for the health of %s", name, needed)
		}
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			switch {
			case strings.HasPrefix(source, "./"):
				_, err := os.Stat(filepath.Join(root, source))
				require.NoError(t, err, "an engine makes an empty folder where %s should be", source)
			case source != "/var/run/docker.sock":
				require.Contains(t, c.Volumes, source)
			}
		}
	}
	require.Equal(t, []string{"traefik 127.0.0.1:8080:80"}, published)

	known := repositoryFile(t, "bindsvc/internal/config/config.go")
	for name := range c.Services["homenode"].Environment {
		require.Contains(t, known, `"`+strings.TrimSuffix(name, "_FILE")+`"`, "a setting that nobody reads")
	}

	var registry struct {
		Services []struct {
			Nodes []struct {
				ID             string `yaml:"id"`
				BaseURL        string `yaml:"baseUrl"`
				TraefikService string `yaml:"traefikService"`
			} `yaml:"nodes"`
		} `yaml:"services"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(repositoryFile(t, "deploy/homenode.yml")), &registry))
	nodes := 0
	for _, node := range registry.Services[0].Nodes {
		nodes++
		service, ok := c.Services[node.ID]
		require.True(t, ok, node.ID)
		require.Equal(t, "http://"+node.ID+":8980", node.BaseURL)
		require.Equal(t, node.ID+"@docker", node.TraefikService)
		require.Equal(t, "8980", service.Labels["traefik.http.services."+node.ID+".loadbalancer.server.port"])
		require.Contains(t, service.Command, "0.0.0.0:8980")
		require.NotEmpty(t, service.ContainerName, "cannot be scaled")
	}
	for name, service := range c.Services {
		if service.Labels["traefik.enable"] == "true" {
			nodes--
			for label := range service.Labels {
				require.NotContains(t, label, ".routers.", "%s: a router of its own would bypass the plugin", name)
			}
		}
	}
	require.Zero(t, nodes, "as many labelled containers as nodes in the registry")
}

func TestComposeAndItsSettingsAreValid(t *testing.T) {
	c, _ := compose(t, composeSecrets)
	root, err := traefikproc.Root()
	require.NoError(t, err)
	check := exec.Command(programs.homenode, "config", "check")
	for name, value := range c.Services["homenode"].Environment {
		if name == "HOMENODE_CONFIG" {
			value = filepath.Join(root, "deploy", "homenode.yml")
		}
		check.Env = append(check.Env, name+"="+value)
	}
	output, err := check.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "production")

	// Where the client's plugin is installed, docker compose reads the file itself; that
	// needs no engine.
	if exec.Command("docker", "compose", "version").Run() == nil {
		read := exec.Command("docker", "compose", "-f", filepath.Join(root, "docker-compose.yml"), "config", "-q")
		read.Env = os.Environ()
		for name, value := range composeSecrets {
			read.Env = append(read.Env, name+"="+value)
		}
		output, err := read.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}

// The image is built from what .dockerignore lets through.
func TestTheImageGetsEveryFolderItIsBuiltFrom(t *testing.T) {
	const module = "github.com/homenode/homenode/"
	allowed := map[string]bool{}
	for _, line := range strings.Split(repositoryFile(t, ".dockerignore"), "\n") {
		if name, ok := strings.CutPrefix(line, "!"); ok {
			allowed[name] = true
		}
	}
	output, err := exec.Command("go", "list", "-deps", module+"bindsvc").Output()
	require.NoError(t, err)
	for _, dependency := range strings.Fields(string(output)) {
		if path, ok := strings.CutPrefix(dependency, module); ok {
			folder, _, _ := strings.Cut(path, "/")
			require.Contains(t, allowed, folder, dependency)
		}
	}
}

// The composition without an engine: the real Traefik and the real binding service
// with its environment, its labels and its homenode.yml, and a Docker API that lists
// its containers.
func TestTheGatewayOfComposeWithNodesDeclaredByLabels(t *testing.T) {
	c, _ := compose(t, composeSecrets)
	docker := startDocker(t, c)
	nodes := docker.nodes
	binding := startComposeHomenode(t, c, nodes)

	s := &stack{nodes: nodes, binding: binding}
	s.traefik = startComposeTraefik(t, c, binding, docker, nil)
	s.client = newClient(s.traefik.URL("web"))
	s.waitRouted(t, s.client)
	users := s.usersByNode(t, 3)
	for home, names := range users {
		for _, name := range names {
			require.Equal(t, home, s.client.get("/js/a/whoami", tokenOf(name)).node())
		}
	}

	// What reaches a node around the plugin.
	bypass := func(c *client) (reached []string) {
		for _, host := range []string{"node-1", "node-1-homenode", "homenode-node-1", "node-2-homenode", "anything"} {
			for _, path := range []string{"/", "/js/b", "//", "/actuator/health"} {
				for _, method := range []string{http.MethodGet, http.MethodOptions} {
					if a := c.do(method, path, "", nil, func(r *http.Request) { r.Host = host }); a.node() != "" {
						reached = append(reached, method+" "+host+path)
					}
				}
			}
			if strings.Contains(rawRequest(t, c.base, "GET * HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"), "X-Real-Node") {
				reached = append(reached, host+" *")
			}
		}
		return reached
	}
	require.Contains(t, get(t, s.traefik.URL("traefik")+"/ping"), "OK")
	require.Empty(t, bypass(s.client))
	trap := startComposeTraefik(t, c, binding, docker, []string{"TRAEFIK_PROVIDERS_DOCKER_DEFAULTRULE"})
	trapped := newClient(trap.URL("web"))
	s.waitRouted(t, trapped)
	require.NotEmpty(t, bypass(trapped), "without the rule there is a way around the plugin, and this test sees it")

	docker.stop("node-1")
	require.Eventually(t, func() bool {
		a := s.client.get("/js/a/whoami", tokenOf(users["node-1"][0]))
		require.Contains(t, []string{"", "node-1"}, a.node(), "never another node: %s", a)
		return a.status == http.StatusServiceUnavailable && a.reason() == "DEGRADED"
	}, 15*time.Second, 50*time.Millisecond, "a stopped container's route stays, without a server")
	require.Equal(t, "node-2", s.client.get("/js/a/whoami", tokenOf(users["node-2"][0])).node())
}

func get(t *testing.T, url string) string {
	t.Helper()
	a := newClient(url).get("", "")
	require.NoError(t, a.err)
	return string(a.body)
}

// rawRequest sends a request that net/http would not.
func rawRequest(t *testing.T, base, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Write([]byte(request))
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	return fmt.Sprint(response.Status, response.Header)
}

// replaced returns the variables with some values replaced, as a process takes them;
// every replaced one must be there.
func replaced(t *testing.T, variables, values map[string]string) map[string]string {
	t.Helper()
	result := map[string]string{}
	for name, value := range variables {
		result[name] = value
	}
	for name, value := range values {
		require.Contains(t, variables, name)
		result[name] = value
	}
	return result
}

func startComposeHomenode(t *testing.T, c composition, nodes []*node) *bindsvc {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "homenode.yml")
	require.NoError(t, os.WriteFile(config, []byte(repositoryFile(t, "deploy/homenode.yml",
		"http://node-1:8980", nodes[0].url(), "http://node-2:8980", nodes[1].url(), "pollInterval: 5s", "pollInterval: 200ms")), 0o600))
	in := production(t)
	host, port, err := net.SplitHostPort(in.redis)
	require.NoError(t, err)
	internal, admin := freeAddr(t), freeAddr(t)
	b := &bindsvc{internal: "http://" + internal, admin: "http://" + admin}
	env := []string{"REDIS_PORT=" + port, fmt.Sprintf("REDIS_DATABASE=%d", in.database)}
	for name, value := range replaced(t, c.Services["homenode"].Environment, map[string]string{
		"HOMENODE_CONFIG": config, "HOMENODE_LISTEN": internal, "HOMENODE_ADMIN_LISTEN": admin,
		"HOMENODE_ENDPOINT": b.internal, "HOMENODE_ADMIN_ENDPOINT": b.admin,
		"PG_URL": in.postgres, "PG_USER": "", "PG_PASSWORD": "", "REDIS_HOST": host, "REDIS_PASSWORD": "",
	}) {
		env = append(env, name+"="+value)
	}
	b.command = proc.Command{Name: "homenode", Path: programs.homenode, Args: []string{"serve"}, Dir: dir, Env: env, LogFile: filepath.Join(dir, "homenode.log")}
	b.start(t)
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			t.Logf("homenode:\n%s", b.LogTail(60))
		}
	})
	b.ready(t)
	health := exec.Command(programs.homenode, "health")
	health.Env, health.Dir = env, dir
	output, err := health.CombinedOutput()
	require.NoError(t, err, "the container's health check: %s", output)
	return b
}

// startComposeTraefik starts a Traefik with its container's environment, some
// variables left out.
func startComposeTraefik(t *testing.T, c composition, b *bindsvc, docker *dockerAPI, without []string) *traefikproc.Process {
	t.Helper()
	web, api, dir := freeAddr(t), freeAddr(t), t.TempDir()
	environment := replaced(t, c.Services["traefik"].Environment, map[string]string{
		"TRAEFIK_ENTRYPOINTS_WEB_ADDRESS": web, "TRAEFIK_ENTRYPOINTS_TRAEFIK_ADDRESS": api,
		"TRAEFIK_PROVIDERS_HTTP_ENDPOINT": b.internal + "/v1/traefik", "TRAEFIK_PROVIDERS_HTTP_POLLINTERVAL": "200ms",
		"TRAEFIK_PROVIDERS_DOCKER_ENDPOINT": docker.endpoint,
	})
	for _, name := range without {
		delete(environment, name)
	}
	environment["DOCKER_HOST"] = "" // of whoever runs the test; it would win over the endpoint
	p, err := traefikproc.Start(t.Context(), traefikproc.Options{
		Binary: programs.traefik, Dir: dir, Secret: secret, Environment: environment,
		EntryPoints: map[string]string{"web": web, "traefik": api}, APIAddr: api,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("Traefik:\n%s", p.LogTail(60))
		}
	})
	require.Equal(t, []any{"CMD", "traefik", "healthcheck"}, c.Services["traefik"].Healthcheck["test"])
	health := exec.Command(programs.traefik, "healthcheck")
	health.Dir = dir
	for name, value := range environment {
		health.Env = append(health.Env, name+"="+value)
	}
	output, err := health.CombinedOutput()
	require.NoError(t, err, "the container's health check: %s", output)
	return p
}

// dockerAPI is as much of the Docker Engine API as Traefik's provider asks for. Its
// containers are the composition's, those named node-… with a real server behind them.
type dockerAPI struct {
	endpoint string
	nodes    []*node

	mu         sync.Mutex
	containers map[string]map[string]any
	watchers   map[chan string]bool
}

func startDocker(t *testing.T, c composition) *dockerAPI {
	t.Helper()
	d := &dockerAPI{containers: map[string]map[string]any{}, watchers: map[chan string]bool{}}
	for i, name := range []string{"node-1", "node-2"} {
		// The label names the port, so that every node needs an address of its own.
		ip := fmt.Sprintf("127.89.80.%d", i+1)
		n := &node{name: name, addr: net.JoinHostPort(ip, "8980")}
		n.up(t)
		t.Cleanup(n.stop)
		d.nodes = append(d.nodes, n)
	}
	addresses := map[string]string{"node-1": "127.89.80.1", "node-2": "127.89.80.2"}
	network := c.Name + "_default"
	for name, service := range c.Services {
		address, ok := addresses[name]
		if !ok {
			address = "127.89.80.255" // nothing listens there
		}
		labels := map[string]string{"com.docker.compose.project": c.Name, "com.docker.compose.service": name}
		for label, value := range service.Labels {
			labels[label] = value
		}
		containerName := service.ContainerName
		if containerName == "" {
			containerName = c.Name + "-" + name + "-1"
		}
		d.containers[name] = map[string]any{
			"Id": name, "Name": "/" + containerName, "State": map[string]any{"Status": "running"},
			"HostConfig": map[string]any{"NetworkMode": network}, "Config": map[string]any{"Labels": labels},
			"NetworkSettings": map[string]any{"Networks": map[string]any{network: map[string]any{"IPAddress": address}}},
		}
	}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	d.endpoint = "tcp://" + server.Listener.Addr().String()
	return d
}

// stop stops a container: its process ends, and the engine says so.
func (d *dockerAPI) stop(name string) {
	for _, n := range d.nodes {
		if n.name == name {
			n.stop()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.containers[name]["State"] = map[string]any{"Status": "exited"}
	for watcher := range d.watchers {
		watcher <- `{"Type":"container","Action":"die","Actor":{"ID":"` + name + `"}}`
	}
}

var apiVersion = regexp.MustCompile(`^/v[0-9.]+`)

func (d *dockerAPI) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Api-Version", "1.44")
	rw.Header().Set("Content-Type", "application/json")
	path := apiVersion.ReplaceAllString(r.URL.Path, "")
	if path == "/events" {
		d.events(rw, r)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var answer any
	switch path {
	case "/_ping":
		return
	case "/version":
		answer = map[string]string{"Version": "28.0.0", "ApiVersion": "1.44"}
	case "/containers/json":
		list := []map[string]any{}
		for name := range d.containers {
			list = append(list, map[string]any{"Id": name})
		}
		answer = list
	default:
		name := strings.TrimSuffix(strings.TrimPrefix(path, "/containers/"), "/json")
		if answer = d.containers[name]; d.containers[name] == nil {
			http.NotFound(rw, r)
			return
		}
	}
	if err := json.NewEncoder(rw).Encode(answer); err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
}

func (d *dockerAPI) events(rw http.ResponseWriter, r *http.Request) {
	watcher := make(chan string, 8)
	d.mu.Lock()
	d.watchers[watcher] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watchers, watcher)
	}()
	rw.(http.Flusher).Flush()
	for {
		select {
		case event := <-watcher:
			_, _ = fmt.Fprintln(rw, event)
			rw.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}
