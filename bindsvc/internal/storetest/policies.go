package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func put(kind gateway.PolicyKind, id, body string) gateway.PolicyChange {
	return gateway.PolicyChange{Kind: kind, ID: id, Body: json.RawMessage(body)}
}

func drop(kind gateway.PolicyKind, id string) gateway.PolicyChange {
	return gateway.PolicyChange{Kind: kind, ID: id}
}

// changePolicies makes changes whatever the policies are, and returns the revision.
func changePolicies(ctx context.Context, t *testing.T, store gateway.Policies, changes ...gateway.PolicyChange) int64 {
	t.Helper()
	revision, err := store.ChangePolicies(ctx, func([]gateway.Policy, int64) ([]gateway.PolicyChange, error) { return changes, nil })
	require.NoError(t, err)
	return revision
}

// requirePolicies requires what is stored, given as kind/id=body@revision.
func requirePolicies(t *testing.T, store gateway.Policies, revision int64, want ...string) {
	t.Helper()
	policies, loaded, err := store.LoadPolicies(t.Context())
	require.NoError(t, err)
	require.Equal(t, revision, loaded)
	asked, err := store.PolicyRevision(t.Context())
	require.NoError(t, err)
	require.Equal(t, revision, asked)
	require.Equal(t, want, describe(t, policies))
	for _, p := range policies {
		require.WithinDuration(t, time.Now(), p.UpdatedAt, time.Minute)
		require.Equal(t, time.UTC, p.UpdatedAt.Location())
	}
}

func describe(t *testing.T, policies []gateway.Policy) (all []string) {
	t.Helper()
	for _, p := range policies {
		all = append(all, fmt.Sprintf("%s/%s=%s@%d", p.Kind, p.ID, canonical(t, p.Body), p.Revision))
	}
	return all
}

// canonical writes equal JSON the same way, none as an empty string.
func canonical(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	if raw == nil {
		return ""
	}
	var value map[string]any
	require.NoError(t, json.Unmarshal(raw, &value))
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return string(text)
}

