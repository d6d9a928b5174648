// Package storetest is the one conformance suite that every gateway.Store passes:
// the binding rules, the registry's conflicts, policies and roles, the audit, imports,
// the change feed, and races between stores and between processes.
package storetest

import (
	"context"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Backend is one kind of store.
type Backend struct {
	// NewDatabase makes an empty database with the current schema and returns what Open needs to find it.
	NewDatabase func(t *testing.T) string
	// Open opens one of any number of stores on a database.
	Open func(ctx context.Context, database string) (gateway.Store, error)
}

// Run runs the suite.
func Run(t *testing.T, b Backend) {
	t.Run("logins", func(t *testing.T) { testLogins(t, b) })
	t.Run("aliases", func(t *testing.T) { testAliases(t, b) })
	t.Run("administrator", func(t *testing.T) { testAdministrator(t, b) })
	t.Run("lists", func(t *testing.T) { testLists(t, b) })
	t.Run("model", func(t *testing.T) { testModel(t, b) })
	t.Run("registry", func(t *testing.T) { testRegistry(t, b) })
	t.Run("seeding", func(t *testing.T) { testSeeding(t, b) })
	t.Run("audit", func(t *testing.T) { testAudit(t, b) })
	t.Run("audit lists", func(t *testing.T) { testAuditLists(t, b) })
	t.Run("audit looks back", func(t *testing.T) { testBindingAt(t, b) })
	t.Run("imports", func(t *testing.T) { testImports(t, b) })
	t.Run("import records", func(t *testing.T) { testImportRecords(t, b) })
	t.Run("undo", func(t *testing.T) { testUndo(t, b) })
	t.Run("runs of an import", func(t *testing.T) { testImportRuns(t, b) })
	t.Run("policies", func(t *testing.T) { testPolicies(t, b) })
	t.Run("policy bodies", func(t *testing.T) { testPolicyBodies(t, b) })
	t.Run("policy history", func(t *testing.T) { testPolicyHistory(t, b) })
	t.Run("many policies", func(t *testing.T) { testManyPolicies(t, b) })
	t.Run("policy feed", func(t *testing.T) { testPolicyFeed(t, b) })
	t.Run("roles", func(t *testing.T) { testRoles(t, b) })
	t.Run("role lists", func(t *testing.T) { testRoleLists(t, b) })
	t.Run("role feed", func(t *testing.T) { testRoleFeed(t, b) })
	t.Run("feed", func(t *testing.T) { testFeed(t, b) })
	t.Run("race of stores", func(t *testing.T) { testRaceOfStores(t, b) })
	t.Run("race of names", func(t *testing.T) { testRaceOfNames(t, b) })
	t.Run("race of imports", func(t *testing.T) { testRaceOfImports(t, b) })
	t.Run("race of policy writers", func(t *testing.T) { testRaceOfPolicyWriters(t, b) })
	t.Run("race of roles", func(t *testing.T) { testRaceOfRoles(t, b) })
	t.Run("race of processes", func(t *testing.T) { testRaceOfProcesses(t, b) })
	t.Run("race of registry writers", func(t *testing.T) { testRaceOfRegistryWriters(t, b) })
}

// Main runs a package's tests; in a process that a test of the suite started
// from the same binary it does that test's job instead.
func Main(m *testing.M, b Backend) int {
	if job := os.Getenv(envJob); job != "" {
		return runJob(job, b)
	}
	return m.Run()
}

const (
	ai    = "ai"    // has the nodes n1, n2, n3
	other = "other" // has the node m1
)

func service(id, prefix string) gateway.Service {
	return gateway.Service{ID: id, Name: id, PathPrefix: prefix, LoginPath: "/sys/login", HealthPath: "/actuator/health", Enabled: true, Login: gateway.DefaultLoginFields()}
}

func node(id, serviceID string) gateway.Node {
	return gateway.Node{ID: id, ServiceID: serviceID, Name: id, BaseURL: "http://127.0.0.1:8981", Enabled: true}
}

// setup returns a store on a new database that holds two services, and the database.
func setup(t *testing.T, b Backend) (gateway.Store, string) {
	t.Helper()
	database := b.NewDatabase(t)
	store := open(t, b, database)
	seeded, err := store.SeedRegistry(t.Context(),
		[]gateway.Service{service(ai, "/js/a"), service(other, "/js/b")},
		[]gateway.Node{node("n1", ai), node("n2", ai), node("n3", ai), node("m1", other)})
	require.NoError(t, err)
	require.True(t, seeded)
	return store, database
}

func open(t *testing.T, b Backend, database string) gateway.Store {
	t.Helper()
	store, err := b.Open(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

func requireConflict(t *testing.T, err error, mentions ...string) {
	t.Helper()
	var conflict *gateway.ConflictError
	require.ErrorAs(t, err, &conflict)
	for _, text := range mentions {
		require.Contains(t, conflict.Message, text)
	}
}

// followed is what a Follow has told so far.
type followed struct {
	live    chan bool
	changes chan gateway.Change
}

// follow follows store until the test ends and waits for it to be live.
func follow(t *testing.T, store gateway.Store) followed {
	t.Helper()
	f := followed{live: make(chan bool, 100), changes: make(chan gateway.Change, 10_000)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- store.Follow(ctx, func(live bool) { f.live <- live }, func(c gateway.Change) { f.changes <- c })
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case live := <-f.live:
		require.True(t, live)
	case <-time.After(10 * time.Second):
		require.Fail(t, "the feed never became live")
	}
	return f
}

// covers reports whether the change is told, exactly or as one of many.
func covers(told, change gateway.Change) bool {
	switch told {
	case change:
		return true
	case gateway.Change{Kind: gateway.ChangeBindings}:
		return change.Kind == gateway.ChangeUser || change.Kind == gateway.ChangeUsername
	case gateway.Change{Kind: gateway.ChangeRoles}:
		return change.Kind == gateway.ChangeRoles
	}
	return false
}

// requireTold waits until the feed has told of every change.
func (f followed) requireTold(t *testing.T, changes ...gateway.Change) {
	t.Helper()
	missing := map[gateway.Change]bool{}
	for _, change := range changes {
		missing[change] = true
	}
	deadline := time.After(time.Second)
	for len(missing) > 0 {
		select {
		case told := <-f.changes:
			maps.DeleteFunc(missing, func(change gateway.Change, _ bool) bool { return covers(told, change) })
		case <-deadline:
			require.Empty(t, missing, "not told within a second")
		}
	}
}

// next returns what the feed tells next.
func (f followed) next(t *testing.T) gateway.Change {
	t.Helper()
	select {
	case told := <-f.changes:
		return told
	case <-time.After(time.Second):
		require.Fail(t, "nothing told within a second")
		return gateway.Change{}
	}
}
