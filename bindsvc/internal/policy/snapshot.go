package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// Snapshot is all policies at one moment, compiled: each look-up costs the same
// whatever their number. It never changes.
type Snapshot struct {
	Revision int64
	Origin   string // who answered: SQL, or Redis while that cannot be asked
	Pending  int    // switches in it that the durable store has not taken yet
	Problems []Problem

	policies []gateway.Policy             // in force
	stored   []gateway.Policy             // of these, what a store has; nil: not known
	pending  []gateway.PendingPolicy      // those of Pending
	valid    map[policyKey]record         // the last good version of each
	invalid  map[string][]Common          // by guard: scopes of policies that have no good version
	jwts     map[string]session.JWTConfig // by the id of the identity policy

	switches     map[string]*Switch
	interfaces   paths[interfaceRules]
	identities   byService[*IdentityRule]
	apps         map[string]*AppRule
	degradations byService[*DegradationRule]
	answers      byService[*AnswersRule]

	wantsAddress, wantsQuery, perRequest, closed services
	pathRules                                    map[string]*services // by guard
}

// interfaceRules are all rules with one path pattern. They are found together: of many
// rules most are in no cache of the processor when a request comes, so that the way to
// them is what a look-up costs, and the way of the first guard serves the others.
type interfaceRules struct {
	maintenance []*MaintenanceRule
	signatures  []*SignatureRule
	limits      []*LimitRule
	access      [accessTypes][]*AccessRule
}

// Interface is what the policies have for one path: the rules of every pattern that
// matches it, the most specific one first.
type Interface struct{ rules []*interfaceRules }

// At finds the rules for a canonical path. One walk serves all guards.
func (s *Snapshot) At(path string) Interface {
	i := Interface{make([]*interfaceRules, 0, 8)}
	s.interfaces.visit(path, func(at []interfaceRules) bool {
		i.rules = append(i.rules, &at[0])
		return false
	})
	return i
}

// rulesAt is the place of the rules with that pattern.
func (s *Snapshot) rulesAt(pattern string) *interfaceRules {
	at := s.interfaces.at(pattern)
	if len(*at) == 0 {
		*at = []interfaceRules{{}}
	}
	return &(*at)[0]
}

type policyKey struct {
	kind gateway.PolicyKind
	id   string
}

// Problem is a stored policy that cannot be used; its last good version holds, if there was one.
type Problem struct {
	Kind gateway.PolicyKind
	ID   string
	Err  error
	Kept bool // the last good version is in force
}

// The kinds of policy that a guard's own failure policy is about. An app that cannot be
// used is none of them: it is as good as unknown.
var guardOf = map[gateway.PolicyKind]string{
	gateway.PolicyMaintenance: GuardMaintenance, gateway.PolicyIdentity: GuardIdentity, gateway.PolicySignature: GuardSignature,
	gateway.PolicyRateLimit: GuardRateLimit, gateway.PolicyAccess: GuardAccess,
}

// services is a set of service ids, or all of them.
type services struct {
	all bool
	ids map[string]bool
}

func (s *services) add(scope *Common) {
	if len(scope.Services) == 0 {
		s.all = true
		return
	}
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	for _, id := range scope.Services {
		s.ids[id] = true
	}
}

func (s *services) has(id string) bool { return s.all || s.ids[id] }

// byService finds the one policy of a service.
type byService[T any] struct {
	of       map[string]T
	others   T // of services that have none of their own
	isForAll bool
}

func (b *byService[T]) add(scope *Common, value T) error {
	if len(scope.Services) == 0 {
		if b.isForAll {
			return errors.New("services: another policy of this kind is for all services")
		}
		b.others, b.isForAll = value, true
		return nil
	}
	for i, id := range scope.Services {
		if _, taken := b.of[id]; taken {
			return fmt.Errorf("services[%d]: %s has a policy of this kind", i, id)
		}
	}
	if b.of == nil {
		b.of = map[string]T{}
	}
	for _, id := range scope.Services {
		b.of[id] = value
	}
	return nil
}

func (b *byService[T]) get(serviceID string) T {
	if value, ok := b.of[serviceID]; ok {
		return value
	}
	return b.others
}

// Empty is the snapshot of no policies.
func Empty() *Snapshot { return compile(nil, 0, nil, nil) }

