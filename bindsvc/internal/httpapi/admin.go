package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/registry"
)

const maxAdminBody = 64 << 10

// administrator lets an administrator in: from an allowed address, with the
// admin token as x-token or as Authorization: Bearer.
func (s *Server) administrator(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		address := clientAddress(c.Request(), s.opts.TrustedProxies)
		if len(s.opts.AdminWhitelist) > 0 && !containsAddress(s.opts.AdminWhitelist, address) {
			return &gateway.Error{Reason: gateway.Forbidden, Detail: "address"}
		}
		token := c.Request().Header.Get("x-token")
		if token == "" {
			token = bearer(c.Request().Header.Get("Authorization"))
		}
		if s.opts.AdminToken == "" || !matches(token, s.admin) {
			return &gateway.Error{Reason: gateway.Unauthenticated}
		}
		return next(c)
	}
}

// clientAddress is the peer's address, or, as long as the hop it came from is a
// trusted proxy, the one before it in X-Forwarded-For.
func clientAddress(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // a unix socket: no address is in any list
	}
	address := peer.Addr().Unmap().WithZone("")
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		if !containsAddress(trusted, address) {
			break
		}
		before, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		address = before.Unmap().WithZone("")
	}
	return address
}

func containsAddress(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}

func (s *Server) succeed(c echo.Context, data any) error {
	c.Response().Header().Set(headerRequestID, requestID(c))
	c.Response().Header().Set("Cache-Control", "no-store")
	message := s.languages.pick(c.Request().Header.Get("Accept-Language"), success)
	return c.JSON(http.StatusOK, envelope{Code: http.StatusOK, Message: message, Data: data})
}

// stored maps an error of the store: what is no answer is STORE_UNAVAILABLE.
func stored(err error) error {
	var refusal *gateway.Error
	var conflict *gateway.ConflictError
	if err == nil || errors.Is(err, gateway.ErrNotFound) || errors.As(err, &refusal) || errors.As(err, &conflict) {
		return err
	}
	return gateway.Unavailable(err)
}

// flag is a boolean that 0 and 1 are understood for, as the seed's clients send them.
type flag bool

// UnmarshalJSON reads true, false, 1 and 0.
func (f *flag) UnmarshalJSON(raw []byte) error {
	switch string(raw) {
	case "true", "1":
		*f = true
	case "false", "0":
		*f = false
	default:
		return errors.New("enabled: want true or false")
	}
	return nil
}

// idText is an id given as JSON text or number, without loss.
type idText string

// UnmarshalJSON reads "7", 7 and null.
func (t *idText) UnmarshalJSON(raw []byte) error {
	var number json.Number
	var text string
	switch {
	case json.Unmarshal(raw, &text) == nil:
		*t = idText(text)
	case json.Unmarshal(raw, &number) == nil:
		*t = idText(number)
	default:
		return errors.New("userId: want text or a number")
	}
	return nil
}

// nullable tells a field that is null from one that is not given.
type nullable struct {
	given bool
	value string
}

// UnmarshalJSON reads text and null.
func (n *nullable) UnmarshalJSON(raw []byte) error {
	n.given = true
	return json.Unmarshal(raw, &n.value)
}

type serviceView struct {
	ID            string              `json:"id"`
	Name          string              `json:"name"`
	PathPrefix    string              `json:"pathPrefix"`
	LoginPath     string              `json:"loginPath"`
	LogoutPath    string              `json:"logoutPath"`
	HealthPath    string              `json:"healthPath"`
	DefaultNodeID *string             `json:"defaultNodeId"`
	Enabled       bool                `json:"enabled"`
	Login         gateway.LoginFields `json:"login"`
	CreateTime    time.Time           `json:"createTime"`
	UpdateTime    time.Time           `json:"updateTime"`
	Nodes         []nodeView          `json:"nodes,omitempty"`
}

