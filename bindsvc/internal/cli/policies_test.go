package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func guardState(name string, enabled, shadow bool) api.GuardState {
	return api.GuardState{
		Name: name, Cost: "memory", Failure: api.GuardFailsOpen, Enabled: enabled, Shadow: shadow, Policies: 2,
		Counts: api.GuardCounts{Passed: 100, Refused: 7, Shadow: 3, Unchecked: 1},
	}
}

func policyRecord(id, body string) api.PolicyRecord {
	return api.PolicyRecord{Kind: api.KindRateLimit, ID: id, Body: api.Policy(body), Revision: to(int64(12)), UpdateTime: moment, Etag: `"p-1"`}
}

// page is a page of policies as the durable store has them.
func page(records []api.PolicyRecord) http.HandlerFunc {
	return data(map[string]any{"total": len(records), "page": 1, "size": 20, "records": records, "origin": api.OriginSQL})
}

func changed(action api.PolicyChangeAction, id, before, after string) api.PolicyChanged {
	return api.PolicyChanged{Revision: 13, Changes: []api.PolicyChange{{ID: id, Action: action, Before: body(before), After: body(after)}}}
}

func body(text string) api.Policy {
	if text == "" {
		return nil
	}
	return api.Policy(text)
}

const orders = `{"path":"/js/a/orders/{id}","rate":10}`

func TestPoliciesOverview(t *testing.T) {
	broken := guardState("access", true, false)
	broken.Broken = true
	off := guardState("identity", false, false)
	off.Remark = to("keys are being changed")
	g := setup(t)
	g.answers["getPolicies"] = data(map[string]any{
		"revision": 12, "origin": "Redis", "askedAt": moment, "pending": 1, "kinds": map[string]int{"rate-limit": 4},
		"guards":   []api.GuardState{guardState("rate-limit", true, true), off, broken},
		"problems": []api.PolicyProblem{{Kind: api.KindAccess, ID: "admin", Error: "roles: want at least one", LastGoodHolds: false}},
	})
	o := g.done("policies")
	require.Regexp(t, `(?m)^rate-limit +shadow +open +memory +2 +100 +7 +3 +1$`, o.out)
	require.Regexp(t, `(?m)^identity +off .*keys are being changed$`, o.out)
	require.Regexp(t, `(?m)^access +on .*a policy cannot be used$`, o.out)
	require.Regexp(t, `(?m)^rate-limit +4$`, o.out)
	require.Regexp(t, `(?m)^answers +0$`, o.out)
	require.Regexp(t, `access +admin +no +roles: want at least one`, o.out)
	require.Contains(t, o.err, "revision 12, from Redis")
	require.Contains(t, o.err, "not in the database yet: 1")
	require.Contains(t, g.done("policies", "-o", "json").out, `"lastGoodHolds": false`)
	require.Regexp(t, `(?m)^identity +off `, g.done("guards").out)
}

func TestListAndShowPolicies(t *testing.T) {
	g := setup(t)
	pending := policyRecord("b", orders)
	pending.Revision = nil
	g.answers["listPolicies"] = page([]api.PolicyRecord{policyRecord("a", orders), pending})
	o := g.done("policies", "list", "rate-limit", "--service", "ai", "--keyword", "o", "--page", "1", "--size", "20")
	require.Regexp(t, `(?m)^a +12 +\S+ \S+ +\{"path":"/js/a/orders/\{id\}","rate":10\}$`, o.out)
	require.Regexp(t, `(?m)^b +pending `, o.out)
	require.Equal(t, "2 policies\n", o.err)
	for _, part := range []string{"/policies/rate-limit?", "serviceId=ai", "keyword=o", "page=1", "size=20"} {
		require.Contains(t, g.last().url, part)
	}
	g.answers["listPolicies"] = data(map[string]any{"total": 0, "page": 1, "size": 20, "records": []any{}, "origin": "memory"})
	require.Contains(t, g.done("maintenance").err, "from memory")
	g.done("apps")
	require.Contains(t, g.last().url, "/policies/apps")

	g.answers["getPolicy"] = data(policyRecord("orders", orders))
	o = g.done("policies", "show", "rate-limit", "orders")
	require.Equal(t, "path: /js/a/orders/{id}\nrate: 10\n", o.out)
	require.Contains(t, o.err, `ETag "p-1"`)
	require.Contains(t, g.done("policies", "show", "rate-limit", "orders", "-o", "json").out, `"etag": "\"p-1\""`)
}

