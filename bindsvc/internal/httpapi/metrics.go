package httpapi

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/policy"
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

func newMetrics(registry *registry.Registry, guards *guard.Chain, policies *policy.Keeper) *metrics {
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
	m.all.MustRegister(m.decisions, m.logins, nodeUp{registry}, guardChecks{guards, policies}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler { return promhttp.HandlerFor(m.all, promhttp.HandlerOpts{}) }

func (m *metrics) decided(serviceID string, decision gateway.Decision, err error) {
	result := "anonymous"
	switch {
	case err != nil:
		if result = string(asRefusal(err).Reason); result == string(gateway.NeedsMore) {
			return // it is asked about again
		}
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

// guardChecks tells what the guards have done, and which policies they follow.
type guardChecks struct {
	guards   *guard.Chain
	policies *policy.Keeper
}

var (
	guardChecksDesc = prometheus.NewDesc("homenode_guard_checks_total",
		"Checks by guard and result: passed, refused, shadow (would have been refused) or unchecked (the failure policy decided).", []string{"guard", "result"}, nil)
	policyRevisionDesc = prometheus.NewDesc("homenode_policy_revision", "Revision of the policies that are in force here.", nil, nil)
	policyAskedDesc    = prometheus.NewDesc("homenode_policy_asked_timestamp_seconds", "When a store last confirmed the policies.", nil, nil)
	policyProblemsDesc = prometheus.NewDesc("homenode_policy_problems", "Policies that cannot be used.", nil, nil)
)

// Describe implements prometheus.Collector.
func (guardChecks) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{guardChecksDesc, policyRevisionDesc, policyAskedDesc, policyProblemsDesc} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (g guardChecks) Collect(values chan<- prometheus.Metric) {
	for _, state := range g.guards.States() {
		for i, result := range guard.Results {
			values <- prometheus.MustNewConstMetric(guardChecksDesc, prometheus.CounterValue, float64(state.Counts[i]), state.Name, result)
		}
	}
	snapshot := g.policies.Snapshot()
	values <- prometheus.MustNewConstMetric(policyRevisionDesc, prometheus.GaugeValue, float64(snapshot.Revision))
	values <- prometheus.MustNewConstMetric(policyProblemsDesc, prometheus.GaugeValue, float64(len(snapshot.Problems)))
	if asked := g.policies.AskedAt(); !asked.IsZero() {
		values <- prometheus.MustNewConstMetric(policyAskedDesc, prometheus.GaugeValue, float64(asked.UnixMilli())/1000)
	}
}
