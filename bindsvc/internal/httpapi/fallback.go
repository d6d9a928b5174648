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

// fallback answers for a node that could not: Traefik's errors middleware asks
// it with the status that the node's router came to.
func (s *Server) fallback(c echo.Context) error {
	status, err := strconv.Atoi(c.QueryParam("status"))
	if err != nil || status < 400 || status > 599 {
		return invalid("status: want 400 to 599")
	}
	reason, ok := fallbackReasons[status]
	if !ok {
		reason = gateway.Internal
	}
	s.write(c, &gateway.Error{Reason: reason, RetryAfter: time.Second}, status)
	return nil
}

// noRoute answers for Traefik's last router.
func (s *Server) noRoute(echo.Context) error { return &gateway.Error{Reason: gateway.NoRoute} }

// notKnown answers for a node that was chosen before Traefik knew it.
func (s *Server) notKnown(echo.Context) error {
	return &gateway.Error{Reason: gateway.NodeUnknown, RetryAfter: s.opts.TraefikPoll}
}

// traefik answers GET /v1/traefik, which Traefik's HTTP provider polls.
func (s *Server) traefik(c echo.Context) error {
	return c.JSON(http.StatusOK, traefikconf.Build(s.registry.Snapshot(), s.opts.Traefik))
}