func testPolicies(t *testing.T, b Backend) {
	store := open(t, b, b.NewDatabase(t))
	audit := &auditReader{store: store}
	actor := gateway.Actor{Name: "user:7", Address: "192.0.2.1", RequestID: "r-1"}
	ctx := gateway.WithActor(t.Context(), actor)
	requirePolicies(t, store, 0)

	for _, step := range []struct {
		name     string
		changes  []gateway.PolicyChange
		revision int64
		stored   []string
		audited  []string // action id@revision: before -> after
	}{
		{"nothing", nil, 0, nil, nil},
		{
			"created",
			[]gateway.PolicyChange{put("rate-limit", "Z", `{"rate": 5, "burst": 10}`), put("rate-limit", "a", `{}`), put("guards", "all", `{"on":true}`)}, 1,
			[]string{`guards/all={"on":true}@1`, `rate-limit/Z={"burst":10,"rate":5}@1`, `rate-limit/a={}@1`},
			[]string{
				`policy.rate-limit.create Z@1:  -> {"burst":10,"rate":5}`,
				`policy.rate-limit.create a@1:  -> {}`,
				`policy.guards.create all@1:  -> {"on":true}`,
			},
		},
		{
			"left as they were",
			[]gateway.PolicyChange{put("guards", "all", ` { "on" : true } `), put("rate-limit", "Z", `{"burst":10,"rate":5}`), drop("guards", "none")}, 1,
			[]string{`guards/all={"on":true}@1`, `rate-limit/Z={"burst":10,"rate":5}@1`, `rate-limit/a={}@1`}, nil,
		},
		{
			"replaced and deleted, beside one that is left",
			[]gateway.PolicyChange{drop("rate-limit", "a"), put("rate-limit", "Z", `{"rate":6}`), put("guards", "all", `{"on":true}`)}, 2,
			[]string{`guards/all={"on":true}@1`, `rate-limit/Z={"rate":6}@2`},
			[]string{`policy.rate-limit.delete a@2: {} -> `, `policy.rate-limit.update Z@2: {"burst":10,"rate":5} -> {"rate":6}`},
		},
		{
			"the last of several changes of one",
			[]gateway.PolicyChange{put("apps", "x", `{"n":1}`), drop("guards", "all"), put("apps", "x", `{"n":2}`), put("guards", "all", `{"on":true}`), put("apps", "y", `{}`), drop("apps", "y")}, 3,
			[]string{`apps/x={"n":2}@3`, `guards/all={"on":true}@1`, `rate-limit/Z={"rate":6}@2`},
			[]string{`policy.apps.create x@3:  -> {"n":2}`},
		},
		{
			"of the same id, of two kinds",
			[]gateway.PolicyChange{put("access", "x", `{"n":2}`), drop("apps", "x")}, 4,
			[]string{`access/x={"n":2}@4`, `guards/all={"on":true}@1`, `rate-limit/Z={"rate":6}@2`},
			[]string{`policy.access.create x@4:  -> {"n":2}`, `policy.apps.delete x@4: {"n":2} -> `},
		},
	} {
		t.Run(step.name, func(t *testing.T) {
			require.Equal(t, step.revision, changePolicies(ctx, t, store, step.changes...))
			requirePolicies(t, store, step.revision, step.stored...)
			var audited []string
			for _, entry := range audit.next(t) {
				require.Equal(t, actor, entry.Actor)
				require.Empty(t, entry.ServiceID+entry.NodeID+entry.UserID+entry.Username)
				change, before, revision, err := gateway.AuditedPolicy(entry)
				require.NoError(t, err)
				require.Contains(t, entry.Action, "."+string(change.Kind)+".")
				audited = append(audited, fmt.Sprintf("%s %s@%d: %s -> %s", entry.Action, change.ID, revision, canonical(t, before), canonical(t, change.Body)))
			}
			require.Equal(t, step.audited, audited)
		})
	}

	// What decide is told, and what becomes of its refusal.
	refusal := errors.New("refused")
	before, revision, err := store.LoadPolicies(ctx)
	require.NoError(t, err)
	_, err = store.ChangePolicies(ctx, func(now []gateway.Policy, at int64) ([]gateway.PolicyChange, error) {
		require.Equal(t, before, now)
		require.Equal(t, revision, at)
		return []gateway.PolicyChange{put("guards", "all", `{"lost":1}`)}, refusal
	})
	require.ErrorIs(t, err, refusal)
	after, _, err := store.LoadPolicies(ctx)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Empty(t, audit.next(t))
}

// testPolicyBodies: a body is a JSON object, and equal to another as JSON.
func testPolicyBodies(t *testing.T, b Backend) {
	store := open(t, b, b.NewDatabase(t))
	const body = `{"id": 9007199254740993, "rate": 0.5, "of": [1, 2, {"名": "Öl <&> \" \\ / \u0041"}], "none": null, "no": false}`
	require.EqualValues(t, 1, changePolicies(t.Context(), t, store, put("guards", "x", body)))
	policies, _, err := store.LoadPolicies(t.Context())
	require.NoError(t, err)
	require.JSONEq(t, body, string(policies[0].Body))
	require.Contains(t, string(policies[0].Body), "9007199254740993")

	same := []string{
		string(policies[0].Body),
		`{"no":false,"none":null,"of":[1,2,{"名":"Öl <&> \" \\ \/ A"}],"rate":5e-1,"id":9007199254740993}`,
		`{"id":1,"id":9007199254740993,"rate":0.50,"of":[1.0,20e-1,{"\u540d":"Öl <\u0026> \" \\ / A"}],"none":null,"no":false}`,
	}
	for _, again := range same {
		require.EqualValues(t, 1, changePolicies(t.Context(), t, store, put("guards", "x", again)), again)
	}
	revision := int64(1)
	for _, other := range []string{
		`{"id":9007199254740992,"no":false,"none":null,"of":[1,2,{"名":"Öl <&> \" \\ / A"}],"rate":0.5}`,
		`{"id":9007199254740992,"no":false,"of":[1,2,{"名":"Öl <&> \" \\ / A"}],"rate":0.5}`,
		`{"id":"9007199254740992","no":false,"of":[1,2,{"名":"Öl <&> \" \\ / A"}],"rate":0.5}`,
		`{"id":"9007199254740992","no":false,"of":[2,1,{"名":"Öl <&> \" \\ / A"}],"rate":0.5}`,
		`{"of":[2.0,10e-1]}`,
	} {
		revision++
		require.Equal(t, revision, changePolicies(t.Context(), t, store, put("guards", "x", other)), other)
	}
	require.Equal(t, revision, changePolicies(t.Context(), t, store, put("guards", "x", `{"of":[2,1]}`)))

	for _, wrong := range []string{``, `null`, `[]`, `"x"`, `1`, `{`, `{a:1}`, `{"a":1} {}`} {
		_, err := store.ChangePolicies(t.Context(), func([]gateway.Policy, int64) ([]gateway.PolicyChange, error) {
			return []gateway.PolicyChange{put("guards", "ok", `{}`), put("guards", "x", wrong)}, nil
		})
		require.Error(t, err, "%q", wrong)
	}
	requirePolicies(t, store, revision, `guards/x={"of":[2,1]}@6`)
}

