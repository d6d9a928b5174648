package cli_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func TestExitCode(t *testing.T) {
	require.Equal(t, 0, cli.ExitCode(nil))
	require.Equal(t, 1, cli.ExitCode(errors.New("refused")))
	require.Equal(t, 2, cli.ExitCode(fmt.Errorf("wrapped: %w", cli.UsageError{Err: errors.New("wrong")})))
	require.ErrorIs(t, cli.UsageError{Err: os.ErrNotExist}, os.ErrNotExist)
}

func TestWrongUsageAsksNothingAndEndsWith2(t *testing.T) {
	for _, line := range []string{
		"bogus", "stauts", "nodes bogus", "import bogus", "completion bogus", "status extra", "reload extra", "status --bogus", "status -o yaml",
		"services add", "services add ai", "services add ../nodes --path-prefix /a", "services add ai --path-prefix /a --placement random",
		"services set ai", "services set ai --enabled=maybe", "services set ai --enabled --disabled", "services delete", "services delete ..",
		"nodes --service ..", "nodes add ai", "nodes add ai node-1", "nodes set node-1", "nodes set node-1 --weight 0", "nodes check a b", "nodes delete a/b",
		"routes a b", "routes --page 0", "routes --size 201", "routes --all --page 2",
		"bind node-1", "bind node-1 --service ai", "bind --service ai --user 7", "bind node-1 --service ai --user=",
		"unbind", "unbind x", "unbind 0", "unbind 7 --user 7", "unbind --user 7", "unbind --service ai", "unbind --service ai --user 7 --username ann", "unbind 7 --service ai",
		"import existing node-1", "import existing --service ai", "import existing --service ai node-1 --resume x", "import existing --service ai node-1 --resume 1 --dry-run",
		"import existing --service ai node-1 --report conflicts.txt", "import existing --service ai node-1 --report /no/such/folder/c.csv",
		"import file --service ai", "import file /no/such/file.csv --service ai", "import show x", "import undo", "import undo -- -1",
		"explain", "explain a b", "explain /a --user 7 --username ann", "explain /a --token-file /no/such/file", "explain /a --token-file - --user 7", "explain /a --token-file -",
		"audit extra", "audit --since yesterday", "audit where --service ai --at 24h", "audit where --service ai --user 7", "audit where --user 7 --at 1h",
		"audit where --service ai --user 7 --username ann --at 1h",
		"policies list", "policies list quotas", "policies show apps", "policies show apps a/b", "policies set apps a", "policies set apps a -f /no/such/file",
		"policies set apps a b -f -", "policies delete guards", "policies apply", "policies apply -f /no/such/file", "policies history apps --id a/b",
		"policies rollback apps", "policies rollback apps --to -1", "policies rollback apps --to x", "policies rollback quotas --to 1",
		"guards off", "guards off a/b", "guards on access identity", "maintenance on --until yesterday", "maintenance on --until -5m", "maintenance on --service ..",
		"maintenance off main", "apps add", "apps add a/b", "apps rotate", "apps retire a b", "roles set --service ai --user 7", "roles set --service ai --user 7 a --none",
		"roles set --user 7 a", "roles set --service ai a", "kick-out --service ai", "kick-out --user 7", "kick-out --service ai --user=", "status --server ftp://x", "status --server http://me:secret@x", "status --server http://",
	} {
		t.Run(line, func(t *testing.T) {
			g := setup(t)
			o := g.run(strings.Fields(line)...)
			require.Equal(t, cli.ExitUsage, o.code, o.err)
			require.NotEmpty(t, o.err)
			require.Empty(t, o.out)
			require.Empty(t, g.asked())
		})
	}
}

func TestUnknownCommandsAreAnsweredWithTheSimilarOne(t *testing.T) {
	require.Contains(t, setup(t).run("stauts").err, `is it "status"?`)
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var check func(path []string, cmd *cobra.Command)
	check = func(path []string, cmd *cobra.Command) {
		path = append(path[:len(path):len(path)], cmd.Name())
		t.Run(strings.Join(path, " "), func(t *testing.T) {
			require.NotEmpty(t, cmd.Short)
			require.Contains(t, cmd.Example, "homenode "+path[0])
			g := setup(t)
			require.Contains(t, g.done(append(path, "--help")...).out, "Usage:")
			require.Empty(t, g.asked())
		})
		for _, sub := range cmd.Commands() {
			check(path, sub)
		}
	}
	for _, cmd := range cli.Commands(func(string) string { return "" }) {
		check(nil, cmd)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		says   []string
	}{
		{"with reason and request id", refuse(409, "CONFLICT", "it has nodes"), []string{"it has nodes (CONFLICT, request r-1)"}},
		{"of the token", refuse(401, "UNAUTHENTICATED", "who?"), []string{"UNAUTHENTICATED", "HOMENODE_ADMIN_TOKEN_FILE", "HOMENODE_DATA_DIR"}},
		{"of the address", refuse(403, "FORBIDDEN", "no"), []string{"FORBIDDEN", "admin.ipWhitelist"}},
		{"that would drive a terminal", refuse(409, "CONFLICT", "a\x1b[2Jb\u202ec"), []string{`a\x1b[2Jb\u202ec`}},
		{"of something else", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>", http.StatusBadGateway)
		}, []string{"HTTP status 502", "--server"}},
		{"by a page", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>"))
		}, []string{"HTTP status 200", "--server"}},
		{"by JSON of something else", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/json")
			_, _ = w.Write([]byte("<html>"))
		}, []string{"no answer of the admin API"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["deleteService"] = c.answer
			o := g.run("services", "delete", "ai")
			require.Equal(t, cli.ExitFailed, o.code)
			for _, text := range c.says {
				require.Contains(t, o.err, text)
			}
			require.Empty(t, o.out)
		})
	}
}

