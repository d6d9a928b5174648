// Package traefikproc builds and runs a real Traefik that loads the plugin from
// this checkout as users load it: for the demo and the end-to-end tests.
package traefikproc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/homenode/homenode/internal/proc"
)

// module is the plugin's name, and this repository's.
const module = "github.com/homenode/homenode"

// Root finds the checkout that the working directory lies in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if content, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(content, []byte("module "+module+"\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not in a checkout of Homenode: change to its folder (the plugin's source and the means to build Traefik are there)")
		}
		dir = parent
	}
}

// Binary returns the path of a Traefik, building it if there is none yet, which
// takes minutes the first time. Progress goes to the writer.
func Binary(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	var path bytes.Buffer
	build := proc.Command{Name: "build Traefik", Path: filepath.Join(root, "traefik", "host", "build.sh"), Stdout: &path, Stderr: progress}
	if err := proc.Run(ctx, build); err != nil { // ends the compilers too when ctx does
		return "", err
	}
	return strings.TrimSpace(path.String()), nil
}

// Options say what differs from one Traefik to another.
type Options struct {
	Binary            string // of Binary
	Dir               string // working directory; the static configuration and the plugin are put there
	Endpoint          string // of the binding service, polled for configuration; empty = no HTTP provider
	Secret            string // of the binding service: for the HTTP provider and, through the environment, for the plugin
	PollInterval      time.Duration
	ProvidersThrottle time.Duration     // zero = Traefik's default, 2 s
	AliasHeaders      string            // entry points' strategy: keep, delete or reject; empty = delete
	DynamicFile       string            // contents of a file provider's file; empty = no file provider
	EntryPoints       map[string]string // name -> address; a free port where the address is empty
	APIAddr           string            // of API and ping; empty = a free port
	Debug             bool              // log level and profiling

	// A ready static configuration, instead of one made from the options above; of
	// those only Binary, Dir, Secret, DynamicFile and the addresses, which must be the
	// ready configuration's, still count.
	Static      string            // contents of the file
	Environment map[string]string // TRAEFIK_… variables; no file is then written
}

// Process is a running Traefik.
type Process struct {
	*proc.Process
	entryPoints map[string]string
	apiAddr     string
	dynamicFile string
}

// Start starts a Traefik and waits until it answers its ping.
func Start(ctx context.Context, o Options) (*Process, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	if err := linkPlugin(root, o.Dir); err != nil {
		return nil, err
	}
	p := &Process{entryPoints: map[string]string{}, dynamicFile: filepath.Join(o.Dir, "dynamic.yml")}
	for name, address := range o.EntryPoints {
		if p.entryPoints[name], err = orFree(address); err != nil {
			return nil, err
		}
	}
	if p.apiAddr, err = orFree(o.APIAddr); err != nil {
		return nil, err
	}
	if o.DynamicFile != "" {
		if err := p.WriteDynamicFile(o.DynamicFile); err != nil {
			return nil, err
		}
	}
	command := proc.Command{
		Name: "traefik", Path: o.Binary, Dir: o.Dir,
		Env:     append(withoutHomenode(os.Environ()), "HOMENODE_SECRET="+o.Secret),
		LogFile: filepath.Join(o.Dir, "traefik.log"),
	}
	if o.Environment != nil {
		for name, value := range o.Environment {
			command.Env = append(command.Env, name+"="+value)
		}
	} else {
		if err := p.writeStatic(o); err != nil {
			return nil, err
		}
		command.Args = []string{"--configFile=" + staticFile}
	}
	p.Process, err = proc.Start(command)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.WaitReady(limited, "http://"+p.apiAddr+"/ping"); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// URL is that of an entry point, without a slash at its end.
func (p *Process) URL(entryPoint string) string { return "http://" + p.entryPoints[entryPoint] }

// APIURL is where Traefik's own API answers.
func (p *Process) APIURL() string { return "http://" + p.apiAddr }

// WriteDynamicFile replaces the file that the file provider watches.
func (p *Process) WriteDynamicFile(content string) error {
	temporary := p.dynamicFile + ".new"
	if err := os.WriteFile(temporary, []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, p.dynamicFile)
}

// staticFile is the name of the static configuration in the working directory. It is
// not traefik.yml, which Traefik would find by itself and prefer to its environment.
const staticFile = "static.yml"

func (p *Process) writeStatic(o Options) error {
	content := []byte(o.Static)
	if o.Static == "" {
		var err error
		if content, err = yaml.Marshal(p.static(o)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(o.Dir, staticFile), content, 0o600)
}

type section = map[string]any

func (p *Process) static(o Options) section {
	entryPoints := section{"traefik": section{"address": p.apiAddr}}
	strategy := o.AliasHeaders
	if strategy == "" {
		strategy = "delete"
	}
	for name, address := range p.entryPoints {
		entryPoints[name] = section{
			"address": address, "http": section{"aliasHeadersStrategy": strategy},
			// As in traefik/traefik.yml: an upload may take longer than Traefik's minute.
			"transport": section{"respondingTimeouts": section{"readTimeout": "0s"}},
		}
	}
	providers := section{}
	if o.Endpoint != "" {
		providers["http"] = section{
			"endpoint": o.Endpoint + "/v1/traefik", "pollInterval": o.PollInterval.String(),
			"headers": section{"Authorization": "Bearer " + o.Secret},
		}
	}
	if o.DynamicFile != "" {
		providers["file"] = section{"filename": p.dynamicFile, "watch": true}
	}
	if o.ProvidersThrottle > 0 {
		providers["providersThrottleDuration"] = o.ProvidersThrottle.String()
	}
	level := "INFO"
	if o.Debug {
		level = "DEBUG"
	}
	return section{
		"global":      section{"checkNewVersion": false, "sendAnonymousUsage": false},
		"log":         section{"level": level, "noColor": true},
		"api":         section{"insecure": true, "dashboard": false, "debug": o.Debug},
		"ping":        section{},
		"entryPoints": entryPoints,
		"providers":   providers,
		"experimental": section{
			"abortOnPluginFailure": true,
			"localPlugins":         section{"homenode": section{"moduleName": module}},
		},
	}
}

// linkPlugin puts the checkout where Traefik looks for local plugins.
func linkPlugin(root, dir string) error {
	link := filepath.Join(dir, "plugins-local", "src", filepath.FromSlash(module))
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(root, link)
}

func orFree(address string) (string, error) {
	if address != "" {
		return address, nil
	}
	return proc.FreeAddress()
}

// withoutHomenode keeps settings of whoever runs this out of a process that gets its own.
func withoutHomenode(environment []string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "HOMENODE_") && !strings.HasPrefix(variable, "TRAEFIK_") {
			kept = append(kept, variable)
		}
	}
	return kept
}
