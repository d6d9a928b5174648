package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// auditReader reads what was added since it last did, in order.
type auditReader struct {
	store gateway.Store
	seen  int64
}

func (r *auditReader) next(t *testing.T) []gateway.AuditEntry {
	t.Helper()
	page, total, err := r.store.ListAudit(t.Context(), gateway.AuditFilter{Limit: 1000})
	require.NoError(t, err)
	require.EqualValues(t, len(page), total)
	fresh := page[:total-r.seen]
	r.seen = total
	entries := make([]gateway.AuditEntry, 0, len(fresh))
	for i := range fresh {
		entries = append(entries, fresh[len(fresh)-1-i])
	}
	return entries
}

func fields(t *testing.T, raw json.RawMessage) map[string]any {
	t.Helper()
	if raw == nil {
		return nil
	}
	var object map[string]any
	require.NoError(t, json.Unmarshal(raw, &object))
	return object
}

func testAudit(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	audit := &auditReader{store: store}
	var seeded []string
	for _, entry := range audit.next(t) {
		require.Equal(t, "unknown", entry.Actor.Name, "nobody has said who they are")
		require.Nil(t, entry.Before)
		seeded = append(seeded, fmt.Sprint(entry.Action, " ", fields(t, entry.After)["id"]))
	}
	require.Equal(t, []string{"service.create ai", "service.create other", "node.create n1", "node.create n2", "node.create n3", "node.create m1"}, seeded)

	actor := gateway.Actor{Name: "user:7", Address: "192.0.2.1", RequestID: "r-1"}
	ctx := gateway.WithActor(t.Context(), actor)
	bind := func(userID, username, nodeID string) (gateway.BindResult, error) {
		return store.Bind(ctx, gateway.Assignment{ServiceID: ai, UserID: userID, Username: username, NodeID: nodeID})
	}
	logIn := func(l gateway.Login) error {
		_, err := store.BindIfAbsent(ctx, l)
		return err
	}
	changeNode := func(change func(*gateway.Node)) error {
		_, err := store.UpdateNode(ctx, "n9", func(n *gateway.Node) error { change(n); return nil })
		return err
	}
	changeService := func(change func(*gateway.Service)) error {
		_, err := store.UpdateService(ctx, "s", func(s *gateway.Service) error { change(s); return nil })
		return err
	}
	type want struct {
		action, service, node, user, username string
		before, after                         map[string]any // some of the fields; nil: none at all
	}
	for _, change := range []struct {
		name string
		do   func() error
		want []want
	}{
		{"service made", func() error { return store.CreateService(ctx, service("s", "/s")) },
			[]want{{"service.create", "s", "", "", "", nil, map[string]any{"id": "s", "pathPrefix": "/s", "placement": "round-robin", "enabled": true}}}},
		{"node made", func() error { return store.CreateNode(ctx, node("n9", "s")) },
			[]want{{"node.create", "s", "n9", "", "", nil, map[string]any{"id": "n9", "serviceId": "s", "weight": 1.0, "acceptNew": true}}}},
		{"service changed", func() error {
			return changeService(func(s *gateway.Service) { s.Placement, s.DefaultNodeID = gateway.Weighted, "n9" })
		}, []want{{"service.update", "s", "", "", "", map[string]any{"placement": "round-robin", "defaultNodeId": ""}, map[string]any{"placement": "weighted", "defaultNodeId": "n9"}}}},
		{"service changed in place", func() error {
			return changeService(func(s *gateway.Service) { s.DefaultNodeID, s.Login.Success[0] = "", "0" })
		}, []want{{"service.update", "s", "", "", "", map[string]any{"defaultNodeId": "n9"}, map[string]any{"defaultNodeId": ""}}}},
		{"node changed", func() error { return changeNode(func(n *gateway.Node) { n.Weight, n.Draining = 5, true }) },
			[]want{{"node.update", "s", "n9", "", "", map[string]any{"weight": 1.0, "acceptNew": true}, map[string]any{"weight": 5.0, "acceptNew": false}}}},
		{"service left as it was", func() error {
			return changeService(func(s *gateway.Service) { s.Name, s.UpdatedAt, s.Login.Success = "s", time.Now(), []string{"0"} })
		}, nil},
		{"node left as it was", func() error { return changeNode(func(n *gateway.Node) { n.Enabled, n.ServiceID = true, other }) }, nil},
		{"node deleted", func() error { return store.DeleteNode(ctx, "n9") },
			[]want{{"node.delete", "s", "n9", "", "", map[string]any{"id": "n9", "weight": 5.0}, nil}}},
		{"service deleted", func() error { return store.DeleteService(ctx, "s") },
			[]want{{"service.delete", "s", "", "", "", map[string]any{"id": "s"}, nil}}},
		{"refused", func() error {
			requireConflict(t, store.DeleteService(ctx, ai))
			_, err := bind("1", "", "none")
			requireConflict(t, err)
			return nil
		}, nil},

		{"bound", func() error { _, err := bind("1", "Alice", "n1"); return err },
			[]want{{"binding.create", ai, "n1", "1", "Alice", nil, map[string]any{"serviceId": ai, "userId": "1", "username": "Alice", "nodeId": "n1", "epoch": 1.0}}}},
		{"bound again", func() error { _, err := bind("1", "Alice", "n1"); return err }, nil},
		{"logged in again", func() error { return logIn(login("1", "Alice", "n2")) }, nil},
		{"rebound", func() error { _, err := bind("1", "", "n2"); return err },
			[]want{{"binding.rebind", ai, "n2", "1", "Alice", map[string]any{"nodeId": "n1", "epoch": 1.0}, map[string]any{"nodeId": "n2", "epoch": 2.0}}}},
		{"renamed", func() error { return logIn(login("1", "Alicia", "n1")) },
			[]want{{"binding.update", ai, "n2", "1", "Alicia", map[string]any{"username": "Alice"}, map[string]any{"username": "Alicia"}}}},
		{"name moved", func() error { return logIn(login("2", "ALICIA", "n3")) }, []want{
			{"binding.update", ai, "n2", "1", "Alicia", map[string]any{"username": "Alicia"}, map[string]any{"userId": "1"}},
			{"binding.create", ai, "n3", "2", "ALICIA", nil, map[string]any{"userId": "2", "username": "ALICIA"}},
		}},
		{"unbound", func() error {
			binding, err := store.BindingByUser(ctx, ai, "2")
			require.NoError(t, err)
			_, err = store.Unbind(ctx, binding.ID)
			return err
		}, []want{{"binding.delete", ai, "n3", "2", "ALICIA", map[string]any{"userId": "2", "nodeId": "n3"}, nil}}},
		{"recorded", func() error {
			return store.Record(ctx, gateway.AuditEntry{ID: 1, At: time.Unix(0, 0), Action: gateway.ActionDenied, UserID: "7"})
		}, []want{{"access.denied", "", "", "7", "", nil, nil}}},
	} {
		t.Run(change.name, func(t *testing.T) {
			start := time.Now().Add(-time.Microsecond)
			require.NoError(t, change.do())
			entries := audit.next(t)
			require.Len(t, entries, len(change.want))
			for i, entry := range entries {
				want := change.want[i]
				require.Equal(t, actor, entry.Actor)
				require.WithinRange(t, entry.At, start, time.Now())
				require.Equal(t, []string{want.action, want.service, want.node, want.user, want.username},
					[]string{entry.Action, entry.ServiceID, entry.NodeID, entry.UserID, entry.Username})
				for _, side := range []struct {
					want map[string]any
					got  json.RawMessage
				}{{want.before, entry.Before}, {want.after, entry.After}} {
					got := fields(t, side.got)
					require.Equal(t, side.want == nil, got == nil)
					for field, value := range side.want {
						require.Equal(t, value, got[field], field)
					}
				}
			}
		})
	}
}