// compile makes a snapshot. What cannot be used is reported, and stands for its last
// good version in before, if there is one.
func compile(policies []gateway.Policy, revision int64, sealer *Sealer, before *Snapshot) *Snapshot {
	s := &Snapshot{
		Revision: revision, policies: policies, valid: map[policyKey]record{}, invalid: map[string][]Common{}, jwts: map[string]session.JWTConfig{},
		switches: map[string]*Switch{}, apps: map[string]*AppRule{}, pathRules: map[string]*services{},
	}
	same := newInterner()
	for _, p := range policies {
		key := policyKey{p.Kind, p.ID}
		r, err := decode(p.Kind, p.Body)
		if err == nil {
			err = verify(r, p.ID)
		}
		if err == nil {
			same.intern(r)
			err = s.put(p.ID, r, sealer)
		}
		if err == nil {
			s.valid[key] = r
			continue
		}
		problem := Problem{Kind: p.Kind, ID: p.ID, Err: err}
		if before != nil && before.valid[key] != nil && s.put(p.ID, before.valid[key], sealer) == nil {
			problem.Kept, s.valid[key] = true, before.valid[key]
		}
		s.Problems = append(s.Problems, problem)
		scope := scopeOf(p.Body)
		if guard := guardOf[p.Kind]; guard != "" && !problem.Kept && scope.IsEnabled() {
			s.invalid[guard] = append(s.invalid[guard], scope)
		}
	}
	return s
}

// interner makes equal texts of many rules one and the same: what each request compares
// is then in the processor's caches, whichever rule it meets.
type interner struct {
	texts map[string]string
	lists map[string][]string
}

func newInterner() *interner { return &interner{map[string]string{}, map[string][]string{}} }

func (n *interner) intern(r record) {
	if of, ok := r.(interface{ common() *Common }); ok {
		of.common().Services = n.list(of.common().Services)
	}
	switch r := r.(type) {
	case *RateLimit:
		r.Method, r.By = n.text(r.Method), n.text(r.By)
	case *Access:
		r.Method, r.Methods, r.Roles = n.text(r.Method), n.list(r.Methods), n.list(r.Roles)
	case *Signature:
		r.Methods = n.list(r.Methods)
	}
}

func (n *interner) text(text string) string {
	if known, ok := n.texts[text]; ok {
		return known
	}
	n.texts[text] = text
	return text
}

func (n *interner) list(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	key := strings.Join(list, "\x00")
	if known, ok := n.lists[key]; ok {
		return known
	}
	for i := range list {
		list[i] = n.text(list[i])
	}
	n.lists[key] = list
	return list
}

// scopeOf is what a policy is about as far as it can be read: of nothing, all services.
func scopeOf(body []byte) (scope Common) {
	_ = json.Unmarshal(body, &scope) // reads the fields that it can
	return scope
}

// put adds one policy; nothing of it if it returns an error.
func (s *Snapshot) put(id string, r record, sealer *Sealer) error {
	switch r := r.(type) {
	case *Switch:
		s.switches[id] = r
	case *Maintenance:
		s.putMaintenance(id, r)
	case *Identity:
		return s.putIdentity(id, r, sealer)
	case *App:
		return s.putApp(id, r, sealer)
	case *Signature:
		s.putSignature(id, r)
	case *RateLimit:
		s.putLimit(id, r)
	case *Access:
		s.putAccess(id, r)
	case *Degradation:
		return s.putDegradation(id, r)
	case *Answers:
		return s.putAnswers(id, r)
	}
	return nil
}

// MaintenanceRule is a Maintenance in force.
type MaintenanceRule struct {
	ID string
	Maintenance
	addresses []netip.Prefix
}

// IsTester reports whether the user id, or at a login the username, is a tester's.
func (m *MaintenanceRule) IsTester(userID, username string) bool {
	return slices.ContainsFunc(m.Testers.Users, func(tester string) bool {
		return userID != "" && tester == userID || username != "" && gateway.KeyOf(tester) == gateway.KeyOf(username)
	})
}

// IsTestersAddress reports whether the address is a tester's.
func (m *MaintenanceRule) IsTestersAddress(address netip.Addr) bool {
	return slices.ContainsFunc(m.addresses, func(p netip.Prefix) bool { return p.Contains(address) })
}

