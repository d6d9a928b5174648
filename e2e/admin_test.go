package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/internal/traefikproc"
)

// sql runs statements as somebody at the SQL prompt does.
func sql(t *testing.T, in stores, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), in.postgres)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, statement := range statements {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

// column reads the first column of a query, as text.
func column(t *testing.T, in stores, query string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), in.postgres)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	rows, err := conn.Query(t.Context(), query)
	require.NoError(t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return values
}

const userTable = `CREATE TABLE sys_user (id bigint PRIMARY KEY, username varchar(100), password varchar(255), is_admin smallint, status smallint)`

// sessionOf makes a session of the nodes' own session store.
func sessionOf(t *testing.T, in stores, token, userID string) {
	t.Helper()
	redisDo(t, in.redis, in.database, "SET x-token:login:token:"+token+" "+userID)
}

// envelope is an answer of the admin API.
type envelope struct {
	status int
	code   int
	data   any
	reason string
}

func (e envelope) field(name string) any {
	object, _ := e.data.(map[string]any)
	return object[name]
}

// administer calls the admin API through Traefik.
func administer(t *testing.T, c *client, token, method, path, body string) envelope {
	t.Helper()
	var sent []byte
	if body != "" {
		sent = []byte(body)
	}
	a := c.do(method, "/gateway/admin"+path, token, sent, nil)
	require.NoError(t, a.err)
	var decoded struct {
		Code int `json:"code"`
		Data any `json:"data"`
	}
	require.NoError(t, json.Unmarshal(a.body, &decoded), "%s %s: %s", method, path, a)
	require.Equal(t, a.status, decoded.Code)
	e := envelope{status: a.status, code: decoded.Code, data: decoded.Data, reason: a.header.Get("X-Gateway-Reason")}
	return e
}

