package httpapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const (
	headerReason    = "X-Gateway-Reason"
	headerRequestID = "X-Request-Id"
)

// envelope is the body of every answer that is not a forward-auth verdict.
type envelope struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data"`
}

type refusalData struct {
	Reason      gateway.Reason `json:"reason"`
	RequestID   string         `json:"requestId"`
	Maintenance *maintenance   `json:"maintenance,omitempty"`
}

// maintenance is what clients make a maintenance page of (seed 004).
type maintenance struct {
	Message string `json:"message"`
	gateway.MaintenanceInfo
}

// asRefusal maps every error to what the client may know of it.
func asRefusal(err error) *gateway.Error {
	var refusal *gateway.Error
	var conflict *gateway.ConflictError
	var httpError *echo.HTTPError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &conflict):
		return &gateway.Error{Reason: gateway.Conflict, Detail: conflict.Message}
	case errors.Is(err, gateway.ErrNotFound):
		return &gateway.Error{Reason: gateway.NotFound}
	case errors.As(err, &httpError):
		switch httpError.Code {
		case http.StatusNotFound, http.StatusMethodNotAllowed:
			return &gateway.Error{Reason: gateway.NotFound}
		case http.StatusRequestEntityTooLarge:
			return &gateway.Error{Reason: gateway.TooLarge}
		case http.StatusBadRequest:
			return &gateway.Error{Reason: gateway.Validation}
		}
	}
	return &gateway.Error{Reason: gateway.Internal, Cause: err}
}

// refuse is echo's error handler: the one place that writes an error.
func (s *Server) refuse(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	refusal := asRefusal(err)
	s.logRefusal(c.Request().Context(), refusal, requestID(c), c.Path())
	s.write(c, refusal, refusal.Reason.Status(), 0, gateway.Text{})
}

// write answers with a refusal. A code of 0 is the HTTP status; what text lacks is the
// refusal's own, or the reason's.
func (s *Server) write(c echo.Context, refusal *gateway.Error, status, code int, text gateway.Text) {
	header := c.Response().Header()
	if !errors.Is(refusal.Cause, errNotReady) { // no verdict: to a plugin this service is not there yet
		header.Set(headerReason, string(refusal.Reason))
	}
	header.Set(headerRequestID, requestID(c))
	header.Set("Cache-Control", "no-store")
	if refusal.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(refusal.RetryAfter.Seconds()))))
	}
	if len(refusal.Allow) > 0 {
		header.Set("Allow", strings.Join(refusal.Allow, ", "))
	}
	refusal.Text = text.Or(refusal.Text)
	data := refusalData{Reason: refusal.Reason, RequestID: requestID(c)}
	body := envelope{Code: cmp.Or(code, status), Message: s.messageOf(c, refusal)}
	if refusal.Maintenance != nil {
		data.Maintenance = &maintenance{body.Message, *refusal.Maintenance}
	}
	body.Data = data
	if err := c.JSON(status, body); err != nil {
		s.log.DebugContext(c.Request().Context(), "answer not written", "error", err)
	}
}

// messageOf is the text that goes with a refusal, in the client's language.
func (s *Server) messageOf(c echo.Context, refusal *gateway.Error) string {
	own := messages[refusal.Reason]
	best := refusal.Text.Or(gateway.Text{ZH: own.zh, EN: own.en})
	message := s.languages.pick(c.Request().Header.Get("Accept-Language"), text{best.ZH, best.EN})
	if refusal.Detail != "" {
		message += " (" + refusal.Detail + ")"
	}
	return message
}

func (s *Server) logRefusal(ctx context.Context, refusal *gateway.Error, id, path string) {
	level := slog.LevelInfo
	if refusal.Guard != "" {
		level = slog.LevelDebug // they are counted: whoever calls too often must not fill the log too
	}
	switch refusal.Reason {
	case gateway.Internal:
		level = slog.LevelError
	case gateway.StoreUnavailable, gateway.PolicyInvalid:
		level = slog.LevelWarn
	case gateway.NeedsMore:
		level = slog.LevelDebug
	default: // the client's or the node's matter, not the gateway's
	}
	s.log.Log(ctx, level, "refused", "reason", refusal.Reason, "guard", refusal.Guard, "detail", refusal.Detail, "error", refusal.Cause, "path", path, "request", id)
}

func invalid(detail string) error {
	return &gateway.Error{Reason: gateway.Validation, Detail: detail}
}

var errNotReady = errors.New("the registry is not loaded yet")

func notReady() error {
	return &gateway.Error{Reason: gateway.StoreUnavailable, RetryAfter: time.Second, Cause: errNotReady}
}
