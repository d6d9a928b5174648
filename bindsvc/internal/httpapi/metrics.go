package httpapi

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

// metrics counts what operators watch. Label values come from the registry and
// the reasons only, so that no client can add one.
type metrics struct {
	all       *prometheus.Registry
	decisions *prometheus.CounterVec
	logins    *prometheus.CounterVec
	registry  *registry.Registry
}

func newMetrics(registry *registry.Registry) *metrics {
	m := &metrics{
		all: prometheus.NewRegistry(),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "homenode_decisions_total", Help: "Decisions by service and result: bound, anonymous, or the reason of a refusal.",
		}, []string{"service", "result"}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "homenode_logins_total", Help: "Reported logins by service and result: created, known or failed.",
		}, []string{"service", "result"}),
		registry: registry,
	}
	m.all.MustRegister(m.decisions, m.logins, nodeUp{registry}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler { return promhttp.HandlerFor(m.all, promhttp.HandlerOpts{}) }

func (m *metrics) decided(serviceID string, decision gateway.Decision, err error) {
	result := "anonymous"
	switch {
	case err != nil:
		result = string(asRefusal(err).Reason)
	case decision.Epoch > 0:
		result = "bound"
	}
	if decision.ServiceID != "" {
		serviceID = decision.ServiceID
	}
	m.decisions.WithLabelValues(m.known(serviceID), result).Inc()
}

func (m *metrics) loggedIn(serviceID string, result gateway.BindResult, err error) {
	outcome := "known"
	switch {
	case err != nil:
		outcome = "failed"
	case result.Created:
		outcome = "created"
	}
	m.logins.WithLabelValues(m.known(serviceID), outcome).Inc()
}

// known keeps a service id that a caller made up out of the labels.
func (m *metrics) known(serviceID string) string {
	if _, ok := m.registry.Snapshot().Service(serviceID); ok {
		return serviceID
	}
	return ""
}

// nodeUp is 1 for every node that is UP, 0 for every other one.
type nodeUp struct{ registry *registry.Registry }

var nodeUpDesc = prometheus.NewDesc("homenode_node_up", "1 if the node is UP, else 0.", []string{"service", "node"}, nil)

// Describe implements prometheus.Collector.
func (nodeUp) Describe(descs chan<- *prometheus.Desc) { descs <- nodeUpDesc }

// Collect implements prometheus.Collector.
func (n nodeUp) Collect(values chan<- prometheus.Metric) {
	snapshot := n.registry.Snapshot()
	for _, service := range snapshot.Services {
		for _, node := range snapshot.NodesOf(service.ID) {
			value := 0.0
			if n.registry.Health(node.ID).State == registry.Up {
				value = 1
			}
			values <- prometheus.MustNewConstMetric(nodeUpDesc, prometheus.GaugeValue, value, service.ID, node.ID)
		}
	}
}
