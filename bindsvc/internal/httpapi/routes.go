package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/traefikconf"
)

// Internal is the handler of the internal listener. Everything under /v1 wants
// the shared secret, except the fallback: Traefik's errors middleware cannot
// send one, and the fallback tells nothing that the caller has not said.
func (s *Server) Internal() http.Handler {
	e := s.newEcho()
	e.GET("/healthz", healthz)
	e.GET("/readyz", s.readyz)
	e.GET("/metrics", echo.WrapHandler(s.metrics.handler()))

	e.Any(traefikconf.FallbackPath, s.fallback)
	e.Any(traefikconf.NoRoutePath, s.noRoute)
	e.Any(traefikconf.NotKnownPath, s.notKnown)

	v1 := e.Group("/v1", s.authenticate, s.whenReady)
	v1.GET("/decide", s.decide)
	v1.POST("/decide", s.decide)
	v1.POST("/logins", s.login)
	v1.POST("/logouts", s.logout)
	v1.GET("/traefik", s.traefik)
	return e
}

// Admin is the handler of the admin listener: the operations of openapi.yaml.
func (s *Server) Admin() http.Handler {
	e := s.newEcho()
	if !s.opts.AdminEnabled {
		return e // 404 for all
	}
	RegisterHandlers(e.Group(api.Prefix, s.administrator, s.whenReady, s.conformant), admin{s})
	return e
}
