// Package traefikconf builds the dynamic configuration that Traefik polls.
//
// Per service there is a parent router with the plugin and, below it, a child
// router for every enabled node, chosen by the header that only the plugin sets.
// A child repeats its parent's rule: a child that lost its parent would become a
// public router, and must not match more than the parent did. It cannot be
// reached without the plugin all the same, because Build writes both or none.
package traefikconf

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

// Settings are what an operator decides about Traefik.
type Settings struct {
	Plugin         string         // name of the plugin in Traefik's static configuration
	Endpoint       string         // of the binding service, for the plugin: http(s):// or unix://
	ServiceURL     string         // of the binding service, for Traefik's own services: http(s)://
	AdminURL       string         // of the admin listener; empty = not routed
	EntryPoints    []string       // of the public routers
	Rule           string         // added to every public router's rule, such as Host(`a.example`)
	TLS            map[string]any // of the public routers; nil = none
	NoRoute        bool           // a last router answers NO_ROUTE
	CircuitBreaker string         // expression, where no policy has its own; empty = none
	Timeout        time.Duration  // of the plugin's question
	BindTimeout    time.Duration  // how long the plugin holds a login's response
	TokenSources   []string
	StripHeaders   []string
	Messages       string // language of the plugin's own answers when the client does not say: zh or en
}

// Names with a tilde are ours: an id cannot contain one.
const (
	internalService    = "homenode~internal"
	adminService       = "homenode~admin"
	fallbackName       = "homenode~fallback"
	clientFallbackName = "homenode~fallback-client"
	breakerName        = "homenode~breaker"
	noRouteName        = "homenode~no-route"
	notKnownName       = "homenode~not-known"
)

// Paths of the binding service that Traefik leads requests to.
const (
	FallbackPath = "/v1/fallback"
	NoRoutePath  = "/v1/fallback/no-route"
	NotKnownPath = "/v1/fallback/not-known"
)

// Headers of a request that only the plugin sets.
const (
	// PoolHeader marks an anonymous request for the weighted pool of its service while
	// the binding service cannot be asked.
	PoolHeader = "X-Homenode-Pool"

	// ClientHeader is "1" if the client reads business codes, and gets HTTP 200 with them.
	ClientHeader = "X-Homenode-Client"

	// FallbackHeader tells the fallback what it has to know of the request that failed.
	FallbackHeader = "X-Homenode-Fallback"
)

// Configuration is Traefik's dynamic configuration, as far as it is used here.
type Configuration struct {
	HTTP HTTP `json:"http"`
}

// HTTP is the http section. Empty sections are left out: Traefik rejects them.
type HTTP struct {
	Routers     map[string]*Router        `json:"routers,omitempty"`
	Middlewares map[string]map[string]any `json:"middlewares,omitempty"`
	Services    map[string]*Service       `json:"services,omitempty"`
}

// Router is a Traefik router: a parent has middlewares and no service, a child has ParentRefs.
type Router struct {
	EntryPoints []string       `json:"entryPoints,omitempty"`
	Rule        string         `json:"rule"`
	Priority    int            `json:"priority"`
	Middlewares []string       `json:"middlewares,omitempty"`
	Service     string         `json:"service,omitempty"`
	ParentRefs  []string       `json:"parentRefs,omitempty"`
	TLS         map[string]any `json:"tls,omitzero"` // an empty one still means TLS
}

// Service is a Traefik service: one server, or a weighted choice of services.
type Service struct {
	LoadBalancer *LoadBalancer `json:"loadBalancer,omitempty"`
	Weighted     *Weighted     `json:"weighted,omitempty"`
	Middlewares  []string      `json:"middlewares,omitempty"`
}

// LoadBalancer is a service with one server.
type LoadBalancer struct {
	Servers []Server `json:"servers"`
}

// Server is where requests go.
type Server struct {
	URL string `json:"url"`
}

// Weighted shares requests between services.
type Weighted struct {
	Services []WeightedService `json:"services"`
}

// WeightedService is one share.
type WeightedService struct {
	Name   string `json:"name"`
	Weight int    `json:"weight"`
}

// Build returns the configuration for a registry and the policies of its services.
func Build(snapshot *registry.Snapshot, policies *policy.Snapshot, s Settings) Configuration {
	b := builder{settings: s, policies: policies, http: HTTP{
		Routers: map[string]*Router{}, Middlewares: map[string]map[string]any{}, Services: map[string]*Service{},
	}}
	b.frame()
	for _, service := range snapshot.Services {
		if service.Enabled {
			b.http.Routers[service.ID] = &Router{} // parents take their names first
		}
	}
	for _, service := range snapshot.Services {
		if service.Enabled {
			b.service(service, snapshot.NodesOf(service.ID))
		} else {
			b.closed(service)
		}
	}
	return Configuration{HTTP: b.http}
}