func (s *Snapshot) putMaintenance(id string, m *Maintenance) {
	if !m.IsEnabled() {
		return
	}
	rule := &MaintenanceRule{ID: id, Maintenance: *m}
	for _, text := range m.Testers.Addresses {
		prefix, _ := gateway.ParsePrefix(text) // verified
		rule.addresses = append(rule.addresses, prefix)
	}
	patterns := m.Paths
	if len(patterns) == 0 {
		patterns = []string{"/**"}
	}
	for _, pattern := range patterns {
		at := s.rulesAt(pattern)
		at.maintenance = append(at.maintenance, rule)
	}
	if len(rule.addresses) > 0 {
		s.wantsAddress.add(&m.Common)
	}
	switch {
	case len(m.Paths) > 0:
		s.refusesByPath(GuardMaintenance, &m.Common)
	case !m.Shadow: // nothing is to reach the service, not through the pool either
		s.closed.add(&m.Common)
	}
	s.perRequest.add(&m.Common)
}

// Maintenance calls found with every rule that is about the service at that time, until
// it returns true.
func (i Interface) Maintenance(serviceID string, now time.Time, found func(*MaintenanceRule) bool) {
	for _, at := range i.rules {
		for _, m := range at.maintenance {
			if m.Covers(serviceID) && (m.Start == nil || !now.Before(*m.Start)) && found(m) {
				return
			}
		}
	}
}

// IdentityRule is an Identity in force.
type IdentityRule struct {
	ID string
	*Identity
	public paths[bool]
}

// IsPublic reports whether the path needs no user.
func (i *IdentityRule) IsPublic(path string) bool {
	_, ok := i.public.matches(path, func(bool) bool { return true })
	return ok
}

// Leeway is how far clocks may differ.
func (i *IdentityRule) Leeway() time.Duration {
	if i.JWT == nil {
		return 0
	}
	return i.JWT.Leeway.or(session.DefaultLeeway)
}

// RevocationKey is what a token is known by among the revoked ones: the token. Of one
// signed with ECDSA, whoever has it can make another with the same claims and a
// signature that is good too ((r, n-s) for (r, s)): it is known by what is signed.
func (i *IdentityRule) RevocationKey(token string) string {
	if i.JWT != nil && slices.ContainsFunc(i.JWT.Algorithms, func(name string) bool { return strings.HasPrefix(name, "ES") }) {
		if end := strings.LastIndexByte(token, '.'); end > 0 {
			return token[:end]
		}
	}
	return token
}

func (s *Snapshot) putIdentity(id string, i *Identity, sealer *Sealer) error {
	rule := &IdentityRule{ID: id, Identity: i}
	for _, pattern := range i.Public {
		rule.public.add(pattern, true)
	}
	var config session.JWTConfig
	if i.JWT != nil {
		var err error
		if config, err = i.jwtConfig(sealer, id); err != nil {
			return err
		}
	}
	if !i.IsEnabled() {
		return nil
	}
	if err := s.identities.add(&i.Common, rule); err != nil {
		return err
	}
	if i.JWT != nil {
		s.jwts[id] = config
	}
	if i.Mode != ModePassthrough || i.UsesBlacklist() {
		s.perRequest.add(&i.Common)
	}
	if i.Mode != ModePassthrough && !i.Shadow {
		s.closed.add(&i.Common)
	}
	if len(i.Public) > 0 {
		s.refusesByPath(GuardIdentity, &i.Common)
	}
	return nil
}

// jwtConfig opens the secrets of the policy with that id.
func (i *Identity) jwtConfig(sealer *Sealer, id string) (session.JWTConfig, error) {
	j := i.JWT
	config := session.JWTConfig{
		Algorithms: j.Algorithms, JWKSURL: j.JWKSURL, JWKSRefresh: time.Duration(j.JWKSRefresh), JWKSMaxAge: time.Duration(j.JWKSMaxAge),
		Issuer: j.Issuer, Audience: j.Audience, Leeway: j.Leeway.or(session.DefaultLeeway),
		UserClaim: j.UserClaim, ChannelClaim: j.ChannelClaim, SourceClaim: j.SourceClaim, AllowNoExpiry: j.AllowNoExpiry,
	}
	for n, key := range j.Keys {
		k := session.JWTKey{ID: key.ID, PublicKey: key.PublicKey}
		if key.Sealed != "" {
			secret, err := sealer.open(key.Sealed, placeOf(gateway.PolicyIdentity, id, key.ID))
			if err != nil {
				return config, fmt.Errorf("jwt.keys[%d].value: %w", n, err)
			}
			k.Secret = []byte(secret)
		}
		config.Keys = append(config.Keys, k)
	}
	if err := config.Verify(); err != nil {
		return config, fmt.Errorf("jwt.%w", err)
	}
	return config, nil
}

