package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
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
	v1.POST("/logins", s.login)
	v1.GET("/traefik", s.traefik)
	return e
}

// Admin is the handler of the admin listener.
func (s *Server) Admin() http.Handler {
	e := s.newEcho()
	if !s.opts.AdminEnabled {
		return e // 404 for all
	}
	admin := e.Group(gateway.AdminPrefix, s.administrator, s.whenReady)
	admin.GET("/status", s.status)
	admin.GET("/services", s.listServices)
	admin.POST("/services", s.createService)
	admin.PUT("/services/:serviceId", s.updateService)
	admin.DELETE("/services/:serviceId", s.deleteService)
	admin.POST("/services/:serviceId/nodes", s.createNode)
	admin.PUT("/nodes/:nodeId", s.updateNode)
	admin.DELETE("/nodes/:nodeId", s.deleteNode)
	admin.POST("/nodes/:nodeId/check", s.checkNode)
	admin.GET("/routes", s.listRoutes)
	admin.POST("/routes/bind", s.bind)
	admin.DELETE("/routes/:id", s.unbind)
	admin.POST("/reload", s.reload)
	return e
}
