package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func testRoles(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	audit := &auditReader{store: store}
	audit.next(t)
	actor := gateway.Actor{Name: "user:7", Address: "192.0.2.1", RequestID: "r-1"}
	ctx := gateway.WithActor(t.Context(), actor)

	for _, step := range []struct {
		name       string
		roles      []string
		stored     []string
		audited    bool
		wasAudited []string
	}{
		{"none", nil, nil, false, nil},
		{"set, out of order and twice", []string{"editor", "admin", "Zoo", "editor"}, []string{"Zoo", "admin", "editor"}, true, nil},
		{"set again", []string{"admin", "Zoo", "editor"}, []string{"Zoo", "admin", "editor"}, false, nil},
		{"replaced", []string{"viewer", "admin"}, []string{"admin", "viewer"}, true, []string{"Zoo", "admin", "editor"}},
		{"emptied", []string{}, nil, true, []string{"admin", "viewer"}},
		{"still empty", nil, nil, false, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			require.NoError(t, store.SetRoles(ctx, ai, "1", step.roles))
			roles, err := store.RolesOf(ctx, ai, "1")
			require.NoError(t, err)
			require.ElementsMatch(t, step.stored, roles)
			if len(step.stored) > 0 {
				require.Equal(t, step.stored, roles)
			}
			requireRolesAudited(t, audit, actor, "1", step.audited, step.wasAudited, step.stored)
		})
	}

	// Others are others'.
	require.NoError(t, store.SetRoles(ctx, ai, "1", []string{"admin"}))
	require.NoError(t, store.SetRoles(ctx, ai, "2", []string{"viewer"}))
	require.NoError(t, store.SetRoles(ctx, other, "1", []string{"editor"}))
	require.NoError(t, store.SetRoles(ctx, ai, "2", nil))
	for user, want := range map[[2]string][]string{{ai, "1"}: {"admin"}, {ai, "2"}: nil, {other, "1"}: {"editor"}, {ai, "3"}: nil, {"none", "1"}: nil} {
		roles, err := store.RolesOf(ctx, user[0], user[1])
		require.NoError(t, err)
		require.ElementsMatch(t, want, roles, user)
	}
	audit.next(t)
	requireConflict(t, store.SetRoles(ctx, "none", "1", []string{"admin"}), `"none"`)
	requireConflict(t, store.SetRoles(ctx, "none", "1", nil), `"none"`)
	require.Empty(t, audit.next(t))

	// Roles do not hold a service, and go with it.
	require.NoError(t, store.CreateService(ctx, service("s", "/s")))
	require.NoError(t, store.SetRoles(ctx, "s", "8", []string{"editor", "admin"}))
	require.NoError(t, store.SetRoles(ctx, "s", "9", []string{"viewer"}))
	audit.next(t)
	require.NoError(t, store.DeleteService(ctx, "s"))
	gone := audit.next(t)
	require.Len(t, gone, 3)
	require.Equal(t, gateway.ActionServiceDelete, gone[2].Action)
	for i, want := range []gateway.AuditEntry{gateway.AuditRoles("s", "8", []string{"admin", "editor"}, nil), gateway.AuditRoles("s", "9", []string{"viewer"}, nil)} {
		require.Equal(t, []string{want.Action, want.ServiceID, want.UserID}, []string{gone[i].Action, gone[i].ServiceID, gone[i].UserID})
		require.JSONEq(t, string(want.Before), string(gone[i].Before))
		require.Nil(t, gone[i].After)
	}
	requireConflict(t, store.SetRoles(ctx, "s", "8", []string{"admin"}))
	require.NoError(t, store.CreateService(ctx, service("s", "/s")))
	roles, err := store.RolesOf(ctx, "s", "8")
	require.NoError(t, err)
	require.Empty(t, roles)
}

func requireRolesAudited(t *testing.T, audit *auditReader, actor gateway.Actor, userID string, isAudited bool, before, after []string) {
	t.Helper()
	entries := audit.next(t)
	if !isAudited {
		require.Empty(t, entries)
		return
	}
	require.Len(t, entries, 1)
	want, got := gateway.AuditRoles(ai, userID, before, after), entries[0]
	require.Equal(t, actor, got.Actor)
	require.Equal(t, []string{gateway.ActionRoleSet, ai, userID}, []string{got.Action, got.ServiceID, got.UserID})
	require.Equal(t, canonical(t, want.Before), canonical(t, got.Before))
	require.Equal(t, canonical(t, want.After), canonical(t, got.After))
}

