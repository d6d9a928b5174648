// Package config reads homenode.yml and the environment into one struct. The
// environment wins; an unknown key in the file is an error; every problem is
// reported at once.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Config is everything an operator can set.
type Config struct {
	Listen      []string `yaml:"listen"`      // HOMENODE_LISTEN: host:port or unix:///path, comma-separated
	AdminListen string   `yaml:"adminListen"` // HOMENODE_ADMIN_LISTEN
	DataDir     string   `yaml:"dataDir"`     // HOMENODE_DATA_DIR: the embedded store lives here

	Services []Service `yaml:"services"` // only seed an empty registry
	Token    Token     `yaml:"token"`
	SaToken  SaToken   `yaml:"satoken"`
	Health   Health    `yaml:"health"`
	Registry Registry  `yaml:"registry"`
	Decision Decision  `yaml:"decision"`
	Traefik  Traefik   `yaml:"traefik"`
	Admin    Admin     `yaml:"admin"`
	Redis    Redis     `yaml:"redis"`
	Log      Log       `yaml:"log"`
	Messages string    `yaml:"messages"` // zh or en: language of errors when the client does not say
	Shutdown Duration  `yaml:"shutdownTimeout"`

	// From the environment only: what must not lie in a file that is shared.
	Secret      Secret `yaml:"-"` // HOMENODE_SECRET[_FILE]
	AdminToken  Secret `yaml:"-"` // HOMENODE_ADMIN_TOKEN[_FILE]
	PolicyKey   Secret `yaml:"-"` // HOMENODE_POLICY_KEY[_FILE]: seals the secrets in policies; several, by commas or lines: the first seals
	PostgresURL Secret `yaml:"-"` // PG_URL
	PGUser      string `yaml:"-"` // PG_USER
	PGPassword  Secret `yaml:"-"` // PG_PASSWORD
	RedisURL    Secret `yaml:"-"` // REDIS_URL
	RedisHost   string `yaml:"-"` // REDIS_HOST
	RedisPort   string `yaml:"-"` // REDIS_PORT
	RedisPass   Secret `yaml:"-"` // REDIS_PASSWORD
	RedisDB     int    `yaml:"-"` // REDIS_DATABASE
}

// Secret is text that no log and no error prints.
type Secret string

// String hides the text.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString hides the text from %#v too.
func (s Secret) GoString() string { return s.String() }

// Duration is a time.Duration written as "10s".
type Duration time.Duration

// UnmarshalYAML reads "10s", "1m30s" and so on.
func (d *Duration) UnmarshalYAML(raw []byte) error {
	var text string
	if err := yaml.Unmarshal(raw, &text); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is no duration: write 10s or 1m30s", text)
	}
	*d = Duration(parsed)
	return nil
}

// Service is a service to seed an empty registry with.
type Service struct {
	ID            string              `yaml:"id"`
	Name          string              `yaml:"name"`
	PathPrefix    string              `yaml:"pathPrefix"`
	LoginPath     string              `yaml:"loginPath"`
	LogoutPath    string              `yaml:"logoutPath"`
	HealthPath    string              `yaml:"healthPath"`
	DefaultNodeID string              `yaml:"defaultNodeId"`
	Enabled       *bool               `yaml:"enabled"`
	Placement     gateway.Placement   `yaml:"placement"` // round-robin, weighted or fewest-bindings
	Login         gateway.LoginFields `yaml:"login"`
	Nodes         []Node              `yaml:"nodes"`
}

// Node is a node to seed an empty registry with.
type Node struct {
	ID             string `yaml:"id"`
	Name           string `yaml:"name"`
	BaseURL        string `yaml:"baseUrl"`
	TraefikService string `yaml:"traefikService"`
	Enabled        *bool  `yaml:"enabled"`
	Weight         int    `yaml:"weight"`    // 1 if not given
	AcceptNew      *bool  `yaml:"acceptNew"` // true if not given
	Remark         string `yaml:"remark"`
}

// Token says where a request's token is and how long the cache keeps it.
type Token struct {
	Sources  []string `yaml:"sources"`
	CacheTTL Duration `yaml:"cacheTTL"`
}