func testAuditLists(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	as := func(name, requestID string) context.Context {
		return gateway.WithActor(t.Context(), gateway.Actor{Name: name, RequestID: requestID})
	}
	for i := range 10 {
		user := fmt.Sprint(i)
		_, err := store.BindIfAbsent(as(gateway.ActorLogin, "r"+user), login(user, "User "+user, "n1"))
		require.NoError(t, err)
	}
	middle := time.Now()
	for i := range 4 {
		_, err := store.Bind(as(gateway.ActorAdminToken, "rebind"), gateway.Assignment{ServiceID: ai, UserID: fmt.Sprint(i), NodeID: "n2"})
		require.NoError(t, err)
	}
	_, err := store.BindIfAbsent(as(gateway.ActorLogin, "renamed"), login("9", "Nina", "n1"))
	require.NoError(t, err)
	_, err = store.BindIfAbsent(as(gateway.ActorLogin, "elsewhere"), gateway.Login{ServiceID: other, UserID: "1", Username: "User 1", NodeID: "m1"})
	require.NoError(t, err)
	require.NoError(t, store.Record(t.Context(), gateway.AuditEntry{Action: "bindings"}))
	last, _, err := store.ListAudit(t.Context(), gateway.AuditFilter{RequestID: "renamed", Limit: 1})
	require.NoError(t, err)

	for _, list := range []struct {
		filter gateway.AuditFilter
		total  int64
		page   int
	}{
		{gateway.AuditFilter{Limit: 100}, 6 + 10 + 4 + 2 + 1, 23},
		{gateway.AuditFilter{Limit: 5, Offset: 20}, 23, 3},
		{gateway.AuditFilter{Limit: 5, Offset: 99}, 23, 0},
		{gateway.AuditFilter{ServiceID: other, Limit: 100}, 3, 3},
		{gateway.AuditFilter{NodeID: "n2", Limit: 100}, 5, 5},
		{gateway.AuditFilter{UserID: "1", Limit: 100}, 3, 3},
		{gateway.AuditFilter{ServiceID: ai, UserID: "1", Limit: 100}, 2, 2},
		{gateway.AuditFilter{Username: "user 9", Limit: 100}, 2, 2},
		{gateway.AuditFilter{Username: "nina", Limit: 100}, 1, 1},
		{gateway.AuditFilter{Actor: gateway.ActorAdminToken, Limit: 2}, 4, 2},
		{gateway.AuditFilter{Action: "binding", Limit: 100}, 16, 16},
		{gateway.AuditFilter{Action: "binding.rebind", Limit: 100}, 4, 4},
		{gateway.AuditFilter{Action: "b%", Limit: 100}, 0, 0},
		{gateway.AuditFilter{RequestID: "r3", Limit: 100}, 1, 1},
		{gateway.AuditFilter{Since: middle, Limit: 100}, 7, 7},
		{gateway.AuditFilter{Until: middle.In(time.FixedZone("far", 9*3600)), Limit: 100}, 16, 16},
		{gateway.AuditFilter{Since: last[0].At, Limit: 100}, 3, 3},
		{gateway.AuditFilter{Since: middle, Until: last[0].At, Action: "binding", Limit: 100}, 4, 4},
	} {
		page, total, err := store.ListAudit(t.Context(), list.filter)
		require.NoError(t, err)
		require.Equal(t, list.total, total, "%+v", list.filter)
		require.Len(t, page, list.page, "%+v", list.filter)
		for i := 1; i < len(page); i++ {
			require.Greater(t, page[i-1].ID, page[i].ID)
		}
	}
}