func testPolicyHistory(t *testing.T, b Backend) {
	store := open(t, b, b.NewDatabase(t))
	ctx := gateway.WithActor(t.Context(), gateway.Actor{Name: "user:7"})
	changePolicies(ctx, t, store, put("access", "a", `{"n":1}`), put("access", "b", `{"n":1}`), put("answers", "a", `{}`))
	changePolicies(ctx, t, store, put("access", "a", `{"n":2}`))
	changePolicies(ctx, t, store, put("rate-limit", "a", `{}`))
	changePolicies(ctx, t, store, drop("access", "a"))
	require.NoError(t, store.Record(ctx, gateway.AuditEntry{Action: gateway.ActionDenied}))
	for range 9 {
		changePolicies(ctx, t, store, put("guards", "g", `{"on":true}`))
		changePolicies(ctx, t, store, drop("guards", "g"))
	}
	changePolicies(ctx, t, store, put("access", "a", `{"n":3}`))

	for _, list := range []struct {
		kind  gateway.PolicyKind
		since int64
		limit int
		want  []string
	}{
		{"access", 0, 10, []string{"create a@23", "delete a@4", "update a@2", "create b@1", "create a@1"}},
		{"access", 1, 10, []string{"create a@23", "delete a@4", "update a@2"}},
		{"access", 4, 10, []string{"create a@23"}},
		{"access", 23, 10, nil},
		{"access", 0, 2, []string{"create a@23", "delete a@4"}},
		{"guards", 9, 3, []string{"delete g@22", "create g@21", "delete g@20"}},
		{"rate-limit", 0, 10, []string{"create a@3"}},
		{"rate", 0, 10, nil},
		{"signature", 0, 10, nil},
	} {
		entries, err := store.PolicyHistory(t.Context(), list.kind, list.since, list.limit)
		require.NoError(t, err)
		var got []string
		for _, entry := range entries {
			change, _, revision, err := gateway.AuditedPolicy(entry)
			require.NoError(t, err)
			require.Equal(t, list.kind, change.Kind)
			require.Equal(t, "user:7", entry.Actor.Name)
			got = append(got, fmt.Sprintf("%s %s@%d", entry.Action[len("policy."+list.kind+"."):], change.ID, revision))
		}
		require.Equal(t, list.want, got, "%+v", list)
	}
}

func testManyPolicies(t *testing.T, b Backend) {
	store := open(t, b, b.NewDatabase(t))
	const many = 10_000
	write := func(body string) int64 {
		changes := make([]gateway.PolicyChange, 0, many)
		for i := range many {
			changes = append(changes, put(gateway.PolicyRateLimit, fmt.Sprintf("rule-%05d", i), fmt.Sprintf(body, i)))
		}
		return changePolicies(t.Context(), t, store, changes...)
	}
	require.EqualValues(t, 1, write(`{"path":"/orders/%d","rate":1}`))
	require.EqualValues(t, 1, write(`{"rate":1,"path":"/orders/%d"}`))
	require.EqualValues(t, 2, write(`{"path":"/orders/%d","rate":2}`))
	policies, revision, err := store.LoadPolicies(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, revision)
	require.Len(t, policies, many)
	for i, p := range policies {
		require.Equal(t, fmt.Sprintf("rule-%05d", i), p.ID)
		require.JSONEq(t, fmt.Sprintf(`{"path":"/orders/%d","rate":2}`, i), string(p.Body))
		require.EqualValues(t, 2, p.Revision)
	}
	history, err := store.PolicyHistory(t.Context(), gateway.PolicyRateLimit, 1, 2*many)
	require.NoError(t, err)
	require.Len(t, history, many)
	revision, err = store.ChangePolicies(t.Context(), func(now []gateway.Policy, _ int64) (changes []gateway.PolicyChange, err error) {
		for _, p := range now {
			changes = append(changes, drop(p.Kind, p.ID))
		}
		return changes, nil
	})
	require.NoError(t, err)
	requirePolicies(t, store, 3)
	require.EqualValues(t, 3, revision)
}

