package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/traefikconf"
)

// decideLimit is below what the plugin waits by default (2 s), so that its caller
// learns which store did not answer instead of nothing.
const decideLimit = 1800 * time.Millisecond

// Headers between a caller and this service, beside those of the forward-auth convention.
const (
	headerHave     = "X-Homenode-Have" // the caller can be asked for more: "form" if there is a form body, else "none"
	headerNeed     = "X-Homenode-Need" // what the next questions have to carry, or with 428 this one
	headerQuery    = "X-Homenode-Query"
	headerSource   = "X-Homenode-Source" // percent-encoded
	headerForm     = "X-Homenode-Form"   // why the form body is not there: too-large, unreadable, encoded
	headerApp      = "X-Homenode-App"
	headerClient   = traefikconf.ClientHeader
	headerFallback = traefikconf.FallbackHeader
	// headerClientStatus asks the plugin to send a refusal as HTTP 200.
	headerClientStatus = "X-Homenode-Client-Status"
)

// decide answers GET and POST /v1/decide, the forward-auth convention: 200 with the
// headers to set on the request, anything else is what the client gets. A POST brings
// the form body of the request.
func (s *Server) decide(c echo.Context) error {
	header := c.Response().Header()
	tellNeeds := func(serviceID string) {
		if needs := s.policies.Snapshot().Needs(serviceID); serviceID != "" && len(needs) > 0 {
			header.Set(headerNeed, strings.Join(needs, ", "))
		}
	}
	asked := c.Request().Header.Get(headerService)
	tellNeeds(asked) // whatever becomes of this question
	req, err := s.readRequest(c)
	if err != nil {
		return err
	}
	// A user without a binding is bound to the default node in their own name.
	ctx, cancel := context.WithTimeout(c.Request().Context(), decideLimit)
	defer cancel()
	ctx = gateway.WithActor(ctx, gateway.Actor{Name: gateway.ActorLogin, RequestID: requestID(c)})
	decision, err := s.decider.Decide(ctx, req)
	s.metrics.decided(req.ServiceID, decision, err)
	policies := s.policies.Snapshot()
	if decision.ServiceID != asked {
		tellNeeds(decision.ServiceID)
	}
	if err != nil {
		return s.refuseDecision(c, req, decision.ServiceID, err)
	}
	set := func(name, value string) {
		if value != "" {
			header.Set(name, value)
		}
	}
	set("X-Gateway-Node", decision.NodeID)
	set("X-User-Id", decision.UserID)
	set("X-Channel", decision.Channel)
	set("X-Source", decision.Source)
	set(headerApp, decision.App)
	set(headerFallback, s.fallbackHeader(decision.ServiceID, req.Path))
	if policies.Answers(decision.ServiceID).IsClient(req.Source) {
		header.Set(headerClient, "1")
	}
	if decision.Epoch > 0 {
		header.Set("X-Binding-Epoch", strconv.FormatInt(decision.Epoch, 10))
	}
	header.Set("Cache-Control", s.cacheControl(decision))
	return c.NoContent(http.StatusOK)
}

// refuseDecision answers with a refusal as the service's clients read it: with its
// business code, and for client sources to be sent as HTTP 200.
func (s *Server) refuseDecision(c echo.Context, req gateway.Request, serviceID string, err error) error {
	refusal := asRefusal(err)
	s.logRefusal(c.Request().Context(), refusal, requestID(c), c.Path())
	if len(refusal.Need) > 0 {
		c.Response().Header().Set(headerNeed, strings.Join(refusal.Need, ", "))
	}
	code, text, isForApp := s.asClientsRead(refusal, req, serviceID)
	if isForApp {
		c.Response().Header().Set(headerClientStatus, strconv.Itoa(http.StatusOK))
	}
	s.write(c, refusal, refusal.Reason.Status(), code, text)
	return nil
}

