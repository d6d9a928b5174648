package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
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
	Reason    gateway.Reason `json:"reason"`
	RequestID string         `json:"requestId"`
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
	s.write(c, refusal, refusal.Reason.Status())
}

func (s *Server) write(c echo.Context, refusal *gateway.Error, status int) {
	header := c.Response().Header()
	if !errors.Is(refusal.Cause, errNotReady) { // no verdict: to a plugin this service is not there yet
		header.Set(headerReason, string(refusal.Reason))
	}
	header.Set(headerRequestID, requestID(c))
	header.Set("Cache-Control", "no-store")
	if refusal.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(refusal.RetryAfter.Seconds()))))
	}
	body := envelope{Code: status, Message: s.messageOf(c, refusal), Data: refusalData{refusal.Reason, requestID(c)}}
	if err := c.JSON(status, body); err != nil {
		s.log.DebugContext(c.Request().Context(), "answer not written", "error", err)
	}
}

// messageOf is the text that goes with a refusal, in the client's language.
func (s *Server) messageOf(c echo.Context, refusal *gateway.Error) string {
	message := s.languages.pick(c.Request().Header.Get("Accept-Language"), messages[refusal.Reason])
	if refusal.Detail != "" {
		message += " (" + refusal.Detail + ")"
	}
	return message
}

func (s *Server) logRefusal(ctx context.Context, refusal *gateway.Error, id, path string) {
	level := slog.LevelInfo
	switch refusal.Reason {
	case gateway.Internal:
		level = slog.LevelError
	case gateway.StoreUnavailable:
		level = slog.LevelWarn
	default: // the client's or the node's matter, not the gateway's
	}
	s.log.Log(ctx, level, "refused", "reason", refusal.Reason, "detail", refusal.Detail, "error", refusal.Cause, "path", path, "request", id)
}

func invalid(detail string) error {
	return &gateway.Error{Reason: gateway.Validation, Detail: detail}
}

var errNotReady = errors.New("the registry is not loaded yet")

func notReady() error {
	return &gateway.Error{Reason: gateway.StoreUnavailable, RetryAfter: time.Second, Cause: errNotReady}
}
