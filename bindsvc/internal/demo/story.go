package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/coder/websocket"
)

var userNames = []string{"ann", "bob", "cho", "dai", "eve", "fei"}

const lateNode = "node-4"

// row is one line of the story's table.
type row struct{ user, request, status, node, shows string }

// story is the state that its steps share.
type story struct {
	*scene
	table *tabwriter.Writer
	home  map[string]string // by user name
	token map[string]string // by user name
}

// tell runs the steps in order, prints what each showed, and stops at the first
// that does not hold.
func (s *scene) tell(ctx context.Context, to io.Writer) error {
	st := &story{scene: s, home: map[string]string{}, token: map[string]string{}}
	return runSteps(ctx, to, st, []step{
		{"users log in and are spread over the nodes", st.logIn},
		{"each writes a note and reads it, on the node's own disk", st.writeNotes},
		{"who logs in again reaches the same node", st.logInAgain},
		{"a forged header chooses nothing", st.forge},
		{"events arrive one by one", st.hearEvents},
		{"a WebSocket echoes", st.echo},
		{"a node dies: its users get 503, never another node", st.loseNode},
		{"it comes back: the same node, the notes still there", st.regainNode},
		{"a node is added while requests run", st.addNode},
	})
}

type step struct {
	name string
	run  func(context.Context) error
}

func runSteps(ctx context.Context, to io.Writer, st *story, steps []step) error {
	for i, step := range steps {
		_, _ = fmt.Fprintf(to, "\n%d. %s\n", i+1, step.name)
		st.table = tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(st.table, "   USER\tREQUEST\tSTATUS\tNODE\tWHAT IT SHOWS")
		err := step.run(ctx)
		_ = st.table.Flush()
		if err != nil {
			_, _ = fmt.Fprintf(to, "   ✘ %v\n", err)
			return fmt.Errorf("step %d (%s): %w", i+1, step.name, err)
		}
	}
	_, _ = fmt.Fprintf(to, "\nAll %d steps held.\n", len(steps))
	return nil
}

func (s *story) show(r row) {
	_, _ = fmt.Fprintf(s.table, "   %s\t%s\t%s\t%s\t✔ %s\n", r.user, r.request, r.status, r.node, r.shows)
}

// reply is an answer through Traefik.
type reply struct {
	status  int
	node    string // the one that answered, by its own word; empty if none did
	reason  string // X-Gateway-Reason
	code    int    // of the envelope
	message string
	data    json.RawMessage
}

func (r reply) String() string {
	return fmt.Sprintf("status %d, node %q, reason %q, code %d %s", r.status, r.node, r.reason, r.code, r.message)
}

func (s *story) ask(ctx context.Context, method, url, token string, body any, headers ...string) (reply, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return reply{}, err
		}
		content = bytes.NewReader(encoded)
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return reply{}, err
	}
	if token != "" {
		request.Header.Set("x-token", token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header[headers[i]] = []string{headers[i+1]}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	var envelope struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&envelope); err != nil {
		return reply{}, fmt.Errorf("%s %s: status %d, no JSON: %w", method, url, response.StatusCode, err)
	}
	node := response.Header.Get(nodeHeader)
	if told := response.Header.Get("X-Gateway-Node"); node != "" && strings.HasPrefix(url, s.base) && told != node {
		return reply{}, fmt.Errorf("%s %s: the gateway says it went to %q, it went to %s", method, url, told, node)
	}
	return reply{
		status: response.StatusCode, node: node, reason: response.Header.Get("X-Gateway-Reason"),
		code: envelope.Code, message: envelope.Message, data: envelope.Data,
	}, nil
}

