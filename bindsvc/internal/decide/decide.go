// Package decide turns one request into one decision: session, then binding, then node.
package decide

import (
	"context"
	"errors"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

// Sessions knows which user a token belongs to (package session).
type Sessions interface {
	UserByToken(ctx context.Context, serviceID, token string) (string, error)
}

// Bindings knows which node a user is bound to (package binding).
type Bindings interface {
	ByUser(ctx context.Context, serviceID, userID string) (gateway.Route, error)
	ByUsername(ctx context.Context, serviceID, username string) (gateway.Route, error)
	BindIfAbsent(ctx context.Context, login gateway.Login) (gateway.BindResult, error)
}

// Nodes knows services, nodes and their health (package registry).
type Nodes interface {
	Snapshot() *registry.Snapshot
	Usable(serviceID, nodeID string) error
	Place(serviceID string) (nodeID string, err error)
}

// Decider decides. It is safe for concurrent use.
type Decider struct {
	nodes    Nodes
	sessions Sessions
	bindings Bindings
}

// New makes a Decider.
func New(nodes Nodes, sessions Sessions, bindings Bindings) *Decider {
	return &Decider{nodes: nodes, sessions: sessions, bindings: bindings}
}

// Decide returns where the request goes, or a *gateway.Error that says why nowhere;
// the service is told in both cases.
// A user who is bound is never sent to another node, whatever happens.
func (d *Decider) Decide(ctx context.Context, req gateway.Request) (gateway.Decision, error) {
	service, err := d.service(req)
	if err != nil {
		return gateway.Decision{}, err
	}
	decision, err := d.within(ctx, service, req)
	decision.ServiceID = service.ID
	return decision, err
}

func (d *Decider) within(ctx context.Context, service gateway.Service, req gateway.Request) (gateway.Decision, error) {
	switch {
	case req.Login:
		return d.login(ctx, service, req.Username)
	case req.Token == "":
		return d.anonymous(service)
	}
	userID, err := d.sessions.UserByToken(ctx, service.ID, req.Token)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return d.anonymous(service) // the node itself answers 401
	case err != nil:
		return gateway.Decision{}, gateway.Unavailable(err)
	}
	return d.user(ctx, service, userID)
}

func (d *Decider) service(req gateway.Request) (gateway.Service, error) {
	snapshot := d.nodes.Snapshot()
	service, ok := snapshot.Service(req.ServiceID)
	if req.ServiceID == "" {
		service, ok = snapshot.ServiceAt(req.Path)
	}
	if !ok || !service.Enabled {
		return gateway.Service{}, &gateway.Error{Reason: gateway.NoRoute}
	}
	return service, nil
}

// login leads a known name to its node and places an unknown one. Nothing is
// written: the node has not said yet that the login succeeds.
func (d *Decider) login(ctx context.Context, service gateway.Service, username string) (gateway.Decision, error) {
	if username == "" {
		return d.anonymous(service)
	}
	route, err := d.bindings.ByUsername(ctx, service.ID, username)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return d.anonymous(service)
	case err != nil:
		return gateway.Decision{}, gateway.Unavailable(err)
	}
	if err := d.nodes.Usable(service.ID, route.NodeID); err != nil {
		return gateway.Decision{}, err
	}
	return gateway.Decision{NodeID: route.NodeID, Epoch: route.Epoch}, nil
}

func (d *Decider) anonymous(service gateway.Service) (gateway.Decision, error) {
	nodeID, err := d.nodes.Place(service.ID)
	if err != nil {
		return gateway.Decision{}, err
	}
	return gateway.Decision{NodeID: nodeID}, nil
}

func (d *Decider) user(ctx context.Context, service gateway.Service, userID string) (gateway.Decision, error) {
	route, err := d.bindings.ByUser(ctx, service.ID, userID)
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
	if err := d.nodes.Usable(service.ID, route.NodeID); err != nil {
		return gateway.Decision{}, err
	}
	return gateway.Decision{NodeID: route.NodeID, UserID: userID, Epoch: route.Epoch, Cacheable: true}, nil
}

// defaultBindLimit is shorter than a login's report may take: the plugin waits for this answer.
const defaultBindLimit = 500 * time.Millisecond

func (d *Decider) bindToDefault(ctx context.Context, service gateway.Service, userID string) (gateway.Route, error) {
	if service.DefaultNodeID == "" {
		return gateway.Route{}, &gateway.Error{Reason: gateway.NoBinding}
	}
	login := gateway.Login{ServiceID: service.ID, NodeID: service.DefaultNodeID, UserID: userID}
	limited, cancel := context.WithTimeout(ctx, defaultBindLimit)
	defer cancel()
	result, err := d.bindings.BindIfAbsent(limited, login)
	var conflict *gateway.ConflictError
	if errors.As(err, &conflict) { // the default node was deleted since
		return gateway.Route{}, &gateway.Error{Reason: gateway.NoBinding, Cause: err}
	}
	return result.Binding.Route(), err
}
