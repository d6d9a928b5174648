package plugin

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxLoginRequest is how much of a login request is read for the username.
	maxLoginRequest = 64 << 10
	// maxLoginResponse is how much of a login response is held back, and how much it may decompress to.
	maxLoginResponse = 256 << 10
	// maxName is the longest username or user id, in characters.
	maxName = 255
)

var byteOrderMark = []byte("\xef\xbb\xbf")

// loginFields are the paths of Login, split at the dots.
type loginFields struct {
	username         []string
	code             []string
	success          []string
	token            []string
	userID           []string
	responseUsername []string
}

// loginResult is a successful login, as the binding service is told of it.
type loginResult struct {
	Service string `json:"service"`
	// Node is where the login took place.
	Node string `json:"node"`
	// Username is the one of the response, and the binding's. LoginUsername is what was typed: perhaps a phone
	// number. Both may be empty.
	Username      string `json:"username"`
	Token         string `json:"token"`
	UserID        string `json:"userId"`
	LoginUsername string `json:"loginUsername"`
	RequestID     string `json:"requestId"`
}

// readUsername returns the username of a login request, or "", which makes an anonymous login. The node gets
// the body as if nobody had read it, errors included.
func (m *Middleware) readUsername(req *http.Request, requestID string) string {
	var username, problem string
	if encoding := req.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		problem = "its body has a content encoding"
	} else {
		var body []byte
		body, problem = peekBody(req)
		if problem == "" {
			username, problem = usernameOf(body, m.login.username)
		}
		// Reading to the end of a chunked body brings its trailers, which a node may take for headers.
		m.guarded.strip(req.Trailer)
	}
	if problem != "" {
		fmt.Println("homenode: request " + requestID + ": login without a username: " + problem)
	}
	return username
}

// peekBody returns the body if it is at most maxLoginRequest long, or says why not. It leaves a body on the
// request that reads the same: the length stays, -1 if it is chunked, and Close closes the original.
func peekBody(req *http.Request) (body []byte, problem string) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, "its body is empty"
	}
	// Reading has told a client that waits for "100 Continue" to go on.
	req.Header.Del("Expect")
	prefix, err := io.ReadAll(io.LimitReader(req.Body, maxLoginRequest+1))
	rest := io.Reader(req.Body)
	if err != nil {
		rest = &failingReader{err: err}
	}
	req.Body = &replayedBody{reader: io.MultiReader(bytes.NewReader(prefix), rest), original: req.Body}
	switch {
	case err != nil:
		return nil, "its body could not be read to the end"
	case len(prefix) > maxLoginRequest:
		return nil, fmt.Sprintf("its body is longer than %d bytes", maxLoginRequest)
	}
	return prefix, ""
}

// replayedBody reads from reader and closes original. It names its methods instead of embedding, since
// interpreted structs do not pass embedded ones on to compiled code.
type replayedBody struct {
	reader   io.Reader
	original io.Closer
}

func (b *replayedBody) Read(p []byte) (int, error) { return b.reader.Read(p) }

func (b *replayedBody) Close() error { return b.original.Close() }

// failingReader repeats the error that ended the first reading. Read needs a name for what it ignores: Yaegi puts
// the result of a function with an unnamed parameter in the parameter's place, and panics.
type failingReader struct {
	err error
}

func (r *failingReader) Read(p []byte) (int, error) { return 0, r.err }

// usernameOf finds the username in a login request's body, or says why there is none.
func usernameOf(body []byte, path []string) (username, problem string) {
	if !utf8.Valid(body) {
		return "", "its body is not UTF-8"
	}
	object, ok := parseObject(body)
	if !ok {
		return "", "its body is not a JSON object"
	}
	username = nameText(field(object, path))
	if username == "" {
		return "", "its body has no usable " + strings.Join(path, ".")
	}
	return username, ""
}

