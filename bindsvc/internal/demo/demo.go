package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homenode/homenode/internal/proc"
	"github.com/homenode/homenode/internal/traefikproc"
)

// Options say how the demo runs.
type Options struct {
	Once   bool // end after the story instead of staying up
	Stdout io.Writer
	Stderr io.Writer
}

// Run runs the demo from a checkout. With Once it returns nil if every step of
// the story held, else an error that names the first that did not; without, it
// stays up until ctx ends. When it returns no process and no file of it is left.
func Run(ctx context.Context, o Options) error {
	binary, err := traefikproc.Binary(ctx, o.Stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "homenode-demo-")
	if err != nil {
		return err
	}
	s := &scene{dir: dir, traefikBinary: binary, secret: rand.Text(), adminToken: rand.Text(), progress: o.Stderr}
	defer s.end()
	if err := s.start(ctx); err != nil {
		return s.explain(ctx, err)
	}
	err = s.tell(ctx, o.Stdout)
	if err != nil {
		err = s.explain(ctx, err)
	}
	if o.Once || err != nil {
		return err
	}
	s.invite(o.Stdout)
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(o.Stdout, "\nstopping …")
		return nil
	case <-s.homenode.Done():
		return s.explain(ctx, errors.New("homenode has ended"))
	case <-s.traefik.Done():
		return s.explain(ctx, errors.New("the gateway's Traefik has ended"))
	}
}

// scene is every process of the demo.
type scene struct {
	dir           string
	traefikBinary string
	secret        string
	adminToken    string
	progress      io.Writer

	nodes     map[string]*proc.Process
	addresses map[string]string
	homenode  *proc.Process
	traefik   *traefikproc.Process
	base      string // the service, through Traefik
}

const prefix = "/js/a"

var nodeNames = []string{"node-1", "node-2", "node-3"}

func (s *scene) start(ctx context.Context) error {
	s.nodes, s.addresses = map[string]*proc.Process{}, map[string]string{}
	s.say("starting %s, homenode with its store in one file, and Traefik", strings.Join(nodeNames, ", "))
	for _, name := range nodeNames {
		if err := s.startNode(ctx, name); err != nil {
			return err
		}
	}
	internal, err := s.startHomenode(ctx)
	if err != nil {
		return err
	}
	front, err := address(8080)
	if err != nil {
		return err
	}
	work := filepath.Join(s.dir, "traefik")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	s.traefik, err = traefikproc.Start(ctx, traefikproc.Options{
		Binary: s.traefikBinary, Dir: work, Endpoint: "http://" + internal, Secret: s.secret,
		PollInterval: time.Second, ProvidersThrottle: 200 * time.Millisecond, EntryPoints: map[string]string{"web": front},
	})
	if err != nil {
		return err
	}
	s.base = s.traefik.URL("web") + prefix
	return nil
}

func (s *scene) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.progress, "demo: "+format+"\n", args...)
}

// self starts this program with other arguments.
func (s *scene) self(name string, env []string, args ...string) (*proc.Process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return proc.Start(proc.Command{
		Name: name, Path: path, Args: args, Dir: s.dir,
		Env: append(withoutSettings(os.Environ()), env...), LogFile: filepath.Join(s.dir, name+".log"),
	})
}

// withoutSettings keeps the settings of an installation on this machine out of the demo.
func withoutSettings(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		return strings.HasPrefix(variable, "HOMENODE_") || strings.HasPrefix(variable, "PG_") || strings.HasPrefix(variable, "REDIS_")
	})
}

// startNode starts a node, at the address that it had if it was there before.
func (s *scene) startNode(ctx context.Context, name string) (err error) {
	if s.addresses[name] == "" {
		if s.addresses[name], err = address(8981 + len(s.addresses)); err != nil {
			return err
		}
	}
	p, err := s.self(name, nil, "demo", "node", "--name", name, "--listen", s.addresses[name], "--data", filepath.Join(s.dir, name), "--prefix", prefix)
	if err != nil {
		return err
	}
	s.nodes[name] = p
	return ready(ctx, p, "http://"+s.addresses[name]+"/actuator/health")
}