// SaToken describes the nodes' sa-token sessions in Redis.
type SaToken struct {
	Enabled       bool     `yaml:"enabled"`
	TokenName     string   `yaml:"tokenName"`
	LoginType     string   `yaml:"loginType"`
	ActiveTimeout Duration `yaml:"activeTimeout"`
}

// Health are the probes of nodes.
type Health struct {
	Interval  Duration `yaml:"interval"`
	Timeout   Duration `yaml:"timeout"`
	Failures  int      `yaml:"failures"`
	Successes int      `yaml:"successes"`
}

// Registry says how often services and nodes are read anew.
type Registry struct {
	PollInterval Duration `yaml:"pollInterval"`
}

// Decision says how long a plugin may keep a decision.
type Decision struct {
	MaxAge       Duration `yaml:"maxAge"`
	StaleIfError Duration `yaml:"staleIfError"`
}

// Traefik is what goes into its dynamic configuration.
type Traefik struct {
	Plugin         string         `yaml:"plugin"`
	Endpoint       string         `yaml:"endpoint"`      // HOMENODE_ENDPOINT: how Traefik's plugin reaches this service
	AdminEndpoint  string         `yaml:"adminEndpoint"` // HOMENODE_ADMIN_ENDPOINT: how Traefik reaches the admin listener
	PollInterval   Duration       `yaml:"pollInterval"`  // that of Traefik's HTTP provider
	Timeout        Duration       `yaml:"timeout"`       // of the plugin's question to this service
	BindTimeout    Duration       `yaml:"bindTimeout"`   // how long the plugin holds a login's response for its binding
	EntryPoints    []string       `yaml:"entryPoints"`
	Rule           string         `yaml:"rule"`
	TLS            map[string]any `yaml:"tls"`
	NoRoute        bool           `yaml:"noRoute"`
	CircuitBreaker string         `yaml:"circuitBreaker"`
	StripHeaders   []string       `yaml:"stripHeaders"`
}

// Admin is the admin API.
type Admin struct {
	Enabled        bool     `yaml:"enabled"`        // false: every call is answered 404
	IPWhitelist    []string `yaml:"ipWhitelist"`    // addresses and CIDR prefixes; empty = any
	TrustedProxies []string `yaml:"trustedProxies"` // whose X-Forwarded-For is believed

	// UserTable is the nodes' own table of users, in the same PostgreSQL database:
	// its administrators administer the gateway with their token, and import-existing
	// binds its users.
	UserTable   string      `yaml:"userTable"`
	UserColumns UserColumns `yaml:"userColumns"`
}

// UserColumns are the columns of Admin.UserTable.
type UserColumns struct {
	ID       string `yaml:"id"`
	Username string `yaml:"username"`
	IsAdmin  string `yaml:"isAdmin"` // 1 or true: an administrator
	Status   string `yaml:"status"`  // 1 or true: active
}

