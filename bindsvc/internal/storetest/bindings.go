package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func login(userID, username, nodeID string) gateway.Login {
	return gateway.Login{ServiceID: ai, UserID: userID, Username: username, NodeID: nodeID}
}

func typed(l gateway.Login, name string) gateway.Login {
	l.LoginUsername = name
	return l
}

func byUser(userID string) gateway.Change {
	return gateway.Change{Kind: gateway.ChangeUser, ServiceID: ai, UserID: userID}
}

func byName(name string) gateway.Change {
	return gateway.Change{Kind: gateway.ChangeUsername, ServiceID: ai, UsernameKey: gateway.KeyOf(name)}
}

// probe asks a store about bindings and expects answers.
type probe struct {
	*testing.T
	store gateway.Store
}

func (p probe) login(l gateway.Login) gateway.BindResult {
	p.Helper()
	result, err := p.store.BindIfAbsent(p.Context(), l)
	require.NoError(p, err)
	return result
}

func (p probe) bind(userID, username, nodeID string) gateway.BindResult {
	p.Helper()
	result, err := p.store.Bind(p.Context(), gateway.Assignment{ServiceID: ai, UserID: userID, Username: username, NodeID: nodeID})
	require.NoError(p, err)
	return result
}

// nodeOf returns the node of a user id, "" if there is no binding.
func (p probe) nodeOf(userID string) string {
	p.Helper()
	binding, err := p.store.BindingByUser(p.Context(), ai, userID)
	if err != nil {
		require.ErrorIs(p, err, gateway.ErrNotFound)
	}
	return binding.NodeID
}

// nodeNamed returns the node of a username or alias, "" if there is no binding.
func (p probe) nodeNamed(name string) string {
	p.Helper()
	binding, err := p.store.BindingByUsername(p.Context(), ai, gateway.KeyOf(name))
	if err != nil {
		require.ErrorIs(p, err, gateway.ErrNotFound)
	}
	return binding.NodeID
}

