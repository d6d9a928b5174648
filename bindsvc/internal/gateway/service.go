package gateway

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Service is a backend application behind one path prefix: a row of gateway_service.
type Service struct {
	ID            string
	Name          string
	PathPrefix    string // "/js/a" covers "/js/a" and "/js/a/...", not "/js/apple"
	LoginPath     string // below PathPrefix; empty = the service has no login
	LogoutPath    string // below PathPrefix; empty = the service has no logout
	HealthPath    string // probed at a node's BaseURL + HealthPath
	DefaultNodeID string // takes valid users without a binding; empty = none
	Enabled       bool   // a disabled service has no route
	Placement     Placement
	Login         LoginFields
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// FullLoginPath is the path of a login request, or "" when the service has no login.
func (s Service) FullLoginPath() string { return s.below(s.LoginPath) }

// FullLogoutPath is the path of a logout request, or "" when the service has no logout.
func (s Service) FullLogoutPath() string { return s.below(s.LogoutPath) }

func (s Service) below(path string) string {
	if path == "" {
		return ""
	}
	return strings.TrimSuffix(s.PathPrefix, "/") + path
}

// Covers reports whether path (decoded) belongs to the service.
func (s Service) Covers(path string) bool {
	prefix := strings.TrimSuffix(s.PathPrefix, "/")
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/')
}

// LoginFields says where a login request and its response keep what a binding
// needs: dotted paths into the JSON objects.
type LoginFields struct {
	Username         string   `json:"username" yaml:"username"`                 // in the request
	Code             string   `json:"code" yaml:"code"`                         // in the response
	Success          []string `json:"success" yaml:"success"`                   // values of Code that mean success
	Token            string   `json:"token" yaml:"token"`                       // in the response
	UserID           string   `json:"userId" yaml:"userId"`                     // in the response
	ResponseUsername string   `json:"responseUsername" yaml:"responseUsername"` // in the response
}

// DefaultLoginFields are those of the ai-server's Result<LoginVO> (seed 000).
func DefaultLoginFields() LoginFields {
	return LoginFields{
		Username: "username", Code: "code", Success: []string{"200"},
		Token: "data.token", UserID: "data.userId", ResponseUsername: "data.username",
	}
}

// WithDefaults fills the fields that are not set.
func (f LoginFields) WithDefaults() LoginFields { return f.Or(DefaultLoginFields()) }

// Or fills the fields that are not set with those of d.
func (f LoginFields) Or(d LoginFields) LoginFields {
	for _, field := range []struct{ value, byDefault *string }{
		{&f.Username, &d.Username}, {&f.Code, &d.Code}, {&f.Token, &d.Token},
		{&f.UserID, &d.UserID}, {&f.ResponseUsername, &d.ResponseUsername},
	} {
		if *field.value == "" {
			*field.value = *field.byDefault
		}
	}
	if len(f.Success) == 0 {
		f.Success = d.Success
	}
	return f
}

// Placement is how a user without a node gets one.
type Placement string

// The placements. RoundRobin is the default.
const (
	RoundRobin     Placement = "round-robin"
	Weighted       Placement = "weighted"
	FewestBindings Placement = "fewest-bindings"
)

// Placements are all of them.
var Placements = []Placement{RoundRobin, Weighted, FewestBindings}

// MaxWeight is the largest weight of a node.
const MaxWeight = 1000

// Node is one machine of a service: a row of gateway_node.
type Node struct {
	ID             string // unique over all services
	ServiceID      string
	Name           string
	BaseURL        string // scheme://host[:port], no path
	TraefikService string // a service of another Traefik provider that reaches the node, such as node-1@docker; empty = BaseURL
	Enabled        bool
	Weight         int  // its share of new users under Weighted, 1 to MaxWeight; 0 counts as 1
	Draining       bool // keeps its users, gets no new ones (acceptNew=false)
	Remark         string
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// AdminPrefix is the path below which the admin API lives; no service may cover it.
const AdminPrefix = "/gateway/admin"

var (
	idPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	pathPattern   = regexp.MustCompile(`^/[A-Za-z0-9._~/-]*$`)
	healthPattern = regexp.MustCompile(`^/[A-Za-z0-9._~/?&=%-]*$`)
	foreignName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*@[a-z]+$`)
	fieldPath     = regexp.MustCompile(`^[^.\s]+(\.[^.\s]+)*$`)
)

// Verify reports everything that is wrong with the service, each problem naming the field.
func (s Service) Verify() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !idPattern.MatchString(s.ID) {
		problem("id %q: want 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit", s.ID)
	}
	switch {
	case !pathPattern.MatchString(s.PathPrefix) || strings.Contains(s.PathPrefix, "//") || hasDotSegment(s.PathPrefix):
		problem("pathPrefix %q: want a clean absolute path such as /js/a", s.PathPrefix)
	case len(s.PathPrefix) > 1 && strings.HasSuffix(s.PathPrefix, "/"):
		problem("pathPrefix %q: leave out the last slash", s.PathPrefix)
	case s.PathPrefix == AdminPrefix || strings.HasPrefix(s.PathPrefix, AdminPrefix+"/"):
		problem("pathPrefix %q: %s belongs to the admin API", s.PathPrefix, AdminPrefix)
	}
	for _, path := range []struct{ field, value string }{{"loginPath", s.LoginPath}, {"logoutPath", s.LogoutPath}} {
		if path.value != "" && (!pathPattern.MatchString(path.value) || strings.Contains(path.value, "//") || hasDotSegment(path.value)) {
			problem("%s %q: want a clean path below pathPrefix, such as /sys/login", path.field, path.value)
		}
	}
	if s.Placement != "" && !slices.Contains(Placements, s.Placement) {
		problem("placement %q: want one of %q", s.Placement, Placements)
	}
	if s.LoginPath != "" && s.LoginPath == s.LogoutPath {
		problem("logoutPath %q: is the loginPath", s.LogoutPath)
	}
	if slices.Contains(s.Login.Success, "") || len(s.Login.Success) == 0 {
		problem("login.success: want at least one value, none of them empty")
	}
	if !healthPattern.MatchString(s.HealthPath) {
		problem("healthPath %q: want an absolute path such as /actuator/health", s.HealthPath)
	}
	if s.DefaultNodeID != "" && !idPattern.MatchString(s.DefaultNodeID) {
		problem("defaultNodeId %q: want the id of one of the service's nodes", s.DefaultNodeID)
	}
	for _, f := range []struct{ field, value string }{
		{"login.username", s.Login.Username}, {"login.code", s.Login.Code}, {"login.token", s.Login.Token},
		{"login.userId", s.Login.UserID}, {"login.responseUsername", s.Login.ResponseUsername},
	} {
		if !fieldPath.MatchString(f.value) {
			problem("%s %q: want a dotted field path such as data.token", f.field, f.value)
		}
	}
	return errors.Join(problems...)
}

// Verify reports everything that is wrong with the node, each problem naming the field.
func (n Node) Verify() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !idPattern.MatchString(n.ID) {
		problem("id %q: want 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit", n.ID)
	}
	if err := verifyBaseURL(n.BaseURL); err != nil {
		problem("baseUrl %q: %w", n.BaseURL, err)
	}
	if n.TraefikService != "" && !foreignName.MatchString(n.TraefikService) {
		problem("traefikService %q: want name@provider, such as node-1@docker", n.TraefikService)
	}
	if n.Weight < 0 || n.Weight > MaxWeight {
		problem("weight %d: want 1 to %d", n.Weight, MaxWeight)
	}
	return errors.Join(problems...)
}

// Share is the node's weight, at least 1.
func (n Node) Share() int { return max(1, n.Weight) }

func verifyBaseURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("want http:// or https://")
	case u.Hostname() == "":
		return errors.New("no host")
	case u.User != nil:
		return errors.New("no user or password in it")
	case u.Path != "" || u.RawQuery != "" || u.Fragment != "":
		return errors.New("no path, query or fragment: requests keep their own")
	}
	return nil
}

func hasDotSegment(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
