package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// failed is what the fallback has to know of a request whose node failed. The decision
// writes it into a header of the request, so that neither the path nor anything else of
// the client's has to be told when the node has failed. Whoever forges it learns which
// texts a service has, as every client of a failing node does.
type failed struct {
	serviceID string // empty: not known
	isCore    bool   // the path is one of those that matter most
}

const coreMark = ";core" // an id has no semicolon

func (f failed) String() string {
	if f.isCore {
		return f.serviceID + coreMark
	}
	return f.serviceID
}

// parseFailed reads what String wrote.
func parseFailed(text string) failed {
	id, isCore := strings.CutSuffix(text, coreMark)
	return failed{id, isCore}
}

// maxURL is longer than any sensible address; expressions are not tried on more.
const maxURL = 2 << 10

// failedAt describes a request by its path (decoded).
func (s *Server) failedAt(serviceID, path string) failed {
	rule := s.policies.Snapshot().Degradation(serviceID)
	isCore := rule != nil && len(path) <= maxURL && rule.IsCore(policy.Canonical(path))
	return failed{serviceID, isCore}
}

// failedRequest is what a caller of the fallback says of the request: in the header, or
// else by its address in a configuration made by hand. Only the path of the address
// counts; what cannot be read says nothing.
func (s *Server) failedRequest(header http.Header, address string) failed {
	services := s.registry.Snapshot()
	if values := header.Values(headerFallback); len(values) > 0 {
		told := parseFailed(values[0])
		if _, ok := services.Service(told.serviceID); !ok || len(values) > 1 {
			return failed{}
		}
		return told
	}
	if len(address) > maxURL {
		return failed{}
	}
	uri, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(uri.Path, "/") {
		return failed{}
	}
	path := policy.Canonical(uri.Path)
	service, ok := services.ServiceAt(path)
	if !ok {
		return failed{}
	}
	return s.failedAt(service.ID, path)
}

// agreed returns the business code and text that the service's degradation policy has
// for the request: 0 and nothing where it has none.
func (s *Server) agreed(f failed) (code int, text gateway.Text) {
	rule := s.policies.Snapshot().Degradation(f.serviceID)
	switch {
	case f.serviceID == "" || rule == nil:
		return 0, gateway.Text{}
	case f.isCore:
		return rule.CoreCode, rule.CoreMessage
	}
	return rule.Code, rule.Message
}

// fallbackHeader is the value of X-Homenode-Fallback for a request: empty where the
// service has no policy that changes what the fallback answers.
func (s *Server) fallbackHeader(serviceID, path string) string {
	policies := s.policies.Snapshot()
	if policies.Degradation(serviceID) == nil && policies.Answers(serviceID) == nil {
		return ""
	}
	return s.failedAt(serviceID, path).String()
}

// failures are the refusals of a decision that mean what Traefik's 502 to 504 mean: a
// node is out of order, and a later try may succeed. A disabled node is an
// administrator's wish, and a store that does not answer is the gateway's own trouble.
var failures = []gateway.Reason{gateway.NodeDown, gateway.NoHealthyNode, gateway.NodeUnknown}

// degraded returns the business code and the text of a refusal that means a failing
// node: the code is the HTTP status where none is agreed, and 0 only if the refusal
// means something else; what the text lacks is the reason's own.
func (s *Server) degraded(refusal *gateway.Error, serviceID, path string) (code int, text gateway.Text) {
	if !slices.Contains(failures, refusal.Reason) {
		return 0, gateway.Text{}
	}
	code, text = s.agreed(s.failedAt(serviceID, path))
	if code == 0 {
		code = refusal.Reason.Status()
	}
	return code, text
}
