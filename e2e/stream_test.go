package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/traefikproc"
)

func TestServerSentEventsArriveOneByOne(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	home := loginOK(t, s.client, "ann")
	response, err := s.client.http.Get(s.traefik.URL("web") + "/js/a/events?x-token=" + tokenOf("ann"))
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	lines := bufio.NewScanner(response.Body)
	var arrivals []time.Time
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			require.Equal(t, fmt.Sprintf("%d from %s", len(arrivals), home), data)
			arrivals = append(arrivals, time.Now())
		}
	}
	require.Len(t, arrivals, 5)
	require.Greater(t, arrivals[4].Sub(arrivals[0]), 400*time.Millisecond, "not in one piece")
}

func TestAWebSocketEchoes(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	home := loginOK(t, s.client, "ann")
	conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(s.traefik.URL("web"), "http")+"/js/a/ws?x-token="+tokenOf("ann"), nil)
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	for i := range 3 {
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(strconv.Itoa(i))))
		_, message, err := conn.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s: %d", home, i), string(message))
	}
}

// A GiB up and a GiB down pass through without being kept.
func TestLargeBodiesStream(t *testing.T) {
	const size, allowed = 1 << 30, 64 << 20
	s := startStack(t, stores{}, settings{})
	loginOK(t, s.client, "ann")
	c := newClient(s.traefik.URL("web"))
	c.http.Timeout = 5 * time.Minute
	before, err := s.traefik.RSS()
	require.NoError(t, err)
	var most atomic.Int64
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				if now, err := s.traefik.RSS(); err == nil && now > most.Load() {
					most.Store(now)
				}
			}
		}
	})
	upload, err := http.NewRequest(http.MethodPost, c.base+"/js/a/upload", io.LimitReader(zeros{}, size))
	require.NoError(t, err)
	upload.ContentLength = size
	upload.Header.Set("x-token", tokenOf("ann"))
	response, err := c.http.Do(upload)
	require.NoError(t, err)
	answered, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, fmt.Sprintf("%d <nil>", size), string(answered))

	download, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s/js/a/download?bytes=%d", c.base, size), nil)
	require.NoError(t, err)
	download.Header.Set("x-token", tokenOf("ann"))
	response, err = c.http.Do(download)
	require.NoError(t, err)
	read, err := io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	_ = response.Body.Close()
	require.EqualValues(t, size, read)
	close(stop)
	watch.Wait()
	t.Logf("Traefik with the plugin: %d MiB before, at most %d MiB during", before>>20, most.Load()>>20)
	require.Less(t, most.Load()-before, int64(allowed))
}

var goroutineCount = regexp.MustCompile(`goroutine profile: total (\d+)`)

func goroutines(t *testing.T, p *traefikproc.Process) int {
	t.Helper()
	response, err := http.Get(p.APIURL() + "/debug/pprof/goroutine?debug=1")
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	match := goroutineCount.FindSubmatch(body)
	require.NotNil(t, match, "%.200s", body)
	count, err := strconv.Atoi(string(match[1]))
	require.NoError(t, err)
	return count
}

func sockets(t *testing.T, p *traefikproc.Process) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	require.NoError(t, err)
	count := 0
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.Pid()), "fd", entry.Name())); err == nil && strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count
}

// Traefik makes every middleware anew at every reload. No request fails meanwhile,
// and nothing is left over.
func TestReloadsUnderLoad(t *testing.T) {
	const reloads = 200
	s := &stack{nodes: []*node{startNode(t, "node-1"), startNode(t, "node-2")}}
	s.binding = startHomenode(t, stores{}, s.nodes, settings{})
	reloading := func(i int) string {
		return fmt.Sprintf("http:\n  middlewares:\n    reload-%d:\n      headers: {customRequestHeaders: {X-Reload: %q}}\n", i, strconv.Itoa(i))
	}
	s.traefik = startTraefik(t, s.binding, traefikproc.Options{DynamicFile: reloading(0), ProvidersThrottle: 20 * time.Millisecond})
	s.client = newClient(s.traefik.URL("web"))
	s.waitRouted(t, s.client)
	home := loginOK(t, s.client, "ann")

	const clients = 4
	load := func(stop <-chan struct{}) *sync.WaitGroup {
		var wait sync.WaitGroup
		for range clients {
			wait.Go(func() {
				c := newClient(s.traefik.URL("web"))
				defer c.http.CloseIdleConnections()
				for {
					select {
					case <-stop:
						return
					default:
					}
					if a := c.get("/js/a/whoami", tokenOf("ann")); a.status != http.StatusOK || a.node() != home {
						t.Errorf("during reloads: %s", a)
						return
					}
				}
			})
		}
		return &wait
	}
	// What the same load leaves behind without a reload is the measure.
	stop := make(chan struct{})
	warm := load(stop)
	time.Sleep(2 * time.Second)
	close(stop)
	warm.Wait()
	s.client.http.CloseIdleConnections()
	goroutinesBefore, socketsBefore := goroutines(t, s.traefik), sockets(t, s.traefik)

	stop = make(chan struct{})
	running := load(stop)
	done := 0
	for i := 1; i <= reloads; i++ {
		require.NoError(t, s.traefik.WriteDynamicFile(reloading(i)))
		require.Eventually(t, func() bool { return hasMiddleware(t, s.traefik, fmt.Sprintf("reload-%d@file", i)) }, 20*time.Second, 2*time.Millisecond)
		done++
	}
	close(stop)
	running.Wait()
	s.client.http.CloseIdleConnections()
	require.Eventually(t, func() bool {
		return goroutines(t, s.traefik) <= goroutinesBefore+10 && sockets(t, s.traefik) <= socketsBefore+10
	}, 30*time.Second, 200*time.Millisecond, "before: %d goroutines, %d sockets; after: %d, %d", goroutinesBefore, socketsBefore, goroutines(t, s.traefik), sockets(t, s.traefik))
	t.Logf("%d reloads: goroutines %d -> %d, sockets %d -> %d", done, goroutinesBefore, goroutines(t, s.traefik), socketsBefore, sockets(t, s.traefik))
}

func hasMiddleware(t *testing.T, p *traefikproc.Process, name string) bool {
	t.Helper()
	return statusOf(p.APIURL()+"/api/http/middlewares/"+name) == http.StatusOK
}
