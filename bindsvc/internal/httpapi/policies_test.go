package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/httpapi"
)

const appSecret = "an-apps-own-secret-of-32-characters"

func encode(t *testing.T, value any) api.Policy {
	t.Helper()
	raw, err := json.Marshal(value)
	require.NoError(t, err)
	return raw
}

// requirePolicyOperations asks every operation of policies, roles and sessions.
func requirePolicyOperations(t *testing.T, client *api.ClientWithResponses) {
	t.Helper()
	ctx := t.Context()
	limit := api.RateLimitPolicy{Path: "/js/a/orders/{id}", Rate: 10, Services: &api.PolicyServices{"ai"}}
	set, err := client.SetPolicyWithResponse(ctx, api.KindRateLimit, "orders", nil, encode(t, limit))
	require.NoError(t, err)
	require.NotNil(t, set.JSON200, string(set.Body))
	first := set.JSON200.Data
	require.Equal(t, api.ChangeCreate, first.Changes[0].Action)
	require.Equal(t, first.Record.Etag, set.HTTPResponse.Header.Get("ETag"))
	require.Equal(t, first.Revision, *first.Record.Revision)

	one, err := client.GetPolicyWithResponse(ctx, api.KindRateLimit, "orders")
	require.NoError(t, err)
	require.Equal(t, first.Record.Etag, one.JSON200.Data.Etag)
	limit.Rate = 20
	changed, err := client.SetPolicyWithResponse(ctx, api.KindRateLimit, "orders", &api.SetPolicyParams{IfMatch: &one.JSON200.Data.Etag}, encode(t, limit))
	require.NoError(t, err)
	require.Equal(t, api.ChangeUpdate, changed.JSON200.Data.Changes[0].Action)
	late, err := client.SetPolicyWithResponse(ctx, api.KindRateLimit, "orders", &api.SetPolicyParams{IfMatch: &one.JSON200.Data.Etag}, encode(t, limit))
	require.NoError(t, err)
	require.Equal(t, http.StatusPreconditionFailed, late.StatusCode())
	again, err := client.SetPolicyWithResponse(ctx, api.KindRateLimit, "orders", nil, encode(t, limit))
	require.NoError(t, err)
	require.Equal(t, api.ChangeNone, again.JSON200.Data.Changes[0].Action)
	require.Equal(t, changed.JSON200.Data.Revision, again.JSON200.Data.Revision, "nothing has changed")
	require.Equal(t, changed.JSON200.Data.Record.Etag, again.JSON200.Data.Record.Etag)

	many, err := client.SetPoliciesWithResponse(ctx, api.KindAccess, nil, api.PolicyList{Policies: []api.PolicyEntry{
		{ID: "operators", Body: encode(t, api.AccessPolicy{Type: api.AccessRBAC, Path: "/js/a/admin/**", Roles: &[]api.Role{"operator"}})},
		{ID: "read", Body: encode(t, api.AccessPolicy{Type: api.AccessMethod, Path: "/js/a/reports", Methods: &[]api.PolicyMethod{"GET"}})},
	}})
	require.NoError(t, err)
	require.NotNil(t, many.JSON200, string(many.Body))
	require.Len(t, many.JSON200.Data.Changes, 2, string(many.Body))
	require.Nil(t, many.JSON200.Data.Record)
	replaced, err := client.SetPoliciesWithResponse(ctx, api.KindAccess, nil, api.PolicyList{Replace: pointer(true), Policies: []api.PolicyEntry{
		{ID: "read", Body: encode(t, api.AccessPolicy{Type: api.AccessMethod, Path: "/js/a/reports", Methods: &[]api.PolicyMethod{"GET"}})},
	}})
	require.NoError(t, err)
	require.Equal(t, api.ChangeDelete, replaced.JSON200.Data.Changes[0].Action)
	require.Equal(t, api.ChangeNone, replaced.JSON200.Data.Changes[1].Action)
	back, err := client.RollBackPoliciesWithResponse(ctx, api.KindAccess, nil, api.PolicyRollback{Revision: many.JSON200.Data.Revision})
	require.NoError(t, err)
	require.NotNil(t, back.JSON200, string(back.Body))
	require.Equal(t, api.ChangeCreate, back.JSON200.Data.Changes[0].Action)
	require.Equal(t, "operators", back.JSON200.Data.Changes[0].ID)

	list, err := client.ListPoliciesWithResponse(ctx, api.KindAccess, &api.ListPoliciesParams{Keyword: pointer("OPER"), ServiceID: pointer("ai")})
	require.NoError(t, err)
	require.EqualValues(t, 1, list.JSON200.Data.Total)
	require.Equal(t, api.OriginSQL, list.JSON200.Data.Origin)
	history, err := client.PolicyHistoryWithResponse(ctx, api.KindAccess, nil)
	require.NoError(t, err)
	require.EqualValues(t, 4, history.JSON200.Data.Total, string(history.Body))
	require.Equal(t, gateway.ActorAdminToken, history.JSON200.Data.Records[0].Actor)
	ofOne, err := client.PolicyHistoryWithResponse(ctx, api.KindAccess, &api.PolicyHistoryParams{ID: pointer("operators")})
	require.NoError(t, err)
	require.EqualValues(t, 3, ofOne.JSON200.Data.Total)
	require.Equal(t, api.HistoryCreate, ofOne.JSON200.Data.Records[0].Action)
	require.Nil(t, nilIfNull(ofOne.JSON200.Data.Records[0].Before))
	overview, err := client.GetPoliciesWithResponse(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, overview.JSON200.Data.Kinds["access"])
	require.Equal(t, back.JSON200.Data.Revision, overview.JSON200.Data.Revision)

	given, err := client.SetRolesWithResponse(ctx, "ai", "team/7", api.RolesChange{Roles: []api.Role{"operator", "auditor"}})
	require.NoError(t, err)
	require.NotNil(t, given.JSON200, string(given.Body))
	require.Equal(t, "team/7", given.JSON200.Data.UserID)
	roles, err := client.GetRolesWithResponse(ctx, "ai", "team/7")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"operator", "auditor"}, roles.JSON200.Data.Roles)
	page, err := client.ListRolesWithResponse(ctx, &api.ListRolesParams{Role: pointer("auditor"), ServiceID: pointer("ai"), UserID: pointer("team/7")})
	require.NoError(t, err)
	require.EqualValues(t, 1, page.JSON200.Data.Total)

	out, err := client.KickOutWithResponse(ctx, api.KickOutRequest{ServiceID: "ai", UserID: "7"})
	require.NoError(t, err)
	require.False(t, out.JSON200.Data.Enforced, "no identity policy")
	gone, err := client.DeletePolicyWithResponse(ctx, api.KindRateLimit, "orders", nil)
	require.NoError(t, err)
	require.Equal(t, api.ChangeDelete, gone.JSON200.Data.Changes[0].Action)
	_, err = client.SetPoliciesWithResponse(ctx, api.KindAccess, nil, api.PolicyList{Policies: []api.PolicyEntry{}, Replace: pointer(true)})
	require.NoError(t, err)
}

