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
	// maxPending bounds the logins that wait for a binding service that does not take them.
	maxPending = 1000
	// postTimeout bounds one attempt to deliver a login.
	postTimeout = 5 * time.Second

	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// errRefused: the binding service will never take this login.
var errRefused = errors.New("refused")

// pendingLogin is a login on its way to the binding service.
type pendingLogin struct {
	// keys are what later requests of the same user are known by: the token and the names.
	keys      []string
	requestID string
	body      []byte
	// idempotencyKey is the same for all attempts, and lets the transport repeat one whose connection turns
	// out to be dead.
	idempotencyKey string
	// heard: the binding service has had the login and could not store it. It knows the token since.
	heard atomic.Bool
	// arrived ends (by arrive) when the login was taken, or refused for good. A context, so that waiting for it
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

// postLogin delivers a login and returns when that is done, or after wait at the latest; then it goes on in the
// background until the binding service has taken it. No client can cancel it.
func (c *client) postLogin(result loginResult, wait time.Duration) {
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
	p := &pendingLogin{
		keys:           keys,
		requestID:      result.RequestID,
		body:           body,
		idempotencyKey: newID(),
	}
	p.arrived, p.arrive = context.WithCancel(context.Background())
	if !c.addPending(p) {
		log.Printf("homenode: request %s: %d logins wait for the binding service, this one is tried only once", p.requestID, maxPending)
		if err := c.post(p, wait); err != nil {
			log.Printf("homenode: request %s: login not bound: %v", p.requestID, err)
		}
		return
	}
	go c.deliver(p)

	if !p.wait(context.Background(), wait) {
		log.Printf("homenode: request %s: login answered before its binding, which goes on in the background", p.requestID)
	}
}

// deliver tries until the login is taken or refused, and ends with that.
func (c *client) deliver(p *pendingLogin) {
	defer c.removePending(p)
	defer func() {
		if cause := recover(); cause != nil {
			log.Printf("homenode: request %s: login not bound: %v", p.requestID, cause)
		}
	}()
	pause := firstPause
	for attempt := 1; ; attempt++ {
		err := c.post(p, postTimeout)
		if err == nil {
			return
		}
		if errors.Is(err, errRefused) {
			log.Printf("homenode: request %s: login not bound: %v", p.requestID, err)
			return
		}
		if attempt == 1 {
			log.Printf("homenode: request %s: login not bound yet, trying on: %v", p.requestID, err)
		}
		// Between half the pause and all of it, so that the logins of an outage do not come back as one.
		time.Sleep(pause/2 + time.Duration(rand.Int63n(int64(pause/2))))
		if pause *= 2; pause > longestPause {
			pause = longestPause
		}
	}
}

// post makes one attempt. The error is errRefused if another one is no use.
func (c *client) post(p *pendingLogin, timeout time.Duration) error {
	// Not the request's context: a client that disconnects has logged in all the same.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/logins", bytes.NewReader(p.body))
	if err != nil {
		return err
	}
	call.Header = http.Header{
		"Authorization":   c.authorization,
		"Content-Type":    []string{"application/json"},
		"Idempotency-Key": []string{p.idempotencyKey},
		"User-Agent":      userAgent,
		headerRequest:     []string{p.requestID},
	}
	response, err := c.transport.RoundTrip(call)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	// Read, so that the connection can be used again.
	io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))

	switch status := response.StatusCode; status {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		// These say nothing about the login: the secret is being changed, or there is too much at once.
		return fmt.Errorf("status %d", status)
	default:
		if status >= 400 && status < 500 {
			return fmt.Errorf("%w: status %d", errRefused, status)
		}
		if response.Header.Get(headerReason) != "" {
			p.heard.Store(true)
		}
		return fmt.Errorf("status %d", status)
	}
}

// addPending registers the login, or returns false if there are too many.
func (c *client) addPending(p *pendingLogin) bool {
	c.pendingMutex.Lock()
	defer c.pendingMutex.Unlock()
	if c.pendingCount.Load() >= maxPending {
		return false
	}
	for _, key := range p.keys {
		c.pending[key] = p
	}
	c.pendingCount.Add(1)
	return true
}

// removePending ends the login's registration, and with it the wait of its user's requests.
func (c *client) removePending(p *pendingLogin) {
	c.pendingMutex.Lock()
	defer c.pendingMutex.Unlock()
	for _, key := range p.keys {
		// A later login of the same user may have taken the entry over, and keeps it.
		if c.pending[key] == p {
			delete(c.pending, key)
		}
	}
	c.pendingCount.Add(-1)
	p.arrive()
}

// pendingOf returns the login of the request's user that is still on its way to the binding service, nil if there
// is none.
func (c *client) pendingOf(q *question) *pendingLogin {
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
func (c *client) await(ctx context.Context, p *pendingLogin, requestID string, timeout time.Duration) error {
	switch {
	case p.wait(ctx, timeout):
		return nil
	case ctx.Err() != nil:
		return errClientGone
	}
	c.complain(requestID, errors.New("the user's login has not been taken yet"))
	return errUnavailable
}

// wait returns when the login has arrived, when ctx ends, or after timeout, and reports whether the login has.
//
// Yaegi keeps the channels of a select statement in one place for all goroutines: of two logins that wait at
// once, one would go on when the other has arrived. So there must be no select in this package; what has to be
// waited for is brought into one context, whose channel is received from.
func (p *pendingLogin) wait(ctx context.Context, timeout time.Duration) (arrived bool) {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(p.arrived, cancel)
	defer stop()
	<-waiting.Done()
	return p.arrived.Err() != nil
}
