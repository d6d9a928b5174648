package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// The guards that have policies, as the master switches and the status name them.
const (
	GuardMaintenance = "maintenance"
	GuardSignature   = "signature"
	GuardIdentity    = "identity"
	GuardRateLimit   = "rate-limit"
	GuardAccess      = "access"
)

// Limits of what one policy may hold: every list is bounded.
const (
	maxList    = 1000
	maxCore    = 50 // each is tried on every request
	maxText    = 1000
	maxKeys    = 16
	maxSecrets = 2 // one to be rotated out, one to be rotated in
	// MinSecretLength is the shortest secret of an app, in characters.
	MinSecretLength = 16
)

// Common is what policies of every kind have.
type Common struct {
	Services []string `json:"services,omitempty"` // empty: all
	Enabled  *bool    `json:"enabled,omitempty"`  // true if not given
	Shadow   bool     `json:"shadow,omitempty"`   // count what it would refuse, refuse nothing
	Remark   string   `json:"remark,omitempty"`
}

func (c *Common) common() *Common { return c }

// IsEnabled reports whether the policy is in force.
func (c *Common) IsEnabled() bool { return c.Enabled == nil || *c.Enabled }

// Covers reports whether the policy is about the service.
func (c *Common) Covers(serviceID string) bool {
	return len(c.Services) == 0 || slices.Contains(c.Services, serviceID)
}

// Switch is the master switch of a guard; its id is the guard's name.
type Switch struct {
	Enabled *bool  `json:"enabled,omitempty"`
	Shadow  bool   `json:"shadow,omitempty"` // of all of the guard's policies
	Remark  string `json:"remark,omitempty"`
}

// Maintenance turns requests away and tells until when.
type Maintenance struct {
	Common
	Paths   []string     `json:"paths,omitempty"` // empty: all
	Message gateway.Text `json:"message,omitzero"`
	Start   *time.Time   `json:"start,omitempty"` // not before
	End     *time.Time   `json:"end,omitempty"`   // expected: it is told, and ends nothing
	Testers Testers      `json:"testers,omitzero"`
}

// Testers are let through.
type Testers struct {
	Addresses []string `json:"addresses,omitempty"` // addresses and CIDR prefixes
	Users     []string `json:"users,omitempty"`     // user ids
}

// The modes of Identity.
const (
	ModePassthrough = "passthrough" // the node decides whether a request without a known user is good (seeds 000 and 001)
	ModeToken       = "token"       // a token that leads to a user is needed
	ModeJWT         = "jwt"         // a JWT is needed, and says who the user is
)

// What a check that cannot be made means.
const (
	FailureOpen   = "open"   // let pass
	FailureClosed = "closed" // refuse
)

// Identity says how the users of a service are known.
type Identity struct {
	Common
	Mode             string   `json:"mode"`
	Public           []string `json:"public,omitempty"`           // path patterns that need no user
	Blacklist        *bool    `json:"blacklist,omitempty"`        // whether logged out tokens are refused; by default not under passthrough
	BlacklistFailure string   `json:"blacklistFailure,omitempty"` // open if not given
	JWT              *JWT     `json:"jwt,omitempty"`
}

// UsesBlacklist reports whether tokens are looked up among the revoked ones.
func (i *Identity) UsesBlacklist() bool {
	if i.Blacklist != nil {
		return *i.Blacklist
	}
	return i.Mode != ModePassthrough
}

// JWT says which JWTs are good (see session.JWTConfig).
type JWT struct {
	Algorithms    []string `json:"algorithms"`
	Keys          []JWTKey `json:"keys,omitempty"`
	JWKSURL       string   `json:"jwksUrl,omitempty"`
	JWKSRefresh   Duration `json:"jwksRefresh,omitempty"`
	JWKSMaxAge    Duration `json:"jwksMaxAge,omitempty"`
	Issuer        string   `json:"issuer,omitempty"`
	Audience      []string `json:"audience,omitempty"`
	Leeway        Duration `json:"leeway,omitempty"` // 60s if not given
	UserClaim     string   `json:"userClaim,omitempty"`
	ChannelClaim  string   `json:"channelClaim,omitempty"`
	SourceClaim   string   `json:"sourceClaim,omitempty"`
	AllowNoExpiry bool     `json:"allowNoExpiry,omitempty"`
}

// JWTKey is a key that is not from a key server: a public one, or a secret.
type JWTKey struct {
	Secret
	PublicKey string `json:"publicKey,omitempty"` // PEM, or a JWK
}

// App is a client of the open API; its id is the client-id.
type App struct {
	Common
	Name    string      `json:"name,omitempty"`
	Secrets []AppSecret `json:"secrets"`
}