func nilIfNull(body api.Policy) api.Policy {
	if string(body) == "null" {
		return nil
	}
	return body
}

func TestEveryKindOfPolicyHasItsSchema(t *testing.T) {
	b := setup(t, nil)
	bodies := map[gateway.PolicyKind]string{
		gateway.PolicyGuards: `{"enabled":true}`, gateway.PolicyMaintenance: `{"enabled":false}`, gateway.PolicyIdentity: `{"mode":"passthrough"}`,
		gateway.PolicyApps: `{"secrets":[{"value":"` + appSecret + `"}]}`, gateway.PolicySignature: `{"paths":["/x"],"ttl":"90s"}`,
		gateway.PolicyRateLimit: `{"path":"/x","rate":0.5,"per":"1m"}`, gateway.PolicyAccess: `{"type":"grey","path":"/x","percent":12.5}`,
		gateway.PolicyDegradation: `{"code":1}`, gateway.PolicyAnswers: `{"messages":{"MAINTENANCE":{"zh":"a"}}}`,
	}
	for _, kind := range gateway.PolicyKinds {
		r := b.call(http.MethodPut, "/policies/"+string(kind)+"/access", bodies[kind])
		require.Equal(t, http.StatusOK, r.Code, "%s: %s", kind, r.Body)
		// What is shown can be given back: it is the form in which policies are edited.
		_, shown := open(t, b.call(http.MethodGet, "/policies/"+string(kind)+"/access", ""))
		_, changed := open(t, b.call(http.MethodPut, "/policies/"+string(kind)+"/access", string(encode(t, shown["body"]))))
		require.Equal(t, "none", changed["changes"].([]any)[0].(map[string]any)["action"], kind)
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	b := setup(t, nil)
	body := `{"name":"Partner","secrets":[{"id":"1","value":"` + appSecret + `"}]}`
	key := `{"mode":"jwt","services":["ai"],"jwt":{"algorithms":["HS256"],"keys":[{"id":"k","value":"` + appSecret + `"}]}}`
	answers := []*httptest.ResponseRecorder{
		b.call(http.MethodPut, "/policies/apps/partner?dryRun=true", body), b.call(http.MethodPut, "/policies/apps/partner", body),
		b.call(http.MethodPut, "/policies/identity/ai", key), b.call(http.MethodPut, "/policies/apps/partner", strings.Replace(body, appSecret, "another-"+appSecret, 1)),
		b.call(http.MethodPut, "/policies/apps/partner", `{"name":"Renamed","secrets":[{"id":"1"}]}`),
		b.call(http.MethodPost, "/policies/apps?dryRun=true", `{"replace":true,"policies":[]}`),
		b.call(http.MethodPost, "/policies/apps", `{"policies":[{"id":"other","body":`+body+`}]}`),
		b.call(http.MethodGet, "/policies/apps/partner", ""), b.call(http.MethodGet, "/policies/apps", ""), b.call(http.MethodGet, "/policies/identity", ""),
		b.call(http.MethodGet, "/policies/apps/history", ""), b.call(http.MethodGet, "/policies/identity/history?id=ai", ""), b.call(http.MethodGet, "/audit", ""),
		b.call(http.MethodPost, "/policies/apps/rollback?dryRun=true", `{"revision":0}`), b.call(http.MethodGet, "/policies", ""), b.call(http.MethodGet, "/status", ""),
		b.call(http.MethodGet, "/explain?serviceId=ai&token=x", ""), b.call(http.MethodDelete, "/policies/apps/partner", ""), b.call(http.MethodGet, "/audit?action=policy", ""),
	}
	for i, answer := range answers {
		require.Equal(t, http.StatusOK, answer.Code, "%d: %s", i, answer.Body)
		for _, never := range []string{appSecret, "sealed", "v1."} {
			require.NotContains(t, answer.Body.String(), never, i)
		}
	}
	require.Contains(t, answers[1].Body.String(), "setAt")
	requireRefused(t, b.call(http.MethodPut, "/policies/apps/bad", `{"secrets":[{"value":"`+appSecret+`","notAfter":"x"}]}`), gateway.Validation)
	bad := b.call(http.MethodPut, "/policies/apps/bad", `{"secrets":["`+appSecret+`"]}`)
	require.NotContains(t, bad.Body.String(), appSecret)

	policies, _, err := b.store.LoadPolicies(t.Context())
	require.NoError(t, err)
	require.NotContains(t, string(encode(t, policies)), appSecret, "not in the store either")
}

func TestASecretWithoutAValueStays(t *testing.T) {
	b := setup(t, nil)
	put := func(body string) map[string]any {
		_, data := open(t, b.call(http.MethodPut, "/policies/apps/partner", body))
		return data
	}
	put(`{"secrets":[{"id":"1","value":"` + appSecret + `"}]}`)
	secrets := func() []string { return b.policies.Snapshot().App("ai", "partner").GoodSecrets(time.Now()) }
	require.Equal(t, []string{appSecret}, secrets())
	put(`{"name":"P","secrets":[{"id":"1"},{"id":"2","value":"the-second-secret-of-the-app"}]}`)
	require.Equal(t, []string{appSecret, "the-second-secret-of-the-app"}, secrets())
	put(`{"name":"P","secrets":[{"id":"2"}]}`)
	require.Equal(t, []string{"the-second-secret-of-the-app"}, secrets())
}

// ask sends a request of anybody to a path, as the plugin asks about it.
func (b *bundle) ask(method, path string) *httptest.ResponseRecorder {
	return b.decide(map[string]string{"X-Homenode-Service": "ai", "X-Forwarded-Method": method, "X-Forwarded-Uri": path})
}

func TestADryRunTellsWhatWouldHaveBeenRefusedAndChangesNothing(t *testing.T) {
	b := setup(t, nil)
	for i := range 5 {
		require.Equal(t, http.StatusOK, b.ask(http.MethodGet, fmt.Sprintf("/js/a/orders/%d", i)).Code)
	}
	require.Equal(t, http.StatusOK, b.ask(http.MethodGet, "/js/a/cases").Code)
	before := b.dump(t)
	try := func(method, path, body string) api.PolicyChanged {
		t.Helper()
		r := b.call(method, path, body)
		require.Equal(t, http.StatusOK, r.Code, r.Body.String())
		var answer api.PolicyChangedAnswer
		require.NoError(t, json.Unmarshal(r.Body.Bytes(), &answer))
		require.True(t, answer.Data.DryRun)
		require.NotNil(t, answer.Data.Replay)
		require.Nil(t, answer.Data.Record)
		return answer.Data
	}
	for _, shadow := range []string{"false", "true"} {
		limited := try(http.MethodPut, "/policies/rate-limit/orders?dryRun=true", `{"path":"/js/a/orders/{id}","rate":0.0001,"burst":2,"shadow":`+shadow+`}`)
		require.Equal(t, api.ChangeCreate, limited.Changes[0].Action)
		require.Equal(t, 6, limited.Replay.Requests)
		require.Equal(t, 3, limited.Replay.Refused)
		require.Equal(t, map[string]int{"RATE_LIMITED": 3}, limited.Replay.Reasons)
		require.Len(t, limited.Replay.Samples, 3)
		require.Equal(t, "/js/a/orders/2", limited.Replay.Samples[0].Path)
		require.NotNil(t, limited.Replay.Since)
	}
	require.Equal(t, 6, try(http.MethodPost, "/policies/maintenance?dryRun=true", `{"policies":[{"id":"all","body":{}}]}`).Replay.Refused)
	require.Equal(t, before, b.dump(t))
	require.Equal(t, http.StatusOK, b.ask(http.MethodGet, "/js/a/cases").Code)

	require.Equal(t, http.StatusOK, b.call(http.MethodPut, "/policies/maintenance/all", `{}`).Code)
	require.Equal(t, http.StatusServiceUnavailable, b.ask(http.MethodGet, "/js/a/cases").Code)
	before = b.dump(t)
	require.Positive(t, try(http.MethodDelete, "/policies/maintenance/all?dryRun=true", "").Replay.Admitted)
	require.Equal(t, api.ChangeDelete, try(http.MethodPost, "/policies/maintenance/rollback?dryRun=true", `{"revision":0}`).Changes[0].Action)
	require.Equal(t, before, b.dump(t))
}

func TestSwitchesAndShadowMode(t *testing.T) {
	b := setup(t, nil)
	b.call(http.MethodPut, "/policies/maintenance/all", `{"message":{"zh":"升级"}}`)
	status := func(body string) int {
		t.Helper()
		if body != "" {
			require.Equal(t, http.StatusOK, b.call(http.MethodPut, "/policies/guards/maintenance", body).Code)
		}
		return b.ask(http.MethodGet, "/js/a/cases").Code
	}
	require.Equal(t, http.StatusServiceUnavailable, status(""))
	require.Equal(t, http.StatusOK, status(`{"enabled":false}`))
	require.Equal(t, http.StatusOK, status(`{"enabled":true,"shadow":true}`))
	require.Equal(t, http.StatusServiceUnavailable, status(`{"enabled":true}`))
	var overview api.PoliciesAnswer
	require.NoError(t, json.Unmarshal(b.call(http.MethodGet, "/policies", "").Body.Bytes(), &overview))
	state := overview.Data.Guards[0]
	require.Equal(t, "maintenance", state.Name)
	require.Equal(t, api.GuardFailsOpen, state.Failure)
	require.EqualValues(t, 2, state.Counts.Refused)
	require.EqualValues(t, 1, state.Counts.Shadow)
	require.Equal(t, 1, state.Policies)

	t.Run("is explained", func(t *testing.T) {
		var explained api.ExplanationAnswer
		r := b.call(http.MethodGet, "/explain?path=/js/a/cases&address=192.0.2.7&source=app", "")
		require.NoError(t, json.Unmarshal(r.Body.Bytes(), &explained))
		require.Equal(t, "MAINTENANCE", *explained.Data.Verdict.Reason)
		require.Contains(t, strings.Join(explained.Data.WhatWouldChangeIt, "\n"), "homenode maintenance off")
		require.Contains(t, r.Body.String(), `"guard"`)
		b.call(http.MethodPut, "/policies/maintenance/all", `{"testers":{"addresses":["192.0.2.0/24"]}}`)
		r = b.call(http.MethodGet, "/explain?path=/js/a/cases&address=192.0.2.7", "")
		require.NoError(t, json.Unmarshal(r.Body.Bytes(), &explained))
		require.True(t, explained.Data.Verdict.Forward, r.Body.String())
	})
}

func TestRollbackRestores(t *testing.T) {
	b := setup(t, nil)
	revision := func(r *httptest.ResponseRecorder) int64 {
		t.Helper()
		_, data := open(t, r)
		require.Equal(t, http.StatusOK, r.Code, r.Body.String())
		return int64(data["revision"].(float64))
	}
	shown := func() string {
		var page api.PolicyPageAnswer
		require.NoError(t, json.Unmarshal(b.call(http.MethodGet, "/policies/apps", "").Body.Bytes(), &page))
		bodies := map[string]any{}
		for _, r := range page.Data.Records {
			bodies[r.ID] = r.Body
		}
		return string(encode(t, bodies))
	}
	revision(b.call(http.MethodPut, "/policies/apps/a", `{"secrets":[{"value":"`+appSecret+`"}]}`))
	good := revision(b.call(http.MethodPut, "/policies/apps/b", `{"secrets":[{"value":"`+appSecret+`"}]}`))
	was := shown()
	revision(b.call(http.MethodPut, "/policies/apps/a", `{"secrets":[{"value":"overwritten-by-mistake"}]}`))
	revision(b.call(http.MethodDelete, "/policies/apps/b", ""))
	revision(b.call(http.MethodPut, "/policies/apps/c", `{"secrets":[{"value":"overwritten-by-mistake"}]}`))
	require.NotEqual(t, was, shown())
	revision(b.call(http.MethodPost, "/policies/apps/rollback", fmt.Sprintf(`{"revision":%d}`, good)))
	require.Equal(t, was, shown())
	require.Equal(t, []string{appSecret}, b.policies.Snapshot().App("ai", "a").GoodSecrets(time.Now()), "with their secrets")
}

func TestTenThousandPoliciesAtOnce(t *testing.T) {
	b := setup(t, nil)
	list := func(n int, last string) string {
		var body strings.Builder
		body.WriteString(`{"replace":true,"policies":[`)
		for i := range n {
			fmt.Fprintf(&body, `{"id":"r%d","body":{"path":"/js/a/interfaces/%d/{id}","rate":%d}},`, i, i, i+1)
		}
		return strings.TrimSuffix(body.String(), ",") + last + "]}"
	}
	requireRefused(t, b.call(http.MethodPost, "/policies/rate-limit", list(9_999, `,{"id":"last","body":{"path":"/{x","rate":1}}`)), gateway.Validation)
	requireRefused(t, b.call(http.MethodPost, "/policies/rate-limit", list(10_001, "")), gateway.Validation)
	require.Zero(t, b.policies.Snapshot().Count(gateway.PolicyRateLimit), "none of them")
	r := b.call(http.MethodPost, "/policies/rate-limit", list(10_000, ""))
	require.Equal(t, http.StatusOK, r.Code, "%.300s", r.Body)
	require.Equal(t, 10_000, b.policies.Snapshot().Count(gateway.PolicyRateLimit))
	limits, _ := b.policies.Snapshot().At("/js/a/interfaces/9999/x").Limits("ai", "GET")
	require.Len(t, limits, 1)
	require.Equal(t, http.StatusOK, b.call(http.MethodPost, "/policies/rate-limit", list(3, "")).Code)
	require.Equal(t, 3, b.policies.Snapshot().Count(gateway.PolicyRateLimit))

	requireRefused(t, b.call(http.MethodPost, "/policies/rate-limit", `{"policies":[],"x":"`+strings.Repeat("x", 8<<20)+`"}`), gateway.TooLarge)
	requireRefused(t, b.call(http.MethodPut, "/policies/rate-limit/x", `{"remark":"`+strings.Repeat("x", 1<<20)+`"}`), gateway.TooLarge)
}

func TestIfMatchGuardsDeletionsAndCreations(t *testing.T) {
	b := setup(t, nil)
	call := func(method, ifMatch, body string) *httptest.ResponseRecorder {
		return send(b.admin, method, "/gateway/admin/policies/degradation/d", map[string]string{"x-token": adminToken, "If-Match": ifMatch}, body)
	}
	requireRefused(t, call(http.MethodPut, `"x"`, `{"code":1}`), gateway.PreconditionFailed)
	created := call(http.MethodPut, "", `{"code":1}`)
	require.Equal(t, http.StatusOK, created.Code)
	old := created.Header().Get("ETag")
	require.Equal(t, http.StatusOK, call(http.MethodPut, old, `{"code":2}`).Code)
	requireRefused(t, call(http.MethodDelete, old, ""), gateway.PreconditionFailed)
	require.Equal(t, http.StatusOK, call(http.MethodDelete, b.call(http.MethodGet, "/policies/degradation/d", "").Header().Get("ETag"), "").Code)
}

func TestKickOut(t *testing.T) {
	b := setup(t, nil)
	b.users.add(gateway.User{ID: "9007199254740993", Username: "ann", Active: true}, "t-ann")
	require.Equal(t, http.StatusOK, b.v1(http.MethodPost, "/v1/logins", nil, annLogin).Code)
	require.Equal(t, http.StatusOK, b.call(http.MethodPut, "/policies/identity/ai", `{"mode":"token","services":["ai"]}`).Code)
	live := map[string]string{"X-Homenode-Service": "ai", "X-Homenode-Token": "t-ann", "X-Forwarded-Uri": "/js/a/cases"}
	require.Equal(t, http.StatusOK, b.decide(live).Code)
	_, out := open(t, b.call(http.MethodPost, "/sessions/kick-out", `{"serviceId":"ai","userId":9007199254740993}`))
	require.Equal(t, true, out["enforced"])
	require.Equal(t, "9007199254740993", out["userId"])
	require.Equal(t, http.StatusUnauthorized, b.decide(live).Code)
	entries, _, err := b.store.ListAudit(t.Context(), gateway.AuditFilter{Limit: 10, Action: gateway.ActionUserKickedOut})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, gateway.ActorAdminToken, entries[0].Actor.Name)
	require.Equal(t, "9007199254740993", entries[0].UserID)
}