type builder struct {
	settings Settings
	policies *policy.Snapshot
	http     HTTP
}

// frame adds what does not depend on the registry.
func (b *builder) frame() {
	s := b.settings
	b.http.Services[internalService] = single(s.ServiceURL)
	b.http.Middlewares[fallbackName] = fallback()
	b.http.Middlewares[notKnownName] = map[string]any{"replacePath": map[string]any{"path": NotKnownPath}}
	if s.CircuitBreaker != "" {
		b.http.Middlewares[breakerName] = breaker(s.CircuitBreaker)
	}
	b.http.Middlewares[noRouteName] = map[string]any{"replacePath": map[string]any{"path": NoRoutePath}}
	if s.NoRoute {
		router := b.public("PathPrefix(`/`)")
		router.Priority, router.Middlewares, router.Service = 1, []string{noRouteName}, internalService
		b.http.Routers[noRouteName] = router
	}
	if s.AdminURL != "" {
		b.http.Services[adminService] = single(s.AdminURL)
		router := b.public(covers(gateway.AdminPrefix))
		router.Service = adminService
		b.http.Routers[adminService] = router
	}
}

// fallback has the binding service answer for a node. It is asked with the node's status
// and the listed headers only: the client's others, its token first of all, stay here,
// and so does {url}, which could carry one.
func fallback() map[string]any { return map[string]any{"errors": fallbackErrors("{status}")} }

func fallbackErrors(status string) map[string]any {
	return map[string]any{
		"status":              []string{failures},
		"service":             internalService,
		"query":               FallbackPath + "?status=" + status,
		"errorRequestHeaders": []string{"Accept-Language", "X-Request-Id", FallbackHeader, ClientHeader},
	}
}

// clientFallback is fallback for clients that read business codes: it answers HTTP 200.
func clientFallback() map[string]any {
	errors := fallbackErrors("{originalStatus}")
	errors["statusRewrites"] = map[string]int{failures: http.StatusOK}
	return map[string]any{"errors": errors}
}

// failures are the statuses from behind a child router that count as the gateway's.
const failures = "502-504"

// breaker spares a failing node the time between two health probes, which decide about
// it. It closes soon after the node is back.
func breaker(expression string) map[string]any {
	return map[string]any{"circuitBreaker": map[string]any{
		"expression": expression, "checkPeriod": "100ms", "fallbackDuration": "3s", "recoveryDuration": "1s",
	}}
}

// public is a router that the entry points reach. A longer prefix has the longer
// rule, and so the higher priority: stated, not left to Traefik's default.
func (b *builder) public(rule string) *Router {
	if b.settings.Rule != "" {
		rule = "(" + b.settings.Rule + ") && (" + rule + ")"
	}
	return &Router{EntryPoints: b.settings.EntryPoints, Rule: rule, Priority: len(rule), TLS: b.settings.TLS}
}

// covers is the rule for a path prefix: "/js/a" and "/js/a/...", not "/js/apple".
func covers(prefix string) string {
	if prefix == "/" {
		return "PathPrefix(`/`)"
	}
	return "Path(`" + prefix + "`) || PathPrefix(`" + prefix + "/`)"
}

// closed answers NO_ROUTE for a disabled service, whose paths must not fall to a
// service with a shorter prefix.
func (b *builder) closed(service gateway.Service) {
	router := b.public(covers(service.PathPrefix))
	router.Middlewares, router.Service = []string{noRouteName}, internalService
	b.http.Routers[service.ID+"~closed"] = router
}

