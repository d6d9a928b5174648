package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/proc"
	"github.com/homenode/homenode/internal/testenv"
	"github.com/homenode/homenode/internal/traefikproc"
)

const (
	secret     = "an-e2e-secret-of-32-characters-0"
	adminToken = "an-e2e-admin-token-of-32-chars-0"
)

// programs are what every scenario runs, made once.
var programs struct {
	homenode string
	traefik  string
	postgres *testenv.Postgres
	redis    *testenv.Redis
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "homenode-e2e-")
		if err != nil {
			return failed(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if programs.traefik, err = traefikproc.Binary(context.Background(), os.Stderr); err != nil {
			return failed(err)
		}
		programs.homenode = filepath.Join(dir, "homenode")
		build := exec.Command("go", "build", "-race", "-o", programs.homenode, "github.com/homenode/homenode/bindsvc")
		if output, err := build.CombinedOutput(); err != nil {
			return failed(fmt.Errorf("build homenode: %w\n%s", err, output))
		}
		if programs.postgres, err = testenv.StartPostgres(dir); err != nil {
			return failed(err)
		}
		defer func() { _ = programs.postgres.Close() }()
		if programs.redis, err = testenv.StartRedis(dir); err != nil {
			return failed(err)
		}
		defer func() { _ = programs.redis.Close() }()
		return m.Run()
	}())
}

func failed(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, err)
	return 1
}

// stores are where a stack keeps its state: empty fields mean the embedded file.
type stores struct {
	postgres string // URL
	redis    string // host:port
	database int
}

// production returns a fresh database and an empty Redis database behind
// nothing but themselves.
func production(t *testing.T) stores {
	t.Helper()
	return stores{postgres: newDatabase(t, programs.postgres.Addr()), redis: programs.redis.Addr(), database: nextRedisDatabase(t)}
}

var fresh struct {
	sync.Mutex
	databases int
	redis     int
}

// newDatabase makes a fresh database and returns its URL through addr.
func newDatabase(t *testing.T, addr string) string {
	t.Helper()
	fresh.Lock()
	fresh.databases++
	name := fmt.Sprintf("e2e_%d", fresh.databases)
	fresh.Unlock()
	_, err := programs.postgres.NewDatabase(name)
	require.NoError(t, err)
	return programs.postgres.URLOf(addr, name)
}

// nextRedisDatabase returns one of Redis's 16 databases, emptied.
func nextRedisDatabase(t *testing.T) int {
	t.Helper()
	fresh.Lock()
	defer fresh.Unlock()
	fresh.redis = (fresh.redis + 1) % 16
	redisDo(t, programs.redis.Addr(), fresh.redis, "FLUSHDB")
	return fresh.redis
}

// redisDo sends one inline command.
func redisDo(t *testing.T, addr string, database int, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = fmt.Fprintf(conn, "SELECT %d\r\n%s\r\nQUIT\r\n", database, command)
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	return strings.TrimPrefix(string(answer), "+OK\r\n")
}

// eachMode runs a scenario on the embedded file and on PostgreSQL with Redis.
func eachMode(t *testing.T, scenario func(t *testing.T, in stores)) {
	t.Run("sqlite", func(t *testing.T) { scenario(t, stores{}) })
	t.Run("postgres and redis", func(t *testing.T) { scenario(t, production(t)) })
}

// binding is one homenode process.
type bindsvc struct {
	*proc.Process
	command  proc.Command
	internal string // URL
	admin    string // URL
	dataDir  string
}

// settings of homenode.yml that differ from those of the scenarios.
type settings struct {
	extra     string // more YAML
	defaultTo string
}

func freeAddr(t *testing.T) string {
	t.Helper()
	address, err := proc.FreeAddress()
	require.NoError(t, err)
	return address
}

func homenodeYAML(nodes []*node, s settings) string {
	var b strings.Builder
	b.WriteString("services:\n  - id: ai\n    pathPrefix: /js/a\n    loginPath: /sys/login\n    healthPath: /health\n")
	if s.defaultTo != "" {
		fmt.Fprintf(&b, "    defaultNodeId: %s\n", s.defaultTo)
	}
	b.WriteString("    nodes:\n")
	for _, n := range nodes {
		fmt.Fprintf(&b, "      - {id: %s, baseUrl: %q}\n", n.name, n.url())
	}
	b.WriteString("health: {interval: 200ms, timeout: 1s, failures: 3, successes: 1}\n")
	if !strings.Contains(s.extra, "registry:") {
		b.WriteString("registry: {pollInterval: 1s}\n")
	}
	if !strings.Contains(s.extra, "traefik:") {
		b.WriteString("traefik: {pollInterval: 500ms}\n")
	}
	b.WriteString(s.extra)
	return b.String()
}

func startHomenode(t *testing.T, in stores, nodes []*node, s settings) *bindsvc {
	t.Helper()
	b := startHomenodeUnready(t, in, nodes, s)
	b.ready(t)
	return b
}