// eventually asks until the reply is as wanted; in between, allowed says what may be seen.
func (s *story) eventually(ctx context.Context, ask func() (reply, error), wanted, allowed func(reply) bool) (reply, error) {
	const limit = 30 * time.Second
	for start := time.Now(); ; {
		r, err := ask()
		switch {
		case err != nil:
			return r, err
		case wanted(r):
			return r, nil
		case !allowed(r):
			return r, fmt.Errorf("not allowed at any time: %s", r)
		case time.Since(start) > limit:
			return r, fmt.Errorf("still after %s: %s", limit, r)
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func isOK(r reply) bool { return r.status == http.StatusOK && r.code == http.StatusOK }

func (s *story) login(ctx context.Context, name string) (reply, error) {
	r, err := s.ask(ctx, http.MethodPost, s.base+"/sys/login", "", map[string]string{"username": name, "password": "p"})
	if err != nil || !isOK(r) {
		return r, errors.Join(err, nilUnless(!isOK(r), "login of %s: %s", name, r))
	}
	var data struct{ Token string }
	if err := json.Unmarshal(r.data, &data); err != nil {
		return r, err
	}
	s.token[name] = data.Token
	return r, nil
}

func nilUnless(wrong bool, format string, args ...any) error {
	if wrong {
		return fmt.Errorf(format, args...)
	}
	return nil
}

func (s *story) logIn(ctx context.Context) error {
	// Traefik fetches its routes in the first second.
	whoami := func() (reply, error) { return s.ask(ctx, http.MethodGet, s.base+"/whoami", "", nil) }
	anything := func(reply) bool { return true }
	for start := time.Now(); ; {
		if r, err := whoami(); err == nil && isOK(r) {
			break
		}
		if time.Since(start) > 20*time.Second {
			_, err := s.eventually(ctx, whoami, isOK, anything)
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	used := map[string]bool{}
	for _, name := range userNames {
		r, err := s.login(ctx, name)
		if err != nil {
			return err
		}
		s.home[name], used[r.node] = r.node, true
		s.show(row{name, "POST /sys/login", "200", r.node, "bound"})
	}
	return nilUnless(len(used) != len(nodeNames), "only %d of %d nodes got users", len(used), len(nodeNames))
}

// atHome makes a request of the user and wants it answered by the user's node.
func (s *story) atHome(ctx context.Context, name, method, path string, body any, headers ...string) (reply, error) {
	r, err := s.ask(ctx, method, s.base+path, s.token[name], body, headers...)
	if err != nil {
		return r, err
	}
	return r, nilUnless(!isOK(r) || r.node != s.home[name], "%s %s of %s, at home on %s: %s", method, path, name, s.home[name], r)
}

func (s *story) writeNotes(ctx context.Context) error {
	for _, name := range userNames {
		if _, err := s.atHome(ctx, name, http.MethodPost, "/notes", map[string]string{"text": "note of " + name}); err != nil {
			return err
		}
		if err := s.readNote(ctx, name, "POST, GET /notes"); err != nil {
			return err
		}
	}
	return nil
}

// readNote wants the note of the user to be there, and shows it as the answer to the request.
func (s *story) readNote(ctx context.Context, name, request string) error {
	r, err := s.atHome(ctx, name, http.MethodGet, "/notes", nil)
	if err != nil {
		return err
	}
	want := `["note of ` + name + `"]`
	if string(r.data) != want {
		return fmt.Errorf("notes of %s: %s, want %s", name, r.data, want)
	}
	s.show(row{name, request, "200", r.node, want})
	return nil
}

func (s *story) logInAgain(ctx context.Context) error {
	for _, name := range userNames {
		r, err := s.login(ctx, name)
		if err != nil {
			return err
		}
		if r.node != s.home[name] {
			return fmt.Errorf("%s, at home on %s, logged in on %s", name, s.home[name], r.node)
		}
		s.show(row{name, "POST /sys/login", "200", r.node, "at home"})
	}
	return nil
}

// other is a node that is not the user's.
func (s *story) other(name string) string {
	return nodeNames[(slices.Index(nodeNames, s.home[name])+1)%len(nodeNames)]
}

func (s *story) forge(ctx context.Context) error {
	name := userNames[0]
	for _, header := range []string{"X-Gateway-Node", "X_Gateway_Node", "x.gateway.node"} {
		r, err := s.atHome(ctx, name, http.MethodGet, "/whoami", nil, header, s.other(name), "X-User-Id", "1")
		if err != nil {
			return err
		}
		var seen struct {
			Headers map[string][]string
		}
		if err := json.Unmarshal(r.data, &seen); err != nil {
			return err
		}
		if !slices.Equal(seen.Headers["X-Gateway-Node"], []string{s.home[name]}) || slices.Contains(seen.Headers["X-User-Id"], "1") {
			return fmt.Errorf("forged headers reached the node: %v", seen.Headers)
		}
		s.show(row{name, "GET /whoami with " + header + ": " + s.other(name), "200", r.node, "still at home"})
	}
	return nil
}

func (s *story) hearEvents(ctx context.Context) error {
	name := userNames[1]
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/events?x-token="+s.token[name], nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	var arrivals []time.Time
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			arrivals = append(arrivals, time.Now())
			if !strings.HasSuffix(data, "from "+s.home[name]) {
				return fmt.Errorf("event %q, want it from %s", data, s.home[name])
			}
		}
	}
	if len(arrivals) != 3 || arrivals[2].Sub(arrivals[0]) < eventPause {
		return fmt.Errorf("%d events, in one piece or incomplete", len(arrivals))
	}
	s.show(row{name, "GET /events", fmt.Sprint(response.StatusCode), response.Header.Get(nodeHeader), fmt.Sprintf("3 events in %d ms", arrivals[2].Sub(arrivals[0]).Milliseconds())})
	return nil
}

func (s *story) echo(ctx context.Context) error {
	name := userNames[2]
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.base, "http")+"/ws?x-token="+s.token[name], nil) //nolint:bodyclose // the connection owns it
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		return err
	}
	_, message, err := conn.Read(ctx)
	if err != nil {
		return err
	}
	want := s.home[name] + " heard: hello"
	if string(message) != want {
		return fmt.Errorf("echo %q, want %q", message, want)
	}
	s.show(row{name, "WebSocket /ws", fmt.Sprint(response.StatusCode), s.home[name], want})
	return nil
}