func TestWhatIsShownCanBeSet(t *testing.T) {
	g := setup(t)
	const policy = `{"mode":"jwt","public":["/a/**","/b: c"],"jwt":{"algorithms":["ES256"],"leeway":"1m0s","keys":[{"publicKey":"-----BEGIN\nx\n-----END\n"}],"audience":["7","true"]}}`
	g.answers["getPolicy"] = data(policyRecord("ai", policy))
	g.answers["setPolicy"] = data(changed(api.ChangeNone, "ai", policy, policy))
	shown := g.done("policies", "show", "identity", "ai").out
	o := g.runWith(context.Background(), shown, "policies", "set", "identity", "ai", "-f", "-")
	require.Equal(t, cli.ExitDone, o.code, o.err)
	require.JSONEq(t, policy, g.last().body)
	require.Contains(t, o.out, "is so already")
}

func TestSetAndDeletePolicies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "orders.yml")
	require.NoError(t, os.WriteFile(file, []byte("# of the shop\npath: /js/a/orders/{id}\nrate: 20\nper: 1m\nby: user\n"), 0o600))
	g := setup(t)
	done := changed(api.ChangeUpdate, "orders", orders, `{"path":"/js/a/orders/{id}","rate":20}`)
	g.answers["setPolicy"] = data(done)
	o := g.done("policies", "set", "rate-limit", "orders", "-f", file, "--if-match", `"p-1"`)
	require.Regexp(t, `rate-limit +orders +update +rate: 10 -> 20`, o.out)
	require.Equal(t, "revision 13\n", o.err)
	require.Equal(t, `"p-1"`, g.last().header.Get("If-Match"))
	require.NotContains(t, g.last().url, "dryRun")
	require.JSONEq(t, `{"path":"/js/a/orders/{id}","rate":20,"per":"1m","by":"user"}`, g.last().body)

	g.answers["deletePolicy"] = data(changed(api.ChangeDelete, "orders", orders, ""))
	require.Regexp(t, `rate-limit +orders +delete +\{"path"`, g.done("policies", "delete", "rate-limit", "orders", "--if-match", `"p-1"`, "--dry-run").out)
	require.Contains(t, g.last().url, "dryRun=true")

	expression := `{"breaker":"NetworkErrorRatio() \u003e 0.5 \u0026\u0026 x \u003c 1","remark":"\\u003e \""}`
	g.answers["deletePolicy"] = data(changed(api.ChangeDelete, "ai", expression, ""))
	require.Contains(t, g.done("policies", "delete", "degradation", "ai").out, `{"breaker":"NetworkErrorRatio() > 0.5 && x < 1","remark":"\\u003e \""}`)

	t.Run("a wrong field is named", func(t *testing.T) {
		g.answers["setPolicy"] = refuse(http.StatusBadRequest, "VALIDATION", `property "burts" is unsupported`)
		o := g.run("policies", "set", "rate-limit", "orders", "-f", file)
		require.Equal(t, cli.ExitFailed, o.code)
		require.Contains(t, o.err, "burts")
	})
	t.Run("what is no YAML is not sent", func(t *testing.T) {
		g := setup(t)
		o := g.runWith(context.Background(), "path: [", "policies", "set", "rate-limit", "orders", "-f", "-")
		require.Equal(t, cli.ExitUsage, o.code)
		require.Contains(t, o.err, "[1:7]")
		require.Empty(t, g.asked())
	})
}