// Prefixes reads addresses and CIDR prefixes; 10.0.0.7 stands for 10.0.0.7/32.
func Prefixes(setting string, list []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, text := range list {
		prefix, err := gateway.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no address and no CIDR prefix", setting, text)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// Redis are the forms that one URL cannot express.
type Redis struct {
	SentinelMaster string   `yaml:"sentinelMaster"`
	Sentinels      []string `yaml:"sentinels"`
	Cluster        []string `yaml:"cluster"`
}

// Log is the service's own log.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text or json
}

// Default returns the settings of an installation that sets none.
func Default() Config {
	return Config{
		Listen:      []string{"127.0.0.1:9090"},
		AdminListen: "127.0.0.1:9091",
		DataDir:     "data",
		Token: Token{
			Sources:  []string{"header:x-token", "bearer", "cookie:x-token", "query:x-token"},
			CacheTTL: Duration(24 * time.Hour),
		},
		SaToken:  SaToken{Enabled: true, TokenName: "x-token", LoginType: "login"},
		Health:   Health{Interval: Duration(10 * time.Second), Timeout: Duration(3 * time.Second), Failures: 3, Successes: 1},
		Registry: Registry{PollInterval: Duration(10 * time.Second)},
		Decision: Decision{MaxAge: Duration(60 * time.Second), StaleIfError: Duration(300 * time.Second)},
		Traefik: Traefik{
			Plugin: "homenode", PollInterval: Duration(5 * time.Second), EntryPoints: []string{"web"},
			Timeout: Duration(2 * time.Second), BindTimeout: Duration(time.Second),
			NoRoute: true, CircuitBreaker: "NetworkErrorRatio() > 0.30",
		},
		Admin: Admin{
			Enabled: true, UserTable: "sys_user",
			UserColumns: UserColumns{ID: "id", Username: "username", IsAdmin: "is_admin", Status: "status"},
		},
		Log:      Log{Level: "info", Format: "text"},
		Messages: "zh",
		Shutdown: Duration(30 * time.Second),
	}
}

// Getenv looks a variable up; os.Getenv outside tests.
type Getenv func(string) string

// Load reads the file that HOMENODE_CONFIG names (homenode.yml in the working
// directory if there is one and the variable is not set), then the environment,
// and verifies the whole.
func Load(getenv Getenv) (Config, error) {
	c := Default()
	var problems []error
	path := getenv("HOMENODE_CONFIG")
	named := path != ""
	if !named {
		path = "homenode.yml"
	}
	file, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := c.decode(file); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", path, err))
		}
	case named || !errors.Is(err, fs.ErrNotExist):
		problems = append(problems, fmt.Errorf("HOMENODE_CONFIG: %w", err))
	}
	problems = append(problems, c.environment(getenv)...)
	problems = append(problems, c.Verify())
	return c, errors.Join(problems...)
}

func (c *Config) decode(file []byte) error {
	if len(bytes.TrimSpace(file)) == 0 {
		return nil
	}
	return yaml.NewDecoder(bytes.NewReader(file), yaml.DisallowUnknownField()).Decode(c)
}

func (c *Config) environment(getenv Getenv) (problems []error) {
	text := func(name string, to *string) {
		if value := getenv(name); value != "" {
			*to = value
		}
	}
	secret := func(name string, to *Secret) {
		if value := getenv(name); value != "" {
			*to = Secret(value)
			return
		}
		path := getenv(name + "_FILE")
		if path == "" {
			return
		}
		content, err := os.ReadFile(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s_FILE: %w", name, err))
			return
		}
		*to = Secret(strings.TrimSpace(string(content)))
	}
	if listen := getenv("HOMENODE_LISTEN"); listen != "" {
		c.Listen = strings.Split(listen, ",")
	}
	text("HOMENODE_ADMIN_LISTEN", &c.AdminListen)
	text("HOMENODE_DATA_DIR", &c.DataDir)
	text("HOMENODE_ENDPOINT", &c.Traefik.Endpoint)
	text("HOMENODE_ADMIN_ENDPOINT", &c.Traefik.AdminEndpoint)
	text("HOMENODE_LOG_LEVEL", &c.Log.Level)
	text("HOMENODE_LOG_FORMAT", &c.Log.Format)
	text("PG_USER", &c.PGUser)
	text("REDIS_HOST", &c.RedisHost)
	text("REDIS_PORT", &c.RedisPort)
	secret("HOMENODE_SECRET", &c.Secret)
	secret("HOMENODE_ADMIN_TOKEN", &c.AdminToken)
	secret("HOMENODE_POLICY_KEY", &c.PolicyKey)
	secret("PG_URL", &c.PostgresURL)
	secret("PG_PASSWORD", &c.PGPassword)
	secret("REDIS_URL", &c.RedisURL)
	secret("REDIS_PASSWORD", &c.RedisPass)
	if database := getenv("REDIS_DATABASE"); database != "" {
		number, err := strconv.Atoi(database)
		if err != nil || number < 0 {
			problems = append(problems, fmt.Errorf("REDIS_DATABASE %q: want a number from 0", database))
		}
		c.RedisDB = number
	}
	return problems
}

// HasRedis reports whether any setting names a Redis.
func (c *Config) HasRedis() bool {
	return c.RedisURL != "" || c.RedisHost != "" || len(c.Redis.Sentinels) > 0 || len(c.Redis.Cluster) > 0
}

