// Package decide turns one request into one decision: guards, then session, then binding, then node.
package decide

import (
	"context"
	"errors"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

// Guards check a request before a node is chosen for it (package guard).
type Guards interface {
	Question(req gateway.Request, service gateway.Service) *guard.Question
	Check(ctx context.Context, q *guard.Question) error
	Remember(ctx context.Context, q *guard.Question)
}

// Bindings knows which node a user is bound to (package binding).
type Bindings interface {
	ByUser(ctx context.Context, serviceID, userID string) (gateway.Route, error)
	ByUsername(ctx context.Context, serviceID, username string) (gateway.Route, error)
	BindIfAbsent(ctx context.Context, login gateway.Login) (gateway.BindResult, error)
	Unwritten(serviceID, userID string) (gateway.Login, bool)
}

// Nodes knows services, nodes and their health (package registry).
type Nodes interface {
	Snapshot() *registry.Snapshot
	Usable(ctx context.Context, serviceID, nodeID string) error
	PlaceUser(ctx context.Context, serviceID string) (nodeID string, err error)
	PlaceAnonymous(ctx context.Context, serviceID string) (nodeID string, err error)
}

// Decider decides. It is safe for concurrent use.
type Decider struct {
	nodes    Nodes
	guards   Guards
	bindings Bindings
}

// New makes a Decider.
func New(nodes Nodes, guards Guards, bindings Bindings) *Decider {
	return &Decider{nodes: nodes, guards: guards, bindings: bindings}
}

// Decide returns where the request goes, or a *gateway.Error that says why nowhere;
// the service is told in both cases.
// A user who is bound is never sent to another node, whatever happens. Under a
// gateway.Trace the decision is explained, and nothing is written, learned or counted.
func (d *Decider) Decide(ctx context.Context, req gateway.Request) (gateway.Decision, error) {
	service, err := d.service(ctx, req)
	if err != nil {
		return gateway.Decision{}, err
	}
	q := d.guards.Question(req, service)
	err = d.guards.Check(ctx, q)
	var decision gateway.Decision
	if err == nil {
		decision, err = d.within(ctx, q)
	}
	if !needsMore(err) {
		d.guards.Remember(ctx, q)
	}
	decision.ServiceID = service.ID
	return decision, err
}

// needsMore reports whether the same request will be asked about again.
func needsMore(err error) bool {
	var refusal *gateway.Error
	return errors.As(err, &refusal) && refusal.Reason == gateway.NeedsMore
}

func (d *Decider) within(ctx context.Context, q *guard.Question) (gateway.Decision, error) {
	switch {
	case q.Login:
		return d.login(ctx, q.Service, q.Username)
	case q.User != nil:
		return d.named(ctx, q.Service, *q.User)
	case q.Token == "":
		gateway.TraceOf(ctx).Begin("token", "request").End(gateway.Missing, "no token: anonymous")
		decision, err := d.anonymous(ctx, q.Service)
		decision.App = q.App
		return decision, err
	}
	subject, err := q.Subject(ctx)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		decision, err := d.anonymous(ctx, q.Service) // the node itself answers 401
		decision.App = q.App
		return decision, err
	case err != nil:
		return gateway.Decision{}, gateway.Unavailable(err)
	}
	decision, err := d.user(ctx, q.Service, subject.UserID)
	decision.Channel, decision.Source, decision.App = subject.Channel, subject.Source, q.App
	decision.Cacheable = decision.Cacheable && !q.Policies.IsPerRequest(q.Service.ID)
	return decision, err
}

func (d *Decider) service(ctx context.Context, req gateway.Request) (gateway.Service, error) {
	step := gateway.TraceOf(ctx).Begin("service", "registry")
	snapshot := d.nodes.Snapshot()
	service, ok := snapshot.Service(req.ServiceID)
	if req.ServiceID == "" {
		service, ok = snapshot.ServiceAt(req.Path)
	}
	switch {
	case !ok:
		step.End(gateway.Missing, "no service has this path or id")
		return gateway.Service{}, &gateway.Error{Reason: gateway.NoRoute}
	case !service.Enabled:
		step.End(gateway.Refused, service.ID+" is disabled")
		return gateway.Service{}, &gateway.Error{Reason: gateway.NoRoute}
	}
	step.End(gateway.Found, service.ID)
	return service, nil
}

