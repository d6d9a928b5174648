package plugin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// usualRequest has the headers of a browser behind Traefik's entry point.
func usualRequest(headers ...string) *http.Request {
	req := httptest.NewRequest(http.MethodGet, "/js/a/list?page=1", nil)
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "User-Agent", "Referer", "Content-Type", "Sec-Fetch-Mode", "Sec-Fetch-Site",
		"X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Proto", "X-Forwarded-Server", "X-Real-Ip", "X-Requested-With",
	} {
		req.Header.Set(name, "v")
	}
	for _, name := range headers {
		req.Header.Set(name, token)
	}
	return req
}

// BenchmarkStrip is the plugin's own work on an anonymous request: strip, request id, every token source. The
// binding service is away, so that nothing is asked but once a second.
func BenchmarkStrip(b *testing.B) {
	benchmarkBuilds(b, usualRequest, func(service *bindingService) { service.server.Close() })
}

// BenchmarkAsk adds the question to a binding service in the same process, and what it costs there.
func BenchmarkAsk(b *testing.B) {
	benchmarkBuilds(b, func(...string) *http.Request { return usualRequest("X-Token") }, func(*bindingService) {})
}

func benchmarkBuilds(b *testing.B, request func(...string) *http.Request, prepare func(*bindingService)) {
	for name, build := range map[string]build{"compiled": compiled, "interpreted": interpreted(b)} {
		b.Run(name, func(b *testing.B) {
			service := newBindingService(b)
			prepare(service)
			next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			handler, err := build(next, settings{"service": "ai", "endpoint": service.server.URL, "secret": secret})
			require.NoError(b, err)
			req := request()
			rw := httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(rw, req)
				// What the plugin has set is not there when the next request comes.
				delete(req.Header, "X-Request-Id")
				delete(req.Header, "X-Homenode-Pool")
				delete(req.Header, "X-Gateway-Node")
				delete(req.Header, "X-User-Id")
				delete(req.Header, "X-Binding-Epoch")
			}
		})
	}
}