// Embedded reports whether everything is kept in one file of DataDir.
func (c *Config) Embedded() bool { return c.PostgresURL == "" && !c.HasRedis() }

// PolicyKeys are the keys of the secrets in policies: those given, else the shared secret.
func (c *Config) PolicyKeys() []string {
	keys := strings.FieldsFunc(string(c.PolicyKey), func(r rune) bool { return r == ',' || r == '\n' || r == '\r' || r == ' ' })
	if len(keys) == 0 && c.Secret != "" {
		keys = []string{string(c.Secret)}
	}
	return keys
}

// MinSecretLength is the shortest shared secret and admin token, in characters.
const MinSecretLength = 16

// Verify reports every problem, each naming the setting.
func (c *Config) Verify() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if (c.PostgresURL != "") != c.HasRedis() {
		problem("PG_URL and Redis (REDIS_URL or REDIS_HOST): give both (production) or neither (embedded), not one alone")
	}
	if !c.Embedded() && c.Secret == "" {
		problem("HOMENODE_SECRET: required with PostgreSQL and Redis; set it, or HOMENODE_SECRET_FILE, to at least %d characters", MinSecretLength)
	}
	if c.Secret != "" && utf8.RuneCountInString(string(c.Secret)) < MinSecretLength {
		problem("HOMENODE_SECRET: want at least %d characters", MinSecretLength)
	}
	if c.AdminToken != "" && utf8.RuneCountInString(string(c.AdminToken)) < MinSecretLength {
		problem("HOMENODE_ADMIN_TOKEN: want at least %d characters", MinSecretLength)
	}
	for _, key := range c.PolicyKeys() {
		if utf8.RuneCountInString(key) < MinSecretLength {
			problem("HOMENODE_POLICY_KEY: want at least %d characters in each key", MinSecretLength)
			break
		}
	}
	if c.Embedded() && c.DataDir == "" {
		problem("dataDir (HOMENODE_DATA_DIR): must not be empty")
	}
	problems = append(problems, c.verifyAddresses()...)
	problems = append(problems, c.verifyTimes()...)
	for _, source := range c.Token.Sources {
		if err := verifyTokenSource(source); err != nil {
			problem("token.sources: %w", err)
		}
	}
	for _, name := range c.Traefik.StripHeaders {
		if !headerName.MatchString(name) {
			problem("traefik.stripHeaders: %q is no header name", name)
		}
		for _, source := range c.Token.Sources {
			if strings.EqualFold(source, "header:"+name) || source == "bearer" && strings.EqualFold(name, "Authorization") {
				problem("traefik.stripHeaders: token.sources reads %q, which would be gone before", name)
			}
		}
	}
	if len(c.Token.Sources) == 0 {
		problem("token.sources: want at least one")
	}
	if c.SaToken.Enabled && (c.SaToken.TokenName == "" || c.SaToken.LoginType == "") {
		problem("satoken.tokenName and satoken.loginType: must not be empty")
	}
	if _, err := Prefixes("admin.ipWhitelist", c.Admin.IPWhitelist); err != nil {
		problems = append(problems, err)
	}
	if _, err := Prefixes("admin.trustedProxies", c.Admin.TrustedProxies); err != nil {
		problems = append(problems, err)
	}
	if !tableName.MatchString(c.Admin.UserTable) {
		problem("admin.userTable %q: want a table's name, such as sys_user or public.sys_user", c.Admin.UserTable)
	}
	for _, column := range []struct{ setting, name string }{
		{"id", c.Admin.UserColumns.ID}, {"username", c.Admin.UserColumns.Username},
		{"isAdmin", c.Admin.UserColumns.IsAdmin}, {"status", c.Admin.UserColumns.Status},
	} {
		if !columnName.MatchString(column.name) {
			problem("admin.userColumns.%s %q: want a column's name", column.setting, column.name)
		}
	}
	if c.Messages != "zh" && c.Messages != "en" {
		problem("messages %q: want zh or en", c.Messages)
	}
	if c.Traefik.Plugin == "" {
		problem("traefik.plugin: must not be empty")
	}
	if len(c.Traefik.EntryPoints) == 0 {
		problem("traefik.entryPoints: want at least one")
	}
	switch c.Log.Level {
	case "debug", "info", "warn", "error":
	default:
		problem("log.level %q: want debug, info, warn or error", c.Log.Level)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		problem("log.format %q: want text or json", c.Log.Format)
	}
	if len(c.Redis.Sentinels) > 0 && c.Redis.SentinelMaster == "" {
		problem("redis.sentinelMaster: required with redis.sentinels")
	}
	problems = append(problems, c.verifyServices()...)
	return errors.Join(problems...)
}

