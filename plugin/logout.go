package plugin

import (
	"fmt"
	"net/http"
	"unicode/utf8"
)

// logoutResult is a successful logout, as the binding service is told of it.
type logoutResult struct {
	Service   string `json:"service"`
	Token     string `json:"token"`
	RequestID string `json:"requestId"`
}

// isLogout reports whether a request to logoutPath ends the token it carries. Preflights and HEAD only ask, and
// neither a token that is too long to be sent on nor one that JSON cannot carry is anybody's.
func (m *Middleware) isLogout(req *http.Request, q *question) bool {
	if m.logoutPath == "" || q.token == "" || len(q.token) > maxToken || !utf8.ValidString(q.token) {
		return false
	}
	return req.Method != http.MethodOptions && req.Method != http.MethodHead
}

// reportLogout tells the binding service of a logout, if it is a success.
func (m *Middleware) reportLogout(held *capture, q *question) {
	if problem := m.login.judgeLogout(held); problem != "" {
		fmt.Println("homenode: request " + q.requestID + ": no logout: " + problem)
		return
	}
	m.client.deliverLogout(logoutResult{Service: m.service, Token: q.token, RequestID: q.requestID}, m.bindTimeout)
}

// judgeLogout says why the response to a logout is no success, "" if it is one: a 2xx status, and a success code if
// there is a code. A service may answer a logout with anything, so that a response in which no code can be looked
// for counts by its status.
func (f *loginFields) judgeLogout(held *capture) (problem string) {
	if held.status < 200 || held.status > 299 {
		return "the response is no success"
	}
	if held.tooLarge {
		return ""
	}
	body, err := decoded(held.body.Bytes(), held.header["Content-Encoding"])
	if err != nil {
		return ""
	}
	object, ok := parseObject(body)
	if ok && hasField(object, f.code) && !f.succeeded(field(object, f.code)) {
		return "the response has no success code"
	}
	return ""
}
