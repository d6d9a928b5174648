package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// admin answers the operations of openapi.yaml. What the document says of a
// request has been checked before (conformant), and who may call (administrator).
type admin struct{ *Server }

var _ ServerInterface = admin{}

// succeed answers 200 with the envelope around data.
func (s *Server) succeed(c echo.Context, data any) error {
	c.Response().Header().Set(headerRequestID, requestID(c))
	c.Response().Header().Set("Cache-Control", "no-store")
	message := s.languages.pick(c.Request().Header.Get("Accept-Language"), success)
	return c.JSON(http.StatusOK, envelope{Code: http.StatusOK, Message: message, Data: data})
}

// stored maps an error of the store: what is no answer is STORE_UNAVAILABLE.
func stored(err error) error {
	var refusal *gateway.Error
	var conflict *gateway.ConflictError
	if err == nil || errors.Is(err, gateway.ErrNotFound) || errors.As(err, &refusal) || errors.As(err, &conflict) {
		return err
	}
	return gateway.Unavailable(err)
}

// missing says what there is none of, where err says only that there is none.
func missing(err error, what string) error {
	if !gateway.IsNotFound(err) {
		return err
	}
	return &gateway.Error{Reason: gateway.NotFound, Detail: what, Cause: err}
}

func noService(id string) string { return fmt.Sprintf("there is no service %q", id) }
func noNode(id string) string    { return fmt.Sprintf("there is no node %q", id) }
func noImport(id int64) string   { return fmt.Sprintf("there is no import %d", id) }

const defaultPageSize = 20

// pageOf returns page number and size as asked for; the document has their limits.
func pageOf(page *api.Page, size *api.Size) (number, records int) {
	number, records = 1, defaultPageSize
	if page != nil {
		number = *page
	}
	if size != nil {
		records = *size
	}
	return number, records
}

// textOf is the text of an optional parameter, empty if it is not given.
func textOf[T ~string](given *T) string {
	if given == nil {
		return ""
	}
	return string(*given)
}

// isTrue reports whether an optional parameter is given, and true.
func isTrue(given *bool) bool { return given != nil && *given }

func set[T any](field *T, given *T) {
	if given != nil {
		*field = *given
	}
}

func setFlag(field *bool, given *api.Flag) {
	if given != nil {
		*field = bool(*given)
	}
}

// GetStatus answers with services, their nodes, health and binding counts, and the guards.
func (a admin) GetStatus(c echo.Context) error {
	ctx := c.Request().Context()
	services, nodes, err := a.store.LoadRegistry(ctx)
	if err != nil {
		return gateway.Unavailable(err)
	}
	counts, err := a.store.CountBindings(ctx)
	if err != nil {
		return gateway.Unavailable(err)
	}
	views := a.viewServices(services, nodes)
	for i := range views {
		total := int64(0)
		for j := range *views[i].Nodes {
			node := &(*views[i].Nodes)[j]
			count := counts[node.ID]
			node.Bindings, total = &count, total+count
		}
		views[i].Bindings = &total
	}
	return a.succeed(c, map[string]any{"version": a.opts.Version, "guards": a.guardStates(), "services": views})
}

// Reload reads the registry now.
func (a admin) Reload(c echo.Context) error {
	if err := a.registry.Refresh(c.Request().Context()); err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, nil)
}
