package plugin

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// decisionHeaders are set from the binding service's answer, and by nobody else.
var decisionHeaders = []string{
	headerNode, "X-User-Id", "X-Channel", "X-Source", headerEpoch, "X-Homenode-Client", "X-Homenode-Fallback", "X-Homenode-App",
}

const (
	// homenodePrefix begins the names of everything between the plugin, the binding service and Traefik's routers.
	homenodePrefix = "X-Homenode-"
	// foldedPrefix is the same, folded.
	foldedPrefix = "x-homenode-"
)

// guardedHeaders knows the headers that a node or a router may trust.
type guardedHeaders struct {
	// names are the canonical names that an answer may set.
	names []string
	// pattern matches every spelling of every guarded name.
	pattern *regexp.Regexp
	// first and third say which bytes guarded names have there, in any spelling. The two clear nearly every
	// header of a usual request without a call, and calls are what costs here.
	first, third []bool
	// exempt are names that look guarded by these bytes, are not, and come with many requests.
	exempt map[string]bool
}

// guardHeaders guards the gateway's own headers and the extra ones. A header that tokens are read from cannot
// be among these: it would be gone before it is read.
func guardHeaders(extra []string, sources []tokenSource) (*guardedHeaders, error) {
	g := &guardedHeaders{names: append([]string{}, decisionHeaders...)}
	for _, name := range extra {
		if !isFieldName(name) {
			return nil, fmt.Errorf("%q is no header name", name)
		}
		if fold(name) == fold(headerRequest) || strings.HasPrefix(fold(name), foldedPrefix) {
			continue // guarded below, and not the answer's to set, but for those in decisionHeaders
		}
		for _, source := range sources {
			if source.header != "" && fold(source.header) == fold(name) {
				return nil, fmt.Errorf("%q is a header that tokenSources reads", name)
			}
		}
		g.names = append(g.names, http.CanonicalHeaderKey(name))
	}

	var patterns []string
	g.first = make([]bool, 256)
	g.third = make([]bool, 256)
	for _, name := range append([]string{foldedPrefix, headerRequest}, g.names...) {
		name = fold(name)
		markByte(g.first, name, 0)
		markByte(g.third, name, 2)
		patterns = append(patterns, strings.ReplaceAll(name, "-", "[^a-z0-9]"))
	}
	patterns[0] += ".*"
	g.pattern = regexp.MustCompile("^(?is:" + strings.Join(patterns, "|") + ")$")

	// Its other spellings are guarded, X-Request-Id itself is requestID's to judge. Traefik sets X-Real-Ip.
	g.exempt = map[string]bool{headerRequest: true, "X-Real-Ip": !g.pattern.MatchString("X-Real-Ip")}
	return g, nil
}

// markByte notes the bytes that can stand at this place of a name which folds into folded.
func markByte(table []bool, folded string, place int) {
	for b := range table {
		if place >= len(folded) || foldRune(rune(b)) == rune(folded[place]) {
			table[b] = true
		}
	}
}

// strip deletes the guarded headers in every spelling that a backend may fold into them: some turn each
// character that is no letter or digit into one and the same, so that X_Gateway~Node becomes X-Gateway-Node.
func (g *guardedHeaders) strip(header http.Header) {
	var forged []string
	for name := range header {
		if name == "" || !g.first[name[0]] || (len(name) > 2 && !g.third[name[2]]) {
			continue
		}
		if !g.exempt[name] && g.pattern.MatchString(name) {
			forged = append(forged, name)
		}
	}
	for _, name := range forged {
		delete(header, name)
	}
}

// set copies the guarded headers of the binding service's answer to a request that strip has cleaned.
func (g *guardedHeaders) set(header, answer http.Header) {
	for _, name := range g.names {
		if values := answer[name]; len(values) > 0 {
			header[name] = values
		}
	}
}

// fold writes a header name as the least careful backend reads it.
func fold(name string) string {
	return strings.Map(foldRune, name)
}

func foldRune(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
		return r
	case 'A' <= r && r <= 'Z':
		return r + 'a' - 'A'
	}
	return '-'
}

// requestID returns the request's id: the client's if it is one of 1 to 128 harmless characters, else a new one.
// It leaves exactly this one on the request.
func requestID(header http.Header) string {
	if ids := header[headerRequest]; len(ids) == 1 {
		id := ids[0]
		if id != "" && len(id) <= 128 && strings.Trim(id, "0123456789._-"+letters) == "" {
			return id
		}
	}
	id := newID()
	header[headerRequest] = []string{id}
	return id
}

// newID returns 16 random bytes in hex.
func newID() string {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err) // crypto/rand does not fail on any system that Traefik runs on
	}
	return hex.EncodeToString(id)
}

const (
	sourceHeader = "header"
	sourceBearer = "bearer"
	sourceCookie = "cookie"
	sourceQuery  = "query"
)

// tokenSource is one place where clients carry their token.
type tokenSource struct {
	kind string
	// name is the header's, the cookie's or the query parameter's.
	name string
	// header is the canonical name of the request header that holds it, "" for the query.
	header string
}

// token returns the first non-empty token that the request carries, or "". Cookies and the query are parsed
// only when the sources before them were empty.
func (m *Middleware) token(req *http.Request) string {
	for _, source := range m.sources {
		if source.header == "" && req.URL.RawQuery == "" || source.header != "" && len(req.Header[source.header]) == 0 {
			continue
		}
		if token := source.read(req); token != "" {
			return token
		}
	}
	return ""
}

func (s tokenSource) read(req *http.Request) string {
	switch s.kind {
	case sourceHeader:
		return firstNonEmpty(req.Header[s.header])
	case sourceBearer:
		return bearerToken(req.Header[s.header])
	case sourceCookie:
		return cookieToken(req.Cookies(), s.name)
	}
	return firstNonEmpty(req.URL.Query()[s.name])
}

func bearerToken(values []string) string {
	for _, value := range values {
		scheme, token, _ := strings.Cut(value, " ")
		if token = strings.TrimSpace(token); token != "" && strings.EqualFold(scheme, "Bearer") {
			return token
		}
	}
	return ""
}

func cookieToken(cookies []*http.Cookie, name string) string {
	for _, cookie := range cookies {
		if cookie.Name == name && cookie.Value != "" {
			return cookie.Value
		}
	}
	return ""
}

func firstNonEmpty(values []string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}