func (c *Config) verifyAddresses() (problems []error) {
	if len(c.Listen) == 0 {
		return append(problems, errors.New("listen (HOMENODE_LISTEN): want at least one address"))
	}
	verify := func(setting, address string) {
		if path, ok := strings.CutPrefix(address, "unix://"); ok {
			if !strings.HasPrefix(path, "/") {
				problems = append(problems, fmt.Errorf("%s %q: want unix:///absolute/path", setting, address))
			}
		} else if _, _, err := net.SplitHostPort(address); err != nil {
			problems = append(problems, fmt.Errorf("%s %q: want host:port or unix:///path", setting, address))
		}
	}
	verify("adminListen (HOMENODE_ADMIN_LISTEN)", c.AdminListen)
	for _, address := range c.Listen {
		verify("listen (HOMENODE_LISTEN)", address)
	}
	if _, err := c.ServiceURL(); err != nil {
		problems = append(problems, err)
	} else if _, err := c.PluginEndpoint(); err != nil {
		problems = append(problems, err)
	}
	if c.Admin.Enabled {
		if _, err := c.AdminURL(); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

func (c *Config) verifyTimes() (problems []error) {
	for _, setting := range []struct {
		name  string
		value Duration
	}{
		{"token.cacheTTL", c.Token.CacheTTL}, {"health.interval", c.Health.Interval}, {"health.timeout", c.Health.Timeout},
		{"registry.pollInterval", c.Registry.PollInterval}, {"traefik.pollInterval", c.Traefik.PollInterval},
		{"traefik.timeout", c.Traefik.Timeout}, {"traefik.bindTimeout", c.Traefik.BindTimeout}, {"shutdownTimeout", c.Shutdown},
	} {
		if setting.value <= 0 {
			problems = append(problems, fmt.Errorf("%s: want more than 0", setting.name))
		}
	}
	for _, setting := range []struct {
		name  string
		value Duration
	}{{"satoken.activeTimeout", c.SaToken.ActiveTimeout}, {"decision.maxAge", c.Decision.MaxAge}, {"decision.staleIfError", c.Decision.StaleIfError}} {
		if setting.value < 0 {
			problems = append(problems, fmt.Errorf("%s: want 0 or more", setting.name))
		}
	}
	if c.Health.Failures < 1 || c.Health.Successes < 1 {
		problems = append(problems, errors.New("health.failures and health.successes: want 1 or more"))
	}
	return problems
}

func (c *Config) verifyServices() (problems []error) {
	services, nodes := c.Seed()
	ids, prefixes, nodeIDs := map[string]bool{}, map[string]bool{}, map[string]string{}
	for _, node := range nodes {
		if err := node.Verify(); err != nil {
			problems = append(problems, fmt.Errorf("services: node %q: %w", node.ID, err))
		}
		if _, taken := nodeIDs[node.ID]; taken {
			problems = append(problems, fmt.Errorf("services: node id %q stands twice", node.ID))
		}
		nodeIDs[node.ID] = node.ServiceID
	}
	for _, service := range services {
		if err := service.Verify(); err != nil {
			problems = append(problems, fmt.Errorf("services: service %q: %w", service.ID, err))
		}
		if ids[service.ID] {
			problems = append(problems, fmt.Errorf("services: service id %q stands twice", service.ID))
		}
		if prefixes[service.PathPrefix] {
			problems = append(problems, fmt.Errorf("services: pathPrefix %q stands twice", service.PathPrefix))
		}
		ids[service.ID], prefixes[service.PathPrefix] = true, true
		if d := service.DefaultNodeID; d != "" && nodeIDs[d] != service.ID {
			problems = append(problems, fmt.Errorf("services: service %q: defaultNodeId %q is none of its nodes", service.ID, d))
		}
	}
	return problems
}

// headerName is RFC 9110's token, which cookie names share.
var (
	tableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)
	columnName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func verifyTokenSource(source string) error {
	kind, name, _ := strings.Cut(source, ":")
	switch {
	case source == "bearer":
		return nil
	case kind == "query" && name != "", (kind == "header" || kind == "cookie") && headerName.MatchString(name):
		return nil
	}
	return fmt.Errorf("%q: want header:NAME, bearer, cookie:NAME or query:NAME", source)
}

// Seed returns the services and nodes of the file, defaults filled in.
func (c *Config) Seed() ([]gateway.Service, []gateway.Node) {
	var services []gateway.Service
	var nodes []gateway.Node
	for _, s := range c.Services {
		if s.HealthPath == "" {
			s.HealthPath = "/actuator/health"
		}
		services = append(services, gateway.Service{
			ID: s.ID, Name: s.Name, PathPrefix: s.PathPrefix, LoginPath: s.LoginPath, LogoutPath: s.LogoutPath,
			HealthPath: s.HealthPath, DefaultNodeID: s.DefaultNodeID, Enabled: s.Enabled == nil || *s.Enabled,
			Placement: s.Placement, Login: s.Login.WithDefaults(),
		})
		for _, n := range s.Nodes {
			nodes = append(nodes, gateway.Node{
				ID: n.ID, ServiceID: s.ID, Name: n.Name, BaseURL: strings.TrimSuffix(n.BaseURL, "/"),
				TraefikService: n.TraefikService, Enabled: n.Enabled == nil || *n.Enabled, Remark: n.Remark,
				Weight: n.Weight, Draining: n.AcceptNew != nil && !*n.AcceptNew,
			})
		}
	}
	return services, nodes
}

// PluginEndpoint is the advertised address for the plugin: traefik.endpoint,
// else that of the first listener.
func (c *Config) PluginEndpoint() (string, error) {
	if c.Traefik.Endpoint != "" {
		return c.Traefik.Endpoint, verifyURL("traefik.endpoint (HOMENODE_ENDPOINT)", c.Traefik.Endpoint, true)
	}
	if len(c.Listen) > 0 && strings.HasPrefix(c.Listen[0], "unix://") {
		return c.Listen[0], nil
	}
	return c.ServiceURL()
}

// ServiceURL is the address for Traefik's own services (the fallback), which
// cannot be a socket file: traefik.endpoint if it is no socket, else the first
// listener that is none.
func (c *Config) ServiceURL() (string, error) {
	if e := c.Traefik.Endpoint; e != "" && !strings.HasPrefix(e, "unix://") {
		return e, verifyURL("traefik.endpoint (HOMENODE_ENDPOINT)", e, false)
	}
	for _, address := range c.Listen {
		if !strings.HasPrefix(address, "unix://") {
			return advertised(address, "traefik.endpoint (HOMENODE_ENDPOINT)")
		}
	}
	return "", errors.New("listen (HOMENODE_LISTEN): Traefik needs one host:port beside the unix socket")
}

// AdminURL is the address at which Traefik reaches the admin listener.
func (c *Config) AdminURL() (string, error) {
	const setting = "traefik.adminEndpoint (HOMENODE_ADMIN_ENDPOINT)"
	if c.Traefik.AdminEndpoint != "" {
		return c.Traefik.AdminEndpoint, verifyURL(setting, c.Traefik.AdminEndpoint, false)
	}
	return advertised(c.AdminListen, setting)
}

func advertised(address, setting string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("listen %q: %s must say how Traefik reaches it", address, setting)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("%s: required, because %q names no host that Traefik could reach", setting, address)
	}
	return "http://" + address, nil
}

func verifyURL(setting, raw string, socket bool) error {
	u, err := url.Parse(raw)
	if err == nil && socket && u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/") {
		return nil
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("%s: want http://host:port or https://host:port", setting)
	}
	return nil
}
