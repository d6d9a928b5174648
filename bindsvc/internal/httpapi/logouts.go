package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

type logoutReport struct {
	Service   string `json:"service"`
	Token     string `json:"token"`
	RequestID string `json:"requestId"`
}

// logout answers POST /v1/logouts: a node has let a user go. When it answers 200 this
// token leads to nobody any more, and is refused where the service's policy says so.
func (s *Server) logout(c echo.Context) error {
	var report logoutReport
	if err := decodeJSON(c, maxLoginReport, &report); err != nil {
		return err
	}
	if report.Token == "" {
		return invalid("token is empty")
	}
	service, ok := s.registry.Snapshot().Service(report.Service)
	if !ok {
		return invalid("service does not exist")
	}
	ctx := c.Request().Context()
	if identity := s.policies.Snapshot().Identity(service.ID); identity != nil && identity.UsesBlacklist() {
		if life := s.remainingLife(ctx, service.ID, report.Token); life > 0 {
			if err := s.revoked.RevokeToken(ctx, service.ID, identity.RevocationKey(report.Token), life); err != nil {
				return gateway.Unavailable(err)
			}
		}
	}
	if err := s.sessions.Forget(ctx, service.ID, report.Token); err != nil {
		return gateway.Unavailable(err)
	}
	s.log.InfoContext(ctx, "user logged out", "service", service.ID, "request", report.RequestID)
	return c.JSON(http.StatusOK, struct{}{})
}

// remainingLife is how long the token would be good: until it expires, with the leeway,
// or as long as an opaque one is remembered. Zero: it is not good now.
func (s *Server) remainingLife(ctx context.Context, serviceID, token string) time.Duration {
	identity := s.policies.Snapshot().Identity(serviceID)
	subject, err := s.subjects.Subject(ctx, serviceID, token, identity)
	switch {
	case errors.Is(err, gateway.ErrNotFound): // nobody's: it is refused anyway, and must not fill the store
		return 0
	case err == nil && !subject.ExpiresAt.IsZero():
		return max(0, time.Until(subject.ExpiresAt)) + identity.Leeway() + time.Second
	}
	return max(s.opts.TokenTTL, kickOutLife)
}

// kickOutLife is how long a user's kick-out, and the logout of a token that does not tell
// when it expires, is remembered: longer than a session commonly lives.
const kickOutLife = 30 * 24 * time.Hour
