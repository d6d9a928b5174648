package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

func (a admin) viewNode(n gateway.Node) api.Node {
	return api.Node{
		ID: n.ID, ServiceID: n.ServiceID, Name: n.Name, BaseURL: n.BaseURL, TraefikService: n.TraefikService,
		Enabled: n.Enabled, Weight: n.Share(), AcceptNew: !n.Draining, Remark: n.Remark,
		CreateTime: n.CreatedAt, UpdateTime: n.UpdatedAt, Etag: etag(n), Health: viewHealth(a.registry.Health(n.ID)),
	}
}

func viewHealth(h registry.Health) api.Health {
	return api.Health{
		State: api.HealthState(h.State), Since: timeOrNull(h.Since), CheckedAt: timeOrNull(h.CheckedAt), Failures: h.Failures, LastError: h.LastError,
	}
}

// ListNodes answers with all nodes, or those of one service.
func (a admin) ListNodes(c echo.Context, params api.ListNodesParams) error {
	_, nodes, err := a.store.LoadRegistry(c.Request().Context())
	if err != nil {
		return gateway.Unavailable(err)
	}
	views := []api.Node{}
	for _, node := range nodes {
		if params.ServiceID == nil || node.ServiceID == *params.ServiceID {
			views = append(views, a.viewNode(node))
		}
	}
	return a.succeed(c, views)
}

// GetNode answers with one node.
func (a admin) GetNode(c echo.Context, id api.NodeID) error {
	node, err := a.nodeByID(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.answerNode(c, node)
}

func (a admin) nodeByID(ctx context.Context, id string) (gateway.Node, error) {
	_, nodes, err := a.store.LoadRegistry(ctx)
	if err != nil {
		return gateway.Node{}, gateway.Unavailable(err)
	}
	for _, node := range nodes {
		if node.ID == id {
			return node, nil
		}
	}
	return gateway.Node{}, missing(gateway.ErrNotFound, noNode(id))
}

func (a admin) answerNode(c echo.Context, node gateway.Node) error {
	view := a.viewNode(node)
	c.Response().Header().Set("ETag", view.Etag)
	return a.succeed(c, view)
}

// applyNode changes the fields that are given.
func applyNode(n *gateway.Node, in api.NodeChange) error {
	if in.ID != nil && *in.ID != n.ID {
		return invalid("id: cannot be changed")
	}
	set(&n.Name, in.Name)
	set(&n.BaseURL, in.BaseURL)
	set(&n.TraefikService, in.TraefikService)
	set(&n.Weight, in.Weight)
	set(&n.Remark, in.Remark)
	setFlag(&n.Enabled, in.Enabled)
	if in.AcceptNew != nil {
		n.Draining = !bool(*in.AcceptNew)
	}
	n.BaseURL = strings.TrimSuffix(n.BaseURL, "/")
	return verified(n.Verify())
}

// CreateNode adds a node. A retry of what was added is answered alike.
func (a admin) CreateNode(c echo.Context, serviceID api.ServiceID) error {
	var in api.NodeChange
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	node := gateway.Node{ID: textOf(in.ID), ServiceID: serviceID, Enabled: true, Weight: 1}
	if err := applyNode(&node, in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	err := a.store.CreateNode(ctx, node)
	var conflict *gateway.ConflictError
	if errors.As(err, &conflict) {
		if there, readErr := a.nodeByID(ctx, node.ID); readErr == nil && sameNode(node, there) {
			return a.answerNode(c, there)
		}
	}
	if err != nil {
		return stored(err)
	}
	return a.nodeChanged(c, node.ID)
}

func sameNode(wanted, there gateway.Node) bool {
	there.CreatedAt, there.UpdatedAt = wanted.CreatedAt, wanted.UpdatedAt
	return wanted == there
}

// UpdateNode changes the fields that are given.
func (a admin) UpdateNode(c echo.Context, id api.NodeID, params api.UpdateNodeParams) error {
	var in api.NodeChange
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	_, err := a.store.UpdateNode(c.Request().Context(), id, func(n *gateway.Node) error {
		if err := requireMatch(params.IfMatch, etag(*n)); err != nil {
			return err
		}
		return applyNode(n, in)
	})
	if err != nil {
		return missing(stored(err), noNode(id))
	}
	return a.nodeChanged(c, id)
}

func (a admin) nodeChanged(c echo.Context, id string) error {
	ctx := c.Request().Context()
	if err := a.registry.Refresh(ctx); err != nil {
		return gateway.Unavailable(err)
	}
	node, err := a.nodeByID(ctx, id)
	if err != nil {
		return err
	}
	return a.answerNode(c, node)
}

// DeleteNode deletes a node that nobody is bound to.
func (a admin) DeleteNode(c echo.Context, id api.NodeID) error {
	if err := a.store.DeleteNode(c.Request().Context(), id); err != nil {
		return missing(stored(err), noNode(id))
	}
	return a.Reload(c)
}

// CheckNode probes a node now.
func (a admin) CheckNode(c echo.Context, id api.NodeID) error {
	health, err := a.registry.Probe(c.Request().Context(), id)
	if err != nil {
		return missing(err, fmt.Sprintf("there is no enabled node %q; a disabled one is not probed", id))
	}
	return a.succeed(c, viewHealth(health))
}