type nodeView struct {
	ID             string     `json:"id"`
	ServiceID      string     `json:"serviceId"`
	Name           string     `json:"name"`
	BaseURL        string     `json:"baseUrl"`
	TraefikService string     `json:"traefikService"`
	Enabled        bool       `json:"enabled"`
	Remark         string     `json:"remark"`
	CreateTime     time.Time  `json:"createTime"`
	UpdateTime     time.Time  `json:"updateTime"`
	Health         healthView `json:"health"`
	Bindings       *int64     `json:"bindings,omitempty"`
}

type healthView struct {
	State     registry.State `json:"state"`
	Since     *time.Time     `json:"since"`
	CheckedAt *time.Time     `json:"checkedAt"`
	Failures  int            `json:"failures"`
	LastError string         `json:"lastError"`
}

type bindingView struct {
	ID         int64     `json:"id"`
	ServiceID  string    `json:"serviceId"`
	UserID     *string   `json:"userId"`
	Username   *string   `json:"username"`
	NodeID     string    `json:"nodeId"`
	Epoch      int64     `json:"epoch"`
	CreateTime time.Time `json:"createTime"`
	UpdateTime time.Time `json:"updateTime"`
}

type pageView struct {
	Total   int64         `json:"total"`
	Page    int           `json:"page"`
	Size    int           `json:"size"`
	Records []bindingView `json:"records"`
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func viewService(s gateway.Service) serviceView {
	return serviceView{
		ID: s.ID, Name: s.Name, PathPrefix: s.PathPrefix, LoginPath: s.LoginPath, LogoutPath: s.LogoutPath,
		HealthPath: s.HealthPath, DefaultNodeID: orNull(s.DefaultNodeID), Enabled: s.Enabled, Login: s.Login.WithDefaults(),
		CreateTime: s.CreatedAt, UpdateTime: s.UpdatedAt,
	}
}

func (s *Server) viewNode(n gateway.Node) nodeView {
	return nodeView{
		ID: n.ID, ServiceID: n.ServiceID, Name: n.Name, BaseURL: n.BaseURL, TraefikService: n.TraefikService,
		Enabled: n.Enabled, Remark: n.Remark, CreateTime: n.CreatedAt, UpdateTime: n.UpdatedAt,
		Health: viewHealth(s.registry.Health(n.ID)),
	}
}

func viewHealth(h registry.Health) healthView {
	return healthView{State: h.State, Since: timeOrNull(h.Since), CheckedAt: timeOrNull(h.CheckedAt), Failures: h.Failures, LastError: h.LastError}
}

func viewBinding(b gateway.Binding) bindingView {
	return bindingView{
		ID: b.ID, ServiceID: b.ServiceID, UserID: orNull(b.UserID), Username: orNull(b.Username), NodeID: b.NodeID,
		Epoch: b.Epoch, CreateTime: b.CreatedAt, UpdateTime: b.UpdatedAt,
	}
}

// status answers with services, their nodes, health and binding counts.
func (s *Server) status(c echo.Context) error {
	ctx := c.Request().Context()
	services, nodes, err := s.store.LoadRegistry(ctx)
	if err != nil {
		return gateway.Unavailable(err)
	}
	counts, err := s.store.CountBindings(ctx)
	if err != nil {
		return gateway.Unavailable(err)
	}
	views := make([]serviceView, len(services))
	for i, service := range services {
		views[i] = viewService(service)
		for _, node := range nodes {
			if node.ServiceID == service.ID {
				view, count := s.viewNode(node), counts[node.ID]
				view.Bindings = &count
				views[i].Nodes = append(views[i].Nodes, view)
			}
		}
	}
	return s.succeed(c, map[string]any{"services": views})
}

func (s *Server) listServices(c echo.Context) error {
	services, nodes, err := s.store.LoadRegistry(c.Request().Context())
	if err != nil {
		return gateway.Unavailable(err)
	}
	views := make([]serviceView, len(services))
	for i, service := range services {
		views[i] = viewService(service)
		views[i].Nodes = []nodeView{}
		for _, node := range nodes {
			if node.ServiceID == service.ID {
				views[i].Nodes = append(views[i].Nodes, s.viewNode(node))
			}
		}
	}
	return s.succeed(c, views)
}

// serviceInput is a service as an administrator gives it; what is not given stays.
type serviceInput struct {
	ID            *string             `json:"id"`
	Name          *string             `json:"name"`
	PathPrefix    *string             `json:"pathPrefix"`
	LoginPath     *string             `json:"loginPath"`
	LogoutPath    *string             `json:"logoutPath"`
	HealthPath    *string             `json:"healthPath"`
	DefaultNodeID nullable            `json:"defaultNodeId"`
	Enabled       *flag               `json:"enabled"`
	Login         gateway.LoginFields `json:"login"` // what is empty stays
}

func (in serviceInput) apply(s *gateway.Service) error {
	if in.ID != nil && *in.ID != s.ID {
		return invalid("id cannot be changed")
	}
	set(&s.Name, in.Name)
	set(&s.PathPrefix, in.PathPrefix)
	set(&s.LoginPath, in.LoginPath)
	set(&s.LogoutPath, in.LogoutPath)
	set(&s.HealthPath, in.HealthPath)
	if in.DefaultNodeID.given {
		s.DefaultNodeID = in.DefaultNodeID.value
	}
	if in.Enabled != nil {
		s.Enabled = bool(*in.Enabled)
	}
	s.Login = in.Login.Or(s.Login).WithDefaults()
	return verified(s.Verify())
}

func set(field, given *string) {
	if given != nil {
		*field = *given
	}
}

func verified(err error) error {
	if err != nil {
		return invalid(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

func (s *Server) createService(c echo.Context) error {
	var in serviceInput
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	service := gateway.Service{HealthPath: "/actuator/health", Enabled: true}
	set(&service.ID, in.ID)
	if err := in.apply(&service); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if err := s.store.CreateService(ctx, service); err != nil {
		return stored(err)
	}
	return s.refreshed(c, s.serviceNow(service.ID))
}

func (s *Server) updateService(c echo.Context) error {
	var in serviceInput
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	service, err := s.store.UpdateService(c.Request().Context(), c.Param("serviceId"), in.apply)
	if err != nil {
		return stored(err)
	}
	return s.refreshed(c, s.serviceNow(service.ID))
}

func (s *Server) deleteService(c echo.Context) error {
	if err := s.store.DeleteService(c.Request().Context(), c.Param("serviceId")); err != nil {
		return stored(err)
	}
	return s.refreshed(c, nothing)
}

// nodeInput is a node as an administrator gives it; what is not given stays.
type nodeInput struct {
	ID             *string `json:"id"`
	Name           *string `json:"name"`
	BaseURL        *string `json:"baseUrl"`
	TraefikService *string `json:"traefikService"`
	Enabled        *flag   `json:"enabled"`
	Remark         *string `json:"remark"`
}

func (in nodeInput) apply(n *gateway.Node) error {
	if in.ID != nil && *in.ID != n.ID {
		return invalid("id cannot be changed")
	}
	set(&n.Name, in.Name)
	set(&n.BaseURL, in.BaseURL)
	set(&n.TraefikService, in.TraefikService)
	set(&n.Remark, in.Remark)
	n.BaseURL = strings.TrimSuffix(n.BaseURL, "/")
	if in.Enabled != nil {
		n.Enabled = bool(*in.Enabled)
	}
	return verified(n.Verify())
}

func (s *Server) createNode(c echo.Context) error {
	var in nodeInput
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	node := gateway.Node{ServiceID: c.Param("serviceId"), Enabled: true}
	set(&node.ID, in.ID)
	if err := in.apply(&node); err != nil {
		return err
	}
	if err := s.store.CreateNode(c.Request().Context(), node); err != nil {
		return stored(err)
	}
	return s.refreshed(c, s.nodeNow(node.ID))
}

func (s *Server) updateNode(c echo.Context) error {
	var in nodeInput
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	node, err := s.store.UpdateNode(c.Request().Context(), c.Param("nodeId"), in.apply)
	if err != nil {
		return stored(err)
	}
	return s.refreshed(c, s.nodeNow(node.ID))
}

func (s *Server) deleteNode(c echo.Context) error {
	if err := s.store.DeleteNode(c.Request().Context(), c.Param("nodeId")); err != nil {
		return stored(err)
	}
	return s.refreshed(c, nothing)
}

// checkNode probes a node now.
func (s *Server) checkNode(c echo.Context) error {
	health, err := s.registry.Probe(c.Request().Context(), c.Param("nodeId"))
	if err != nil {
		return err
	}
	return s.succeed(c, viewHealth(health))
}

// reload reads the registry now.
func (s *Server) reload(c echo.Context) error { return s.refreshed(c, nothing) }

// refreshed makes this instance see the write, then answers with what there is now.
func (s *Server) refreshed(c echo.Context, now func() any) error {
	if err := s.registry.Refresh(c.Request().Context()); err != nil {
		return gateway.Unavailable(err)
	}
	return s.succeed(c, now())
}

func nothing() any { return nil }

func (s *Server) serviceNow(id string) func() any {
	return func() any {
		service, _ := s.registry.Snapshot().Service(id)
		return viewService(service)
	}
}

func (s *Server) nodeNow(id string) func() any {
	return func() any {
		node, _ := s.registry.Snapshot().Node(id)
		return s.viewNode(node)
	}
}

const (
	defaultPageSize = 20
	maxPageSize     = 200
	maxPage         = 1_000_000
)

func (s *Server) listRoutes(c echo.Context) error {
	page, err := number(c, "page", 1, maxPage)
	if err != nil {
		return err
	}
	size, err := number(c, "size", defaultPageSize, maxPageSize)
	if err != nil {
		return err
	}
	filter := gateway.BindingFilter{
		ServiceID: c.QueryParam("serviceId"), Keyword: c.QueryParam("keyword"), Offset: (page - 1) * size, Limit: size,
	}
	bindings, total, err := s.store.ListBindings(c.Request().Context(), filter)
	if err != nil {
		return gateway.Unavailable(err)
	}
	view := pageView{Total: total, Page: page, Size: size, Records: make([]bindingView, len(bindings))}
	for i, b := range bindings {
		view.Records[i] = viewBinding(b)
	}
	return s.succeed(c, view)
}

func number(c echo.Context, name string, byDefault, most int) (int, error) {
	text := c.QueryParam(name)
	if text == "" {
		return byDefault, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, invalid(name + ": want 1 to " + strconv.Itoa(most))
	}
	return n, nil
}

type bindInput struct {
	ServiceID string `json:"serviceId"`
	UserID    idText `json:"userId"`
	Username  string `json:"username"`
	NodeID    string `json:"nodeId"`
}

func (in bindInput) verify() error {
	var problems []error
	if in.ServiceID == "" {
		problems = append(problems, errors.New("serviceId is empty"))
	}
	if in.NodeID == "" {
		problems = append(problems, errors.New("nodeId is empty"))
	}
	if in.UserID == "" && in.Username == "" {
		problems = append(problems, errors.New("userId or username is needed"))
	}
	if in.UserID != "" {
		problems = append(problems, gateway.VerifyUserID("userId", string(in.UserID)))
	}
	if in.Username != "" {
		problems = append(problems, gateway.VerifyName("username", in.Username))
	}
	return verified(errors.Join(problems...))
}

// bind binds or rebinds a user. When it answers, this instance routes by it;
// every other one does within a second.
func (s *Server) bind(c echo.Context) error {
	var in bindInput
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	if err := in.verify(); err != nil {
		return err
	}
	want := gateway.Assignment{ServiceID: in.ServiceID, NodeID: in.NodeID, UserID: string(in.UserID), Username: in.Username}
	result, err := s.bindings.Bind(c.Request().Context(), want)
	if err != nil {
		return stored(err)
	}
	return s.succeed(c, viewBinding(result.Binding))
}

func (s *Server) unbind(c echo.Context) error {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil {
		return invalid("id: want a number")
	}
	result, err := s.bindings.Unbind(c.Request().Context(), id)
	if err != nil {
		return stored(err)
	}
	return s.succeed(c, viewBinding(result.Binding))
}