func (b *builder) service(service gateway.Service, nodes []gateway.Node) {
	plugin := service.ID + "~plugin"
	b.http.Middlewares[plugin] = map[string]any{"plugin": map[string]any{b.settings.Plugin: b.pluginSettings(service)}}
	parent := b.public(covers(service.PathPrefix))
	parent.Middlewares = []string{plugin}
	b.http.Routers[service.ID] = parent

	breakers, readsCodes := b.breakersOf(service.ID), b.readsCodes(service.ID)
	isClosed := b.policies.IsClosed(service.ID) // then nothing goes around the guards
	pool := &Weighted{}
	takesNew := slices.ContainsFunc(nodes, func(n gateway.Node) bool { return n.Enabled && !n.Draining })
	for _, node := range nodes {
		if !node.Enabled {
			continue
		}
		name := b.freeName(service.ID, node.ID)
		headers := node.ID + "~node"
		b.http.Middlewares[headers] = map[string]any{"headers": map[string]any{
			"customResponseHeaders": map[string]string{"X-Gateway-Node": node.ID},
		}}
		// The header is for the pool, which does not pass the child. The breaker is here
		// because a node has one, by however many routers it is reached.
		b.http.Services[name] = serviceOf(node)
		b.http.Services[name].Middlewares = append([]string{headers}, breakers...)

		match := "Header(`X-Gateway-Node`, `" + node.ID + "`)"
		child := b.child(service.ID, parent, match, name)
		child.Middlewares = []string{headers, fallbackName}
		b.http.Routers[name] = child
		if readsCodes {
			// The errors middleware cannot choose the status by a header; a router can.
			// Its rule is the longer one, and so its priority the higher.
			child := b.child(service.ID, parent, match+" && Header(`"+ClientHeader+"`, `1`)", name)
			child.Middlewares = []string{headers, clientFallbackName}
			b.http.Routers[name+"~client"] = child
		}
		if (!node.Draining || !takesNew) && !isClosed {
			pool.Services = append(pool.Services, WeightedService{Name: name, Weight: poolWeight(service, node)})
		}
	}
	if len(pool.Services) > 0 {
		name := service.ID + "~pool"
		b.http.Services[name] = &Service{Weighted: pool}
		b.http.Routers[name] = b.child(service.ID, parent, "Header(`"+PoolHeader+"`, `"+service.ID+"`)", name)
	}
	unknown := b.child(service.ID, parent, "", internalService)
	unknown.Priority, unknown.Middlewares = 1, []string{notKnownName}
	b.http.Routers[service.ID+"~not-known"] = unknown
}

// breakersOf returns the circuit breaker of a service's nodes: one middleware, or none.
func (b *builder) breakersOf(serviceID string) []string {
	usual := b.settings.CircuitBreaker
	if rule := b.policies.Degradation(serviceID); rule != nil && rule.Breaker != "" && rule.Breaker != usual {
		name := serviceID + "~own-breaker" // not breakerName, whatever the service is called
		b.http.Middlewares[name] = breaker(rule.Breaker)
		return []string{name}
	}
	if usual == "" {
		return nil
	}
	return []string{breakerName}
}

// readsCodes reports whether some clients of the service read business codes, and adds
// the middleware that answers them.
func (b *builder) readsCodes(serviceID string) bool {
	answers := b.policies.Answers(serviceID)
	if answers == nil || len(answers.ClientSources) == 0 {
		return false
	}
	b.http.Middlewares[clientFallbackName] = clientFallback()
	return true
}

// serviceOf leads to the node: to its address, or through another provider's service.
func serviceOf(node gateway.Node) *Service {
	if node.TraefikService != "" {
		return &Service{Weighted: &Weighted{Services: []WeightedService{{Name: node.TraefikService, Weight: 1}}}}
	}
	return single(node.BaseURL)
}

// poolWeight is a node's share of the anonymous requests while the binding service is away.
func poolWeight(service gateway.Service, node gateway.Node) int {
	if service.Placement == gateway.Weighted {
		return node.Share()
	}
	return 1
}

func (b *builder) child(parentName string, parent *Router, match, service string) *Router {
	rule := parent.Rule
	if match != "" {
		rule = "(" + rule + ") && " + match
	}
	return &Router{
		ParentRefs: []string{parentName}, Rule: rule, Priority: len(rule),
		Middlewares: []string{fallbackName}, Service: service,
	}
}

// freeName is <service>-<node>, unless another pair of ids has made that name already.
func (b *builder) freeName(serviceID, nodeID string) string {
	name := serviceID + "-" + nodeID
	if b.http.Routers[name] != nil {
		return serviceID + "~node~" + nodeID
	}
	return name
}

func (b *builder) pluginSettings(service gateway.Service) map[string]any {
	settings := map[string]any{
		"service":  service.ID,
		"endpoint": b.settings.Endpoint,
		"login":    service.Login,
	}
	if b.policies.IsClosed(service.ID) {
		settings["closed"] = true
	}
	for key, limit := range map[string]time.Duration{"timeout": b.settings.Timeout, "bindTimeout": b.settings.BindTimeout} {
		if limit > 0 {
			settings[key] = limit.String()
		}
	}
	for key, value := range map[string]string{
		"loginPath": service.FullLoginPath(), "logoutPath": service.FullLogoutPath(), "messages": b.settings.Messages,
	} {
		if value != "" {
			settings[key] = value
		}
	}
	for key, values := range map[string][]string{"tokenSources": b.settings.TokenSources, "stripHeaders": b.settings.StripHeaders} {
		if len(values) > 0 {
			settings[key] = values
		}
	}
	return settings
}

func single(url string) *Service {
	return &Service{LoadBalancer: &LoadBalancer{Servers: []Server{{URL: strings.TrimSuffix(url, "/")}}}}
}