// AppSecret is one of an app's secrets, all of which are good.
type AppSecret struct {
	Secret
	NotAfter *time.Time `json:"notAfter,omitempty"` // good until then
}

// Signature wants requests to be signed by an app.
type Signature struct {
	Common
	Paths   []string `json:"paths"`
	Methods []string `json:"methods,omitempty"` // empty: all
	Apps    []string `json:"apps,omitempty"`    // client-ids; empty: all
	TTL     Duration `json:"ttl,omitempty"`     // how far the timestamp may be away: 5m if not given
	Nonce   bool     `json:"nonce,omitempty"`   // a nonce is needed, and good once

	ClientIDParam  string `json:"clientIdParam,omitempty"`  // client-id
	TimestampParam string `json:"timestampParam,omitempty"` // timestamp
	SignParam      string `json:"signParam,omitempty"`      // sign
	NonceParam     string `json:"nonceParam,omitempty"`     // nonce
}

// What a RateLimit counts apart.
const (
	ByTotal   = "total"
	ByUser    = "user"    // requests without a user are not counted
	ByAddress = "address" // an IPv4 address, an IPv6 network (/64)
	ByApp     = "app"     // requests without a signature are not counted
)

// RateLimit bounds the requests to an interface.
type RateLimit struct {
	Common
	Method string   `json:"method,omitempty"` // empty: any
	Path   string   `json:"path"`
	Rate   float64  `json:"rate"`          // requests in Per
	Per    Duration `json:"per,omitempty"` // 1s if not given
	Burst  int      `json:"burst,omitempty"`
	By     string   `json:"by,omitempty"` // total if not given
}

// The types of Access.
const (
	AccessRBAC   = "rbac"   // the user has one of the roles
	AccessGrey   = "grey"   // the interface is there for some users only
	AccessMethod = "method" // the interface has these methods only
)

// Access says who may call an interface.
type Access struct {
	Common
	Type    string   `json:"type"`
	Method  string   `json:"method,omitempty"` // empty: any
	Path    string   `json:"path"`
	Roles   []string `json:"roles,omitempty"`
	Percent float64  `json:"percent,omitempty"` // of the users, 0 to 100
	Users   []string `json:"users,omitempty"`
	Methods []string `json:"methods,omitempty"`
}

// Degradation is what the clients of a node that fails are told.
type Degradation struct {
	Common
	Core        []string     `json:"core,omitempty"`     // regular expressions (RE2) of the paths that matter most
	CoreCode    int          `json:"coreCode,omitempty"` // business codes; 0: the HTTP status
	CoreMessage gateway.Text `json:"coreMessage,omitzero"`
	Code        int          `json:"code,omitempty"`
	Message     gateway.Text `json:"message,omitzero"`
	Breaker     string       `json:"breaker,omitempty"` // Traefik's expression; empty: that of the settings
}

// Answers are the business codes of a service, and who gets them with HTTP 200.
type Answers struct {
	Common
	SourceHeader  string                          `json:"sourceHeader,omitempty"`
	ClientSources []string                        `json:"clientSources,omitempty"` // values of SourceHeader
	Codes         map[gateway.Reason]int          `json:"codes,omitempty"`
	Messages      map[gateway.Reason]gateway.Text `json:"messages,omitempty"`
}

// Duration is a time.Duration written as "5m".
type Duration time.Duration

// UnmarshalJSON reads "5m".
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var text string
	parsed := time.Duration(0)
	err := json.Unmarshal(raw, &text)
	if err == nil && text != "" {
		parsed, err = time.ParseDuration(text)
	}
	if err != nil {
		return errDuration
	}
	*d = Duration(parsed)
	return nil
}

var errDuration = errors.New("a duration is a text such as 300ms, 5m or 1h30m")

// MarshalJSON writes "5m0s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

func (d Duration) or(otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return time.Duration(d)
}

// record is the body of a policy of some kind.
type record interface {
	verify(id string, p *problems)
	secrets() []*Secret
}