// named is the decision for a user who is named instead of by a token: only ever explained.
func (d *Decider) named(ctx context.Context, service gateway.Service, user gateway.NamedUser) (gateway.Decision, error) {
	if user.ID != "" {
		return d.user(ctx, service, user.ID)
	}
	route, err := d.bindings.ByUsername(ctx, service.ID, user.Name)
	return d.bound(ctx, service, "", route, err)
}

// login leads a known name to its node and places an unknown one. Nothing is
// written: the node has not said yet that the login succeeds.
func (d *Decider) login(ctx context.Context, service gateway.Service, username string) (gateway.Decision, error) {
	if username == "" {
		gateway.TraceOf(ctx).Begin("binding", "request").End(gateway.Skipped, "a login without a username that can be read")
		return d.place(d.nodes.PlaceUser(ctx, service.ID))
	}
	route, err := d.bindings.ByUsername(ctx, service.ID, username)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return d.place(d.nodes.PlaceUser(ctx, service.ID))
	case err != nil:
		return gateway.Decision{}, gateway.Unavailable(err)
	}
	if err := d.nodes.Usable(ctx, service.ID, route.NodeID); err != nil {
		return gateway.Decision{}, err
	}
	return gateway.Decision{NodeID: route.NodeID, Epoch: route.Epoch}, nil
}

func (d *Decider) anonymous(ctx context.Context, service gateway.Service) (gateway.Decision, error) {
	return d.place(d.nodes.PlaceAnonymous(ctx, service.ID))
}

func (d *Decider) place(nodeID string, err error) (gateway.Decision, error) {
	if err != nil {
		return gateway.Decision{}, err
	}
	return gateway.Decision{NodeID: nodeID}, nil
}

func (d *Decider) user(ctx context.Context, service gateway.Service, userID string) (gateway.Decision, error) {
	route, err := d.bindings.ByUser(ctx, service.ID, userID)
	return d.bound(ctx, service, userID, route, err)
}

// bound turns what was found of a valid user's binding into the decision.
func (d *Decider) bound(ctx context.Context, service gateway.Service, userID string, route gateway.Route, err error) (gateway.Decision, error) {
	if errors.Is(err, gateway.ErrNotFound) {
		route, err = d.bindToDefault(ctx, service, userID)
	}
	if err != nil {
		var refusal *gateway.Error
		if errors.As(err, &refusal) {
			return gateway.Decision{}, err
		}
		return gateway.Decision{}, gateway.Unavailable(err)
	}
	if err := d.nodes.Usable(ctx, service.ID, route.NodeID); err != nil {
		return gateway.Decision{}, err
	}
	return gateway.Decision{NodeID: route.NodeID, UserID: userID, Epoch: route.Epoch, Cacheable: true}, nil
}

// defaultBindLimit is shorter than a login's report may take: the plugin waits for this answer.
const defaultBindLimit = 500 * time.Millisecond

// bindToDefault binds a user without a binding to the service's default node, or to where
// their last login took place if that could not be stored yet.
func (d *Decider) bindToDefault(ctx context.Context, service gateway.Service, userID string) (gateway.Route, error) {
	trace := gateway.TraceOf(ctx)
	login, isUnwritten := d.bindings.Unwritten(service.ID, userID)
	source := "registry"
	if isUnwritten {
		source = "L1"
	}
	step := trace.Begin("default-node", source)
	switch {
	case isUnwritten:
	case service.DefaultNodeID == "":
		step.End(gateway.Missing, "the service has no default node")
		return gateway.Route{}, &gateway.Error{Reason: gateway.NoBinding}
	default:
		login = gateway.Login{ServiceID: service.ID, NodeID: service.DefaultNodeID, UserID: userID}
	}
	if trace != nil {
		step.End(gateway.Chosen, "node "+login.NodeID+": the request would bind the user to it")
		return gateway.Route{NodeID: login.NodeID, Epoch: 1}, nil
	}
	limited, cancel := context.WithTimeout(ctx, defaultBindLimit)
	defer cancel()
	result, err := d.bindings.BindIfAbsent(limited, login)
	var conflict *gateway.ConflictError
	if errors.As(err, &conflict) { // the default node was deleted since
		return gateway.Route{}, &gateway.Error{Reason: gateway.NoBinding, Cause: err}
	}
	return result.Binding.Route(), err
}