func TestADryRunIsATableToActOn(t *testing.T) {
	g := setup(t)
	tried := changed(api.ChangeCreate, "orders", "", orders)
	tried.DryRun = true
	tried.Replay = &api.PolicyReplay{
		Since: to(moment), Requests: 1200, Refused: 12, Admitted: 1, Reasons: map[string]int{"RATE_LIMITED": 12},
		Samples: []api.ReplayedRequest{{Time: moment, ServiceID: "ai", Method: "POST", Path: "/js/a/orders/7", UserID: to("7"), Reason: "RATE_LIMITED"}},
	}
	g.answers["setPolicy"], g.answers["rollBackPolicies"] = data(tried), data(tried)
	o := g.runWith(context.Background(), orders, "policies", "set", "rate-limit", "orders", "-f", "-", "--dry-run")
	require.Equal(t, cli.ExitDone, o.code, o.err)
	require.Contains(t, g.last().url, "dryRun=true")
	require.Regexp(t, `RATE_LIMITED +12\n`, o.out)
	require.Regexp(t, `ai +POST +/js/a/orders/7 +7 +RATE_LIMITED\n`, o.out)
	require.Regexp(t, `of the last 1200 requests \(since \S+ \S+\) 12 that pass now would be refused, 1 that are refused now would pass`, o.out)
	require.Contains(t, o.err, "nothing has changed")

	o = g.done("policies", "rollback", "signature", "--to", "0", "--dry-run")
	require.JSONEq(t, `{"revision":0}`, g.last().body)
	require.Contains(t, o.out, "are not remembered")
	tried.Replay = &api.PolicyReplay{Reasons: map[string]int{}, Samples: []api.ReplayedRequest{}}
	g.answers["rollBackPolicies"] = data(tried)
	require.Contains(t, g.done("policies", "rollback", "access", "--to", "12", "--dry-run").out, "remembers no requests")
}

func TestApplyPolicies(t *testing.T) {
	const file = "rate-limit:\n  - {id: a, path: /a, rate: 1}\n  - id: b\n    path: /b\n    rate: 2\nmaintenance: []\n"
	g := setup(t)
	require.Contains(t, g.done("policies", "set", "--help").out, `'{path: "/js/a/orders/{id}", rate: 10, by: user}'`, "as YAML wants it")
	g.answers["setPolicies"] = data(changed(api.ChangeCreate, "a", "", orders))
	o := g.runWith(context.Background(), file, "policies", "apply", "-f", "-", "--replace", "--dry-run")
	require.Equal(t, cli.ExitDone, o.code, o.err)
	all := g.asked()
	require.Len(t, all, 2)
	require.Contains(t, all[0].url, "/policies/maintenance?dryRun=true")
	require.JSONEq(t, `{"policies":[],"replace":true}`, all[0].body)
	require.JSONEq(t, `{"policies":[{"id":"a","body":{"path":"/a","rate":1}},{"id":"b","body":{"path":"/b","rate":2}}],"replace":true}`, all[1].body)

	t.Run("it is said what stays when a later kind is refused", func(t *testing.T) {
		g := setup(t)
		g.answers["setPolicies"] = func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "rate-limit") {
				refuse(http.StatusBadRequest, "VALIDATION", "policies.1.body: rate: no")(w, r)
				return
			}
			data(changed(api.ChangeDelete, "a", `{}`, ""))(w, r)
		}
		o := g.runWith(context.Background(), file, "policies", "apply", "-f", "-")
		require.Equal(t, cli.ExitFailed, o.code)
		require.Contains(t, o.err, "rate-limit: policies.1.body: rate: no")
		require.Contains(t, o.err, "still so: maintenance")
	})
	for name, wrong := range map[string]string{
		"no kinds": "[]", "nothing": "", "unknown kind": "quotas: []", "no list": "access: {a: b}", "no id": "access: [{path: /a}]", "wrong id": "access: [{id: a/b}]",
	} {
		t.Run(name, func(t *testing.T) {
			g := setup(t)
			require.Equal(t, cli.ExitUsage, g.runWith(context.Background(), wrong, "policies", "apply", "-f", "-").code)
			require.Empty(t, g.asked())
		})
	}
}

func TestPolicyHistoryAndRollback(t *testing.T) {
	g := setup(t)
	g.answers["policyHistory"] = data(map[string]any{"total": 21, "page": 1, "size": 20, "records": []api.PolicyHistoryEntry{{
		Revision: 13, Time: moment, Actor: "user:1", Address: "10.0.0.1", RequestID: "q", ID: "orders", Action: api.HistoryUpdate,
		Before: body(orders), After: body(`{"path":"/js/a/orders/{id}","rate":20}`),
	}}})
	o := g.done("policies", "history", "rate-limit", "--id", "orders")
	require.Regexp(t, `13 +\S+ \S+ +user:1 +10.0.0.1 +orders +update +rate: 10 -> 20 +q`, o.out)
	require.Equal(t, "page 1 of 2, 21 changes\n", o.err)
	require.Equal(t, "orders", g.lastQuery("id"))
	g.answers["rollBackPolicies"] = data(changed(api.ChangeUpdate, "orders", `{"path":"/a","rate":20}`, `{"path":"/a","rate":10}`))
	require.Regexp(t, `orders +update +rate: 20 -> 10`, g.done("policies", "rollback", "rate-limit", "--to", "12").out)
	require.JSONEq(t, `{"revision":12}`, g.last().body)
}