func testLogins(t *testing.T, b Backend) {
	store, database := setup(t, b)
	p := probe{t, store}

	t.Run("the first login binds", func(t *testing.T) {
		p := probe{t, store}
		result := p.login(login("1", "Alice", "n1"))
		require.True(t, result.Created)
		require.Nil(t, result.Before)
		require.Equal(t, gateway.Route{NodeID: "n1", Epoch: 1}, result.Binding.Route())
		require.Equal(t, "Alice", result.Binding.Username)
		require.ElementsMatch(t, []gateway.Change{byUser("1"), byName("alice")}, result.Changes)
		stored, err := store.BindingByUser(t.Context(), ai, "1")
		require.NoError(t, err)
		require.Equal(t, result.Binding, stored)
		require.Equal(t, "n1", p.nodeNamed("aLICE"))
	})
	t.Run("a second login stays, wherever it took place", func(t *testing.T) {
		p := probe{t, store}
		result := p.login(login("1", "Alice", "n2"))
		require.False(t, result.Created)
		require.Equal(t, "n1", result.Binding.NodeID)
		require.Empty(t, result.Changes)
		require.Equal(t, result.Binding, *result.Before)
	})
	t.Run("services do not share bindings", func(t *testing.T) {
		result, err := store.BindIfAbsent(t.Context(), gateway.Login{ServiceID: other, UserID: "1", Username: "Alice", NodeID: "m1"})
		require.NoError(t, err)
		require.Equal(t, "m1", result.Binding.NodeID)
		require.Equal(t, "n1", probe{t, store}.nodeOf("1"))
	})
	t.Run("a node of another service, or none, is a conflict", func(t *testing.T) {
		for _, nodeID := range []string{"m1", "n9"} {
			_, err := store.BindIfAbsent(t.Context(), login("404", "ghost", nodeID))
			requireConflict(t, err, nodeID)
		}
		require.Empty(t, probe{t, store}.nodeOf("404"))
	})
	t.Run("a renamed user keeps the row", func(t *testing.T) {
		p := probe{t, store}
		p.login(login("2", "old name", "n2"))
		result := p.login(login("2", "New Name", "n3"))
		require.Equal(t, "n2", result.Binding.NodeID)
		require.Equal(t, "old name", result.Before.Username)
		require.ElementsMatch(t, []gateway.Change{byUser("2"), byName("old name"), byName("new name")}, result.Changes)
		require.Equal(t, "n2", p.nodeNamed("new name"))
		require.Empty(t, p.nodeNamed("old name"))
	})
	t.Run("a login without a username leaves the one that is there", func(t *testing.T) {
		p := probe{t, store}
		p.login(login("2", "", "n3"))
		require.Equal(t, "n2", p.nodeNamed("new name"))
		require.True(t, p.login(login("3", "", "n3")).Created)
		require.Equal(t, "n3", p.nodeOf("3"))
	})
	t.Run("a row bound in advance gets the user id and keeps its node", func(t *testing.T) {
		p := probe{t, store}
		advance := p.bind("", "Early", "n3").Binding
		result := p.login(login("4", "EARLY", "n1"))
		require.Equal(t, advance.ID, result.Binding.ID)
		require.Equal(t, "n3", result.Binding.NodeID)
		require.Equal(t, "EARLY", result.Binding.Username)
		require.Contains(t, result.Changes, byUser("4"))
		require.Equal(t, "n3", p.nodeOf("4"))
	})
	t.Run("a username moves to a new user id, which is bound where it logged in", func(t *testing.T) {
		p := probe{t, store}
		p.login(login("5", "moved", "n1"))
		result := p.login(login("6", "Moved", "n2"))
		require.True(t, result.Created)
		require.Equal(t, "n2", result.Binding.NodeID)
		require.Equal(t, "n2", p.nodeNamed("moved"))
		require.Equal(t, "n1", p.nodeOf("5"))
		previous, err := store.BindingByUser(t.Context(), ai, "5")
		require.NoError(t, err)
		require.Empty(t, previous.Username)
		require.Subset(t, result.Changes, []gateway.Change{byUser("6"), byUser("5"), byName("moved")})
	})
	t.Run("a username moves to a user id that has a row, which keeps its node", func(t *testing.T) {
		p := probe{t, store}
		p.login(login("7", "seven", "n1"))
		p.login(login("8", "eight", "n2"))
		require.Equal(t, "n2", p.login(login("8", "seven", "n3")).Binding.NodeID)
		require.Equal(t, "n2", p.nodeNamed("seven"))
		require.Equal(t, "n1", p.nodeOf("7"))
		require.Empty(t, p.nodeNamed("eight"))
	})
	t.Run("a row bound in advance whose name goes to another row is deleted", func(t *testing.T) {
		p := probe{t, store}
		advance := p.bind("", "nine", "n1").Binding
		p.login(login("9", "somebody", "n2"))
		require.Equal(t, "n2", p.login(login("9", "nine", "n3")).Binding.NodeID)
		_, err := store.Unbind(t.Context(), advance.ID)
		require.ErrorIs(t, err, gateway.ErrNotFound)
	})
	t.Run("names are compared by lower case and composition", func(t *testing.T) {
		p := probe{t, store}
		p.login(login("10", "JOSE\u0301 ÅSA 张三", "n3"))
		require.Equal(t, "n3", p.nodeNamed("josé A\u030Asa 张三"))
	})
	t.Run("user ids are text", func(t *testing.T) {
		p := probe{t, store}
		for i, userID := range []string{"9223372036854775807", "9007199254740993", "9007199254740992", "018f-uuid", "007", "7.0", strings.Repeat("张", 255)} {
			nodeID := fmt.Sprintf("n%d", i%3+1)
			p.login(login(userID, "", nodeID))
			require.Equal(t, nodeID, p.nodeOf(userID))
		}
	})
	t.Run("names of every length and sign", func(t *testing.T) {
		p := probe{t, store}
		for i, name := range []string{`'; DROP TABLE gateway_user_route; --`, `a%b_c\d"e`, strings.Repeat("𠀀", 255), "İstanbul ΣΑΣ ß"} {
			p.login(login(fmt.Sprintf("name-%d", i), name, "n2"))
			require.Equal(t, "n2", p.nodeNamed(name))
		}
	})
	require.Equal(t, "n1", probe{p.T, open(t, b, database)}.nodeOf("1"), "another store sees it")
}

