package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// Explain decides a request as live traffic is decided, under a trace.
func (a admin) Explain(c echo.Context, params api.ExplainParams) error {
	req, described, err := a.requestToExplain(params)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(c.Request().Context(), decideLimit)
	defer cancel()
	ctx, trace := gateway.WithTrace(limited)
	decision, err := a.decider.Decide(ctx, req)
	var refusal *gateway.Error
	if err != nil {
		refusal = asRefusal(err)
	}
	steps := []api.ExplainStep{}
	for _, s := range trace.Steps() {
		steps = append(steps, api.ExplainStep{
			Step: api.ExplainStepStep(s.Name), Source: s.Source, Outcome: api.ExplainStepOutcome(s.Outcome), Detail: s.Detail, Micros: s.Took.Microseconds(),
		})
	}
	return a.succeed(c, api.Explanation{
		ServiceID: orNull(decision.ServiceID), Request: described, Steps: steps,
		Verdict: a.verdict(c, req, decision, refusal), WhatWouldChangeIt: whatWouldChange(decision, refusal, req),
	})
}

// requestToExplain is the request that the plugin would ask about.
func (a admin) requestToExplain(params api.ExplainParams) (req gateway.Request, described string, err error) {
	token, userID, username := textOf(params.Token), textOf(params.UserID), textOf(params.Username)
	if params.XExplainToken != nil && token == "" {
		token = *params.XExplainToken
	}
	given := 0
	for _, who := range []string{token, userID, username} {
		if who != "" {
			given++
		}
	}
	if given > 1 {
		return req, "", invalid("give one of token, userId and username")
	}
	method := http.MethodGet
	if params.Method != nil {
		method = strings.ToUpper(*params.Method)
	}
	req.ServiceID, req.Method = textOf(params.ServiceID), method
	if err := setClient(&req, params); err != nil {
		return req, "", err
	}
	snapshot := a.registry.Snapshot()
	service, known := snapshot.Service(req.ServiceID)
	routed := "" // the path by which Traefik and the plugin choose
	if raw := textOf(params.Path); raw != "" {
		uri, err := url.ParseRequestURI(raw)
		if err != nil || !strings.HasPrefix(uri.Path, "/") {
			return req, "", invalid("path: want a path such as /js/a/cases")
		}
		if req.Path, req.Ambiguous, err = policy.PathOf(asRouted(dots.Replace(uri.EscapedPath()))); err != nil {
			return req, "", invalid("path: want a path such as /js/a/cases")
		}
		req.Query, req.QueryTold = uri.RawQuery, true
		routed = asRouted(uri.Path)
		at, covered := snapshot.ServiceAt(routed)
		if req.ServiceID != "" && known && (!covered || at.ID != req.ServiceID) {
			return req, "", invalid(fmt.Sprintf("path: service %q does not have it", req.ServiceID))
		}
		if !covered {
			req.Path = routed // Traefik has no router for it, whatever else it may mean
		}
		service, known = at, covered
	} else if known {
		req.Path, routed = service.PathPrefix, service.PathPrefix
	}
	if req.ServiceID == "" && req.Path == "" {
		return req, "", invalid("serviceId or path is needed")
	}

	described = method + " " + routed
	req.Login = known && method == http.MethodPost && routed == service.FullLoginPath() && userID == ""
	switch {
	case req.Login:
		req.Username = usable(username)
		described += " (login)"
		if username != "" {
			described += " as username " + username
		}
	case userID != "" || username != "":
		req.User = &gateway.NamedUser{ID: userID, Name: username}
		described += strings.TrimRight(" as user "+userID, " ")
		if username != "" {
			described += "name " + username
		}
	case token != "":
		req.Token = token
		described += " with a token"
	default:
		described += " without a token"
	}
	return req, described, nil
}

// setClient fills in what guards look at beside the request itself. There is no form body.
func setClient(req *gateway.Request, params api.ExplainParams) error {
	req.Form.State = gateway.FormNone
	if params.Source != nil {
		req.Source, req.SourceTold = *params.Source, true
	}
	if params.Address == nil {
		return nil
	}
	address, err := netip.ParseAddr(*params.Address)
	if err != nil {
		return invalid("address: want an address such as 192.0.2.7")
	}
	req.Address, req.AddressTold = address.Unmap().WithZone(""), true
	return nil
}

// dots are decoded by Traefik before it cleans a path.
var dots = strings.NewReplacer("%2e", ".", "%2E", ".")