func testRoleLists(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	for i := range 25 {
		require.NoError(t, store.SetRoles(t.Context(), ai, fmt.Sprint("user-", 10+i), []string{"viewer", []string{"admin", "Editor"}[i%2]}))
	}
	require.NoError(t, store.SetRoles(t.Context(), other, "user-10", []string{"admin"}))
	for _, list := range []struct {
		filter gateway.UserRoleFilter
		total  int64
		page   int
	}{
		{gateway.UserRoleFilter{Limit: 100}, 51, 51},
		{gateway.UserRoleFilter{Limit: 10, Offset: 45}, 51, 6},
		{gateway.UserRoleFilter{Limit: 10, Offset: 99}, 51, 0},
		{gateway.UserRoleFilter{ServiceID: other, Limit: 10}, 1, 1},
		{gateway.UserRoleFilter{UserID: "user-10", Limit: 10}, 3, 3},
		{gateway.UserRoleFilter{ServiceID: ai, UserID: "user-10", Limit: 10}, 2, 2},
		{gateway.UserRoleFilter{Role: "admin", Limit: 5}, 14, 5},
		{gateway.UserRoleFilter{ServiceID: ai, Role: "Editor", Limit: 100}, 12, 12},
		{gateway.UserRoleFilter{ServiceID: ai, UserID: "user-11", Role: "Editor", Limit: 100}, 1, 1},
		{gateway.UserRoleFilter{Role: "editor", Limit: 100}, 0, 0},
		{gateway.UserRoleFilter{UserID: "user", Limit: 100}, 0, 0},
	} {
		page, total, err := store.ListRoles(t.Context(), list.filter)
		require.NoError(t, err)
		require.Equal(t, list.total, total, "%+v", list.filter)
		require.Len(t, page, list.page, "%+v", list.filter)
		for i, r := range page {
			if i > 0 {
				before := page[i-1]
				require.Less(t, fmt.Sprintf("%s\x00%s\x00%s", before.ServiceID, before.UserID, before.Role), fmt.Sprintf("%s\x00%s\x00%s", r.ServiceID, r.UserID, r.Role))
			}
		}
	}
	page, _, err := store.ListRoles(t.Context(), gateway.UserRoleFilter{Limit: 2, Offset: 2})
	require.NoError(t, err)
	require.Equal(t, []gateway.UserRole{{ServiceID: ai, UserID: "user-11", Role: "Editor"}, {ServiceID: ai, UserID: "user-11", Role: "viewer"}}, page)
}

func testRoleFeed(t *testing.T, b Backend) {
	writer, database := setup(t, b)
	here, there := follow(t, writer), follow(t, open(t, b, database))
	for _, roles := range [][]string{{"a", "b"}, {"c"}, nil} {
		require.NoError(t, writer.SetRoles(t.Context(), ai, "1", roles))
		change := gateway.Change{Kind: gateway.ChangeRoles, ServiceID: ai, UserID: "1"}
		here.requireTold(t, change)
		there.requireTold(t, change)
	}
	// What changes nothing is not told; what comes after it is the next to be told.
	require.NoError(t, writer.SetRoles(t.Context(), ai, "1", nil))
	changePolicies(t.Context(), t, writer, put("guards", "x", `{}`))
	require.Equal(t, gateway.Change{Kind: gateway.ChangePolicies}, here.next(t))

	require.NoError(t, writer.CreateService(t.Context(), service("s", "/s")))
	require.NoError(t, writer.SetRoles(t.Context(), "s", "9", []string{"a"}))
	change := gateway.Change{Kind: gateway.ChangeRoles, ServiceID: "s", UserID: "9"}
	here.requireTold(t, change)
	there.requireTold(t, change)
	require.NoError(t, writer.DeleteService(t.Context(), "s"))
	here.requireTold(t, change)
	there.requireTold(t, change)
}

// testRaceOfRoles sets the roles of one user from several stores at once: in the end
// they are one writer's, and the audit tells them in an order in which each finds what
// the one before has left.
func testRaceOfRoles(t *testing.T, b Backend) {
	store, database := setup(t, b)
	stores := []gateway.Store{store, open(t, b, database)}
	audit := &auditReader{store: store}
	audit.next(t)
	const writers, each = 4, 10
	errs := make(chan error, writers*each)
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for i := range each {
				errs <- stores[writer%2].SetRoles(t.Context(), ai, "1", []string{fmt.Sprint("of-", writer), fmt.Sprint("round-", i), "shared"})
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	roles, err := store.RolesOf(t.Context(), ai, "1")
	require.NoError(t, err)
	require.Len(t, roles, 3)
	left := ""
	for _, entry := range audit.next(t) {
		require.Equal(t, left, canonical(t, entry.Before))
		left = canonical(t, entry.After)
	}
	require.Equal(t, canonical(t, gateway.AuditRoles(ai, "1", nil, roles).After), left)
}
