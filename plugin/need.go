package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

const (
	// headerHave says what else the caller could tell: form or none.
	headerHave = "X-Homenode-Have"
	// headerNeed is a list of what the binding service wants to be told: address, query, form, source:NAME.
	headerNeed   = "X-Homenode-Need"
	headerQuery  = "X-Homenode-Query"
	headerSource = "X-Homenode-Source"
	// headerForm says why a form that is wanted does not come.
	headerForm = "X-Homenode-Form"

	formType = "application/x-www-form-urlencoded"
	// multipartType is that of bodies whose fields some backends take for parameters too. They are not read here.
	multipartType = "multipart/"
	// maxSource is how much of the source header is sent on, in bytes.
	maxSource = 256
	// printable are the bytes that any HTTP header carries unchanged.
	printable = "!\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`{|}~" + letters
)

// unprintable matches every character, or byte that is none, that a header may not carry.
var unprintable = regexp.MustCompile("[^!-~]")

var (
	haveForm = []string{"form"}
	haveNone = []string{"none"}
)

// need is what the binding service wants to know of requests in addition to what every question says.
type need struct {
	// text is headerNeed, from which all others are.
	text           string
	address, query bool
	// form is only ever wanted of one request, which has to be asked about again.
	form bool
	// source is the canonical name of the header by which the clients of a service say what they are, or "".
	source string
}

// parseNeed leaves out what this plugin does not know, and all header names but the first.
func parseNeed(text string) *need {
	n := &need{text: text}
	for _, item := range strings.Split(text, ",") {
		kind, name, named := strings.Cut(strings.TrimSpace(item), ":")
		switch {
		case kind == "source" && isFieldName(name):
			if n.source == "" {
				n.source = http.CanonicalHeaderKey(name)
			}
		case named:
		case kind == "address":
			n.address = true
		case kind == "query":
			n.query = true
		case kind == "form":
			n.form = true
		}
	}
	return n
}

// nothing reports whether none of what is wanted is known here.
func (n *need) nothing() bool {
	return !n.address && !n.query && !n.form && n.source == ""
}

// tell writes what is needed to a question's header, but for the form, and returns how long the client made it.
func (n *need) tell(header http.Header, req *http.Request) (size int) {
	if n.address {
		via := forwardedFor(req)
		header["X-Forwarded-For"] = []string{via}
		size += len(via)
	}
	if n.query {
		query := headerQueryOf(req.URL.RawQuery)
		header[headerQuery] = []string{query}
		size += len(query)
	}
	if n.source != "" {
		source := ""
		if values := req.Header[n.source]; len(values) > 0 {
			source = values[0]
		}
		if len(source) > maxSource {
			source = source[:maxSource]
		}
		header[headerSource] = []string{url.QueryEscape(source)}
	}
	return size
}

// headerQueryOf returns a query that a header can carry and that parses to the same parameters.
func headerQueryOf(query string) string {
	if strings.Trim(query, printable) == "" {
		return query
	}
	return unprintable.ReplaceAllStringFunc(query, url.PathEscape)
}

// isForm reports whether the request has a body that some backend takes for a form: of several types the backend's
// choice is not known, and what follows the type may be set off by more than a semicolon.
func isForm(req *http.Request) bool {
	if req.Body == nil || req.Body == http.NoBody {
		return false
	}
	for _, value := range req.Header["Content-Type"] {
		value = strings.TrimSpace(value)
		if end := strings.IndexAny(value, ";, \t"); end >= 0 {
			value = value[:end]
		}
		if strings.EqualFold(value, formType) || strings.HasPrefix(strings.ToLower(value), multipartType) {
			return true
		}
	}
	return false
}

// form is what a question tells of a request's form.
type form struct {
	body []byte
	// problem says why there is no body: encoded, too-large or unreadable.
	problem string
}

// readForm reads the form of a request, which its node will read as if nobody had.
func (m *Middleware) readForm(req *http.Request) *form {
	if strings.Contains(strings.ToLower(strings.Join(req.Header["Content-Type"], ",")), multipartType) {
		return &form{problem: "unreadable"}
	}
	body, err := m.peekBody(req)
	switch {
	case err == nil:
		return &form{body: body}
	case errors.Is(err, errBodyTooLarge):
		return &form{problem: "too-large"}
	case errors.Is(err, errBodyEncoded):
		return &form{problem: "encoded"}
	}
	return &form{problem: "unreadable"}
}

// attach makes a question one that carries the form, or says why it does not.
func (f *form) attach(call *http.Request) {
	if f.problem != "" {
		call.Header[headerForm] = []string{f.problem}
		return
	}
	call.Method = http.MethodPost
	call.Header["Content-Type"] = []string{formType}
	// Not sent. It lets the transport repeat the question on a new connection if it meets a dead one, as with GET.
	call.Header["Idempotency-Key"] = []string{}
	if len(f.body) == 0 {
		return
	}
	body := f.body
	call.ContentLength = int64(len(body))
	call.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	call.Body = io.NopCloser(bytes.NewReader(body))
}

// heed notes for the next questions what an answer says is needed. One that decides nothing says what is needed of
// this very request: the question is put again with that, and has to be decided then.
func (m *Middleware) heed(req *http.Request, q *question, a *answer) (*answer, error) {
	wanted := parseNeed(strings.Join(a.header[headerNeed], ","))
	if a.status != http.StatusPreconditionRequired {
		m.need.Store(wanted)
		return a, nil
	}
	if q.more != nil || wanted.nothing() {
		m.client.complain(q.requestID, fmt.Errorf("status %d that asks for %q", a.status, wanted.text))
		return nil, errUnavailable
	}
	q.more = wanted
	if wanted.form && isForm(req) {
		q.form = m.readForm(req)
	}
	decided, err := m.ask(req, q)
	q.more = nil
	q.form = nil
	return decided, err
}