func TestServiceThatCannotBeReached(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	free := listener.Addr().String()
	require.NoError(t, listener.Close())
	for _, server := range []string{"http://" + free, "unix://" + filepath.Join(t.TempDir(), "none.sock")} {
		for _, line := range []string{"status", "routes of-whom", "import existing --service ai node-1", "import undo 3"} {
			g := setup(t)
			g.env["HOMENODE_ADMIN_URL"] = server
			o := g.run(strings.Fields(line)...)
			require.Equal(t, cli.ExitUnreachable, o.code, o.err)
			require.Contains(t, o.err, server)
			require.Contains(t, o.err, "homenode serve")
			require.NotContains(t, o.err, "of-whom")
		}
	}
	t.Run("hangs up", func(t *testing.T) {
		g := setup(t)
		g.answers["getStatus"] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		require.Equal(t, cli.ExitUnreachable, g.run("status").code)
	})
	t.Run("a certificate that nobody trusts", func(t *testing.T) {
		server := httptest.NewTLSServer(http.NotFoundHandler())
		defer server.Close()
		g := setup(t)
		o := g.run("status", "--server", server.URL)
		require.Equal(t, cli.ExitUnreachable, o.code)
		require.Contains(t, o.err, "certificate")
	})
}

func TestInterrupted(t *testing.T) {
	g := setup(t)
	ctx, cancel := context.WithCancel(context.Background())
	g.answers["getStatus"] = func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}
	o := g.runWith(ctx, "", "status")
	require.Equal(t, cli.ExitFailed, o.code)
	require.Contains(t, o.err, "interrupted")
}

func TestTheTokenIsSentToNobodyElse(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("followed to %s with %v", r.URL, r.Header)
	}))
	defer elsewhere.Close()
	g := setup(t)
	g.answers["getStatus"] = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}
	o := g.run("status")
	require.Equal(t, cli.ExitFailed, o.code)
	require.Contains(t, o.err, "redirects")
}

func TestWhereTheTokenComesFrom(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "admin-token"), []byte("of-the-data-folder\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(" of-the-file\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), []byte("\n"), 0o600))
	for _, c := range []struct {
		name        string
		env         map[string]string
		token, says string
	}{
		{"variable", map[string]string{"HOMENODE_ADMIN_TOKEN": "of-the-variable", "HOMENODE_ADMIN_TOKEN_FILE": filepath.Join(dir, "file")}, "of-the-variable", ""},
		{"file", map[string]string{"HOMENODE_ADMIN_TOKEN_FILE": filepath.Join(dir, "file"), "HOMENODE_DATA_DIR": dir}, "of-the-file", ""},
		{"data folder", map[string]string{"HOMENODE_DATA_DIR": dir}, "of-the-data-folder", ""},
		{"none", map[string]string{"HOMENODE_DATA_DIR": filepath.Join(dir, "none")}, "", "set HOMENODE_ADMIN_TOKEN"},
		{"no file", map[string]string{"HOMENODE_ADMIN_TOKEN_FILE": filepath.Join(dir, "none"), "HOMENODE_DATA_DIR": dir}, "", "HOMENODE_ADMIN_TOKEN_FILE"},
		{"empty file", map[string]string{"HOMENODE_ADMIN_TOKEN_FILE": filepath.Join(dir, "empty")}, "", "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["reload"] = data(nil)
			c.env["HOMENODE_ADMIN_URL"] = g.URL
			o := run(context.Background(), func(name string) string { return c.env[name] }, "", "reload")
			if c.token == "" {
				require.Equal(t, cli.ExitUsage, o.code)
				require.Contains(t, o.err, c.says)
				require.Empty(t, g.asked())
				return
			}
			require.Equal(t, cli.ExitDone, o.code, o.err)
			require.Equal(t, c.token, g.last().header.Get("x-token"))
		})
	}
}

func TestWhereTheServiceIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "homenode.yml")
	for _, c := range []struct {
		name string
		args []string
		env  func(g *fakeGateway)
	}{
		{"flag", []string{"--server", "URL"}, func(g *fakeGateway) { g.env["HOMENODE_ADMIN_URL"] = "http://127.0.0.1:1" }},
		{"flag with the whole path", []string{"--server", "URL/gateway/admin/"}, func(*fakeGateway) {}},
		{"variable", nil, func(*fakeGateway) {}},
		{"listen address", nil, func(g *fakeGateway) {
			delete(g.env, "HOMENODE_ADMIN_URL")
			g.env["HOMENODE_ADMIN_LISTEN"] = strings.TrimPrefix(g.URL, "http://")
		}},
		{"listen address of no host", nil, func(g *fakeGateway) {
			delete(g.env, "HOMENODE_ADMIN_URL")
			g.env["HOMENODE_ADMIN_LISTEN"] = "0.0.0.0" + g.URL[strings.LastIndex(g.URL, ":"):]
		}},
		{"file of settings", nil, func(g *fakeGateway) {
			delete(g.env, "HOMENODE_ADMIN_URL")
			g.env["HOMENODE_CONFIG"] = file
			require.NoError(t, os.WriteFile(file, []byte("adminListen: "+strings.TrimPrefix(g.URL, "http://")+"\n"), 0o600))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			c.env(g)
			g.answers["reload"] = data(nil)
			args := []string{"reload"}
			for _, arg := range c.args {
				args = append(args, strings.ReplaceAll(arg, "URL", g.URL))
			}
			g.done(args...)
			require.Equal(t, []string{"reload"}, g.operations())
		})
	}
	t.Run("unix socket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", path)
		require.NoError(t, err)
		g := setup(t)
		g.answers["reload"] = data(nil)
		server := &http.Server{Handler: g}
		defer server.Close()
		go server.Serve(listener)
		g.done("reload", "--server", "unix://"+path)
	})
}

func TestMessagesAreInTheTerminalsLanguage(t *testing.T) {
	for locale, language := range map[string]string{"": "en", "C": "en", "zh_CN.UTF-8": "zh", "de_DE.UTF-8": "en"} {
		g := setup(t)
		g.env["LANG"] = locale
		g.answers["reload"] = data(nil)
		g.done("reload")
		require.Equal(t, language, g.last().header.Get("Accept-Language"))
	}
}

func TestCompletion(t *testing.T) {
	g := setup(t)
	g.answers["listServices"] = data([]api.Service{service("ai"), service("crm")})
	g.answers["listNodes"] = data([]api.Node{node("node-1")})
	g.answers["listImports"] = data(map[string]any{"total": 1, "page": 1, "size": 20, "records": []api.Import{imported(12)}})
	g.answers["listPolicies"] = page([]api.PolicyRecord{policyRecord("orders", `{}`)})
	g.answers["getPolicies"] = data(map[string]any{
		"revision": 1, "origin": "SQL", "askedAt": moment, "pending": 0, "kinds": map[string]int{}, "problems": []api.PolicyProblem{},
		"guards": []api.GuardState{guardState("maintenance", true, false), guardState("access", true, false)},
	})
	for _, c := range []struct {
		words string
		offer []string
	}{
		{"policies history", []string{"guards", "maintenance", "identity", "apps", "signature", "rate-limit", "access", "degradation", "answers"}},
		{"policies show rate-limit", []string{"orders"}},
		{"policies set -f x guards", []string{"maintenance", "access"}},
		{"guards off", []string{"maintenance", "access"}},
		{"apps rotate", []string{"orders"}},
		{"maintenance off --id", []string{"orders"}},
		{"maintenance on --service", []string{"ai\tAI 服务", "crm\tAI 服务"}},
		{"services set", []string{"ai\tAI 服务", "crm\tAI 服务"}},
		{"services set ai", nil},
		{"routes --service", []string{"ai\tAI 服务", "crm\tAI 服务"}},
		{"nodes add --base-url x", []string{"ai\tAI 服务", "crm\tAI 服务"}},
		{"nodes check", []string{"node-1\t节点"}},
		{"bind --service ai --user 7 --username ann", []string{"node-1\t节点"}},
		{"services set ai --default-node", []string{"node-1\t节点"}},
		{"import undo", []string{"12\tDONE ai"}},
		{"status -o", []string{"table", "json"}},
	} {
		t.Run(c.words, func(t *testing.T) {
			o := g.done(append(append([]string{"__complete"}, strings.Fields(c.words)...), "")...)
			got := lines(o.out)
			require.Equal(t, c.offer, append([]string(nil), got[:len(got)-1]...))
			require.Equal(t, ":4", got[len(got)-1], "no file names")
		})
	}
	g.done("__complete", "bind", "--service", "crm", "--user", "7", "")
	require.Contains(t, g.last().url, "serviceId=crm")

	t.Run("silent without a service", func(t *testing.T) {
		g := setup(t)
		g.answers["listServices"] = refuse(401, "UNAUTHENTICATED", "who?")
		require.Equal(t, ":4\n", g.done("__complete", "services", "set", "").out)
		g.env = map[string]string{"HOMENODE_DATA_DIR": t.TempDir()}
		require.Equal(t, ":4\n", run(context.Background(), func(n string) string { return g.env[n] }, "", "__complete", "services", "set", "").out)
	})
}
