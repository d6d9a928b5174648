package plugin

import (
	"bufio"
	"bytes"
	"log"
	"net"
	"net/http"
	"strings"
)

// maxHeld is how much of a response is held back, and how much it may decompress to.
const maxHeld = 256 << 10

// serveHeld lets the node answer a login or a logout and holds the response back until the binding service knows of
// a success: no client can use a token before its user is bound, or is told that a token is void before it is.
// Whatever becomes of the report, the response reaches the client as the node sent it. If the node aborts half-way,
// the client sees it too.
func (m *Middleware) serveHeld(rw http.ResponseWriter, req *http.Request, q *question) {
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
			log.Printf("homenode: request %s: not reported: %v", q.requestID, cause)
		}
	}()
	if q.login {
		m.reportLogin(held, q, node)
	} else {
		m.reportLogout(held, q)
	}
}

// capture is the response writer of a login or a logout. It holds back a response with a 2xx status until release,
// and lets every other one pass. A response that outgrows maxHeld passes from there on, and tooLarge is set.
//
// Interpreted, it keeps only the methods of http.ResponseWriter and Hijack, whatever else it defines.
type capture struct {
	rw        http.ResponseWriter
	requestID string

	// status is the final one, 0 before it is known.
	status int
	// header is a copy made when status became known: later changes are trailers, as in net/http.
	header http.Header
	body   bytes.Buffer
	// passing: everything now goes straight to rw.
	passing  bool
	tooLarge bool
	// flush: the node's proxy wanted the response on its way, which also decides how it is framed.
	flush bool
}

// holding reports whether there is a response that has not been released.
func (c *capture) holding() bool {
	return c.status != 0 && !c.passing
}

// Header implements http.ResponseWriter.
func (c *capture) Header() http.Header {
	return c.rw.Header()
}

// WriteHeader implements http.ResponseWriter. Informational statuses (100, 103) pass at once; after one the
// proxy clears all headers, and with them the request id.
func (c *capture) WriteHeader(status int) {
	switch {
	case c.passing:
		c.rw.WriteHeader(status)
	case status < 200:
		c.rw.WriteHeader(status)
	case c.status == 0:
		c.status = status
		if c.rw.Header().Get(headerRequest) == "" {
			c.rw.Header().Set(headerRequest, c.requestID)
		}
		c.header = c.rw.Header().Clone()
		if status >= 300 {
			c.release()
		}
	}
}

// Write implements http.ResponseWriter.
func (c *capture) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !c.passing && c.body.Len()+len(p) > maxHeld {
		c.tooLarge = true
		c.release()
	}
	if c.passing {
		return c.rw.Write(p)
	}
	return c.body.Write(p)
}

// Flush implements http.Flusher. What is held back stays.
func (c *capture) Flush() {
	if c.passing {
		http.NewResponseController(c.rw).Flush()
		return
	}
	c.flush = true
}

// Hijack implements http.Hijacker as far as the writer behind does.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.passing = true
	return http.NewResponseController(c.rw).Hijack()
}

// release sends what is held back, and lets all that follows pass.
func (c *capture) release() {
	if !c.holding() {
		return
	}
	c.passing = true

	live := c.rw.Header()
	late := live.Clone()
	replaceHeader(live, c.header)
	c.rw.WriteHeader(c.status)
	c.rw.Write(c.body.Bytes())
	if c.flush || hasUnannouncedTrailer(late) {
		c.Flush()
	}
	replaceHeader(live, late)
}

func replaceHeader(header, with http.Header) {
	for name := range header {
		delete(header, name)
	}
	for name, values := range with {
		header[name] = values
	}
}

// hasUnannouncedTrailer reports whether the response has to be sent in chunks: the server finds such trailers
// only at the end, when it may have settled on a Content-Length.
func hasUnannouncedTrailer(header http.Header) bool {
	for name := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}