// asRouted is a path as Traefik passes it on to the plugin: clean, but with its last slash.
func asRouted(raw string) string {
	clean := path.Clean(raw)
	if strings.HasSuffix(raw, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// verdict is the decision as the client of the request would meet it.
func (a admin) verdict(c echo.Context, req gateway.Request, decision gateway.Decision, refusal *gateway.Error) api.Verdict {
	if refusal != nil {
		reason, status := string(refusal.Reason), refusal.Reason.Status()
		_, text, isForApp := a.asClientsRead(refusal, req, decision.ServiceID)
		if isForApp {
			status = http.StatusOK
		}
		told := *refusal
		told.Text = text.Or(refusal.Text)
		return api.Verdict{Reason: &reason, Status: status, Message: a.messageOf(c, &told)}
	}
	verdict := api.Verdict{Forward: true, NodeID: &decision.NodeID, UserID: orNull(decision.UserID), Status: http.StatusOK, Message: "→ " + decision.NodeID}
	if decision.Epoch > 0 {
		verdict.Epoch = &decision.Epoch
	}
	return verdict
}

// whatWouldChange says what an administrator, or time, could do about the verdict.
func whatWouldChange(decision gateway.Decision, refusal *gateway.Error, req gateway.Request) []string {
	if refusal == nil {
		switch {
		case decision.Epoch > 0:
			return []string{
				fmt.Sprintf("a rebind of the user: homenode bind --service %s … NODE (the data stay on %s)", decision.ServiceID, decision.NodeID),
				fmt.Sprintf("node %s going DOWN or being disabled: the user would get 503, not another node", decision.NodeID),
			}
		case req.Login:
			return []string{"the placement of the service, the next login, the health of the nodes: the user is bound when the login succeeds"}
		}
		return []string{"a token that leads to a user", "the next anonymous request, which gets the next node"}
	}
	if refusal.Guard != "" {
		return whatGuardsWant(decision.ServiceID, refusal)
	}
	switch refusal.Reason {
	case gateway.NodeDown:
		return []string{"the node answering its health check again: the binding holds until then", "a rebind to another node, if the user's data are moved there first"}
	case gateway.NodeDisabled:
		return []string{"enabling the node: homenode nodes set NODE --enabled=true", "a rebind to another node, if the user's data are moved there first"}
	case gateway.NodeUnknown:
		return []string{"adding the node to this service: homenode nodes add " + decision.ServiceID + " NODE --base-url …", "a rebind to a node that the service has"}
	case gateway.NoBinding:
		return []string{"a login, which binds the user to the node that it reaches", "a default node: homenode services set " + decision.ServiceID + " --default-node NODE", "binding the user: homenode bind --service " + decision.ServiceID + " --user ID NODE"}
	case gateway.NoHealthyNode:
		return []string{"a node that is enabled, UP and takes new users: homenode status"}
	case gateway.StoreUnavailable:
		return []string{"the store that could not be asked being back: see the steps"}
	case gateway.NoRoute:
		return []string{"an enabled service whose path prefix covers the path: homenode services"}
	default:
		return []string{"see the steps"}
	}
}

// whatGuardsWant says how a guard's refusal could be undone. Which policy refused is in the steps.
func whatGuardsWant(serviceID string, refusal *gateway.Error) []string {
	off := "switching the guard off, or to shadow mode, for all services: homenode guards off " + refusal.Guard
	another := func(kind gateway.PolicyKind) string {
		return fmt.Sprintf("another policy: homenode policies list %s --service %s, then homenode policies set %s ID -f FILE --dry-run", kind, serviceID, kind)
	}
	switch refusal.Reason {
	case gateway.InMaintenance:
		return []string{"the end of the maintenance: homenode maintenance off --id ID", "being a tester: homenode maintenance on … --tester-address ADDRESS --tester-user USER", off}
	case gateway.Unauthenticated:
		return []string{"a token that is good: one of a new login, if the user was kicked out or has logged out", another(gateway.PolicyIdentity), off}
	case gateway.SignatureUnknownApp:
		return []string{"the app, enabled, with this service among its services: homenode apps add CLIENT-ID", another(gateway.PolicySignature), off}
	case gateway.SignatureMissing, gateway.SignatureExpired, gateway.SignatureInvalid, gateway.SignatureReplayed, gateway.SignatureUnreadable:
		return []string{"a request that is signed as the policy wants, with a clock that is right", another(gateway.PolicySignature), off}
	case gateway.RateLimited:
		return []string{fmt.Sprintf("time: the bucket holds one again in %s", refusal.RetryAfter.Round(time.Millisecond)), another(gateway.PolicyRateLimit), off}
	case gateway.Forbidden:
		return []string{"a role of the policy: homenode roles set --service " + serviceID + " --user ID ROLE …", another(gateway.PolicyAccess), off}
	case gateway.NotFound, gateway.MethodNotAllowed:
		return []string{another(gateway.PolicyAccess), off}
	case gateway.PolicyInvalid:
		return []string{"a policy that can be used: homenode policies names the one that cannot", off}
	case gateway.StoreUnavailable:
		return []string{"the store that could not be asked being back: see the steps", off}
	default:
		return []string{"see the steps", off}
	}
}
