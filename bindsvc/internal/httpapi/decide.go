package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// decideLimit is below what the plugin waits by default (2 s), so that its caller
// learns which store did not answer instead of nothing.
const decideLimit = 1800 * time.Millisecond

// decide answers GET /v1/decide, the forward-auth convention: 200 with the
// headers to set on the request, anything else is what the client gets.
func (s *Server) decide(c echo.Context) error {
	req, err := s.readRequest(c.Request().Header)
	if err != nil {
		return err
	}
	// A user without a binding is bound to the default node in their own name.
	ctx, cancel := context.WithTimeout(c.Request().Context(), decideLimit)
	defer cancel()
	ctx = gateway.WithActor(ctx, gateway.Actor{Name: gateway.ActorLogin, RequestID: requestID(c)})
	decision, err := s.decider.Decide(ctx, req)
	s.metrics.decided(req.ServiceID, decision, err)
	if err != nil {
		return err
	}
	header := c.Response().Header()
	header.Set("X-Gateway-Node", decision.NodeID)
	if decision.UserID != "" {
		header.Set("X-User-Id", decision.UserID)
	}
	if decision.Epoch > 0 {
		header.Set("X-Binding-Epoch", strconv.FormatInt(decision.Epoch, 10))
	}
	header.Set("Cache-Control", s.cacheControl(decision))
	return c.NoContent(http.StatusOK)
}

func (s *Server) cacheControl(decision gateway.Decision) string {
	if !decision.Cacheable || s.opts.MaxAge <= 0 {
		return "no-store"
	}
	return fmt.Sprintf("private, max-age=%d, stale-if-error=%d", int(s.opts.MaxAge.Seconds()), int(s.opts.StaleIfError.Seconds()))
}

// readRequest reads the client's request from the headers that describe it.
func (s *Server) readRequest(header http.Header) (gateway.Request, error) {
	req := gateway.Request{ServiceID: header.Get(headerService)}
	var query url.Values
	if raw := header.Get("X-Forwarded-Uri"); raw != "" {
		uri, err := url.ParseRequestURI(raw)
		if err != nil {
			return req, invalid("X-Forwarded-Uri is no path") // the error would quote a query with a token
		}
		req.Path = path.Clean(uri.Path)
		query = uri.Query()
	}
	if req.ServiceID == "" && req.Path == "" {
		return req, invalid("X-Homenode-Service or X-Forwarded-Uri is needed")
	}
	if encoded, isLogin := header[headerUsername]; isLogin {
		username, err := url.QueryUnescape(encoded[0])
		if err != nil {
			return req, invalid("X-Homenode-Username is not percent-encoded")
		}
		req.Login, req.Username = true, usable(username)
	} else {
		req.Token = tokenOf(header, s.sources, query)
	}
	return req, nil
}
