package e2e

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/proc"
)

func startDemo(t *testing.T, stdout io.Writer, environment ...string) (demo *proc.Process, temporary string) {
	t.Helper()
	temporary = t.TempDir()
	demo, err := proc.Start(proc.Command{
		Name: "demo", Path: programs.homenode, Args: []string{"demo"}, Stdout: stdout, Stderr: os.Stderr,
		Env: append(os.Environ(), append(environment, "TMPDIR="+temporary, "TRAEFIK_BIN="+programs.traefik)...),
	})
	require.NoError(t, err)
	t.Cleanup(demo.Kill)
	return demo, temporary
}

// requireNothingLeft wants no file of the demo, and no process that was started in its folder.
func requireNothingLeft(t *testing.T, temporary string) {
	t.Helper()
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range processes {
		if folder, err := os.Readlink(link); err == nil {
			require.False(t, strings.HasPrefix(folder, temporary), "%s still runs in %s", link, folder)
		}
	}
}

func TestTheDemoTellsItsStory(t *testing.T) {
	var table bytes.Buffer
	demo, temporary := startDemo(t, &table, "ONCE=1")
	select {
	case <-demo.Done():
	case <-time.After(3 * time.Minute):
		demo.Kill()
	}
	require.NoError(t, demo.Err(), "%s", table.String())
	for _, shown := range []string{
		`ann +POST /sys/login +200 +node-\d`, `GET /notes +200 +node-\d .*note of fei`, `at home`, `X_Gateway_Node: node-\d +200`, `3 events`,
		`WebSocket /ws +101`, `GET /notes +503 +- .*NODE_DOWN`, `goes on`, `gus +POST /sys/login +200 +node-4`, `All 9 steps held`,
	} {
		require.Regexp(t, regexp.MustCompile(shown), table.String())
	}
	requireNothingLeft(t, temporary)
}

func TestCtrlCEndsTheDemo(t *testing.T) {
	var table bytes.Buffer
	demo, temporary := startDemo(t, &table, "ONCE=1")
	require.Eventually(t, func() bool {
		started, _ := filepath.Glob(filepath.Join(temporary, "homenode-demo-*", "traefik", "traefik.log"))
		return len(started) > 0
	}, time.Minute, 20*time.Millisecond)
	interrupt(t, demo)
	require.Error(t, demo.Err(), "the story has not been told to its end")
	requireNothingLeft(t, temporary)
}

func TestTheDemoStaysUpUntilCtrlC(t *testing.T) {
	output, stdout := io.Pipe()
	demo, temporary := startDemo(t, stdout, "ONCE=")
	shown := make(chan string, 1000) // more than the demo prints: nothing waits for the test
	go func() {                      // ends with the pipe
		for lines := bufio.NewScanner(output); lines.Scan(); {
			shown <- lines.Text()
		}
		close(shown)
	}()
	t.Cleanup(func() { _ = stdout.Close() })
	limit := time.After(3 * time.Minute)
	for line := ""; !strings.HasPrefix(line, "Logs and the nodes' data: "); {
		select {
		case line = <-shown:
		case <-demo.Done():
			require.Fail(t, "the demo ended by itself", "%v", demo.Err())
		case <-limit:
			require.Fail(t, "the demo does not come to the story's end")
		}
	}
	interrupt(t, demo)
	require.NoError(t, demo.Err())
	requireNothingLeft(t, temporary)
}

// interrupt sends a Ctrl-C to the demo alone, as a terminal does, and waits for its end.
func interrupt(t *testing.T, demo *proc.Process) {
	t.Helper()
	require.NoError(t, syscall.Kill(demo.Pid(), syscall.SIGINT))
	select {
	case <-demo.Done():
	case <-time.After(30 * time.Second):
		demo.Kill()
	}
}
