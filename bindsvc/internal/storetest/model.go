package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// model is the binding rules over maps, as the spec words them.
type model struct {
	rows    map[*modelRow]bool
	aliases map[string]*modelRow
}

type modelRow struct {
	user, name, node string
	epoch            int64
	imported         bool // and not changed since
}

// noting runs a change and notes which imported rows it changed.
func (m *model) noting(change func()) {
	before := map[*modelRow]modelRow{}
	for row := range m.rows {
		before[row] = *row
	}
	change()
	for row := range m.rows {
		if was, existed := before[row]; existed && *row != was {
			row.imported = false
		}
	}
}

func (m *model) user(id string) *modelRow {
	for row := range m.rows {
		if id != "" && row.user == id {
			return row
		}
	}
	return nil
}

func (m *model) name(name string) *modelRow {
	for row := range m.rows {
		if name != "" && row.name == name {
			return row
		}
	}
	return nil
}

func (m *model) delete(row *modelRow) {
	delete(m.rows, row)
	for alias, leadsTo := range m.aliases {
		if leadsTo == row {
			delete(m.aliases, alias)
		}
	}
}

func (m *model) login(user, name, typed, node string) {
	row := m.user(user)
	if row == nil {
		if advance := m.name(name); advance != nil && advance.user == "" {
			row = advance
		}
	}
	if holder := m.name(name); holder != nil && holder != row {
		holder.name = ""
		if holder.user == "" {
			m.delete(holder)
		}
	}
	if row == nil {
		row = &modelRow{node: node, epoch: 1}
		m.rows[row] = true
	}
	row.user = user
	if name != "" {
		row.name = name
	}
	row.imported = false
	if typed != "" && typed != row.name {
		m.aliases[typed] = row
	}
}

// bind reports whether the administrator's wish is granted.
func (m *model) bind(user, name, node string) bool {
	row, named := m.user(user), m.name(name)
	if row != nil && named != nil && row != named {
		return false
	}
	if row == nil && named != nil && user != "" && named.user != "" {
		return false
	}
	if row == nil {
		row = named
	}
	if row == nil {
		row = &modelRow{}
		m.rows[row] = true
	}
	if user != "" {
		row.user = user
	}
	if name != "" {
		row.name = name
	}
	if row.node != node {
		row.node = node
		row.epoch++
	}
	row.imported = false
	return true
}

// importRow reports whether the user was bound to the node, now or before.
func (m *model) importRow(user, name, node string) bool {
	row := m.user(user)
	if row == nil {
		row = m.name(name)
	}
	if row == nil {
		m.rows[&modelRow{user: user, name: name, node: node, epoch: 1, imported: true}] = true
		return true
	}
	return row.node == node && (user == "" || row.user == "" || row.user == user)
}

// undo deletes what imports made and nobody changed, and reports how many rows that were.
func (m *model) undo() (removed int64) {
	for row := range m.rows {
		if row.imported {
			m.delete(row)
			removed++
		}
	}
	return removed
}

func routeOf(row *modelRow) gateway.Route {
	if row == nil {
		return gateway.Route{}
	}
	return gateway.Route{NodeID: row.node, Epoch: row.epoch}
}

// moment is what user ids and usernames (not aliases) were bound to at some time.
type moment struct {
	at    time.Time
	bound map[gateway.Change]gateway.Route
}

