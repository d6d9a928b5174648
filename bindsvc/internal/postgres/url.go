package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout bounds the dialling of one connection.
const connectTimeout = 2 * time.Second

var errURLForm = errors.New("PG_URL: want postgres://host:5432/database or jdbc:postgresql://host:5432/database")

// passed are the parameters that pgx understands under the same name.
var passed = map[string]bool{
	"sslmode": true, "sslrootcert": true, "sslcert": true, "sslkey": true, "sslsni": true, "application_name": true,
	"search_path": true, "options": true, "target_session_attrs": true, "default_query_exec_mode": true,
	"pool_max_conns": true, "pool_min_conns": true, "pool_max_conn_lifetime": true, "pool_max_conn_idle_time": true,
}

// ParseURL turns PG_URL, a URL of libpq or of the JDBC driver, into the settings
// of a pool. A user and password given beside it win over those in it. What only
// the JDBC driver knows is translated (currentSchema, ssl, ApplicationName,
// targetServerType) or ignored. The connections are named "homenode", or
// "homenode:" and the application name of the URL: whatever has another name is a
// hand, whose changes the database itself records. No error shows the password.
func ParseURL(raw, user, password string) (*pgxpool.Config, error) {
	raw = strings.TrimSpace(raw)
	rest, isJDBC := strings.CutPrefix(raw, "jdbc:")
	scheme, rest, found := strings.Cut(rest, ":")
	if !found || (scheme != "postgresql" && scheme != "postgres") {
		return nil, errURLForm
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, database := "", rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		authority, database, _ = strings.Cut(after, "/")
	} else if !isJDBC { // JDBC knows "jdbc:postgresql:database"
		return nil, errURLForm
	}
	settings := map[string]string{}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		name, secret, _ := strings.Cut(authority[:at], ":")
		authority = authority[at+1:]
		settings["user"], settings["password"] = name, secret
	}
	var hosts, ports []string
	for address := range strings.SplitSeq(authority, ",") {
		host, port := splitPort(address)
		hosts, ports = append(hosts, host), append(ports, port)
	}
	settings["host"], settings["port"] = strings.Join(hosts, ","), strings.Join(ports, ",")
	settings["dbname"] = strings.TrimPrefix(database, "/")
	for name, value := range settings {
		plain, err := url.PathUnescape(value)
		if err != nil {
			return nil, fmt.Errorf("PG_URL: the %s is not percent-encoded", name)
		}
		settings[name] = plain
	}
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("PG_URL: the parameters behind ? cannot be decoded")
	}
	for name, values := range parameters {
		translate(settings, name, values[len(values)-1], parameters)
	}
	if user != "" {
		settings["user"] = user
	}
	if password != "" {
		settings["password"] = password
	}
	return poolConfig(settings)
}

// splitPort splits host:port; both [::1]:5432 and ::1 are understood.
func splitPort(address string) (host, port string) {
	const standard = "5432"
	colon := strings.LastIndexByte(address, ':')
	bracket := strings.LastIndexByte(address, ']')
	switch {
	case colon < bracket || colon < 0:
		host, port = address, standard
	case bracket < 0 && strings.Count(address, ":") > 1:
		host, port = address, standard
	default:
		host, port = address[:colon], address[colon+1:]
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = standard
	}
	return host, port
}

// translate adds one parameter of the URL to the settings of pgx.
func translate(settings map[string]string, name, value string, all url.Values) {
	switch {
	case passed[name]:
		settings[name] = value
	case name == "user", name == "password":
		if settings[name] == "" {
			settings[name] = value
		}
	case name == "currentSchema":
		settings["search_path"] = value
	case name == "ApplicationName":
		settings["application_name"] = value
	case name == "ssl" && !all.Has("sslmode"):
		switch {
		case value == "false":
		case strings.HasSuffix(all.Get("sslfactory"), "NonValidatingFactory"):
			settings["sslmode"] = "require"
		default:
			settings["sslmode"] = "verify-full" // what the JDBC driver means by it
		}
	case name == "targetServerType" && (value == "primary" || value == "master"):
		settings["target_session_attrs"] = "read-write"
	}
}

// poolConfig hands the settings to pgx, the password apart from what its errors quote.
func poolConfig(settings map[string]string) (*pgxpool.Config, error) {
	var text strings.Builder
	for name, value := range settings {
		if strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("PG_URL: the %s contains NUL", name)
		}
		if name != "password" && value != "" {
			fmt.Fprintf(&text, "%s='%s' ", name, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value))
		}
	}
	config, err := pgxpool.ParseConfig(text.String())
	if err != nil {
		return nil, fmt.Errorf("PG_URL: %w", err)
	}
	if settings["password"] != "" {
		config.ConnConfig.Password = settings["password"]
	}
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.RuntimeParams["timezone"] = "UTC" // the columns have no zone
	config.ConnConfig.RuntimeParams["application_name"] = applicationName(settings["application_name"])
	if settings["pool_max_conns"] == "" {
		config.MaxConns = int32(max(20, 4*runtime.NumCPU())) //nolint:gosec // no machine has that many
	}
	return config, nil
}

// applicationName is what the triggers of the audit know the gateway by (see sql/postgres).
func applicationName(given string) string {
	const own = "homenode"
	if given == "" || given == own || strings.HasPrefix(given, own+":") {
		return cmp.Or(given, own)
	}
	return own + ":" + given
}
