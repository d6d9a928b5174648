package plugin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxPending bounds the reports that wait for a binding service that does not take them.
	maxPending = 1000
	// forLogins of these places are kept for logins: anybody can log out a thousand times, and a login that is tried
	// only once leaves its user without a binding.
	forLogins = 500
	// postTimeout bounds one attempt to deliver a report.
	postTimeout = 5 * time.Second

	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// errRefused: the binding service will never take this report.
var errRefused = errors.New("refused")

// report is a login or a logout on its way to the binding service.
type report struct {
	// name says in logs what it is, failure what has happened when it is not taken.
	name, failure string
	path          string
	// keys are what later requests of the same user are known by: the token and the names of a login. Nobody waits
	// for a logout.
	keys      []string
	requestID string
	body      []byte
	// idempotencyKey is the same for all attempts, and lets the transport repeat one whose connection turns
	// out to be dead.
	idempotencyKey string
	// heard: the binding service has had the report and could not store it. It knows a login's token since.
	heard atomic.Bool
	// arrived ends (by arrive) when the report was taken, or refused for good. A context, so that waiting for it
	// needs no select.
	arrived context.Context //nolint:containedctx // an event that can be waited for together with a request's end
	arrive  context.CancelFunc
}

// tokenKey names a token without holding it.
func tokenKey(service, token string) string { return hashed(service + "\x00" + token) }

// nameKey names a username, in any case.
func nameKey(service, username string) string {
	return hashed(service + "\x00\x00" + strings.ToLower(username))
}

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// deliverLogin delivers a login, as deliver does. Until it has arrived, requests of its user wait for it.
func (c *client) deliverLogin(result loginResult, wait time.Duration) {
	body, err := json.Marshal(result)
	if err != nil {
		panic(err) // texts only
	}
	keys := []string{tokenKey(result.Service, result.Token)}
	for _, name := range []string{result.Username, result.LoginUsername} {
		if name != "" {
			keys = append(keys, nameKey(result.Service, name))
		}
	}
	c.deliver(&report{
		name: "login", failure: "login not bound", path: "/v1/logins", keys: keys, requestID: result.RequestID, body: body,
	}, wait)
}

// deliverLogout delivers a logout, as deliver does.
func (c *client) deliverLogout(result logoutResult, wait time.Duration) {
	body, err := json.Marshal(result)
	if err != nil {
		panic(err) // texts only
	}
	c.deliver(&report{
		name: "logout", failure: "logout not noted", path: "/v1/logouts", requestID: result.RequestID, body: body,
	}, wait)
}

// deliver returns when the binding service has taken the report, or after wait at the latest; then it goes on in the
// background until that is done. No client can cancel it.
func (c *client) deliver(r *report, wait time.Duration) {
	r.idempotencyKey = newID()
	r.arrived, r.arrive = context.WithCancel(context.Background())
	if !c.addPending(r) {
		log.Printf("homenode: request %s: too many reports wait for the binding service, this %s is tried only once", r.requestID, r.name)
		if err := c.post(r, wait); err != nil {
			log.Printf("homenode: request %s: %s: %v", r.requestID, r.failure, err)
		}
		return
	}
	go c.keepTrying(r)

	if !r.wait(context.Background(), wait) {
		log.Printf("homenode: request %s: %s answered before the binding service has taken it, which goes on in the background", r.requestID, r.name)
	}
}

// keepTrying tries until the report is taken or refused, and ends with that.
func (c *client) keepTrying(r *report) {
	defer c.removePending(r)
	defer func() {
		if cause := recover(); cause != nil {
			log.Printf("homenode: request %s: %s: %v", r.requestID, r.failure, cause)
		}
	}()
	pause := firstPause
	for attempt := 1; ; attempt++ {
		err := c.post(r, postTimeout)
		if err == nil {
			return
		}
		if errors.Is(err, errRefused) {
			log.Printf("homenode: request %s: %s: %v", r.requestID, r.failure, err)
			return
		}
		if attempt == 1 {
			log.Printf("homenode: request %s: %s yet, trying on: %v", r.requestID, r.failure, err)
		}
		// Between half the pause and all of it, so that the reports of an outage do not come back as one.
		time.Sleep(pause/2 + time.Duration(rand.Int63n(int64(pause/2))))
		if pause *= 2; pause > longestPause {
			pause = longestPause
		}
	}
}

// post makes one attempt. The error is errRefused if another one is no use.
func (c *client) post(r *report, timeout time.Duration) error {
	// Not the request's context: a client that disconnects has logged in, or out, all the same.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	call.Header = http.Header{
		"Authorization":   c.authorization,
		"Content-Type":    []string{"application/json"},
		"Idempotency-Key": []string{r.idempotencyKey},
		"User-Agent":      userAgent,
		headerRequest:     []string{r.requestID},
	}
	response, err := c.transport.RoundTrip(call)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	// Read, so that the connection can be used again.
	io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))

	switch status := response.StatusCode; status {
	case http.StatusOK, http.StatusNoContent:
		return nil
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		// These say nothing about the report: the secret is being changed, or there is too much at once.
		return fmt.Errorf("status %d", status)
	default:
		if status >= 400 && status < 500 {
			return fmt.Errorf("%w: status %d", errRefused, status)
		}
		if response.Header.Get(headerReason) != "" {
			r.heard.Store(true)
		}
		return fmt.Errorf("status %d", status)
	}
}

// addPending registers the report, or returns false if there are too many.
func (c *client) addPending(r *report) bool {
	c.pendingMutex.Lock()
	defer c.pendingMutex.Unlock()
	places := int64(maxPending)
	if len(r.keys) == 0 { // a logout
		places -= forLogins
	}
	if c.pendingCount.Load() >= places {
		return false
	}
	for _, key := range r.keys {
		c.pending[key] = r
	}
	c.pendingCount.Add(1)
	return true
}

// removePending ends the report's registration, and with it the wait of its user's requests.
func (c *client) removePending(r *report) {
	c.pendingMutex.Lock()
	defer c.pendingMutex.Unlock()
	for _, key := range r.keys {
		// A later login of the same user may have taken the entry over, and keeps it.
		if c.pending[key] == r {
			delete(c.pending, key)
		}
	}
	c.pendingCount.Add(-1)
	r.arrive()
}

// pendingOf returns the login of the request's user that is still on its way to the binding service, nil if there
// is none.
func (c *client) pendingOf(q *question) *report {
	if q.token == "" && q.username == "" {
		return nil
	}
	key := tokenKey(q.service, q.token)
	if q.login {
		key = nameKey(q.service, q.username)
	}
	c.pendingMutex.Lock()
	defer c.pendingMutex.Unlock()
	return c.pending[key]
}

// await waits until the login has arrived, and fails with errUnavailable when it has not within timeout.
func (c *client) await(ctx context.Context, r *report, requestID string, timeout time.Duration) error {
	switch {
	case r.wait(ctx, timeout):
		return nil
	case ctx.Err() != nil:
		return errClientGone
	}
	c.complain(requestID, errors.New("the user's login has not been taken yet"))
	return errUnavailable
}

// wait returns when the report has arrived, when ctx ends, or after timeout, and tells whether it has arrived.
//
// Yaegi keeps the channels of a select statement in one place for all goroutines: of two reports that wait at
// once, one would go on when the other has arrived. So there must be no select in this package; what has to be
// waited for is brought into one context, whose channel is received from.
func (r *report) wait(ctx context.Context, timeout time.Duration) (arrived bool) {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(r.arrived, cancel)
	defer stop()
	<-waiting.Done()
	return r.arrived.Err() != nil
}
