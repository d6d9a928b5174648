package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// firstLogins logs one user in concurrently through the stores, with different
// candidates, and returns the node that each caller learnt.
func firstLogins(ctx context.Context, stores []gateway.Store, count int) ([]string, error) {
	nodes, errs := make([]string, count), make([]error, count)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			<-start
			result, err := stores[i%len(stores)].BindIfAbsent(ctx, login("racer", "Racer", fmt.Sprintf("n%d", i%3+1)))
			nodes[i], errs[i] = result.Binding.NodeID, err
		})
	}
	close(start)
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func requireOneRow(t *testing.T, store gateway.Store, learnt []string) {
	t.Helper()
	_, total, err := store.ListBindings(t.Context(), gateway.BindingFilter{Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 1, total)
	effective := probe{t, store}.nodeOf("racer")
	for _, node := range learnt {
		require.Equal(t, effective, node)
	}
}

func testRaceOfStores(t *testing.T, b Backend) {
	store, database := setup(t, b)
	stores := []gateway.Store{patient{store}}
	for range 3 {
		stores = append(stores, patient{open(t, b, database)})
	}
	learnt, err := firstLogins(t.Context(), stores, 200)
	require.NoError(t, err)
	requireOneRow(t, store, learnt)
}

// testRaceOfNames lets users fight for each other's names, the worst case for
// locks: whatever the order, names end up unique and nobody's node changes.
func testRaceOfNames(t *testing.T, b Backend) {
	store, database := setup(t, b)
	stores := []gateway.Store{store, open(t, b, database)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := probe{t, store}
	for user := range 4 {
		p.login(login(fmt.Sprint(user), fmt.Sprint("name", user), fmt.Sprintf("n%d", user%3+1)))
	}
	errs := make(chan error, 4*25)
	var all sync.WaitGroup
	for user := range 4 {
		all.Go(func() {
			for i := range 25 {
				l := login(fmt.Sprint(user), fmt.Sprint("name", (user+i)%4), "n1")
				_, err := stores[i%2].BindIfAbsent(ctx, typed(l, fmt.Sprint("alias", i%3)))
				errs <- err
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	page, total, err := store.ListBindings(ctx, gateway.BindingFilter{Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 4, total)
	names := map[string]bool{}
	for _, binding := range page {
		var user int
		_, err := fmt.Sscan(binding.UserID, &user)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("n%d", user%3+1), binding.NodeID)
		require.False(t, binding.Username != "" && names[binding.Username], "two rows named %s", binding.Username)
		names[binding.Username] = true
	}
}

// testRaceOfRegistryWriters deletes nodes while users are bound to them: each
// round ends with a binding to a node that exists, or with no node and no binding.
func testRaceOfRegistryWriters(t *testing.T, b Backend) {
	store, database := setup(t, b)
	second := open(t, b, database)
	for round := range 10 {
		id, user := fmt.Sprintf("temp-%d", round), fmt.Sprintf("user-%d", round)
		require.NoError(t, store.CreateNode(t.Context(), node(id, ai)))
		var bindErr, deleteErr error
		var both sync.WaitGroup
		both.Go(func() { _, bindErr = store.BindIfAbsent(t.Context(), login(user, "", id)) })
		both.Go(func() { deleteErr = second.DeleteNode(t.Context(), id) })
		both.Wait()
		if deleteErr == nil {
			requireConflict(t, bindErr)
			require.Empty(t, probe{t, store}.nodeOf(user))
		} else {
			requireConflict(t, deleteErr)
			require.NoError(t, bindErr)
		}
	}
}

const (
	envJob      = "HOMENODE_STORETEST_JOB"
	envDatabase = "HOMENODE_STORETEST_DATABASE"

	jobFirstLogins = "first logins" // waits for a line, then prints the node that each login learnt
	jobWrite       = "write"        // prints the user id of each login once it is committed, until killed
)

// startJob starts this test binary again, to do a job on a database. The process is
// killed when the test ends.
func startJob(t *testing.T, job, database string) (cmd *exec.Cmd, stdin io.WriteCloser, stdout *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envJob+"="+job, envDatabase+"="+database)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, stdin, bufio.NewScanner(out)
}

func runJob(job string, b Backend) int {
	ctx := context.Background()
	store, err := b.Open(ctx, os.Getenv(envDatabase))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer store.Close()
	switch job {
	case jobFirstLogins:
		fmt.Println("ready")
		if _, err := fmt.Scanln(new(string)); err != nil {
			return 1
		}
		nodes, err := firstLogins(ctx, []gateway.Store{patient{store}}, 40)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(strings.Join(nodes, " "))
	case jobWrite:
		for i := 0; ; i++ {
			user := fmt.Sprintf("user-%d", i)
			if _, err := store.BindIfAbsent(ctx, typed(login(user, "name of "+user, "n1"), "alias of "+user)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			fmt.Println(user)
		}
	}
	return 0
}

// patient asks again when a store did not answer in time, as the plugin does: the
// machine may be too busy for so many connections at once.
type patient struct{ gateway.Store }

func (p patient) BindIfAbsent(ctx context.Context, l gateway.Login) (gateway.BindResult, error) {
	for {
		result, err := p.Store.BindIfAbsent(ctx, l)
		if !errors.Is(err, context.DeadlineExceeded) {
			return result, err
		}
	}
}

func testRaceOfProcesses(t *testing.T, b Backend) {
	store, database := setup(t, b)
	const processes = 5
	var stdins []io.WriteCloser
	var stdouts []*bufio.Scanner
	for range processes {
		_, stdin, stdout := startJob(t, jobFirstLogins, database)
		stdins, stdouts = append(stdins, stdin), append(stdouts, stdout)
	}
	for _, stdout := range stdouts {
		require.True(t, stdout.Scan())
		require.Equal(t, "ready", stdout.Text())
	}
	for _, stdin := range stdins {
		_, err := fmt.Fprintln(stdin, "go")
		require.NoError(t, err)
	}
	var learnt []string
	for _, stdout := range stdouts {
		require.True(t, stdout.Scan())
		learnt = append(learnt, strings.Fields(stdout.Text())...)
	}
	require.Len(t, learnt, 40*processes)
	requireOneRow(t, store, learnt)
}

// RunKilled kills a process that writes and requires that nothing it was told to
// be committed is lost.
func RunKilled(t *testing.T, b Backend) {
	_, database := setup(t, b)
	cmd, _, stdout := startJob(t, jobWrite, database)
	var committed []string
	for len(committed) < 50 && stdout.Scan() {
		committed = append(committed, stdout.Text())
	}
	require.NoError(t, cmd.Process.Kill())
	for stdout.Scan() {
		committed = append(committed, stdout.Text())
	}
	require.GreaterOrEqual(t, len(committed), 50)
	p := probe{t, open(t, b, database)}
	for _, user := range committed {
		require.Equal(t, "n1", p.nodeOf(user))
		require.Equal(t, "n1", p.nodeNamed("name of "+user))
		require.Equal(t, "n1", p.nodeNamed("alias of "+user))
	}
}