// testModel compares a store with the model over random histories: what it answers
// now, what it says it would have answered earlier, and a cache that forgets only
// what the results' Changes tell.
func testModel(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	ctx := t.Context()
	users := []string{"1", "2", "3"}
	names := []string{"a", "b", "c", "d"}
	nodes := []string{"n1", "n2", "n3"}
	optional := func(values []string) *rapid.Generator[string] {
		return rapid.SampledFrom(append([]string{""}, values...))
	}

	ask := func(t require.TestingT, lookup gateway.Change) gateway.Route {
		var binding gateway.Binding
		var err error
		if lookup.Kind == gateway.ChangeUser {
			binding, err = store.BindingByUser(ctx, ai, lookup.UserID)
		} else {
			binding, err = store.BindingByUsername(ctx, ai, lookup.UsernameKey)
		}
		if err != nil {
			require.ErrorIs(t, err, gateway.ErrNotFound)
		}
		return binding.Route()
	}
	empty := func(t require.TestingT) {
		page, _, err := store.ListBindings(ctx, gateway.BindingFilter{Limit: 100})
		require.NoError(t, err)
		for _, binding := range page {
			_, err := store.Unbind(ctx, binding.ID)
			require.NoError(t, err)
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		empty(t)
		m := &model{rows: map[*modelRow]bool{}, aliases: map[string]*modelRow{}}
		cache := map[gateway.Change]gateway.Route{}
		var history []moment
		imports, err := store.BeginImport(ctx, gateway.Import{ServiceID: ai, Source: gateway.ImportFile})
		require.NoError(t, err)
		check := func() {
			now := moment{at: time.Now(), bound: map[gateway.Change]gateway.Route{}}
			want := map[gateway.Change]gateway.Route{}
			for _, user := range users {
				want[byUser(user)] = routeOf(m.user(user))
				now.bound[byUser(user)] = want[byUser(user)]
			}
			for _, name := range names {
				row := m.name(name)
				now.bound[byName(name)] = routeOf(row)
				if row == nil {
					row = m.aliases[name]
				}
				want[byName(name)] = routeOf(row)
			}
			for lookup, route := range want {
				answer := ask(t, lookup)
				require.Equal(t, route, answer, "%+v", lookup)
				if cached, ok := cache[lookup]; ok {
					require.Equal(t, answer, cached, "a cache was not told of %+v", lookup)
				}
				cache[lookup] = answer
			}
			history = append(history, now)
		}
		forget := func(changes []gateway.Change) {
			for _, change := range changes {
				delete(cache, change)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"login": func(t *rapid.T) {
				user, name := rapid.SampledFrom(users).Draw(t, "user"), optional(names).Draw(t, "name")
				as, node := optional(names).Draw(t, "typed"), rapid.SampledFrom(nodes).Draw(t, "node")
				result, err := store.BindIfAbsent(ctx, typed(login(user, name, node), as))
				require.NoError(t, err)
				m.noting(func() { m.login(user, name, as, node) })
				require.Equal(t, routeOf(m.user(user)), result.Binding.Route())
				forget(result.Changes)
				check()
			},
			"bind": func(t *rapid.T) {
				user, name := optional(users).Draw(t, "user"), optional(names).Draw(t, "name")
				node := rapid.SampledFrom(nodes).Draw(t, "node")
				if user == "" && name == "" {
					return // not a wish
				}
				result, err := store.Bind(ctx, gateway.Assignment{ServiceID: ai, UserID: user, Username: name, NodeID: node})
				granted := false
				m.noting(func() { granted = m.bind(user, name, node) })
				if !granted {
					var conflict *gateway.ConflictError
					require.ErrorAs(t, err, &conflict)
					return
				}
				require.NoError(t, err)
				require.Equal(t, node, result.Binding.NodeID)
				forget(result.Changes)
				check()
			},
			"unbind": func(t *rapid.T) {
				row := m.user(rapid.SampledFrom(users).Draw(t, "user"))
				if row == nil {
					return // nothing to unbind
				}
				binding, err := store.BindingByUser(ctx, ai, row.user)
				require.NoError(t, err)
				result, err := store.Unbind(ctx, binding.ID)
				require.NoError(t, err)
				m.delete(row)
				forget(result.Changes)
				check()
			},
			"import": func(t *rapid.T) {
				user, name := optional(users).Draw(t, "user"), optional(names).Draw(t, "name")
				node := rapid.SampledFrom(nodes).Draw(t, "node")
				if user == "" && name == "" {
					return // nobody
				}
				batch, err := store.ImportRows(ctx, imports, []gateway.ImportRow{{UserID: user, Username: name, NodeID: node}})
				require.NoError(t, err)
				isBound := m.importRow(user, name, node)
				require.Equal(t, isBound, len(batch.Conflicts) == 0)
				require.Equal(t, isBound, batch.Bound+batch.Unchanged == 1)
				clear(cache)
				check()
			},
			"undo": func(t *rapid.T) {
				batch, err := store.UndoRows(ctx, imports, 0, 100)
				require.NoError(t, err)
				require.True(t, batch.Done)
				require.Equal(t, m.undo(), batch.Removed)
				clear(cache)
				check()
			},
			"look back": func(t *rapid.T) {
				if len(history) == 0 {
					return // nothing has happened yet
				}
				then := rapid.SampledFrom(history).Draw(t, "moment")
				for lookup, route := range then.bound {
					binding, err := store.BindingAt(ctx, ai, lookup.UserID, lookup.UsernameKey, then.at)
					if err != nil {
						require.ErrorIs(t, err, gateway.ErrNotFound)
					}
					require.Equal(t, route, binding.Route(), "%+v at %s", lookup, then.at)
				}
			},
		})
	})
}
