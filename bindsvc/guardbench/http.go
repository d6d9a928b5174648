package guardbench

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/httpapi"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

const secret = "the shared secret of the bench"

// handler answers GET /v1/decide with the world's decisions, as the plugin asks for them.
func (w *world) handler(ctx context.Context) (http.Handler, error) {
	log := slog.New(slog.DiscardHandler)
	nodes := registry.New(w.store, registry.Options{
		PollInterval: time.Hour, Health: registry.HealthOptions{Interval: time.Hour, Timeout: time.Second, Failures: 1, Successes: 1},
		Seed: func() ([]gateway.Service, []gateway.Node) { return nodes.Services, nil },
	}, log, time.Now)
	go func() { _ = nodes.Run(ctx) }() // ends with ctx
	<-nodes.Ready()
	server, err := httpapi.New(httpapi.Options{Secret: secret, Messages: "en", TokenSources: []string{"header:x-token"}, MaxAge: time.Minute}, httpapi.Parts{
		Registry: nodes, Decider: w.decider, Policies: w.policies, Guards: w.chain, Revoked: memory{}, Subjects: w.subjects, Store: w.store, Log: log,
	})
	if err != nil {
		return nil, err
	}
	return server.Internal(), nil
}

// questions are the plugin's about the requests.
func questions(requests []gateway.Request) ([]*http.Request, error) {
	var all []*http.Request
	for _, r := range requests {
		q, err := http.NewRequest(http.MethodGet, "/v1/decide", nil)
		if err != nil {
			return nil, err
		}
		q.Header = http.Header{
			"Authorization": {"Bearer " + secret}, "X-Forwarded-Method": {r.Method}, "X-Forwarded-Uri": {r.Path}, "X-Forwarded-For": {r.Address.String()},
			"X-Request-Id": {r.ID}, "X-Homenode-Service": {r.ServiceID}, "X-Homenode-Token": {url.QueryEscape(r.Token)},
			"X-Homenode-Have": {"none"}, "X-Homenode-Query": {r.Query},
		}
		all = append(all, q)
	}
	return all, nil
}

// asked makes a run's decisions by the handler.
func asked(handler http.Handler, question *http.Request) error {
	answer := &answer{header: http.Header{}}
	handler.ServeHTTP(answer, question)
	if answer.status != http.StatusOK {
		return fmt.Errorf("%s: status %d", question.Header.Get("X-Forwarded-Uri"), answer.status)
	}
	return nil
}

// answer is a http.ResponseWriter that keeps no body.
type answer struct {
	header http.Header
	status int
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }
