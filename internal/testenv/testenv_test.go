package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/testenv"
)

func TestPostgresKeepsItsDataThroughStopKillAndPause(t *testing.T) {
	server, err := testenv.StartPostgres("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	url, err := server.NewDatabase("own")
	require.NoError(t, err)

	exec := func(sql string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, sql)
		return err
	}
	require.NoError(t, exec("CREATE TABLE kept (n int)"))
	require.NoError(t, server.Stop())
	require.Error(t, exec("SELECT n FROM kept"))
	require.NoError(t, server.Start())
	require.NoError(t, exec("SELECT n FROM kept"))

	server.Kill()
	require.Error(t, exec("SELECT n FROM kept"))
	require.NoError(t, server.Start())
	require.NoError(t, exec("SELECT n FROM kept"))

	server.Pause()
	require.Error(t, exec("SELECT n FROM kept"))
	server.Resume()
	require.NoError(t, exec("SELECT n FROM kept"))
}

func TestRedisStartsAgainOnTheSamePort(t *testing.T) {
	server, err := testenv.StartRedis("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	proxy, err := testenv.NewProxy(server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })

	require.Equal(t, "+OK\r\n", command(t, server.Addr(), "SET k v"))
	require.Equal(t, "+OK\r\n", command(t, proxy.Addr(), "SAVE"))
	require.FileExists(t, server.Dump())

	proxy.SetDelay(50 * time.Millisecond)
	start := time.Now()
	require.Equal(t, "$1\r\n", command(t, proxy.Addr(), "GET k"))
	require.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)

	proxy.Cut()
	require.Contains(t, command(t, proxy.Addr(), "GET k"), "error")
	proxy.Restore()
	require.Equal(t, "$1\r\n", command(t, proxy.Addr(), "GET k"))

	addr := server.Addr()
	for _, end := range []func() error{server.Stop, func() error { server.Kill(); return nil }} {
		require.NoError(t, end())
		require.Contains(t, command(t, addr, "GET k"), "error")
		require.NoError(t, server.Start())
		require.Equal(t, addr, server.Addr())
		require.Equal(t, "$1\r\n", command(t, addr, "GET k"))
	}

	server.Pause()
	require.Contains(t, command(t, addr, "GET k"), "error")
	server.Resume()
}

// command returns the first line of the answer, or "error ...".
func command(t *testing.T, addr, line string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "error " + err.Error()
	}
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Second)))
	if _, err := fmt.Fprintf(conn, "%s\r\n", line); err != nil {
		return "error " + err.Error()
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "error " + err.Error()
	}
	return answer
}

func TestNothingIsLeftBehind(t *testing.T) {
	server, err := testenv.StartRedis("")
	require.NoError(t, err)
	require.NoError(t, server.Close())
	require.NoFileExists(t, server.Dump())
	_, err = net.Dial("tcp", server.Addr())
	require.Error(t, err)
	_, err = os.Stat(server.Dump())
	require.ErrorIs(t, err, os.ErrNotExist)
}