// Identity returns the policy of the service, nil if there is none.
func (s *Snapshot) Identity(serviceID string) *IdentityRule { return s.identities.get(serviceID) }

// JWTs returns what every identity policy in mode jwt believes, by its id.
func (s *Snapshot) JWTs() map[string]session.JWTConfig { return s.jwts }

// AppRule is an App with its secrets opened.
type AppRule struct {
	ID string
	*App
	secrets []string // at the place of App.Secrets
}

// GoodSecrets returns the secrets that are good at that time.
func (a *AppRule) GoodSecrets(now time.Time) []string {
	var good []string
	for i, secret := range a.Secrets {
		if secret.NotAfter == nil || !now.After(*secret.NotAfter) {
			good = append(good, a.secrets[i])
		}
	}
	return good
}

func (s *Snapshot) putApp(id string, a *App, sealer *Sealer) error {
	rule := &AppRule{ID: id, App: a}
	for i, secret := range a.Secrets {
		value, err := sealer.open(secret.Sealed, placeOf(gateway.PolicyApps, id, secret.ID))
		if err != nil {
			return fmt.Errorf("secrets[%d].value: %w", i, err)
		}
		rule.secrets = append(rule.secrets, value)
	}
	if a.IsEnabled() {
		s.apps[id] = rule
	}
	return nil
}

// App returns the app with that client-id if it may call the service, else nil.
func (s *Snapshot) App(serviceID, clientID string) *AppRule {
	if app := s.apps[clientID]; app != nil && app.Covers(serviceID) {
		return app
	}
	return nil
}

// SignatureRule is a Signature in force, with its defaults.
type SignatureRule struct {
	ID string
	Signature
	TTL                                 time.Duration
	ClientID, Timestamp, Sign, NonceKey string // names of parameters
}

func (s *Snapshot) putSignature(id string, g *Signature) {
	if !g.IsEnabled() {
		return
	}
	rule := &SignatureRule{
		ID: id, Signature: *g, TTL: g.TTL.or(5 * time.Minute),
		ClientID: g.clientIDParam(), Timestamp: g.timestampParam(), Sign: g.signParam(), NonceKey: g.nonceParam(),
	}
	for _, pattern := range g.Paths {
		at := s.rulesAt(pattern)
		at.signatures = append(at.signatures, rule)
	}
	s.wantsQuery.add(&g.Common)
	s.perRequest.add(&g.Common)
	s.refusesByPath(GuardSignature, &g.Common)
	if !g.Shadow {
		s.closed.add(&g.Common)
	}
}

// Signature returns the most specific rule in force for the interface, and the one in
// shadow mode that would take its place; nil if there is none.
// A preflight carries no signature: OPTIONS is only signed where a rule names it.
func (i Interface) Signature(serviceID, method string) (inForce, onTrial *SignatureRule) {
	for _, at := range i.rules {
		for _, g := range at.signatures {
			switch {
			case !g.isAbout(serviceID, method):
			case !g.Shadow:
				return g, onTrial
			case onTrial == nil:
				onTrial = g
			}
		}
	}
	return nil, onTrial
}

func (g *SignatureRule) isAbout(serviceID, method string) bool {
	if len(g.Methods) == 0 {
		return g.Covers(serviceID) && method != http.MethodOptions
	}
	return g.Covers(serviceID) && slices.ContainsFunc(g.Methods, func(of string) bool { return isOrAnswers(of, method) })
}

// LimitRule is a RateLimit in force.
type LimitRule struct {
	ID string
	RateLimit
	PerSecond float64
	Capacity  float64
}

func (s *Snapshot) putLimit(id string, r *RateLimit) {
	if !r.IsEnabled() {
		return
	}
	r.By = cmp.Or(r.By, ByTotal)
	rule := &LimitRule{ID: id, RateLimit: *r, PerSecond: r.Rate / r.Per.or(time.Second).Seconds(), Capacity: float64(r.Burst)}
	if r.Burst == 0 {
		rule.Capacity = max(1, r.Rate)
	}
	at := s.rulesAt(r.Path)
	at.limits = append(at.limits, rule)
	if r.By == ByAddress {
		s.wantsAddress.add(&r.Common)
	}
	s.perRequest.add(&r.Common)
	s.refusesByPath(GuardRateLimit, &r.Common)
}

