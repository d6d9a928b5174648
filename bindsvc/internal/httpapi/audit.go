package httpapi

import (
	"errors"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// ListAudit answers with a page of changes, the newest first.
func (a admin) ListAudit(c echo.Context, params api.ListAuditParams) error {
	page, size := pageOf(params.Page, params.Size)
	filter := gateway.AuditFilter{
		ServiceID: textOf(params.ServiceID), NodeID: textOf(params.NodeID), UserID: textOf(params.UserID), Username: gateway.KeyOf(textOf(params.Username)),
		Actor: textOf(params.Actor), Action: textOf(params.Action), RequestID: textOf(params.RequestID), Offset: (page - 1) * size, Limit: size,
	}
	set(&filter.Since, params.Since)
	set(&filter.Until, params.Until)
	entries, total, err := a.store.ListAudit(c.Request().Context(), filter)
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, pageView(total, page, size, entries, viewAudit))
}

// viewAudit is api.AuditEntry with the records as they are stored, but for secrets.
func viewAudit(e gateway.AuditEntry) map[string]any {
	if e.IsOfPolicy() {
		e.Before, e.After = gateway.ViewAuditedPolicy(e.Before, policy.View), gateway.ViewAuditedPolicy(e.After, policy.View)
	}
	return map[string]any{
		"id": e.ID, "time": e.At, "actor": e.Actor.Name, "address": e.Actor.Address, "requestId": e.Actor.RequestID, "action": e.Action,
		"serviceId": orNull(e.ServiceID), "nodeId": orNull(e.NodeID), "userId": orNull(e.UserID), "username": orNull(e.Username),
		"before": e.Before, "after": e.After,
	}
}

// BindingAt answers where a user was bound at a time; null if nowhere.
func (a admin) BindingAt(c echo.Context, params api.BindingAtParams) error {
	userID, username := textOf(params.UserID), textOf(params.Username)
	if (userID == "") == (username == "") {
		return invalid("give userId or username")
	}
	binding, err := a.store.BindingAt(c.Request().Context(), params.ServiceID, userID, gateway.KeyOf(username), params.At)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return a.succeed(c, nil)
	case err != nil:
		return gateway.Unavailable(err)
	}
	return a.succeed(c, api.PastBinding{
		ServiceID: binding.ServiceID, UserID: orNull(binding.UserID), Username: orNull(binding.Username), NodeID: binding.NodeID, Epoch: binding.Epoch,
	})
}
