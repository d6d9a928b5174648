package proc_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/proc"
)

func TestAChildDiesWithItsParent(t *testing.T) {
	address, err := proc.FreeAddress()
	require.NoError(t, err)
	require.NoError(t, proc.Run(within(t), proc.Command{Name: "parent", Path: os.Args[0], Env: environment("parent", address)}))
	require.Eventually(t, func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond)
}