// Limits returns the rules in force for the interface: those of the most specific path
// pattern that has any, of these those for exactly this method, else those for any (seed
// 004). Those on trial are in shadow mode, and would be in force with or without others.
func (i Interface) Limits(serviceID, method string) (inForce, onTrial []*LimitRule) {
	of := func(r *LimitRule) (string, bool) { return r.Method, r.Covers(serviceID) }
	inForce, would := rulesFor(i, func(at *interfaceRules) []*LimitRule { return at.limits }, method, of, func(r *LimitRule) bool { return r.Shadow })
	return inForce, slices.DeleteFunc(would, func(r *LimitRule) bool { return !r.Shadow })
}

// rulesFor finds the rules in force, which no rule in shadow mode takes the place of, and
// those that would be if there were no shadow mode; the latter only if they are others.
func rulesFor[T any](i Interface, list func(*interfaceRules) []T, method string, of func(T) (method string, suits bool), isShadow func(T) bool) (inForce, would []T) {
	for _, at := range i.rules {
		rules := list(at)
		if len(rules) == 0 {
			continue
		}
		if len(would) == 0 {
			would = forMethod(rules, method, of)
		}
		inForce = forMethod(rules, method, func(r T) (string, bool) {
			method, suits := of(r)
			return method, suits && !isShadow(r)
		})
		if len(inForce) > 0 {
			break
		}
	}
	if !slices.ContainsFunc(would, isShadow) {
		would = nil
	}
	return inForce, would
}

// forMethod keeps the rules that suit: for exactly the method, else for GET where that
// answers it, else for any.
func forMethod[T any](rules []T, method string, of func(T) (method string, suits bool)) []T {
	var exact, get, any []T
	for _, rule := range rules {
		switch of, suits := of(rule); {
		case !suits:
		case of == method:
			exact = append(exact, rule)
		case isOrAnswers(of, method):
			get = append(get, rule)
		case of == "":
			any = append(any, rule)
		}
	}
	for _, found := range [][]T{exact, get} {
		if len(found) > 0 {
			return found
		}
	}
	return any
}

// isOrAnswers reports whether a rule for the method of is about a request: servers run
// what answers GET for HEAD too.
func isOrAnswers(of, method string) bool {
	return of == method || of == http.MethodGet && method == http.MethodHead
}

// AccessRule is an Access in force.
type AccessRule struct {
	ID string
	Access
}

const accessTypes = 3

// accessType numbers the types of Access.
func accessType(name string) int {
	return slices.Index([]string{AccessRBAC, AccessGrey, AccessMethod}, name)
}

func (s *Snapshot) putAccess(id string, a *Access) {
	if !a.IsEnabled() {
		return
	}
	of := &s.rulesAt(a.Path).access[accessType(a.Type)]
	*of = append(*of, &AccessRule{ID: id, Access: *a})
	s.perRequest.add(&a.Common)
	s.refusesByPath(GuardAccess, &a.Common)
	if !a.Shadow {
		s.closed.add(&a.Common)
	}
}

// Access returns the rules of one type in force for the interface, those of the most
// specific path, and what they would be without shadow mode, if that is not the same.
func (i Interface) Access(kind, serviceID, method string) (inForce, would []*AccessRule) {
	of := accessType(kind)
	return rulesFor(i, func(at *interfaceRules) []*AccessRule { return at.access[of] }, method,
		func(a *AccessRule) (string, bool) { return a.Method, a.Covers(serviceID) }, func(a *AccessRule) bool { return a.Shadow })
}

// DegradationRule is a Degradation in force.
type DegradationRule struct {
	ID string
	*Degradation
	core []*regexp.Regexp
}

// IsCore reports whether the path is one of those that matter most.
func (d *DegradationRule) IsCore(path string) bool {
	return slices.ContainsFunc(d.core, func(r *regexp.Regexp) bool { return r.MatchString(path) })
}

func (s *Snapshot) putDegradation(id string, d *Degradation) error {
	rule := &DegradationRule{ID: id, Degradation: d}
	for _, expression := range d.Core {
		rule.core = append(rule.core, regexp.MustCompile(expression)) // verified
	}
	if !d.IsEnabled() {
		return nil
	}
	if len(d.Core) > 0 { // what the fallback is told depends on the path
		s.perRequest.add(&d.Common)
	}
	return s.degradations.add(&d.Common, rule)
}