func testAliases(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	p := probe{t, store}

	result := p.login(typed(login("1", "alice", "n1"), "138-0000"))
	require.Contains(t, result.Changes, byName("138-0000"))
	require.Equal(t, "n1", p.nodeNamed("138-0000"))
	require.Empty(t, p.login(typed(login("1", "alice", "n2"), "138-0000")).Changes, "nothing new")
	require.Empty(t, p.login(typed(login("1", "alice", "n2"), "ALICE")).Changes, "the username is no alias")

	// The last writer wins, and an alias never outranks a username.
	p.login(typed(login("2", "bob", "n2"), "138-0000"))
	require.Equal(t, "n2", p.nodeNamed("138-0000"))
	p.login(typed(login("1", "alice", "n1"), "bob"))
	require.Equal(t, "n2", p.nodeNamed("bob"))

	// A rebind changes what the aliases lead to.
	result = p.bind("2", "", "n3")
	require.Contains(t, result.Changes, byName("138-0000"))
	require.Equal(t, "n3", p.nodeNamed("138-0000"))

	// The aliases go with the row; the name that an alias stood behind is free for it.
	result, err := store.Unbind(t.Context(), result.Binding.ID)
	require.NoError(t, err)
	require.ElementsMatch(t, []gateway.Change{byUser("2"), byName("bob"), byName("138-0000")}, result.Changes)
	require.Empty(t, p.nodeNamed("138-0000"))
	require.Equal(t, "n1", p.nodeNamed("bob"))

	// A row keeps its newest ones.
	for i := range 20 {
		result = p.login(typed(login("3", "carol", "n3"), fmt.Sprintf("alias-%02d", i)))
	}
	require.ElementsMatch(t, []gateway.Change{byName("alias-19"), byName("alias-03")}, result.Changes)
	for i := range 20 {
		want := "n3"
		if i < 4 {
			want = ""
		}
		require.Equal(t, want, p.nodeNamed(fmt.Sprintf("alias-%02d", i)), i)
	}
	// Without a username the typed name still leads back.
	p.login(typed(login("4", "", "n2"), "mail@example.org"))
	require.Equal(t, "n2", p.nodeNamed("MAIL@example.org"))
}