// testBindingAt is what the model test does not reach.
func testBindingAt(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	ctx := t.Context()
	p := probe{t, store}
	start := time.Now()
	result := p.login(typed(login("9007199254740993", "Älice", "n1"), "138"))
	bound := time.Now()
	p.bind("9007199254740993", "", "n2")

	binding, err := store.BindingAt(ctx, ai, "9007199254740993", "", bound.In(time.FixedZone("far", -9*3600)))
	require.NoError(t, err)
	want := result.Binding
	want.UpdatedAt = time.Time{} // which nobody recorded
	require.Equal(t, want, binding)
	byKey, err := store.BindingAt(ctx, ai, "", gateway.KeyOf("ÄLICE"), bound)
	require.NoError(t, err)
	require.Equal(t, want, byKey)

	for name, lookup := range map[string]struct {
		service, user string
		key           gateway.UsernameKey
		at            time.Time
	}{
		"before the first login":          {ai, "9007199254740993", "", start},
		"name before the first login":     {ai, "", "älice", start},
		"another service":                 {other, "9007199254740993", "", bound},
		"an alias":                        {ai, "", "138", bound},
		"a user who was never bound":      {ai, "9007199254740992", "", time.Now()},
		"a name that was never somebodys": {ai, "", "bob", time.Now()},
	} {
		_, err := store.BindingAt(ctx, lookup.service, lookup.user, lookup.key, lookup.at)
		require.ErrorIs(t, err, gateway.ErrNotFound, name)
	}
	now, err := store.BindingAt(ctx, ai, "9007199254740993", "", time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, gateway.Route{NodeID: "n2", Epoch: 2}, now.Route())
}