// Degradation returns the policy of the service, nil if there is none.
func (s *Snapshot) Degradation(serviceID string) *DegradationRule {
	return s.degradations.get(serviceID)
}

// AnswersRule is an Answers in force.
type AnswersRule struct {
	ID string
	*Answers
}

func (s *Snapshot) putAnswers(id string, a *Answers) error {
	if !a.IsEnabled() {
		return nil
	}
	if len(a.ClientSources) > 0 { // and what a client gets, on its source
		s.perRequest.add(&a.Common)
	}
	return s.answers.add(&a.Common, &AnswersRule{ID: id, Answers: a})
}

// Answers returns the policy of the service, nil if there is none.
func (s *Snapshot) Answers(serviceID string) *AnswersRule { return s.answers.get(serviceID) }

// IsClient reports whether a request with that source gets business codes with HTTP 200.
func (a *AnswersRule) IsClient(source string) bool {
	return a != nil && source != "" && slices.Contains(a.ClientSources, source)
}

// IsEnabled reports whether the guard is switched on, and whether it refuses.
func (s *Snapshot) IsEnabled(guard string) (enabled, shadow bool) {
	sw := s.switches[guard]
	if sw == nil {
		return true, false
	}
	return sw.Enabled == nil || *sw.Enabled, sw.Shadow
}

// SwitchRemark is what was remarked when the guard's master switch was last turned.
func (s *Snapshot) SwitchRemark(guard string) string {
	if sw := s.switches[guard]; sw != nil {
		return sw.Remark
	}
	return ""
}

// IsBroken reports whether a policy of the guard that is about the service cannot be
// used, and has no last good version.
func (s *Snapshot) IsBroken(guard, serviceID string) bool {
	return slices.ContainsFunc(s.invalid[guard], func(scope Common) bool { return scope.Covers(serviceID) })
}

// What a question about a service's requests carries only if a policy needs it.
const (
	NeedAddress = "address"
	NeedQuery   = "query"
	NeedForm    = "form"
	NeedSource  = "source:" // and the header's name
)

// Needs lists what every question about the service has to carry.
func (s *Snapshot) Needs(serviceID string) []string {
	var needs []string
	if s.wantsAddress.has(serviceID) {
		needs = append(needs, NeedAddress)
	}
	if s.wantsQuery.has(serviceID) {
		needs = append(needs, NeedQuery)
	}
	if a := s.Answers(serviceID); a != nil && len(a.ClientSources) > 0 {
		needs = append(needs, NeedSource+a.SourceHeader)
	}
	return needs
}

// IsPerRequest reports whether requests of the service have to be checked one by one:
// no decision about one holds for the next.
func (s *Snapshot) IsPerRequest(serviceID string) bool { return s.perRequest.has(serviceID) }

// IsClosed reports whether a guard that fails closed may refuse requests of the service,
// or all of it is in maintenance: then none may go around the guards while they cannot be
// asked.
func (s *Snapshot) IsClosed(serviceID string) bool {
	return s.closed.has(serviceID) || s.IsBroken(GuardIdentity, serviceID) || s.IsBroken(GuardSignature, serviceID) || s.IsBroken(GuardAccess, serviceID)
}

// refusesByPath notes that what the guard refuses depends on the path; in shadow mode it
// refuses nothing.
func (s *Snapshot) refusesByPath(guard string, scope *Common) {
	if scope.Shadow {
		return
	}
	if s.pathRules[guard] == nil {
		s.pathRules[guard] = &services{}
	}
	s.pathRules[guard].add(scope)
}

// HasPathRules reports whether guards that are in force tell requests of the service
// apart by their path.
func (s *Snapshot) HasPathRules(serviceID string) bool {
	for guard, of := range s.pathRules {
		if enabled, shadow := s.IsEnabled(guard); enabled && !shadow && of.has(serviceID) {
			return true
		}
	}
	return false
}

// Count is the number of policies of a kind.
func (s *Snapshot) Count(kind gateway.PolicyKind) int { return len(s.Of(kind)) }

// Of returns the policies of a kind as they are stored, ordered by id.
func (s *Snapshot) Of(kind gateway.PolicyKind) []gateway.Policy {
	var of []gateway.Policy
	for _, p := range s.policies {
		if p.Kind == kind {
			of = append(of, p)
		}
	}
	return of
}

// HasBroken reports whether any policy of the guard cannot be used and has no last good version.
func (s *Snapshot) HasBroken(guard string) bool { return len(s.invalid[guard]) > 0 }