// serveLogin lets the node answer a login and holds the response back until the binding service knows of a
// success, so that no client can use a token before its user is bound. Whatever happens to the binding, the
// response reaches the client as the node sent it. If the node aborts half-way, the client sees it too.
func (m *Middleware) serveLogin(rw http.ResponseWriter, req *http.Request, q *question) {
	// The response has to be read.
	req.Header.Set("Accept-Encoding", "identity")
	node := req.Header.Get(headerNode)

	held := &capture{rw: rw, requestID: q.requestID}
	aborted := true
	defer func() {
		held.release()
		if aborted {
			// The server that sees the panic drops what it has not sent yet.
			held.Flush()
		}
	}()
	m.next.ServeHTTP(held, req)
	aborted = false

	m.report(held, q, node)
}

// report tells the binding service of a captured success and returns when it has answered, or after bindTimeout.
func (m *Middleware) report(held *capture, q *question, node string) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Printf("homenode: request %s: login not bound: %v", q.requestID, cause)
		}
	}()
	if held.tooLarge {
		log.Printf("homenode: request %s: login not bound: the response is longer than %d bytes", q.requestID, maxLoginResponse)
		return
	}
	if !held.holding() {
		return
	}
	body, err := decoded(held.body.Bytes(), held.header["Content-Encoding"])
	if err != nil {
		log.Printf("homenode: request %s: login not bound: %v", q.requestID, err)
		return
	}
	result, problem := m.login.judge(body)
	if problem != "" {
		fmt.Println("homenode: request " + q.requestID + ": no binding for this login: " + problem)
		return
	}
	result.Service = m.service
	result.Node = node
	result.LoginUsername = q.username
	result.RequestID = q.requestID
	m.client.postLogin(result, m.bindTimeout)
}

// decoded undoes the content encoding of a response whose node ignores Accept-Encoding.
func decoded(body []byte, encodings []string) ([]byte, error) {
	encoding := strings.ToLower(strings.Join(encodings, ","))
	switch encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
	default:
		return nil, fmt.Errorf("the response has the content encoding %q", encoding)
	}
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the response is not gzip: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(reader, maxLoginResponse+1))
	if err != nil {
		return nil, fmt.Errorf("the response is not gzip: %w", err)
	}
	if len(plain) > maxLoginResponse {
		return nil, fmt.Errorf("the response decompresses to more than %d bytes", maxLoginResponse)
	}
	return plain, nil
}

// judge reads a login response. It is a success if it is a JSON object, whatever its Content-Type, with a
// success code, a token and a user id; otherwise problem says what it lacks.
func (f *loginFields) judge(body []byte) (result loginResult, problem string) {
	object, ok := parseObject(body)
	if !ok {
		return result, "the response is not a JSON object"
	}
	code := text(field(object, f.code))
	success := false
	for _, value := range f.success {
		if code == value {
			success = true
		}
	}
	if !success {
		return result, "the response has no success code"
	}
	token, ok := field(object, f.token).(string)
	if !ok || token == "" {
		return result, "the response has no token"
	}
	userID := nameText(field(object, f.userID))
	if userID == "" || strings.IndexFunc(userID, unicode.IsControl) >= 0 {
		return result, "the response has no usable user id"
	}
	result.Token = token
	result.UserID = userID
	if len(f.responseUsername) > 0 {
		result.Username = nameText(field(object, f.responseUsername))
	}
	return result, ""
}

// parseObject parses exactly one JSON object. Of duplicate keys the last counts, numbers keep their digits, and
// a byte order mark is tolerated.
func parseObject(body []byte) (map[string]any, bool) {
	decoder := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, byteOrderMark)))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, false
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, false
	}
	return object, true
}

// field walks the path through nested objects; nil if it leads nowhere.
func field(object map[string]any, path []string) any {
	last := len(path) - 1
	for _, name := range path[:last] {
		inner, ok := object[name].(map[string]any)
		if !ok {
			return nil
		}
		object = inner
	}
	return object[path[last]]
}

// text returns a JSON string, or a number exactly as it was written: 64-bit ids do not survive a float.
func text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// nameText is text for names and ids that have to survive headers, databases and logs: "" also for one that is
// too long, or has a NUL or what stands for undecodable bytes.
func nameText(value any) string {
	name := text(value)
	if utf8.RuneCountInString(name) > maxName || strings.ContainsAny(name, "\x00\uFFFD") {
		return ""
	}
	return name
}