var records = map[gateway.PolicyKind]func() record{
	gateway.PolicyGuards:      func() record { return &Switch{} },
	gateway.PolicyMaintenance: func() record { return &Maintenance{} },
	gateway.PolicyIdentity:    func() record { return &Identity{} },
	gateway.PolicyApps:        func() record { return &App{} },
	gateway.PolicySignature:   func() record { return &Signature{} },
	gateway.PolicyRateLimit:   func() record { return &RateLimit{} },
	gateway.PolicyAccess:      func() record { return &Access{} },
	gateway.PolicyDegradation: func() record { return &Degradation{} },
	gateway.PolicyAnswers:     func() record { return &Answers{} },
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// decode reads a body strictly: a field with a typing mistake would otherwise do nothing.
func decode(kind gateway.PolicyKind, body []byte) (record, error) {
	newRecord, ok := records[kind]
	if !ok {
		return nil, fmt.Errorf("there is no kind of policy %q", kind)
	}
	r := newRecord()
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(r); err != nil {
		return nil, decodingProblem(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return r, nil
}

// verify checks what was decoded; the error names every wrong field.
func verify(r record, id string) error {
	if !idPattern.MatchString(id) {
		return errors.New("id: want 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit")
	}
	var p problems
	r.verify(id, &p)
	return errors.Join(p.list...)
}

func decodingProblem(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return fmt.Errorf("%s: want a value of another type than %s", wrongType.Field, wrongType.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// problems collects what is wrong with a policy, each beginning with the field.
type problems struct{ list []error }

func (p *problems) add(format string, args ...any) {
	if len(p.list) < 10 {
		p.list = append(p.list, fmt.Errorf(format, args...))
	}
}

func (p *problems) common(c *Common) {
	p.each("services", c.Services, func(id string) error {
		if !idPattern.MatchString(id) {
			return errors.New("want the id of a service")
		}
		return nil
	})
	p.short("remark", c.Remark)
}

// each checks every element of a list, and that it has no more than maxList.
func (p *problems) each(field string, list []string, verify func(string) error) {
	if len(list) > maxList {
		p.add("%s: has more than %d entries", field, maxList)
		return
	}
	for i, value := range list {
		if err := verify(value); err != nil {
			p.add("%s[%d]: %w", field, i, err)
		}
	}
}

func (p *problems) short(field, text string) {
	if len(text) > maxText {
		p.add("%s: is longer than %d bytes", field, maxText)
	}
}

func (p *problems) text(field string, t gateway.Text) {
	p.short(field+".zh", t.ZH)
	p.short(field+".en", t.EN)
}

func (p *problems) oneOf(field, value string, choices ...string) {
	if !slices.Contains(choices, value) {
		p.add("%s: want one of %s", field, strings.Join(choices, ", "))
	}
}

func (p *problems) method(field, method string) {
	if method != "" && !methodPattern.MatchString(method) {
		p.add("%s: want a method such as GET, in capitals", field)
	}
}

func (p *problems) path(field, pattern string) {
	if err := verifyPattern(pattern); err != nil {
		p.add("%s: %w", field, err)
	}
}

func (p *problems) duration(field string, d Duration, least, most time.Duration) {
	if d != 0 && (time.Duration(d) < least || time.Duration(d) > most) {
		p.add("%s: want %s to %s", field, least, most)
	}
}

func (p *problems) code(field string, code int) {
	if code < 0 || code > 999_999_999 {
		p.add("%s: want a code from 1 to 999999999", field)
	}
}

var (
	methodPattern = regexp.MustCompile(`^[A-Z][A-Z-]{0,19}$`)
	paramPattern  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	headerPattern = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")
	rolePattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$`)
)

// VerifyRole checks the name of a role.
func VerifyRole(role string) error {
	if !rolePattern.MatchString(role) {
		return errors.New("want a role: 1 to 64 of A-Z a-z 0-9 . _ : -, the first a letter or digit")
	}
	return nil
}

func verifyUser(id string) error { return gateway.VerifyUserID("user id", id) }

func (*Switch) secrets() []*Secret      { return nil }
func (*Maintenance) secrets() []*Secret { return nil }
func (*Signature) secrets() []*Secret   { return nil }
func (*RateLimit) secrets() []*Secret   { return nil }
func (*Access) secrets() []*Secret      { return nil }
func (*Degradation) secrets() []*Secret { return nil }
func (*Answers) secrets() []*Secret     { return nil }

func (s *Switch) verify(_ string, p *problems) {
	p.short("remark", s.Remark)
}

func (m *Maintenance) verify(_ string, p *problems) {
	p.common(&m.Common)
	p.each("paths", m.Paths, verifyPattern)
	p.text("message", m.Message)
	p.each("testers.addresses", m.Testers.Addresses, func(text string) error {
		_, err := gateway.ParsePrefix(text)
		return err
	})
	p.each("testers.users", m.Testers.Users, verifyUser)
	if m.Start != nil && m.End != nil && !m.Start.Before(*m.End) {
		p.add("end: is not after start")
	}
}

func (i *Identity) verify(_ string, p *problems) {
	p.common(&i.Common)
	p.oneOf("mode", i.Mode, ModePassthrough, ModeToken, ModeJWT)
	p.each("public", i.Public, verifyPattern)
	if i.BlacklistFailure != "" {
		p.oneOf("blacklistFailure", i.BlacklistFailure, FailureOpen, FailureClosed)
	}
	switch {
	case i.Mode == ModeJWT && i.JWT == nil:
		p.add("jwt: is needed in mode jwt")
	case i.Mode != ModeJWT && i.JWT != nil:
		p.add("jwt: has no meaning in mode %s", i.Mode)
	case i.JWT != nil:
		i.JWT.verify(p)
	}
}

func (j *JWT) verify(p *problems) {
	if len(j.Keys) > maxKeys {
		p.add("jwt.keys: has more than %d entries", maxKeys)
		return
	}
	verifySecrets("jwt.keys", j.secrets(), p, func(i int) bool { return j.Keys[i].PublicKey == "" })
	p.duration("jwt.leeway", j.Leeway, 0, 10*time.Minute)
	p.duration("jwt.jwksRefresh", j.JWKSRefresh, 10*time.Second, 24*time.Hour)
	p.duration("jwt.jwksMaxAge", j.JWKSMaxAge, time.Minute, 30*24*time.Hour)
	for field, text := range map[string]string{
		"jwt.issuer": j.Issuer, "jwt.jwksUrl": j.JWKSURL, "jwt.userClaim": j.UserClaim, "jwt.channelClaim": j.ChannelClaim, "jwt.sourceClaim": j.SourceClaim,
	} {
		p.short(field, text)
	}
}

func (j *JWT) secrets() []*Secret {
	var all []*Secret
	for k := range j.Keys {
		all = append(all, &j.Keys[k].Secret)
	}
	return all
}

// dropReplaced drops the stored secrets in whose place public keys are given.
func (j *JWT) dropReplaced() {
	for k := range j.Keys {
		if key := &j.Keys[k]; key.PublicKey != "" {
			key.Sealed, key.SetAt = "", nil
		}
	}
}

func (i *Identity) secrets() []*Secret {
	if i.JWT == nil {
		return nil
	}
	return i.JWT.secrets()
}

func (a *App) verify(_ string, p *problems) {
	p.common(&a.Common)
	p.short("name", a.Name)
	if a.Shadow {
		p.add("shadow: an app is not a rule; the signature policy has one")
	}
	if len(a.Secrets) == 0 || len(a.Secrets) > maxSecrets {
		p.add("secrets: want 1 or %d", maxSecrets)
		return
	}
	verifySecrets("secrets", a.secrets(), p, func(int) bool { return true })
}

func (a *App) secrets() []*Secret {
	var all []*Secret
	for i := range a.Secrets {
		all = append(all, &a.Secrets[i].Secret)
	}
	return all
}

func (s *Signature) verify(_ string, p *problems) {
	p.common(&s.Common)
	if len(s.Paths) == 0 {
		p.add("paths: want at least one")
	}
	p.each("paths", s.Paths, verifyPattern)
	p.each("methods", s.Methods, verifyMethod)
	p.each("apps", s.Apps, func(id string) error {
		if !idPattern.MatchString(id) {
			return errors.New("want the id of an app")
		}
		return nil
	})
	p.duration("ttl", s.TTL, time.Second, 24*time.Hour)
	names := map[string]string{}
	for _, param := range []struct{ field, name string }{
		{"clientIdParam", s.clientIDParam()}, {"timestampParam", s.timestampParam()}, {"signParam", s.signParam()}, {"nonceParam", s.nonceParam()},
	} {
		if !paramPattern.MatchString(param.name) {
			p.add("%s: want the name of a parameter", param.field)
		}
		if other, taken := names[param.name]; taken {
			p.add("%s: is the %s", param.field, other)
		}
		names[param.name] = param.field
	}
}

func verifyMethod(method string) error {
	if !methodPattern.MatchString(method) {
		return errors.New("want a method such as GET, in capitals")
	}
	return nil
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (s *Signature) clientIDParam() string  { return orText(s.ClientIDParam, "client-id") }
func (s *Signature) timestampParam() string { return orText(s.TimestampParam, "timestamp") }
func (s *Signature) signParam() string      { return orText(s.SignParam, "sign") }
func (s *Signature) nonceParam() string     { return orText(s.NonceParam, "nonce") }

func (r *RateLimit) verify(_ string, p *problems) {
	p.common(&r.Common)
	p.method("method", r.Method)
	p.path("path", r.Path)
	if !(r.Rate > 0 && r.Rate <= 1e6) { // NaN too
		p.add("rate: want more than 0, at most 1000000")
	}
	p.duration("per", r.Per, time.Second, 24*time.Hour)
	if r.Burst < 0 || r.Burst > 1_000_000 {
		p.add("burst: want 1 to 1000000")
	}
	if r.By != "" {
		p.oneOf("by", r.By, ByTotal, ByUser, ByAddress, ByApp)
	}
}

func (a *Access) verify(_ string, p *problems) {
	p.common(&a.Common)
	p.oneOf("type", a.Type, AccessRBAC, AccessGrey, AccessMethod)
	p.method("method", a.Method)
	p.path("path", a.Path)
	p.each("roles", a.Roles, VerifyRole)
	p.each("users", a.Users, verifyUser)
	p.each("methods", a.Methods, verifyMethod)
	if !(a.Percent >= 0 && a.Percent <= 100) {
		p.add("percent: want 0 to 100")
	}
	for _, field := range []struct {
		name, of string
		given    bool
	}{
		{"roles", AccessRBAC, len(a.Roles) > 0}, {"methods", AccessMethod, len(a.Methods) > 0},
		{"percent", AccessGrey, a.Percent > 0}, {"users", AccessGrey, len(a.Users) > 0},
	} {
		if field.given && field.of != a.Type {
			p.add("%s: has no meaning for type %s", field.name, a.Type)
		}
	}
	switch {
	case a.Type == AccessRBAC && len(a.Roles) == 0:
		p.add("roles: want at least one")
	case a.Type == AccessMethod && len(a.Methods) == 0:
		p.add("methods: want at least one")
	case a.Type == AccessMethod && a.Method != "":
		p.add("method: has no meaning for type method")
	}
}

func (d *Degradation) verify(_ string, p *problems) {
	p.common(&d.Common)
	if d.Shadow {
		p.add("shadow: it refuses nothing")
	}
	if len(d.Core) > maxCore {
		p.add("core: has more than %d entries: join some with |", maxCore)
		return
	}
	p.each("core", d.Core, func(expression string) error {
		if len(expression) > maxText {
			return fmt.Errorf("is longer than %d bytes", maxText)
		}
		_, err := regexp.Compile(expression)
		return err
	})
	p.code("coreCode", d.CoreCode)
	p.code("code", d.Code)
	p.text("coreMessage", d.CoreMessage)
	p.text("message", d.Message)
	if d.Breaker != "" && !breakerPattern.MatchString(d.Breaker) {
		p.add("breaker: want Traefik's expression, such as ResponseCodeRatio(500, 600, 0, 600) > 0.30")
	}
}

// breakerPattern keeps the latency out: an event stream takes as long as it takes.
var breakerPattern = func() *regexp.Regexp {
	const ratio = `(NetworkErrorRatio\(\)|ResponseCodeRatio\(\d{3}, ?\d{3}, ?\d{1,3}, ?\d{3}\)) ?(>|>=|<|<=) ?\d(\.\d{1,6})?`
	return regexp.MustCompile(`^` + ratio + `( (\|\||&&) ` + ratio + `){0,7}$`)
}()

func (a *Answers) verify(_ string, p *problems) {
	p.common(&a.Common)
	if a.Shadow {
		p.add("shadow: it refuses nothing")
	}
	switch {
	case a.SourceHeader == "" && len(a.ClientSources) > 0:
		p.add("sourceHeader: is needed for clientSources")
	case a.SourceHeader != "" && !headerPattern.MatchString(a.SourceHeader):
		p.add("sourceHeader: want the name of a request header")
	case isGuarded(a.SourceHeader):
		p.add("sourceHeader: is a header that only the gateway sets, or that holds a token")
	}
	p.each("clientSources", a.ClientSources, func(source string) error {
		if source == "" || len(source) > 64 {
			return errors.New("want a value of 1 to 64 bytes")
		}
		return nil
	})
	for reason, code := range a.Codes {
		if !slices.Contains(gateway.GuardReasons, reason) {
			p.add("codes.%.40s: is no reason of a guard", reason)
		}
		p.code("codes."+string(reason), code)
		if code == 0 {
			p.add("codes.%s: want a code from 1 to 999999999", reason)
		}
	}
	for reason, text := range a.Messages {
		if !slices.Contains(gateway.GuardReasons, reason) {
			p.add("messages.%.40s: is no reason of a guard", reason)
		}
		p.text("messages."+string(reason), text)
	}
}

func isGuarded(header string) bool {
	name := strings.ToLower(header)
	return slices.Contains([]string{
		"x-gateway-node", "x-user-id", "x-channel", "x-source", "x-binding-epoch", "x-request-id", "authorization", "cookie", "x-token",
	}, name) || strings.HasPrefix(name, "x-homenode-")
}