func (s *scene) startHomenode(ctx context.Context) (internal string, err error) {
	var nodes strings.Builder
	for _, name := range nodeNames {
		fmt.Fprintf(&nodes, "      - {id: %s, baseUrl: \"http://%s\"}\n", name, s.addresses[name])
	}
	settings := "services:\n  - id: ai\n    name: the demo's ai-server\n    pathPrefix: " + prefix + "\n    loginPath: /sys/login\n    nodes:\n" + nodes.String() +
		"health: {interval: 500ms, timeout: 1s, failures: 2, successes: 1}\ntraefik: {pollInterval: 1s}\n"
	file := filepath.Join(s.dir, "homenode.yml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return "", err
	}
	internal, err = proc.FreeAddress()
	if err != nil {
		return "", err
	}
	admin, err := proc.FreeAddress()
	if err != nil {
		return "", err
	}
	s.homenode, err = s.self("homenode", []string{
		"HOMENODE_CONFIG=" + file, "HOMENODE_DATA_DIR=" + filepath.Join(s.dir, "data"), "HOMENODE_LISTEN=" + internal,
		"HOMENODE_ADMIN_LISTEN=" + admin, "HOMENODE_SECRET=" + s.secret, "HOMENODE_ADMIN_TOKEN=" + s.adminToken,
	}, "serve")
	if err != nil {
		return "", err
	}
	return internal, ready(ctx, s.homenode, "http://"+internal+"/readyz")
}

func ready(ctx context.Context, p *proc.Process, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return p.WaitReady(ctx, url)
}

// end stops every process, the one in front first, and removes the files.
func (s *scene) end() {
	const grace = 5 * time.Second
	if s.traefik != nil {
		_ = s.traefik.Stop(grace)
	}
	if s.homenode != nil {
		_ = s.homenode.Stop(grace)
	}
	for _, p := range s.nodes {
		_ = p.Stop(grace)
	}
	_ = os.RemoveAll(s.dir)
}

// explain adds the ends of the logs to what went wrong, before they are removed.
func (s *scene) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("stopped before the story's end: %w", context.Cause(ctx))
	}
	processes := map[string]*proc.Process{"homenode": s.homenode}
	if s.traefik != nil {
		processes["Traefik"] = s.traefik.Process
	}
	maps.Copy(processes, s.nodes)
	var logs strings.Builder
	for _, name := range slices.Sorted(maps.Keys(processes)) {
		if p := processes[name]; p != nil {
			fmt.Fprintf(&logs, "\n--- %s:\n%s", name, p.LogTail(15))
		}
	}
	return fmt.Errorf("%w%s", err, logs.String())
}

func (s *scene) invite(to io.Writer) {
	_, _ = fmt.Fprintf(to, `
Everything stays up; Ctrl-C stops it and removes its files. To try it yourself:

  log in       curl -i %[1]s/sys/login -d '{"username":"you","password":"p"}'
  then         curl -i -H 'x-token: TOKEN' %[1]s/whoami
  a note       curl -i -H 'x-token: TOKEN' %[1]s/notes -d '{"text":"remember me"}'
  forge        curl -i -H 'x-token: TOKEN' -H 'X-Gateway-Node: node-2' %[1]s/whoami
  lose a node  kill -9 %[6]d   (node-1: its users get 503, nobody is moved)
  the nodes    curl -s -H 'x-token: %[2]s' %[3]s/gateway/admin/status

Traefik's API: %[4]s/api/http/routers
Logs and the nodes' data: %[5]s
`, s.base, s.adminToken, s.traefik.URL("web"), s.traefik.APIURL(), s.dir, s.nodes[nodeNames[0]].Pid())
}

// address is the port's on loopback, or another one if somebody uses it. A fixed
// port is also one that no outgoing connection can take while its node is down.
func address(port int) (string, error) {
	preferred := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	listener, err := net.Listen("tcp", preferred) //nolint:noctx // at once, on loopback
	if err != nil {
		return proc.FreeAddress()
	}
	return preferred, listener.Close()
}
