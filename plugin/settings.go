package plugin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const minSecretLength = 16

// settings is a Config that has been checked and brought into the form that serving needs.
type settings struct {
	endpoint    *url.URL
	secret      string
	timeout     time.Duration
	bindTimeout time.Duration
	login       loginFields
	sources     []tokenSource
	guarded     *guardedHeaders
	language    string
}

// verify checks every setting and reports all problems at once, one line each, beginning with the setting's
// name. No line contains the secret. The Config stays as it is.
func (c *Config) verify() (*settings, error) {
	var s settings
	var problems []error
	report := func(setting string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", setting, err))
		}
	}

	report("service", verifyService(c.Service))
	var err error
	s.endpoint, err = parseEndpoint(c.Endpoint)
	report("endpoint", err)
	s.secret, err = c.findSecret()
	report("secret", err)
	s.timeout, err = parseTimeout(c.Timeout)
	report("timeout", err)
	s.bindTimeout, err = parseTimeout(c.BindTimeout)
	report("bindTimeout", err)
	report("loginPath", verifyPath(c.LoginPath))
	report("logoutPath", verifyPath(c.LogoutPath))
	if c.LoginPath != "" && c.LoginPath == c.LogoutPath {
		report("logoutPath", errors.New("is the loginPath"))
	}

	s.login.username, err = parseFieldPath(c.Login.Username)
	report("login.username", err)
	s.login.code, err = parseFieldPath(c.Login.Code)
	report("login.code", err)
	s.login.success, err = verifySuccess(c.Login.Success)
	report("login.success", err)
	s.login.token, err = parseFieldPath(c.Login.Token)
	report("login.token", err)
	s.login.userID, err = parseFieldPath(c.Login.UserID)
	report("login.userId", err)
	if c.Login.ResponseUsername != "" {
		s.login.responseUsername, err = parseFieldPath(c.Login.ResponseUsername)
		report("login.responseUsername", err)
	}

	s.sources, err = parseTokenSources(c.TokenSources)
	report("tokenSources", err)
	s.guarded, err = guardHeaders(c.StripHeaders, s.sources)
	report("stripHeaders", err)
	s.language, err = parseLanguage(c.Messages)
	report("messages", err)

	return &s, errors.Join(problems...)
}

func verifyService(service string) error {
	if service == "" {
		return errors.New("is required: the id of the service behind this router")
	}
	if !headerSafe(service) {
		return errors.New("has characters that an HTTP header cannot carry")
	}
	return nil
}

// parseEndpoint keeps the value out of its errors: a URL may carry a password.
func parseEndpoint(endpoint string) (*url.URL, error) {
	if endpoint == "" {
		return nil, errors.New("is required: the address of the binding service, such as http://127.0.0.1:9090")
	}
	wrong := errors.New("must be http://host[:port][/base], https://host[:port][/base] or unix:///path, without user, query or fragment")
	u, err := url.Parse(endpoint)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, wrong
	}
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			return nil, wrong
		}
	case "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.Path == "/" {
			return nil, wrong
		}
	default:
		return nil, wrong
	}
	return u, nil
}

// findSecret looks where the settings say, else where the environment says.
func (c *Config) findSecret() (string, error) {
	secret, file := c.Secret, c.SecretFile
	if secret != "" && file != "" {
		return "", errors.New("is given twice, also as secretFile: keep one")
	}
	if secret == "" && file == "" {
		secret, file = os.Getenv("HOMENODE_SECRET"), os.Getenv("HOMENODE_SECRET_FILE")
	}
	switch {
	case secret != "":
	case file == "":
		return "", errors.New("is required: give secret, secretFile, or HOMENODE_SECRET or HOMENODE_SECRET_FILE in Traefik's environment")
	default:
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("secretFile cannot be read: %w", err)
		}
		secret = strings.TrimSpace(string(text))
	}
	if utf8.RuneCountInString(secret) < minSecretLength {
		return "", fmt.Errorf("must have at least %d characters", minSecretLength)
	}
	if !headerSafe(secret) {
		return "", errors.New("has characters that an HTTP header cannot carry")
	}
	return secret, nil
}

func parseTimeout(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("must be a positive duration such as 2s or 500ms, not %q", text)
	}
	return d, nil
}

func verifyPath(path string) error {
	if path != "" && (!strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#")) {
		return fmt.Errorf("must be a full path that begins with / and has no query, not %q", path)
	}
	return nil
}

func parseFieldPath(dotted string) ([]string, error) {
	path := strings.Split(dotted, ".")
	for _, field := range path {
		if field == "" {
			return nil, fmt.Errorf("must be a field path such as data.token, not %q", dotted)
		}
	}
	return path, nil
}

func verifySuccess(values []string) ([]string, error) {
	if len(values) == 0 {
		return []string{"200"}, nil
	}
	for _, value := range values {
		if value == "" {
			return nil, errors.New("has an empty value")
		}
	}
	return values, nil
}

func parseTokenSources(texts []string) ([]tokenSource, error) {
	if len(texts) == 0 {
		texts = []string{"header:x-token", "bearer", "cookie:x-token", "query:x-token"}
	}
	var sources []tokenSource
	for _, text := range texts {
		kind, name, named := strings.Cut(text, ":")
		source := tokenSource{kind: kind, name: name}
		switch {
		case kind == sourceBearer && !named:
			source.header = "Authorization"
		case kind == sourceHeader && isFieldName(name):
			source.header = http.CanonicalHeaderKey(name)
		case kind == sourceCookie && isFieldName(name):
			source.header = "Cookie"
		case kind == sourceQuery && name != "":
		default:
			return nil, fmt.Errorf(`%q must be "header:NAME", "bearer", "cookie:NAME" or "query:NAME"`, text)
		}
		sources = append(sources, source)
	}
	return sources, nil
}

func parseLanguage(text string) (string, error) {
	switch text {
	case "", languageChinese:
		return languageChinese, nil
	case languageEnglish:
		return languageEnglish, nil
	}
	return "", fmt.Errorf("must be zh or en, not %q", text)
}

// headerSafe reports whether a header arrives with this value as it was sent: RFC 9110 section 5.5, and no
// space at the ends, which receivers trim.
func headerSafe(value string) bool {
	return strings.TrimSpace(value) == value && strings.IndexFunc(value, unicode.IsControl) < 0
}

// isFieldName reports whether text is a token as in RFC 9110 section 5.6.2.
func isFieldName(text string) bool {
	return text != "" && strings.Trim(text, "!#$%&'*+-.^_`|~0123456789"+letters) == ""
}
