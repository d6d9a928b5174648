package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/traefikproc"
)

// startTraefik starts a Traefik that polls the binding service, with what differs in o.
func startTraefik(t *testing.T, b *bindsvc, o traefikproc.Options) *traefikproc.Process {
	t.Helper()
	o.Binary, o.Dir, o.Secret, o.Endpoint = programs.traefik, t.TempDir(), secret, b.internal
	o.PollInterval, o.Debug = 200*time.Millisecond, true
	o.EntryPoints = map[string]string{"web": ""}
	if o.ProvidersThrottle == 0 {
		o.ProvidersThrottle = 200 * time.Millisecond
	}
	p, err := traefikproc.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("Traefik:\n%s", p.LogTail(60))
		}
	})
	return p
}

// bareRoute leads everything to one node, without any plugin, and wins over every other route.
func bareRoute(n *node) string {
	return fmt.Sprintf("http:\n  routers:\n    bare: {rule: \"PathPrefix(`/`)\", priority: 100000, service: bare}\n  services:\n    bare: {loadBalancer: {servers: [{url: %q}]}}\n", n.url())
}