// testRaceOfPolicyWriters lets writers of several stores change the policies, each by
// what it finds, while readers poll the revision.
func testRaceOfPolicyWriters(t *testing.T, b Backend) {
	const writers, each = 6, 20
	database := b.NewDatabase(t)
	stores := []gateway.Store{open(t, b, database), open(t, b, database)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	written := make(chan int64, writers*each)
	errs := make(chan error, writers+len(stores))
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for i := range each {
				revision, err := stores[writer%len(stores)].ChangePolicies(ctx, func(now []gateway.Policy, revision int64) ([]gateway.PolicyChange, error) {
					if int64(len(now)) != revision+1 && revision > 0 {
						return nil, fmt.Errorf("%d policies at revision %d", len(now), revision)
					}
					counter := fmt.Sprintf(`{"changes":%d}`, revision+1)
					return []gateway.PolicyChange{put("guards", "counter", counter), put("access", fmt.Sprintf("%d-%d", writer, i), counter)}, nil
				})
				if err != nil {
					errs <- err
					return
				}
				written <- revision
			}
		})
	}
	for _, store := range stores {
		all.Go(func() { errs <- pollPolicies(ctx, store, writers*each) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	close(written)
	revisions := map[int64]bool{}
	for revision := range written {
		require.False(t, revisions[revision], "two changes of revision %d", revision)
		revisions[revision] = true
	}
	require.Len(t, revisions, writers*each)
	policies, revision, err := stores[0].LoadPolicies(ctx)
	require.NoError(t, err)
	require.EqualValues(t, writers*each, revision)
	require.Len(t, policies, writers*each+1)
}

// pollPolicies reads whenever the revision has moved, until the last one, and returns an
// error if what it reads is not every change up to the revision and none after it.
func pollPolicies(ctx context.Context, store gateway.Policies, last int64) error {
	for known := int64(0); known < last; {
		asked, err := store.PolicyRevision(ctx)
		if err != nil {
			return err
		}
		if asked == known {
			continue
		}
		policies, revision, err := store.LoadPolicies(ctx)
		if err != nil {
			return err
		}
		seen := map[int64]bool{}
		for _, p := range policies {
			if p.Kind == "access" {
				seen[p.Revision] = true
			}
		}
		for r := int64(1); r <= revision; r++ {
			if !seen[r] {
				return fmt.Errorf("the change of revision %d is not seen at revision %d", r, revision)
			}
		}
		if revision < asked || int64(len(seen)) != revision {
			return fmt.Errorf("%d changes are seen at revision %d, asked at %d", len(seen), revision, asked)
		}
		known = revision
	}
	return nil
}

func testPolicyFeed(t *testing.T, b Backend) {
	writer, database := setup(t, b)
	here, there := follow(t, writer), follow(t, open(t, b, database))
	policies := gateway.Change{Kind: gateway.ChangePolicies}
	for _, change := range []gateway.PolicyChange{put("guards", "x", `{}`), put("guards", "x", `{"a":1}`), drop("guards", "x")} {
		changePolicies(t.Context(), t, writer, change)
		here.requireTold(t, policies)
		there.requireTold(t, policies)
	}
	// What changes nothing is not told; what comes after it is the next to be told.
	changePolicies(t.Context(), t, writer, drop("guards", "x"))
	require.NoError(t, writer.SetRoles(t.Context(), ai, "1", []string{"x"}))
	require.Equal(t, gateway.Change{Kind: gateway.ChangeRoles, ServiceID: ai, UserID: "1"}, here.next(t))
}