func TestPoliciesAreShownWhileTheStoreCannotBeAsked(t *testing.T) {
	b := setup(t, func(o *httpapi.Options) { o.Messages = "en" })
	require.Equal(t, http.StatusOK, b.call(http.MethodPut, "/policies/degradation/d", `{"code":1}`).Code)
	require.NoError(t, b.store.Close())
	var page api.PolicyPageAnswer
	require.NoError(t, json.Unmarshal(b.call(http.MethodGet, "/policies/degradation", "").Body.Bytes(), &page))
	require.EqualValues(t, 1, page.Data.Total)
	require.Equal(t, api.OriginMemory, page.Data.Origin)
	require.Equal(t, http.StatusOK, b.call(http.MethodGet, "/policies/degradation/d", "").Code)
	requireRefused(t, b.call(http.MethodPut, "/policies/degradation/d", `{"code":2}`), gateway.StoreUnavailable)
	requireRefused(t, b.call(http.MethodGet, "/policies/degradation/history", ""), gateway.StoreUnavailable)
}

// policyCache is a gateway.PolicyCache in memory, of one instance.
type policyCache struct {
	gateway.PolicyCache
	served   []gateway.Policy
	revision int64
	pending  []gateway.PendingPolicy
}

func (p *policyCache) PublishPolicies(_ context.Context, policies []gateway.Policy, revision int64) error {
	p.served, p.revision = policies, revision
	return nil
}

