package plugin

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the longest username or user id, in characters.
const maxName = 255

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
	username := ""
	body, err := m.peekBody(req)
	if err == nil {
		username, err = usernameOf(body, m.login.username)
	}
	if err != nil {
		fmt.Println("homenode: request " + requestID + ": login without a username: " + err.Error())
	}
	return username
}

// usernameOf finds the username in a login request's body, or says why there is none.
func usernameOf(body []byte, path []string) (username string, err error) {
	if !utf8.Valid(body) {
		return "", errors.New("its body is not UTF-8")
	}
	object, ok := parseObject(body)
	if !ok {
		return "", errors.New("its body is not a JSON object")
	}
	username = nameText(field(object, path))
	if username == "" {
		return "", errors.New("its body has no usable " + strings.Join(path, "."))
	}
	return username, nil
}

// reportLogin tells the binding service of a captured success, and logs why if there is none to tell of.
func (m *Middleware) reportLogin(held *capture, q *question, node string) {
	if held.tooLarge {
		log.Printf("homenode: request %s: login not bound: the response is longer than %d bytes", q.requestID, maxHeld)
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
	m.client.deliverLogin(result, m.bindTimeout)
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
	plain, err := io.ReadAll(io.LimitReader(reader, maxHeld+1))
	if err != nil {
		return nil, fmt.Errorf("the response is not gzip: %w", err)
	}
	if len(plain) > maxHeld {
		return nil, fmt.Errorf("the response decompresses to more than %d bytes", maxHeld)
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
	if !f.succeeded(field(object, f.code)) {
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

// succeeded reports whether this value of the code means success.
func (f *loginFields) succeeded(code any) bool {
	found := text(code)
	for _, value := range f.success {
		if found == value {
			return true
		}
	}
	return false
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

// field returns what is at the end of the path through nested objects; nil if it leads nowhere.
func field(object map[string]any, path []string) any {
	last := len(path) - 1
	return objectAt(object, path[:last])[path[last]]
}

// hasField reports whether the path leads somewhere, be it to a null.
func hasField(object map[string]any, path []string) bool {
	last := len(path) - 1
	_, ok := objectAt(object, path[:last])[path[last]]
	return ok
}

// objectAt walks the path; nil, as good as an empty object, if it leads to none.
func objectAt(object map[string]any, path []string) map[string]any {
	for _, name := range path {
		inner, ok := object[name].(map[string]any)
		if !ok {
			return nil
		}
		object = inner
	}
	return object
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