func statusOf(url string) int {
	response, err := http.Get(url)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func startHomenodeUnready(t *testing.T, in stores, nodes []*node, s settings) *bindsvc {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "homenode.yml")
	require.NoError(t, os.WriteFile(config, []byte(homenodeYAML(nodes, s)), 0o600))
	b := &bindsvc{internal: "http://" + freeAddr(t), admin: "http://" + freeAddr(t), dataDir: filepath.Join(dir, "data")}
	env := append(os.Environ(),
		"HOMENODE_CONFIG="+config, "HOMENODE_DATA_DIR="+b.dataDir,
		"HOMENODE_LISTEN="+strings.TrimPrefix(b.internal, "http://"), "HOMENODE_ADMIN_LISTEN="+strings.TrimPrefix(b.admin, "http://"),
		"HOMENODE_SECRET="+secret, "HOMENODE_ADMIN_TOKEN="+adminToken, "HOMENODE_LOG_LEVEL=debug",
	)
	if in.postgres != "" {
		host, port, err := net.SplitHostPort(in.redis)
		require.NoError(t, err)
		env = append(env, "PG_URL="+in.postgres, "REDIS_HOST="+host, "REDIS_PORT="+port, fmt.Sprintf("REDIS_DATABASE=%d", in.database))
	}
	b.command = proc.Command{Name: "homenode", Path: programs.homenode, Args: []string{"serve"}, Env: env, LogFile: filepath.Join(dir, "homenode.log")}
	b.start(t)
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			t.Logf("homenode:\n%s", b.LogTail(60))
		}
		if log, err := os.ReadFile(b.command.LogFile); err == nil {
			require.NotContains(t, string(log), "DATA RACE")
			require.NotContains(t, string(log), secret)
			require.NotContains(t, string(log), "tok-", "a token in the log")
		}
	})
	return b
}

// start starts the process without waiting for it to be ready.
func (b *bindsvc) start(t *testing.T) {
	t.Helper()
	var err error
	b.Process, err = proc.Start(b.command)
	require.NoError(t, err)
}

func (b *bindsvc) ready(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, b.WaitReady(ctx, b.internal+"/readyz"))
}

// call sends a JSON body to one of the service's listeners and returns the status and decoded body.
func (b *bindsvc) call(t *testing.T, method, url, credential string, body any) (int, map[string]any) {
	t.Helper()
	encoded, err := json.Marshal(body)
	require.NoError(t, err)
	request, err := http.NewRequest(method, url, bytes.NewReader(encoded))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+credential)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	decoded := map[string]any{}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&decoded))
	return response.StatusCode, decoded
}

// administer makes an admin call that must succeed and returns its data.
func (b *bindsvc) administer(t *testing.T, method, path string, body any) any {
	t.Helper()
	status, answer := b.call(t, method, b.admin+"/gateway/admin"+path, adminToken, body)
	require.Equal(t, http.StatusOK, status, answer)
	return answer["data"]
}

// routes returns the node of every binding, by username.
func (b *bindsvc) routes(t *testing.T) map[string]string {
	t.Helper()
	bound := map[string]string{}
	for page := 1; ; page++ {
		data := b.administer(t, http.MethodGet, fmt.Sprintf("/routes?size=200&page=%d", page), nil).(map[string]any)
		records := data["records"].([]any)
		for _, record := range records {
			row := record.(map[string]any)
			name, _ := row["username"].(string)
			require.NotContains(t, bound, name, "two rows for one username")
			bound[name] = row["nodeId"].(string)
		}
		if len(records) < 200 {
			return bound
		}
	}
}

// stack is a whole gateway.
type stack struct {
	nodes   []*node
	binding *bindsvc
	traefik *traefikproc.Process
	client  *client
}

func startStack(t *testing.T, in stores, s settings) *stack {
	t.Helper()
	st := &stack{}
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		st.nodes = append(st.nodes, startNode(t, name))
	}
	st.binding = startHomenode(t, in, st.nodes, s)
	st.traefik = startTraefik(t, st.binding, traefikproc.Options{})
	st.client = newClient(st.traefik.URL("web"))
	st.waitRouted(t, st.client)
	return st
}

// waitRouted waits until Traefik has the configuration: an anonymous request arrives.
func (s *stack) waitRouted(t *testing.T, c *client) {
	t.Helper()
	require.Eventually(t, func() bool { return c.get("/js/a/whoami", "").status == http.StatusOK }, 30*time.Second, 50*time.Millisecond)
}

func (s *stack) node(name string) *node {
	for _, n := range s.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// loginOK logs a user in and returns the node that did it.
func loginOK(t *testing.T, c *client, name string) string {
	t.Helper()
	a := c.login(name)
	require.Equal(t, http.StatusOK, a.status, a)
	require.NotEmpty(t, a.node(), a)
	return a.node()
}

// usersByNode logs users in until every node has some, and returns them.
func (s *stack) usersByNode(t *testing.T, each int) map[string][]string {
	t.Helper()
	users := map[string][]string{}
	for i := range each * len(s.nodes) {
		name := fmt.Sprintf("user-%d", i)
		at := loginOK(t, s.client, name)
		users[at] = append(users[at], name)
	}
	for _, n := range s.nodes {
		require.NotEmpty(t, users[n.name], "logins are spread over the nodes")
	}
	return users
}

// commandLine runs homenode as an operator types it and returns what it prints and its exit code.
func commandLine(t *testing.T, env []string, args ...string) (output string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), programs.homenode, args...)
	command.Env = append(os.Environ(), env...)
	command.Dir = t.TempDir()
	printed, err := command.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return string(printed), command.ProcessState.ExitCode()
}