// Every call of the seed's list, with the seed's field names, through Traefik.
func TestTheSeedsAdminCallsThroughTraefik(t *testing.T) {
	in := production(t)
	sql(t, in, userTable, `INSERT INTO sys_user VALUES (1, 'root', '', 1, 1), (2, 'user', '', 0, 1), (3, 'fired', '', 1, 0), (9007199254740993, 'big', '', 0, 1), (5, NULL, '', 0, 1), (6, 'left', '', 0, 0)`)
	sessionOf(t, in, "tok-root", "1")
	sessionOf(t, in, "tok-user", "2")
	sessionOf(t, in, "tok-fired", "3")
	sessionOf(t, in, "tok-kicked", "-5")
	s := startStack(t, in, settings{})
	do := func(method, path, body string) envelope {
		return administer(t, s.client, "tok-root", method, path, body)
	}
	ok := func(method, path, body string) envelope {
		t.Helper()
		e := do(method, path, body)
		require.Equal(t, http.StatusOK, e.status, "%s %s: %v", method, path, e)
		return e
	}
	refused := func(reason string, e envelope) {
		t.Helper()
		require.Equal(t, reason, e.reason, e)
	}

	ok("POST", "/services", `{"id":"doc","name":"Docs","pathPrefix":"/doc","loginPath":"/login","healthPath":"/health","defaultNodeId":null,"enabled":1}`)
	refused("CONFLICT", do("POST", "/services", `{"id":"doc","name":"Docs","pathPrefix":"/other","loginPath":"/login","healthPath":"/health","enabled":1}`))
	ok("POST", "/services/doc/nodes", fmt.Sprintf(`{"id":"d1","name":"one","baseUrl":%q,"enabled":1,"remark":"first"}`, s.nodes[0].url()))
	refused("VALIDATION", do("POST", "/services/doc/nodes", `{"id":"d2","name":"two","baseUrl":"10.0.0.1:8980","enabled":1}`))
	require.Equal(t, "d1", ok("PUT", "/services/doc", `{"defaultNodeId":"d1"}`).field("defaultNodeId"))
	refused("CONFLICT", do("PUT", "/services/doc", `{"defaultNodeId":"node-1"}`))
	refused("CONFLICT", do("DELETE", "/services/doc", ""))
	refused("CONFLICT", do("DELETE", "/nodes/d1", ""))
	require.Equal(t, "moved", ok("PUT", "/nodes/d1", `{"remark":"moved"}`).field("remark"))
	require.Equal(t, "UP", ok("POST", "/nodes/d1/check", "").field("state"))
	refused("NOT_FOUND", do("POST", "/nodes/none/check", ""))
	require.Len(t, ok("GET", "/services", "").data, 2)

	bound := ok("POST", "/routes/bind", `{"serviceId":"ai","userId":9007199254740993,"username":"Big","nodeId":"node-2"}`)
	require.Equal(t, "9007199254740993", bound.field("userId"))
	again := ok("POST", "/routes/bind", `{"serviceId":"ai","userId":"9007199254740993","nodeId":"node-2"}`)
	require.Equal(t, bound.field("epoch"), again.field("epoch"), "a retry changes nothing")
	refused("CONFLICT", do("POST", "/routes/bind", `{"serviceId":"ai","userId":8,"username":"big","nodeId":"node-2"}`))
	refused("VALIDATION", do("POST", "/routes/bind", `{"serviceId":"ai","nodeId":"node-2"}`))
	page := ok("GET", "/routes?serviceId=ai&keyword=BI&page=1&size=10", "")
	require.EqualValues(t, 1, page.field("total"))
	for _, keyword := range []string{"%", "_", "' OR '1'='1", `\`} {
		require.EqualValues(t, 0, ok("GET", "/routes?keyword="+url.QueryEscape(keyword), "").field("total"), keyword)
	}
	imported := ok("POST", "/routes/import-existing", `{"serviceId":"ai","nodeId":"node-1"}`)
	counts := imported.field("counts").(map[string]any)
	require.EqualValues(t, 3, counts["bound"], imported) // root, user, the nameless one
	require.EqualValues(t, 2, counts["skipped"])
	require.EqualValues(t, 1, counts["conflicts"], "big is bound to node-2")
	require.NotEmpty(t, ok("GET", "/status", "").field("services"))
	ok("POST", "/reload", "")
	id := bound.field("id").(float64)
	ok("DELETE", fmt.Sprintf("/routes/%.0f", id), "")
	refused("NOT_FOUND", do("DELETE", fmt.Sprintf("/routes/%.0f", id), ""))
	ok("PUT", "/services/doc", `{"defaultNodeId":null}`)
	ok("DELETE", "/nodes/d1", "")
	ok("DELETE", "/services/doc", "")

	// Who may not: nothing changes.
	before := column(t, in, `SELECT r::text FROM gateway_user_route r ORDER BY id`)
	wish := `{"serviceId":"ai","userId":77,"nodeId":"node-1"}`
	for token, reason := range map[string]string{"": "UNAUTHENTICATED", "tok-none": "UNAUTHENTICATED", "tok-kicked": "UNAUTHENTICATED", "tok-user": "FORBIDDEN", "tok-fired": "FORBIDDEN"} {
		refused(reason, administer(t, s.client, token, "POST", "/routes/bind", wish))
	}
	refused("TOO_LARGE", do("POST", "/routes/bind", `"`+strings.Repeat("x", 10<<20)+`"`))
	refused("VALIDATION", do("POST", "/routes/bind", `{"serviceId":"ai","userId":77,"nodeId":"node-1","epoch":7}`))
	require.Equal(t, before, column(t, in, `SELECT r::text FROM gateway_user_route r ORDER BY id`))
	require.ElementsMatch(t, []string{"user:2", "user:3"}, column(t, in, `SELECT actor FROM gateway_audit WHERE action = 'access.denied'`))
	require.Equal(t, []string{"user:1"}, column(t, in, `SELECT DISTINCT actor FROM gateway_audit WHERE action LIKE 'service.%' AND actor <> 'configuration'`))
	conn, err := pgx.Connect(t.Context(), in.postgres)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, statement := range []string{`UPDATE gateway_audit SET actor = 'nobody'`, `DELETE FROM gateway_audit`, `TRUNCATE gateway_audit`} {
		_, err := conn.Exec(t.Context(), statement)
		require.Error(t, err, "the audit only grows")
	}
}

// A client cannot write itself an address of the whitelist.
func TestTheWhitelistThroughTraefik(t *testing.T) {
	s := startStack(t, stores{}, settings{extra: "admin: {ipWhitelist: [10.0.0.0/8, \"2001:db8::/32\"], trustedProxies: [127.0.0.1]}\n"})
	for _, forged := range []string{"", "10.1.2.3", "2001:db8::1", "::ffff:10.1.2.3", "10.1.2.3, 127.0.0.1", "127.0.0.1, 10.1.2.3"} {
		a := s.client.do(http.MethodGet, "/gateway/admin/status", adminToken, nil, func(r *http.Request) {
			if forged != "" {
				r.Header.Set("X-Forwarded-For", forged)
				r.Header.Set("X-Real-Ip", forged)
				r.Header.Set("Forwarded", "for="+forged)
			}
		})
		require.Equal(t, "FORBIDDEN", a.reason(), "%q: %s", forged, a)
	}
	// What the trusted proxy itself says counts.
	for address, allowed := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "2001:db8::1": true, "192.0.2.1": false, "::ffff:192.0.2.1": false} {
		request := mustRequest(http.MethodGet, s.binding.admin+"/gateway/admin/status", adminToken, nil)
		request.Header.Set("X-Forwarded-For", address)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		_ = response.Body.Close()
		require.Equal(t, allowed, response.StatusCode == http.StatusOK, "%s: %s", address, response.Status)
	}
}

// gateways are two binding services and two Traefiks on one pair of stores.
type gateways struct {
	*stack
	second  *bindsvc
	clients []*client
}

func twoGateways(t *testing.T, in stores) *gateways {
	t.Helper()
	g := &gateways{stack: startStack(t, in, settings{})}
	g.second = startHomenode(t, in, g.nodes, settings{})
	traefik := startTraefik(t, g.second, traefikproc.Options{})
	g.clients = []*client{g.client, newClient(traefik.URL("web"))}
	g.waitRouted(t, g.clients[1])
	return g
}

// A rebind through one gateway is honoured by both, whether an administrator makes it or
// somebody at the SQL prompt does.
func TestARebindIsHonouredEverywhereWithinASecond(t *testing.T) {
	const tries, byHand = 1000, 100
	in := production(t)
	g := twoGateways(t, in)
	loginOK(t, g.client, "ann")
	token := tokenOf("ann")
	names := []string{"node-1", "node-2", "node-3"}
	at := 0
	move := func(i int) string {
		at = (at + 1 + rand.IntN(2)) % 3
		to := names[at]
		if i < byHand {
			sql(t, in, fmt.Sprintf(`UPDATE gateway_user_route SET node_id = '%s', epoch = epoch + 1 WHERE user_id = '%s'`, to, userID("ann")))
			return to
		}
		through := g.binding
		if i%2 == 0 {
			through = g.second
		}
		through.administer(t, http.MethodPost, "/routes/bind", map[string]string{"serviceId": "ai", "userId": userID("ann"), "nodeId": to})
		return to
	}

	var took []time.Duration
	for i := range tries {
		to := move(i)
		start := time.Now()
		var last atomic.Int64
		var wait sync.WaitGroup
		for _, c := range g.clients {
			wait.Go(func() {
				for {
					a := c.get("/js/a/whoami", token)
					since := time.Since(start)
					if a.status == http.StatusOK && a.node() == to {
						last.Store(max(last.Load(), int64(since)))
						return
					}
					if since > 5*time.Second {
						t.Errorf("try %d: not on %s after %s: %s", i, to, since, a)
						return
					}
				}
			})
		}
		wait.Wait()
		took = append(took, time.Duration(last.Load()))
		if t.Failed() {
			return
		}
	}
	slices.Sort(took)
	t.Logf("%d rebinds, until both gateways follow: median %s, 90 %% %s, 99 %% %s, most %s", len(took), took[len(took)/2], took[len(took)*9/10], took[len(took)*99/100], took[len(took)-1])
	require.Less(t, took[len(took)-1], time.Second, "in %d of %d tries", len(took), len(took))

	// Under load: from a second after the answer on, nothing reaches the old node.
	for range 3 {
		from := names[at]
		var answered atomic.Int64 // Unix nanoseconds
		stop := make(chan struct{})
		var load sync.WaitGroup
		var requests, late atomic.Int64
		for i := range 6 {
			load.Go(func() {
				c := newClient(g.clients[i%2].base)
				defer c.http.CloseIdleConnections()
				for {
					select {
					case <-stop:
						return
					default:
					}
					start := time.Now().UnixNano()
					a := c.get("/js/a/whoami", token)
					requests.Add(1)
					if when := answered.Load(); when != 0 && start > when+int64(time.Second) && a.node() == from {
						late.Add(1)
					}
					if a.status != http.StatusOK {
						t.Errorf("%s", a)
					}
				}
			})
		}
		time.Sleep(200 * time.Millisecond)
		move(byHand)
		answered.Store(time.Now().UnixNano())
		time.Sleep(2 * time.Second)
		close(stop)
		load.Wait()
		require.Zero(t, late.Load(), "of %d requests", requests.Load())
	}
	require.Equal(t, fmt.Sprint(tries+3), column(t, in, `SELECT (epoch - 1)::text FROM gateway_user_route`)[0], "each raised the epoch")
}

// explainCase is one request, and the same question.
type explainCase struct {
	method, path, token, username string
}

// What explain says is what Traefik does next, whatever the user, path and state.
func TestExplainForetellsTheGateway(t *testing.T) {
	const cases = 5000 // on either kind of stores
	eachMode(t, func(t *testing.T, in stores) {
		s := startStack(t, in, settings{extra: "registry: {pollInterval: 1h}\n"}) // nothing is counted anew between question and request
		random := rand.New(rand.NewPCG(1, 2))
		s.binding.administer(t, http.MethodPost, "/services", map[string]any{"id": "inner", "pathPrefix": "/js/a/inner", "loginPath": "/login", "healthPath": "/health"})
		s.binding.administer(t, http.MethodPost, "/services/inner/nodes", map[string]any{"id": "inner-1", "baseUrl": startNode(t, "inner-1").url()})
		s.binding.administer(t, http.MethodPost, "/services", map[string]any{"id": "off", "pathPrefix": "/off", "healthPath": "/health", "enabled": false})
		var users []string
		for i := range 30 {
			name := fmt.Sprintf("user-%d", i)
			loginOK(t, s.client, name)
			users = append(users, name)
		}
		// A new node is placed on a few seconds after it was added, which must not be
		// between a question and its request.
		require.Eventually(t, func() bool { return s.client.get("/js/a/inner/whoami", "").status == http.StatusOK }, 20*time.Second, 50*time.Millisecond)
		settle := func() {
			// Probed three times, every 200 ms; polled every 200 ms, applied at most 200 ms later.
			for range 3 {
				for _, n := range s.nodes {
					s.binding.call(t, http.MethodPost, s.binding.admin+"/gateway/admin/nodes/"+n.name+"/check", adminToken, nil)
				}
			}
			time.Sleep(600 * time.Millisecond)
		}
		settle()
		turn := 0
		change := func() {
			n := s.nodes[random.IntN(len(s.nodes))]
			user := users[random.IntN(len(users))]
			turn++
			switch turn % 7 { // each kind of change as often as any other
			case 0:
				n.down.Store(random.IntN(3) == 0)
				settle()
			case 1:
				s.binding.administer(t, http.MethodPut, "/nodes/"+n.name, map[string]any{"enabled": random.IntN(3) > 0})
				settle()
			case 2:
				s.binding.administer(t, http.MethodPut, "/nodes/"+n.name, map[string]any{"acceptNew": random.IntN(3) > 0})
			case 3:
				s.binding.administer(t, http.MethodPost, "/routes/bind", map[string]any{"serviceId": "ai", "userId": userID(user), "nodeId": n.name})
			case 4:
				page := s.binding.administer(t, http.MethodGet, "/routes?serviceId=ai&keyword="+userID(user), nil).(map[string]any)
				for _, record := range page["records"].([]any) {
					s.binding.administer(t, http.MethodDelete, fmt.Sprintf("/routes/%.0f", record.(map[string]any)["id"]), nil)
				}
			case 5:
				var byDefault any
				if random.IntN(2) == 0 {
					byDefault = n.name
				}
				s.binding.administer(t, http.MethodPut, "/services/ai", map[string]any{"defaultNodeId": byDefault})
			case 6:
				placement := []string{"round-robin", "weighted", "fewest-bindings"}[random.IntN(3)]
				s.binding.administer(t, http.MethodPut, "/services/ai", map[string]any{"placement": placement})
			}
		}
		paths := []string{
			"/js/a/whoami", "/js/a", "/js/a/", "/js/a/echo/x?y=%E4", "/js/apple", "/js", "/off/x", "/off", "/js/a/inner/whoami", "/js/a/innermost",
			"/js/a/x/../whoami", "/js/a/inner/../whoami", "/js/a/%69nner/whoami", "/JS/A/whoami", "/js/b/../a/whoami", "//js/a/whoami", "/js/a/./inner", "/js/a/%2e%2e/b", "/", "/js/a;x/y",
		}
		pick := func() explainCase {
			c := explainCase{method: "GET", path: paths[random.IntN(len(paths))]}
			if random.IntN(3) > 0 {
				c.path = paths[0]
			}
			switch random.IntN(10) {
			case 0:
			case 1:
				c.token = fmt.Sprintf("tok-unknown-%d", random.IntN(100))
			case 2:
				c = explainCase{method: "POST", path: "/js/a/sys/login", username: users[random.IntN(len(users))]}
			case 3:
				c = explainCase{method: "POST", path: "/js/a/sys/login", username: "nobody"}
			case 4:
				c.method = "POST"
				c.token = tokenOf(users[random.IntN(len(users))])
			default:
				c.token = tokenOf(users[random.IntN(len(users))])
			}
			return c
		}
		verdicts := map[string]int{}
		for i := range cases {
			if i%50 == 49 {
				change()
			}
			c := pick()
			query := url.Values{"method": {c.method}, "path": {c.path}}
			for name, value := range map[string]string{"token": c.token, "username": c.username} {
				if value != "" {
					query.Set(name, value)
				}
			}
			explanation := s.binding.administer(t, http.MethodGet, "/explain?"+query.Encode(), nil).(map[string]any)
			verdict := explanation["verdict"].(map[string]any)
			var a answer
			if c.username != "" {
				a = s.client.login(c.username)
			} else {
				a = s.client.do(c.method, c.path, c.token, nil, nil)
			}
			told, _ := json.Marshal(explanation)
			if verdict["forward"] == true {
				require.Equal(t, verdict["nodeId"], a.node(), "case %d %+v: %s\n%s", i, c, a, told)
				verdicts["forward"]++
				continue
			}
			require.Equal(t, verdict["reason"], a.header.Get("X-Gateway-Reason"), "case %d %+v: %s\n%s", i, c, a, told)
			require.EqualValues(t, verdict["status"], a.status, "case %d", i)
			verdicts[verdict["reason"].(string)]++
		}
		t.Logf("%d cases agree: %v", cases, verdicts)
		for _, verdict := range []string{"forward", "NO_ROUTE", "NODE_DOWN", "NODE_DISABLED", "NO_BINDING"} {
			require.NotZero(t, verdicts[verdict], verdict)
		}
	})
}

// An import that is killed half-way and sent again gives the table that one import
// would have given, and its undo the table that there was before.
func TestAnImportIsKilledResumedAndUndone(t *testing.T) {
	const users = 100_000
	in := production(t)
	sql(t, in, userTable, fmt.Sprintf(`INSERT INTO sys_user SELECT i, CASE WHEN i %% 100 = 0 THEN NULL ELSE 'User' || i END, '', 0, CASE WHEN i %% 50 = 1 THEN 0 ELSE 1 END FROM generate_series(1, %d) AS i`, users))
	s := startStack(t, in, settings{})
	for i := range 20 {
		s.binding.administer(t, http.MethodPost, "/routes/bind", map[string]any{"serviceId": "ai", "userId": fmt.Sprint(i*1000 + 2), "nodeId": s.nodes[i%3].name})
	}
	loginOK(t, s.client, "ann")
	const dump = `SELECT r::text FROM gateway_user_route r ORDER BY id`
	const bindings = `SELECT concat_ws('/', service_id, user_id, username, username_key, node_id, epoch) FROM gateway_user_route ORDER BY service_id, user_id`
	before := column(t, in, dump)
	const expected = `SELECT concat_ws('/', 'ai', id, username, lower(username), 'node-1', 1) AS u FROM sys_user WHERE status = 1
		AND NOT EXISTS (SELECT FROM gateway_user_route r WHERE r.user_id = sys_user.id::text AND r.import_id IS NULL)
		UNION ALL SELECT concat_ws('/', service_id, user_id, username, username_key, node_id, epoch) FROM gateway_user_route WHERE import_id IS NULL`
	want := column(t, in, expected)
	slices.Sort(want)

	request := map[string]any{"serviceId": "ai", "nodeId": "node-1"}
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		encoded, _ := json.Marshal(request)
		response, err := http.DefaultClient.Do(mustRequest(http.MethodPost, s.binding.admin+"/gateway/admin/routes/import-existing", adminToken, encoded))
		if err == nil {
			_ = response.Body.Close()
		}
	}()
	imported := func() int {
		count, err := strconv.Atoi(column(t, in, `SELECT count(*)::text FROM gateway_user_route WHERE import_id IS NOT NULL`)[0])
		require.NoError(t, err)
		return count
	}
	require.Eventually(t, func() bool { return imported() > users/4 }, time.Minute, 5*time.Millisecond)
	s.binding.Kill()
	<-broken
	half := imported()
	require.Less(t, half, users*9/10, "killed too late to show anything")
	s.binding.start(t)
	s.binding.ready(t)
	request["importId"] = 1
	report := s.binding.administer(t, http.MethodPost, "/routes/import-existing", request).(map[string]any)
	t.Logf("killed after %d of %d users; in the end %v", half, users, report["counts"])
	got := column(t, in, bindings)
	slices.Sort(got)
	require.Equal(t, len(want), len(got))
	require.True(t, slices.Equal(want, got))

	undone := s.binding.administer(t, http.MethodPost, "/imports/1/undo", nil).(map[string]any)
	require.Equal(t, "UNDONE", undone["state"])
	require.Equal(t, before, column(t, in, dump))
	// Where was an imported user meanwhile? The audit knows it from the undo.
	then := column(t, in, `SELECT to_char(create_time, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM gateway_import`)[0]
	past := s.binding.administer(t, http.MethodGet, "/audit/binding?serviceId=ai&userId=3&at="+then, nil)
	require.Nil(t, past, "not yet when the import began")
	now := column(t, in, `SELECT to_char(max((before->>'createTime')::timestamptz) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM gateway_audit WHERE action = 'binding.delete'`)[0]
	past = s.binding.administer(t, http.MethodGet, "/audit/binding?serviceId=ai&userId=3&at="+now, nil)
	require.Equal(t, "node-1", past.(map[string]any)["nodeId"])
}

// SIGTERM ends an import, whose client may not even read; sent again it goes on.
func TestAnImportDoesNotHoldUpTheEnd(t *testing.T) {
	const users = 100_000
	in := production(t)
	sql(t, in, userTable, fmt.Sprintf(`INSERT INTO sys_user SELECT i, 'User' || i, '', 0, 1 FROM generate_series(1, %d) AS i`, users))
	s := startStack(t, in, settings{})
	request := mustRequest(http.MethodPost, s.binding.admin+"/gateway/admin/routes/import-existing", adminToken, []byte(`{"serviceId":"ai","nodeId":"node-1"}`))
	request.Header.Set("Accept", "application/x-ndjson")
	response, err := http.DefaultClient.Do(request) // answers with its first line
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	status, refused := s.binding.call(t, http.MethodPost, s.binding.admin+"/gateway/admin/routes/import-existing", adminToken, map[string]any{"serviceId": "ai", "nodeId": "node-1"})
	require.Equal(t, http.StatusConflict, status, "one at a time: %v", refused)
	require.NoError(t, s.binding.Stop(15*time.Second), "in order, and without waiting for the import")
	require.Equal(t, []string{"RUNNING"}, column(t, in, `SELECT state FROM gateway_import`))

	s.binding.start(t)
	s.binding.ready(t)
	report := s.binding.administer(t, http.MethodPost, "/routes/import-existing", map[string]any{"serviceId": "ai", "nodeId": "node-1", "importId": 1}).(map[string]any)
	require.EqualValues(t, users, report["counts"].(map[string]any)["bound"])
}

func mustRequest(method, url, token string, body []byte) *http.Request {
	request, err := http.NewRequest(method, url, strings.NewReader(string(body)))
	if err != nil {
		panic(err)
	}
	request.Header.Set("x-token", token)
	return request
}

// The old gateway's database and Redis, as it left them, are taken over with every binding.
func TestCutOverFromTheOldGateway(t *testing.T) {
	in := production(t)
	var nodes []*node
	for _, name := range []string{"node-1", "node-2"} {
		nodes = append(nodes, startNode(t, name))
	}
	sql(t, in, userTable,
		`CREATE TABLE gateway_service (id varchar(64) PRIMARY KEY, name varchar(64), path_prefix varchar(128) UNIQUE, login_path varchar(128), health_path varchar(128),
			default_node_id varchar(64), enabled smallint DEFAULT 1, create_time timestamp DEFAULT now(), update_time timestamp DEFAULT now())`,
		`CREATE TABLE gateway_node (id varchar(64) PRIMARY KEY, service_id varchar(64), name varchar(64), base_url varchar(255), enabled smallint DEFAULT 1,
			remark varchar(255), create_time timestamp DEFAULT now(), update_time timestamp DEFAULT now())`,
		`CREATE TABLE gateway_user_route (id bigserial PRIMARY KEY, service_id varchar(64) NOT NULL, user_id bigint, username varchar(64), node_id varchar(64) NOT NULL,
			create_time timestamp DEFAULT now(), update_time timestamp DEFAULT now())`,
		`CREATE UNIQUE INDEX uk_gateway_user_route_user ON gateway_user_route (service_id, user_id)`,
		`CREATE UNIQUE INDEX uk_gateway_user_route_name ON gateway_user_route (service_id, username)`,
		`INSERT INTO gateway_service (id, name, path_prefix, login_path, health_path, default_node_id) VALUES ('ai', 'AI', '/js/a', '/sys/login', '/health', 'node-1')`,
		fmt.Sprintf(`INSERT INTO gateway_node (id, service_id, name, base_url) VALUES ('node-1', 'ai', 'one', '%s'), ('node-2', 'ai', 'two', '%s')`, nodes[0].url(), nodes[1].url()),
	)
	home := map[string]string{}
	for i := range 40 {
		name := fmt.Sprintf("User-%d", i)
		home[name] = nodes[i%2].name
		id := userID(name)
		if i%4 == 3 { // bound in advance by name, never logged in
			sql(t, in, fmt.Sprintf(`INSERT INTO gateway_user_route (service_id, username, node_id) VALUES ('ai', '%s', '%s')`, name, home[name]))
			continue
		}
		sql(t, in, fmt.Sprintf(`INSERT INTO gateway_user_route (service_id, user_id, username, node_id) VALUES ('ai', %s, '%s', '%s')`, id, name, home[name]),
			fmt.Sprintf(`INSERT INTO sys_user VALUES (%s, '%s', '', 0, 1)`, id, name))
		redisDo(t, in.redis, in.database, "SET gateway:route:user:ai:"+id+" "+home[name])
		redisDo(t, in.redis, in.database, "SET gateway:route:name:ai:"+strings.ToLower(name)+" "+home[name])
		switch i % 3 {
		case 0: // a session that the old gateway has cached
			redisDo(t, in.redis, in.database, "SETEX gateway:token:ai:"+tokenOf(name)+" 86400 "+id)
		case 1: // one that only sa-token knows
			sessionOf(t, in, tokenOf(name), id)
		}
	}
	// A cache entry that the old gateway has left behind wrong: SQL is the truth.
	redisDo(t, in.redis, in.database, "SET gateway:route:user:ai:"+userID("User-0")+" node-2")

	s := &stack{nodes: nodes, binding: startHomenode(t, in, nil, settings{})}
	s.traefik = startTraefik(t, s.binding, traefikproc.Options{})
	s.client = newClient(s.traefik.URL("web"))
	s.waitRouted(t, s.client)
	for i := range 40 {
		name := fmt.Sprintf("User-%d", i)
		if i%4 != 3 && i%3 != 2 {
			a := s.client.get("/js/a/whoami", tokenOf(name))
			require.Equal(t, home[name], a.node(), "%s goes on with the old session: %s", name, a)
			require.Equal(t, userID(name), decodeEcho(t, a).Header.Get("X-User-Id"))
		}
		require.Equal(t, home[name], loginOK(t, s.client, name), name)
		require.Equal(t, home[name], s.client.get("/js/a/whoami", tokenOf(name)).node(), name)
	}
	require.Len(t, s.binding.routes(t), 40)
	report := s.binding.administer(t, http.MethodPost, "/routes/import-existing?dryRun=true", map[string]any{"serviceId": "ai", "nodeId": "node-1"}).(map[string]any)
	require.EqualValues(t, 0, report["counts"].(map[string]any)["bound"], "everybody is bound already")
}

// The command line administers a running gateway.
func TestTheCommandLine(t *testing.T) {
	s := startStack(t, stores{}, settings{})
	loginOK(t, s.client, "ann")
	run := func(args ...string) (string, int) {
		t.Helper()
		return commandLine(t, []string{"HOMENODE_ADMIN_URL=" + s.binding.admin, "HOMENODE_ADMIN_TOKEN=" + adminToken}, args...)
	}
	ok := func(args ...string) string {
		t.Helper()
		output, code := run(args...)
		require.Zero(t, code, "%v: %s", args, output)
		return output
	}
	require.Contains(t, ok("status"), "node-2")
	require.Contains(t, ok("nodes", "set", "node-3", "--accept-new=false"), "node-3")
	require.Contains(t, ok("routes", "ann"), "ann")
	require.Contains(t, ok("bind", "--service", "ai", "--user", userID("ann"), "node-3"), "node-3")
	require.Equal(t, "node-3", s.client.get("/js/a/whoami", tokenOf("ann")).node())
	explained := ok("explain", "--user", userID("ann"), "/js/a/whoami")
	require.Contains(t, explained, "node-3")
	require.Contains(t, ok("audit", "--user", userID("ann")), "binding.rebind")
	file := filepath.Join(t.TempDir(), "users.csv")
	require.NoError(t, os.WriteFile(file, []byte("userId,username\n1,zoe\n2,ann\n"), 0o600))
	report := filepath.Join(t.TempDir(), "conflicts.csv")
	require.Contains(t, ok("import", "file", file, "--service", "ai", "--node", "node-1", "--report", report), "1")
	conflicts, err := os.ReadFile(report)
	require.NoError(t, err)
	require.Contains(t, string(conflicts), "NAME_TAKEN")
	require.Contains(t, ok("import", "undo", "1"), "UNDONE")
	require.Contains(t, ok("services", "-o", "json"), `"pathPrefix"`)
	ok("reload")
	ok("unbind", "--service", "ai", "--username", "ann")

	_, code := run("no-such-command")
	require.Equal(t, 2, code)
	_, code = run("bind", "--service", "ai", "--user", "1", "no-such-node")
	require.Equal(t, 1, code)
	output, code := commandLine(t, []string{"HOMENODE_ADMIN_URL=http://" + freeAddr(t), "HOMENODE_ADMIN_TOKEN=" + adminToken}, "status")
	require.Equal(t, 3, code, output)
	require.NotContains(t, output, adminToken)
	output, code = commandLine(t, []string{"HOMENODE_ADMIN_URL=" + s.binding.admin, "HOMENODE_ADMIN_TOKEN=wrong-wrong-wrong-wrong"}, "status")
	require.Equal(t, 1, code)
	require.Contains(t, output, "HOMENODE_ADMIN_TOKEN")
}