func TestSwitches(t *testing.T) {
	for _, c := range []struct{ line, url, body string }{
		{"guards on rate-limit", "/policies/guards/rate-limit", `{"enabled":true,"shadow":false}`},
		{"guards off access --remark why", "/policies/guards/access", `{"enabled":false,"shadow":false,"remark":"why"}`},
		{"guards shadow identity", "/policies/guards/identity", `{"enabled":true,"shadow":true}`},
		{"maintenance on", "/policies/maintenance/main", `{}`},
		{
			"maintenance on --id up --service ai --service crm --path /js/a/** --message-zh 升级 --message-en up --until 2026-01-31T10:00:00+08:00 --tester-address 10.0.0.0/8 --tester-user 7 --dry-run",
			"/policies/maintenance/up?dryRun=true",
			`{"services":["ai","crm"],"paths":["/js/a/**"],"message":{"zh":"升级","en":"up"},"end":"2026-01-31T10:00:00+08:00","testers":{"addresses":["10.0.0.0/8"],"users":["7"]}}`,
		},
	} {
		t.Run(c.line, func(t *testing.T) {
			g := setup(t)
			pending := changed(api.ChangeCreate, "x", "", c.body)
			pending.Pending = true
			g.answers["setPolicy"] = data(pending)
			o := g.done(strings.Fields(c.line)...)
			require.Equal(t, []string{"setPolicy"}, g.operations(), "a switch for emergencies reads nothing before")
			require.True(t, strings.HasSuffix(g.last().url, c.url), g.last().url)
			require.JSONEq(t, c.body, g.last().body)
			require.Contains(t, o.err, "in force on all instances")
		})
	}
	g := setup(t)
	g.answers["setPolicy"], g.answers["deletePolicy"] = data(changed(api.ChangeCreate, "main", "", `{}`)), data(changed(api.ChangeDelete, "main", `{}`, ""))
	before := time.Now()
	g.done("maintenance", "on", "--until", "2h")
	var on api.MaintenancePolicy
	require.NoError(t, json.Unmarshal([]byte(g.last().body), &on))
	require.WithinDuration(t, before.Add(2*time.Hour), *on.End, time.Minute)
	g.done("maintenance", "off")
	require.Contains(t, g.last().url, "/policies/maintenance/main")
	g.done("maintenance", "off", "--id", "up")
	require.Contains(t, g.last().url, "/policies/maintenance/up")

	g.answers["deletePolicy"] = refuse(http.StatusNotFound, "NOT_FOUND", "no such policy")
	o := g.run("maintenance", "off")
	require.Equal(t, cli.ExitFailed, o.code)
	require.Contains(t, o.err, "there is no maintenance main; homenode maintenance lists")
}

func app(secrets ...api.AppSecret) api.PolicyRecord {
	policy, _ := json.Marshal(api.AppPolicy{Name: to("Partner"), Secrets: secrets})
	record := policyRecord("partner", string(policy))
	record.Kind = api.KindApps
	return record
}