func (s *story) loseNode(ctx context.Context) error {
	lost := s.home[userNames[0]]
	s.nodes[lost].Kill()
	// Until two probes have failed Traefik itself finds that the node is gone.
	failing := func(r reply) bool {
		return slices.Contains([]string{"NODE_UNREACHABLE", "DEGRADED", "NODE_DOWN"}, r.reason) && (r.node == "" || r.node == lost)
	}
	for _, name := range userNames {
		if s.home[name] != lost {
			r, err := s.atHome(ctx, name, http.MethodGet, "/notes", nil)
			if err != nil {
				return err
			}
			s.show(row{name, "GET /notes", "200", r.node, "goes on"})
			continue
		}
		r, err := s.eventually(ctx, func() (reply, error) { return s.ask(ctx, http.MethodGet, s.base+"/notes", s.token[name], nil) },
			func(r reply) bool { return r.status == http.StatusServiceUnavailable && r.reason == "NODE_DOWN" }, failing)
		if err != nil {
			return err
		}
		s.show(row{name, "GET /notes", fmt.Sprint(r.status), "-", r.reason})
	}
	return nil
}

func (s *story) regainNode(ctx context.Context) error {
	back := s.home[userNames[0]]
	if err := s.startNode(ctx, back); err != nil {
		return err
	}
	// The node's circuit breaker lets requests through bit by bit before it closes:
	// many in a row mean that it has.
	const many = 20
	inARow := 0
	_, err := s.eventually(ctx,
		func() (reply, error) {
			return s.ask(ctx, http.MethodGet, s.base+"/notes", s.token[userNames[0]], nil)
		},
		func(r reply) bool {
			inARow++
			if !isOK(r) {
				inARow = 0
			}
			return inARow == many
		},
		func(r reply) bool {
			return r.node == back || r.node == "" && r.status >= http.StatusInternalServerError
		})
	if err != nil {
		return err
	}
	for _, name := range userNames {
		if s.home[name] == back {
			if err := s.readNote(ctx, name, "GET /notes"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *story) addNode(ctx context.Context) error {
	if err := s.startNode(ctx, lateNode); err != nil {
		return err
	}
	traffic, stop := context.WithCancel(ctx)
	var failed error
	var asked int
	var running sync.WaitGroup
	running.Go(func() {
		for traffic.Err() == nil && failed == nil {
			failed = s.goOn(ctx)
			asked += 1 + len(userNames)
		}
	})
	err := s.bindGus(ctx)
	stop()
	running.Wait()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	s.show(row{"-", fmt.Sprintf("%d × GET /whoami meanwhile", asked), "200", "any", "none failed"})
	return nil
}

// goOn makes a request of everybody and one without a login; all must be served.
func (s *story) goOn(ctx context.Context) error {
	for _, name := range userNames {
		if _, err := s.atHome(ctx, name, http.MethodGet, "/whoami", nil); err != nil {
			return err
		}
	}
	r, err := s.ask(ctx, http.MethodGet, s.base+"/whoami", "", nil)
	if err != nil {
		return err
	}
	return nilUnless(!isOK(r), "a request without a login: %s", r)
}

// bindGus adds the node, binds a user to it in advance and lets the user log in.
func (s *story) bindGus(ctx context.Context) error {
	const name = "gus"
	admin := s.traefik.URL("web") + "/gateway/admin"
	for _, call := range []struct {
		path  string
		body  map[string]any
		shows string
	}{
		{"/services/ai/nodes", map[string]any{"id": lateNode, "baseUrl": "http://" + s.addresses[lateNode]}, lateNode + " added"},
		{"/routes/bind", map[string]any{"serviceId": "ai", "username": name, "nodeId": lateNode}, name + " bound in advance"},
	} {
		r, err := s.ask(ctx, http.MethodPost, admin+call.path, s.adminToken, call.body)
		if err != nil || !isOK(r) {
			return errors.Join(err, fmt.Errorf("%s: %s", call.path, r))
		}
		s.show(row{"admin", "POST /gateway/admin" + call.path, "200", "-", call.shows})
	}
	r, err := s.eventually(ctx, func() (reply, error) {
		return s.ask(ctx, http.MethodPost, s.base+"/sys/login", "", map[string]string{"username": name, "password": "p"})
	}, isOK, func(r reply) bool {
		return r.status == http.StatusServiceUnavailable && (r.node == "" || r.node == lateNode)
	})
	if err != nil {
		return err
	}
	s.show(row{name, "POST /sys/login", "200", r.node, "no file edited, nothing restarted"})
	return nilUnless(r.node != lateNode, "%s logged in on %s", name, r.node)
}