func (p *policyCache) ServedPolicies(context.Context) ([]gateway.Policy, int64, error) {
	return p.served, p.revision, nil
}

func (p *policyCache) AddPending(_ context.Context, pending gateway.PendingPolicy) error {
	p.pending = append(slices.DeleteFunc(p.pending, func(old gateway.PendingPolicy) bool { return old.Kind == pending.Kind && old.ID == pending.ID }), pending)
	return nil
}

func (p *policyCache) PendingPolicies(context.Context) ([]gateway.PendingPolicy, error) {
	return p.pending, nil
}

func TestASwitchIsPendingWhileTheStoreIsDown(t *testing.T) {
	b := setupCached(t, nil, &policyCache{})
	require.Equal(t, http.StatusOK, b.call(http.MethodPut, "/policies/degradation/d", `{"code":1}`).Code)
	require.NoError(t, b.store.Close())
	client, _, _ := newClient(t, b)
	set, err := client.SetPolicyWithResponse(t.Context(), api.KindMaintenance, "main", nil, api.Policy(`{"message":{"zh":"升级"}}`))
	require.NoError(t, err)
	require.NotNil(t, set.JSON200, string(set.Body))
	require.True(t, set.JSON200.Data.Pending)
	require.Nil(t, set.JSON200.Data.Record.Revision)
	overview, err := client.GetPoliciesWithResponse(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, overview.JSON200.Data.Pending)
	require.Equal(t, api.OriginRedis, overview.JSON200.Data.Origin)
	one, err := client.GetPolicyWithResponse(t.Context(), api.KindMaintenance, "main")
	require.NoError(t, err)
	require.Equal(t, set.JSON200.Data.Record.Etag, one.JSON200.Data.Etag)
	require.Contains(t, b.ask(http.MethodGet, "/js/a/cases").Header().Get("X-Gateway-Reason"), "MAINTENANCE")
	requireRefused(t, b.call(http.MethodPut, "/policies/degradation/d", `{"code":2}`), gateway.StoreUnavailable)
	requireRefused(t, b.call(http.MethodPost, "/policies/maintenance/rollback", `{"revision":0}`), gateway.StoreUnavailable)
	off, err := client.DeletePolicyWithResponse(t.Context(), api.KindMaintenance, "main", &api.DeletePolicyParams{IfMatch: &one.JSON200.Data.Etag})
	require.NoError(t, err)
	require.True(t, off.JSON200.Data.Pending, string(off.Body))
	require.Empty(t, off.JSON200.Data.Record)
}
