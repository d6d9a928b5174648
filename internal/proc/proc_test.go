package proc_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/homenode/homenode/internal/proc"
)

// The test binary is also the child: what it does is in its environment.
func TestMain(m *testing.M) {
	switch os.Getenv("CHILD") {
	case "":
		goleak.VerifyTestMain(m)
	case "serve": // answers on ADDRESS until SIGTERM
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		fmt.Println("serving")
		listener, err := net.Listen("tcp", os.Getenv("ADDRESS"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go http.Serve(listener, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		<-terminated
		fmt.Println("terminated")
	case "stubborn": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		http.ListenAndServe(os.Getenv("ADDRESS"), nil)
	case "parent": // starts a child, waits until it answers, and ends without stopping it
		child, err := proc.Start(proc.Command{Name: "grandchild", Path: os.Args[0], Env: environment("serve", os.Getenv("ADDRESS"))})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if err := child.WaitReady(context.Background(), "http://"+os.Getenv("ADDRESS")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

func environment(child, address string) []string {
	return append(os.Environ(), "CHILD="+child, "ADDRESS="+address)
}

func start(t *testing.T, child string) (process *proc.Process, url string) {
	t.Helper()
	address, err := proc.FreeAddress()
	require.NoError(t, err)
	process, err = proc.Start(proc.Command{
		Name: child, Path: os.Args[0], Env: environment(child, address),
		LogFile: filepath.Join(t.TempDir(), "log"),
	})
	require.NoError(t, err)
	t.Cleanup(process.Kill)
	return process, "http://" + address
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestStopLetsTheProcessFinish(t *testing.T) {
	process, url := start(t, "serve")
	require.NoError(t, process.WaitReady(within(t), url))
	rss, err := process.RSS()
	require.NoError(t, err)
	require.Greater(t, rss, int64(1<<20))

	require.NoError(t, process.Stop(10*time.Second))
	require.Equal(t, "serving\nterminated", process.LogTail(5))
	require.Equal(t, "terminated", process.LogTail(1))
	require.NoError(t, process.Stop(time.Second), "stopping twice is fine")
}

func TestStopKillsAfterTheGrace(t *testing.T) {
	process, url := start(t, "stubborn")
	ctx := within(t)
	require.Eventually(t, func() bool { // any answer tells that it ignores SIGTERM by now
		response, err := http.Get(url)
		if err != nil {
			return false
		}
		response.Body.Close()
		return true
	}, 20*time.Second, 20*time.Millisecond)
	http.DefaultClient.CloseIdleConnections()

	require.ErrorContains(t, process.Stop(50*time.Millisecond), "was killed")
	require.NoError(t, ctx.Err())
}

func TestKill(t *testing.T) {
	process, url := start(t, "serve")
	require.NoError(t, process.WaitReady(within(t), url))
	process.Kill()
	var exit *exec.ExitError
	require.ErrorAs(t, process.Err(), &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
}

func TestWaitReadyTellsOfAProcessThatEnded(t *testing.T) {
	process, err := proc.Start(proc.Command{
		Name: "broken", Path: os.Args[0], Env: environment("serve", "no address"),
		LogFile: filepath.Join(t.TempDir(), "log"),
	})
	require.NoError(t, err)
	err = process.WaitReady(within(t), "http://127.0.0.1:1")
	require.ErrorContains(t, err, "broken ended before")
	require.ErrorContains(t, err, "no address", "the log says why")
}

func TestStartTellsOfAProgramThatIsMissing(t *testing.T) {
	_, err := proc.Start(proc.Command{Name: "absent", Path: filepath.Join(t.TempDir(), "absent")})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "absent")
}

func TestRunStopsWithItsContext(t *testing.T) {
	address, err := proc.FreeAddress()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = proc.Run(ctx, proc.Command{Name: "child", Path: os.Args[0], Env: environment("serve", address)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
