package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/traefikconf"
)

var fallbackReasons = map[int]gateway.Reason{
	http.StatusBadGateway:         gateway.NodeUnreachable,
	http.StatusServiceUnavailable: gateway.Degraded,
	http.StatusGatewayTimeout:     gateway.NodeTimeout,
}

// fallback answers for a node that could not: Traefik's errors middleware asks it with
// the status that the node's router came to. The service's degradation policy decides
// what the client reads.
func (s *Server) fallback(c echo.Context) error {
	status, err := strconv.Atoi(c.QueryParam("status"))
	if err != nil || status < 400 || status > 599 {
		return invalid("status: want 400 to 599")
	}
	reason, ok := fallbackReasons[status]
	if !ok {
		reason = gateway.Internal
	}
	s.writeFailure(c, &gateway.Error{Reason: reason, RetryAfter: time.Second}, status, c.QueryParam("url"))
	return nil
}

// writeFailure answers for the node that failed a request. A client that reads business
// codes gets HTTP 200; its code is the status where none is agreed.
func (s *Server) writeFailure(c echo.Context, refusal *gateway.Error, status int, address string) {
	header := c.Request().Header
	code, text := s.agreed(s.failedRequest(header, address))
	if code == 0 {
		code = status
	}
	if header.Get(headerClient) == "1" {
		status = http.StatusOK
	}
	s.write(c, refusal, status, code, text)
}

// noRoute answers for Traefik's last router.
func (s *Server) noRoute(echo.Context) error { return &gateway.Error{Reason: gateway.NoRoute} }

// notKnown answers for a node that was chosen before Traefik knew it.
func (s *Server) notKnown(c echo.Context) error {
	refusal := &gateway.Error{Reason: gateway.NodeUnknown, RetryAfter: s.opts.TraefikPoll}
	s.logRefusal(c.Request().Context(), refusal, requestID(c), c.Path())
	s.writeFailure(c, refusal, refusal.Reason.Status(), "") // the query is the client's own
	return nil
}

// traefik answers GET /v1/traefik, which Traefik's HTTP provider polls.
func (s *Server) traefik(c echo.Context) error {
	return c.JSON(http.StatusOK, traefikconf.Build(s.registry.Snapshot(), s.policies.Snapshot(), s.opts.Traefik))
}