// asClientsRead returns the business code (0: the HTTP status) and the text that are agreed
// for a refusal, and whether this client reads them with HTTP 200.
func (s *Server) asClientsRead(refusal *gateway.Error, req gateway.Request, serviceID string) (code int, text gateway.Text, isForApp bool) {
	answers := s.policies.Snapshot().Answers(serviceID)
	code, text = s.degraded(refusal, serviceID, req.Path)
	isAgreed := code != 0
	if refusal.Guard != "" {
		isAgreed = true
		if answers != nil {
			code, text = answers.Codes[refusal.Reason], refusal.Text.Or(answers.Messages[refusal.Reason])
		}
	}
	return code, text, isAgreed && answers.IsClient(req.Source)
}

func (s *Server) cacheControl(decision gateway.Decision) string {
	if !decision.Cacheable || s.opts.MaxAge <= 0 {
		return "no-store"
	}
	return fmt.Sprintf("private, max-age=%d, stale-if-error=%d", int(s.opts.MaxAge.Seconds()), int(s.opts.StaleIfError.Seconds()))
}

// readRequest reads the client's request from the headers that describe it.
func (s *Server) readRequest(c echo.Context) (gateway.Request, error) {
	header := c.Request().Header
	req := gateway.Request{ServiceID: header.Get(headerService), ID: requestID(c), Method: http.MethodGet}
	if method := header.Get("X-Forwarded-Method"); method != "" {
		req.Method = method
	}
	var uri *url.URL
	if raw := header.Get("X-Forwarded-Uri"); raw != "" {
		var err error
		if uri, err = url.ParseRequestURI(raw); err != nil {
			return req, invalid("X-Forwarded-Uri is no path") // the error would quote a query with a token
		}
		if req.Path, req.Ambiguous, err = policy.PathOf(uri.EscapedPath()); err != nil {
			return req, invalid("X-Forwarded-Uri is no path")
		}
	}
	if req.ServiceID == "" && req.Path == "" {
		return req, invalid("X-Homenode-Service or X-Forwarded-Uri is needed")
	}
	if req.ServiceID == "" {
		if service, ok := s.registry.Snapshot().ServiceAt(req.Path); ok {
			req.ServiceID = service.ID
		}
	}
	if encoded, isLogin := header[headerUsername]; isLogin {
		username, err := url.QueryUnescape(encoded[0])
		if err != nil {
			return req, invalid("X-Homenode-Username is not percent-encoded")
		}
		req.Login, req.Username = true, usable(username)
	} else {
		var query url.Values
		if uri != nil {
			query = uri.Query()
		}
		req.Token = tokenOf(header, s.sources, query)
	}
	return req, s.readDetails(c, &req, uri)
}

// readDetails reads what guards look at. The plugin tells it where it is needed; any
// other caller passes on the client's headers, and has no form body.
func (s *Server) readDetails(c echo.Context, req *gateway.Request, uri *url.URL) (err error) {
	header := c.Request().Header
	if forwarded := header.Values("X-Forwarded-For"); len(forwarded) > 0 {
		req.Address, req.AddressTold = forwardedAddress(forwarded, s.opts.TrustedProxies), true
	}
	have := header.Get(headerHave)
	if have == "" {
		if answers := s.policies.Snapshot().Answers(req.ServiceID); answers != nil {
			req.Source = header.Get(answers.SourceHeader)
		}
		if uri != nil {
			req.Query = uri.RawQuery
		}
		req.SourceTold, req.QueryTold = true, true
		return nil
	}
	req.CanTellMore = true
	if _, req.QueryTold = header[headerQuery]; req.QueryTold {
		req.Query = header.Get(headerQuery)
	}
	if _, req.SourceTold = header[headerSource]; req.SourceTold {
		if req.Source, err = url.QueryUnescape(header.Get(headerSource)); err != nil {
			return invalid(headerSource + " is not percent-encoded")
		}
	}
	switch {
	case c.Request().Method == http.MethodPost:
		body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, maxForm))
		if err != nil {
			return invalid("the form body broke off, or is too long")
		}
		req.Form = gateway.Form{State: gateway.FormGiven, Body: string(body)}
	case header.Get(headerForm) == "too-large":
		req.Form.State = gateway.FormTooLarge
	case header.Get(headerForm) != "":
		req.Form.State = gateway.FormUnreadable
	case have != "form":
		req.Form.State = gateway.FormNone
	}
	return nil
}

const maxForm = 64 << 10