func testAdministrator(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	p := probe{t, store}
	ctx := t.Context()

	created := p.bind("1", "", "n1")
	require.True(t, created.Created)
	require.EqualValues(t, 1, created.Binding.Epoch)
	require.Empty(t, p.bind("1", "", "n1").Changes, "bound there already")

	rebound := p.bind("1", "", "n2")
	require.Equal(t, gateway.Route{NodeID: "n2", Epoch: 2}, rebound.Binding.Route())
	require.Equal(t, gateway.Route{NodeID: "n1", Epoch: 1}, rebound.Before.Route())
	require.Equal(t, []gateway.Change{byUser("1")}, rebound.Changes)
	require.Equal(t, "n2", p.login(login("1", "alice", "n1")).Binding.NodeID, "a login does not move the user back")

	named := p.bind("1", "Alicia", "n2")
	require.EqualValues(t, 2, named.Binding.Epoch, "the node did not change")
	require.Equal(t, "Alicia", named.Binding.Username)
	require.ElementsMatch(t, []gateway.Change{byUser("1"), byName("alice"), byName("alicia")}, named.Changes)

	p.bind("", "bob", "n1")
	identified := p.bind("2", "bob", "n3")
	require.Equal(t, "2", identified.Binding.UserID)
	require.Equal(t, gateway.Route{NodeID: "n3", Epoch: 2}, identified.Binding.Route())
	require.Equal(t, "n1", p.bind("", "BOB", "n1").Binding.NodeID)
	require.Equal(t, "n1", p.nodeOf("2"))

	_, err := store.Bind(ctx, gateway.Assignment{ServiceID: ai, UserID: "1", Username: "bob", NodeID: "n1"})
	requireConflict(t, err, `"1"`, `"bob"`)
	_, err = store.Bind(ctx, gateway.Assignment{ServiceID: ai, UserID: "3", Username: "bob", NodeID: "n1"})
	requireConflict(t, err, `"bob"`, `"2"`)
	for _, nodeID := range []string{"m1", "n9"} {
		for _, userID := range []string{"1", "new"} {
			_, err = store.Bind(ctx, gateway.Assignment{ServiceID: ai, UserID: userID, NodeID: nodeID})
			requireConflict(t, err, nodeID)
		}
	}
	// An alias is no way to a row.
	p.login(typed(login("1", "Alicia", "n2"), "138"))
	require.True(t, p.bind("", "138", "n3").Created)
	require.Equal(t, "n3", p.nodeNamed("138"))

	gone, err := store.Unbind(ctx, named.Binding.ID)
	require.NoError(t, err)
	require.Equal(t, "1", gone.Before.UserID)
	require.Equal(t, gone.Binding, *gone.Before)
	require.Empty(t, p.nodeOf("1"))
	_, err = store.Unbind(ctx, named.Binding.ID)
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.NotEqual(t, named.Binding.ID, p.bind("1", "", "n1").Binding.ID, "an id is not used again")
}

func testLists(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	p := probe{t, store}
	for i := range 25 {
		p.login(login(fmt.Sprintf("%d", 1000+i), fmt.Sprintf("User%02d", i), fmt.Sprintf("n%d", i%2+1)))
	}
	p.login(login("abc-DEF", "100%_Öl", "n3"))
	_, err := store.BindIfAbsent(t.Context(), gateway.Login{ServiceID: other, UserID: "1000", Username: "elsewhere", NodeID: "m1"})
	require.NoError(t, err)

	for _, list := range []struct {
		filter gateway.BindingFilter
		total  int64
		page   int
	}{
		{gateway.BindingFilter{Limit: 200}, 27, 27},
		{gateway.BindingFilter{ServiceID: ai, Limit: 10}, 26, 10},
		{gateway.BindingFilter{ServiceID: ai, Limit: 10, Offset: 20}, 26, 6},
		{gateway.BindingFilter{ServiceID: ai, Limit: 10, Offset: 99}, 26, 0},
		{gateway.BindingFilter{Keyword: "1000", Limit: 10}, 2, 2},
		{gateway.BindingFilter{ServiceID: ai, Keyword: "uSeR0", Limit: 100}, 10, 10},
		{gateway.BindingFilter{Keyword: "C-d", Limit: 10}, 1, 1},
		{gateway.BindingFilter{Keyword: "%", Limit: 10}, 1, 1},
		{gateway.BindingFilter{Keyword: "_", Limit: 10}, 1, 1},
		{gateway.BindingFilter{Keyword: "ö", Limit: 10}, 1, 1},
		{gateway.BindingFilter{ServiceID: "none", Limit: 10}, 0, 0},
	} {
		page, total, err := store.ListBindings(t.Context(), list.filter)
		require.NoError(t, err)
		require.Equal(t, list.total, total, "%+v", list.filter)
		require.Len(t, page, list.page, "%+v", list.filter)
		for i := 1; i < len(page); i++ {
			require.Less(t, page[i-1].ID, page[i].ID)
		}
	}
	counts, err := store.CountBindings(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"n1": 13, "n2": 12, "n3": 1, "m1": 1}, counts)
}
