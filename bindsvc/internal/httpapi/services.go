package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// etag stands for a record as it is now.
func etag(record any) string {
	encoded, err := json.Marshal(record)
	if err != nil {
		panic(err) // plain fields always marshal
	}
	sum := sha256.Sum256(encoded)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

// requireMatch refuses a change that starts from another record than the one there is.
func requireMatch(ifMatch *api.IfMatch, now string) error {
	if ifMatch == nil || *ifMatch == "*" {
		return nil
	}
	for given := range strings.SplitSeq(*ifMatch, ",") {
		if strings.TrimSpace(given) == now {
			return nil
		}
	}
	return &gateway.Error{Reason: gateway.PreconditionFailed}
}

func viewService(s gateway.Service) api.Service {
	if s.Placement == "" {
		s.Placement = gateway.RoundRobin
	}
	login := s.Login.WithDefaults()
	return api.Service{
		ID: s.ID, Name: s.Name, PathPrefix: s.PathPrefix, LoginPath: s.LoginPath, LogoutPath: s.LogoutPath,
		HealthPath: s.HealthPath, DefaultNodeID: orNull(s.DefaultNodeID), Enabled: s.Enabled, Placement: api.Placement(s.Placement),
		Login: api.LoginFields{
			Username: &login.Username, Code: &login.Code, Success: &login.Success,
			Token: &login.Token, UserID: &login.UserID, ResponseUsername: &login.ResponseUsername,
		},
		CreateTime: s.CreatedAt, UpdateTime: s.UpdatedAt, Etag: etag(s),
	}
}

// viewServices puts the nodes below their services.
func (a admin) viewServices(services []gateway.Service, nodes []gateway.Node) []api.Service {
	views := make([]api.Service, len(services))
	for i, service := range services {
		below := []api.Node{}
		for _, node := range nodes {
			if node.ServiceID == service.ID {
				below = append(below, a.viewNode(node))
			}
		}
		views[i] = viewService(service)
		views[i].Nodes = &below
	}
	return views
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// ListServices answers with all services and their nodes.
func (a admin) ListServices(c echo.Context) error {
	services, nodes, err := a.store.LoadRegistry(c.Request().Context())
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, a.viewServices(services, nodes))
}

// GetService answers with one service.
func (a admin) GetService(c echo.Context, id api.ServiceID) error {
	service, err := a.serviceByID(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.answerService(c, service)
}

// serviceByID reads from the store: what was written a moment ago is there.
func (a admin) serviceByID(ctx context.Context, id string) (gateway.Service, error) {
	services, _, err := a.store.LoadRegistry(ctx)
	if err != nil {
		return gateway.Service{}, gateway.Unavailable(err)
	}
	for _, service := range services {
		if service.ID == id {
			return service, nil
		}
	}
	return gateway.Service{}, missing(gateway.ErrNotFound, noService(id))
}

func (a admin) answerService(c echo.Context, service gateway.Service) error {
	view := viewService(service)
	c.Response().Header().Set("ETag", view.Etag)
	return a.succeed(c, view)
}

// applyService changes the fields that are given.
func applyService(s *gateway.Service, in api.ServiceChange) error {
	if in.ID != nil && *in.ID != s.ID {
		return invalid("id: cannot be changed")
	}
	set(&s.Name, in.Name)
	set(&s.PathPrefix, in.PathPrefix)
	set(&s.LoginPath, in.LoginPath)
	set(&s.LogoutPath, in.LogoutPath)
	set(&s.HealthPath, in.HealthPath)
	if in.DefaultNodeID.Given {
		s.DefaultNodeID = in.DefaultNodeID.Value
	}
	setFlag(&s.Enabled, in.Enabled)
	if in.Placement != nil {
		s.Placement = gateway.Placement(*in.Placement)
	}
	var login gateway.LoginFields
	if in.Login != nil {
		set(&login.Username, in.Login.Username)
		set(&login.Code, in.Login.Code)
		set(&login.Success, in.Login.Success)
		set(&login.Token, in.Login.Token)
		set(&login.UserID, in.Login.UserID)
		set(&login.ResponseUsername, in.Login.ResponseUsername)
	}
	s.Login = login.Or(s.Login).WithDefaults()
	return verified(s.Verify())
}

func verified(err error) error {
	if err != nil {
		return invalid(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// CreateService creates a service. A retry of what was created is answered alike.
func (a admin) CreateService(c echo.Context) error {
	var in api.ServiceChange
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	service := gateway.Service{ID: textOf(in.ID), HealthPath: "/actuator/health", Enabled: true}
	if err := applyService(&service, in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	err := a.store.CreateService(ctx, service)
	var conflict *gateway.ConflictError
	if errors.As(err, &conflict) {
		if there, readErr := a.serviceByID(ctx, service.ID); readErr == nil && sameService(service, there) {
			return a.answerService(c, there)
		}
	}
	if err != nil {
		return stored(err)
	}
	return a.serviceChanged(c, service.ID)
}

func sameService(wanted, there gateway.Service) bool {
	a, b := viewService(wanted), viewService(there)
	b.CreateTime, b.UpdateTime, b.Etag = a.CreateTime, a.UpdateTime, a.Etag
	return etag(a) == etag(b)
}

// UpdateService changes the fields that are given.
func (a admin) UpdateService(c echo.Context, id api.ServiceID, params api.UpdateServiceParams) error {
	var in api.ServiceChange
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	_, err := a.store.UpdateService(c.Request().Context(), id, func(s *gateway.Service) error {
		if err := requireMatch(params.IfMatch, etag(*s)); err != nil {
			return err
		}
		return applyService(s, in)
	})
	if err != nil {
		return missing(stored(err), noService(id))
	}
	return a.serviceChanged(c, id)
}

// serviceChanged makes this instance see the change, then answers with what there is now.
func (a admin) serviceChanged(c echo.Context, id string) error {
	ctx := c.Request().Context()
	if err := a.registry.Refresh(ctx); err != nil {
		return gateway.Unavailable(err)
	}
	service, err := a.serviceByID(ctx, id)
	if err != nil {
		return err
	}
	return a.answerService(c, service)
}

// DeleteService deletes a service without nodes and bindings.
func (a admin) DeleteService(c echo.Context, id api.ServiceID) error {
	if err := a.store.DeleteService(c.Request().Context(), id); err != nil {
		return missing(stored(err), noService(id))
	}
	return a.Reload(c)
}
