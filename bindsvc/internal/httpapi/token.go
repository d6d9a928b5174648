package httpapi

import (
	"net/http"
	"net/url"
	"strings"
)

// tokenSource is one place where a client's token may be: header:NAME, bearer,
// cookie:NAME or query:NAME.
type tokenSource struct{ kind, name string }

func parseTokenSources(list []string) []tokenSource {
	sources := make([]tokenSource, len(list))
	for i, text := range list {
		sources[i].kind, sources[i].name, _ = strings.Cut(text, ":")
	}
	return sources
}

// Headers with which a caller says what it has read from the client's request.
const (
	headerService  = "X-Homenode-Service"
	headerUsername = "X-Homenode-Username" // percent-encoded; present but empty = a login without username
	headerToken    = "X-Homenode-Token"    // percent-encoded; wins over the sources
)

// tokenOf returns the client's token: the one that the plugin found, else the
// first non-empty source. Authorization is ours here (the shared secret), so a
// caller passes the client's on as X-Forwarded-Authorization.
func tokenOf(header http.Header, sources []tokenSource, query url.Values) string {
	if encoded := header.Get(headerToken); encoded != "" {
		if token, err := url.QueryUnescape(encoded); err == nil {
			return token
		}
		return encoded
	}
	for _, source := range sources {
		if token := source.read(header, query); token != "" {
			return token
		}
	}
	return ""
}

func (s tokenSource) read(header http.Header, query url.Values) string {
	switch s.kind {
	case "header":
		return firstNonEmpty(header.Values(s.name))
	case "bearer":
		return bearer(header.Get("X-Forwarded-Authorization"))
	case "cookie":
		request := http.Request{Header: header}
		for _, cookie := range request.CookiesNamed(s.name) {
			if cookie.Value != "" {
				return cookie.Value
			}
		}
	case "query":
		return firstNonEmpty(query[s.name])
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