func TestApps(t *testing.T) {
	sent := func(g *fakeGateway) (policy api.AppPolicy) {
		require.NoError(t, json.Unmarshal([]byte(g.last().body), &policy))
		return policy
	}
	g := setup(t)
	g.answers["getPolicy"] = refuse(http.StatusNotFound, "NOT_FOUND", "none")
	g.answers["setPolicy"] = data(changed(api.ChangeCreate, "partner", "", `{"secrets":[{"id":"x"}]}`))
	o := g.done("apps", "add", "partner", "--name", "Partner", "--service", "ai", "--remark", "r")
	secret := strings.TrimSpace(o.out)
	require.Len(t, secret, 43, "it alone is on standard output")
	require.NotContains(t, o.err, secret)
	require.Equal(t, secret, *sent(g).Secrets[0].Value)
	require.NotEmpty(t, *sent(g).Secrets[0].ID)
	require.NotEqual(t, secret, strings.TrimSpace(g.done("apps", "add", "partner").out))
	var shown struct{ ClientID, Secret string }
	require.NoError(t, json.Unmarshal([]byte(g.done("apps", "add", "partner", "-o", "json").out), &shown))
	require.Equal(t, shown.Secret, *sent(g).Secrets[0].Value)

	first, second := api.AppSecret{ID: to("1"), SetAt: to(moment)}, api.AppSecret{ID: to("2"), SetAt: to(moment.Add(time.Hour))}
	g.answers["getPolicy"] = data(app(first))
	require.Contains(t, g.run("apps", "add", "partner").err, "homenode apps rotate partner")
	require.Contains(t, g.run("apps", "retire", "partner").err, "one secret only")
	o = g.done("apps", "rotate", "partner")
	rotated := sent(g)
	require.Equal(t, `"p-1"`, g.last().header.Get("If-Match"))
	require.Equal(t, "Partner", *rotated.Name)
	require.Equal(t, "1", *rotated.Secrets[0].ID)
	require.Nil(t, rotated.Secrets[0].Value, "stays as it is")
	require.Equal(t, strings.TrimSpace(o.out), *rotated.Secrets[1].Value)

	g.answers["getPolicy"] = data(app(second, first))
	require.Contains(t, g.run("apps", "rotate", "partner").err, "homenode apps retire partner")
	require.Contains(t, g.done("apps", "retire", "partner").out, "only the secret 2 of partner")
	require.Len(t, sent(g).Secrets, 1)
	require.Equal(t, "2", *sent(g).Secrets[0].ID)

	second.SetAt = first.SetAt
	g.answers["getPolicy"] = data(app(first, second))
	require.Contains(t, g.done("apps", "retire", "partner").out, "only the secret 2 of partner", "made in the same second")

	t.Run("no secret where it was not set", func(t *testing.T) {
		g.answers["getPolicy"] = refuse(http.StatusNotFound, "NOT_FOUND", "none")
		g.answers["setPolicy"] = refuse(http.StatusServiceUnavailable, "STORE_UNAVAILABLE", "down")
		o := g.run("apps", "add", "partner")
		require.Equal(t, cli.ExitFailed, o.code)
		require.Empty(t, o.out)
	})
}

func TestRolesAndKickOut(t *testing.T) {
	g := setup(t)
	g.answers["listRoles"] = data(map[string]any{"total": 1, "page": 1, "size": 20, "records": []api.UserRole{{ServiceID: "ai", UserID: "7", Role: "operator"}}})
	for _, args := range [][]string{{"roles"}, {"roles", "list"}} {
		require.Equal(t, []string{"ai", "7", "operator"}, fields(lines(g.done(append(args, "--service", "ai", "--user", "7", "--role", "operator")...).out)[1]))
		require.Equal(t, "operator", g.lastQuery("role"))
	}
	g.answers["setRoles"] = data(api.UserRoles{ServiceID: "ai", UserID: "a/7", Roles: []string{"operator", "auditor"}})
	require.Contains(t, g.done("roles", "set", "--service", "ai", "--user", "a/7", "operator", "auditor").out, "operator, auditor")
	require.Contains(t, g.last().url, "/roles/ai/a%2F7")
	require.JSONEq(t, `{"roles":["operator","auditor"]}`, g.last().body)
	g.answers["setRoles"] = data(api.UserRoles{ServiceID: "ai", UserID: "7", Roles: []string{}})
	g.done("roles", "set", "--service", "ai", "--user", "7", "--none")
	require.JSONEq(t, `{"roles":[]}`, g.last().body)

	g.answers["kickOut"] = data(api.KickedOut{ServiceID: "ai", UserID: "7", Enforced: true})
	o := g.done("kick-out", "--service", "ai", "--user", "7")
	require.Contains(t, o.out, "user 7 of ai is kicked out")
	require.Empty(t, o.err)
	require.JSONEq(t, `{"serviceId":"ai","userId":"7"}`, g.last().body)
	g.answers["kickOut"] = data(api.KickedOut{ServiceID: "ai", UserID: "7"})
	require.Contains(t, g.done("kick-out", "--service", "ai", "--user", "7").err, "still pass")
}
