package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func testRegistry(t *testing.T, b Backend) {
	store, _ := setup(t, b)
	ctx := t.Context()

	services, nodes, err := store.LoadRegistry(ctx)
	require.NoError(t, err)
	require.Len(t, services, 2)
	require.Len(t, nodes, 4)
	require.Equal(t, []string{ai, other, "m1", "n1"}, []string{services[0].ID, services[1].ID, nodes[0].ID, nodes[1].ID})
	require.WithinDuration(t, time.Now(), services[0].CreatedAt, time.Minute)
	require.NoError(t, services[0].Verify())
	require.NoError(t, nodes[0].Verify())
	require.Equal(t, gateway.RoundRobin, services[0].Placement)
	require.Equal(t, []any{1, false}, []any{nodes[0].Weight, nodes[0].Draining})

	full := gateway.Service{
		ID: "full", Name: "all fields", PathPrefix: "/full", LoginPath: "/in", LogoutPath: "/out", HealthPath: "/up", Enabled: false,
		Placement: gateway.Weighted,
		Login:     gateway.LoginFields{Username: "u", Code: "c", Success: []string{"0", "ok"}, Token: "t", UserID: "i", ResponseUsername: "n"},
	}
	require.NoError(t, store.CreateService(ctx, full))
	fullNode := gateway.Node{ID: "f1", ServiceID: "full", Name: "first", BaseURL: "https://f1.example", TraefikService: "f1@docker", Weight: 7, Draining: true, Remark: "rack 3"}
	require.NoError(t, store.CreateNode(ctx, fullNode))
	services, nodes, err = store.LoadRegistry(ctx)
	require.NoError(t, err)
	full.CreatedAt, full.UpdatedAt = services[1].CreatedAt, services[1].UpdatedAt
	fullNode.CreatedAt, fullNode.UpdatedAt = nodes[0].CreatedAt, nodes[0].UpdatedAt
	require.Equal(t, full, services[1])
	require.Equal(t, fullNode, nodes[0])

	withDefault := service("early", "/early")
	withDefault.DefaultNodeID = "n1"
	for name, refused := range map[string]error{
		"service id taken":       store.CreateService(ctx, service(ai, "/free")),
		"path prefix taken":      store.CreateService(ctx, service("free", "/js/a")),
		"default without nodes":  store.CreateService(ctx, withDefault),
		"node id taken":          store.CreateNode(ctx, node("n1", other)),
		"no such service":        store.CreateNode(ctx, node("n9", "none")),
		"service has nodes":      store.DeleteService(ctx, ai),
		"prefix of another":      update(store, ai, func(s *gateway.Service) { s.PathPrefix = "/js/b" }),
		"default of another":     update(store, ai, func(s *gateway.Service) { s.DefaultNodeID = "m1" }),
		"default does not exist": update(store, ai, func(s *gateway.Service) { s.DefaultNodeID = "n9" }),
	} {
		t.Run(name, func(t *testing.T) { requireConflict(t, refused) })
	}

	updated, err := store.UpdateService(ctx, ai, func(s *gateway.Service) error {
		s.ID, s.Name, s.DefaultNodeID, s.Enabled, s.Placement = "renamed", "AI", "n2", false, gateway.FewestBindings
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []any{ai, "AI", "n2", false, gateway.FewestBindings},
		[]any{updated.ID, updated.Name, updated.DefaultNodeID, updated.Enabled, updated.Placement})
	services, _, err = store.LoadRegistry(ctx)
	require.NoError(t, err)
	require.Equal(t, updated, services[0])

	updatedNode, err := store.UpdateNode(ctx, "n3", func(n *gateway.Node) error {
		n.ID, n.ServiceID, n.Enabled, n.Remark, n.Weight, n.Draining = "renamed", other, false, "in repair", gateway.MaxWeight, true
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []any{"n3", ai, false, "in repair", gateway.MaxWeight, true},
		[]any{updatedNode.ID, updatedNode.ServiceID, updatedNode.Enabled, updatedNode.Remark, updatedNode.Weight, updatedNode.Draining})
	_, nodes, err = store.LoadRegistry(ctx)
	require.NoError(t, err)
	require.Equal(t, updatedNode, nodes[len(nodes)-1])

	refusal := errors.New("refused")
	_, err = store.UpdateService(ctx, ai, func(s *gateway.Service) error { s.Name = "lost"; return refusal })
	require.ErrorIs(t, err, refusal)
	_, err = store.UpdateNode(ctx, "n1", func(n *gateway.Node) error { n.Name = "lost"; return refusal })
	require.ErrorIs(t, err, refusal)
	after, afterNodes, err := store.LoadRegistry(ctx)
	require.NoError(t, err)
	require.Equal(t, services, after)
	require.Equal(t, nodes, afterNodes)

	_, err = store.UpdateService(ctx, "none", func(*gateway.Service) error { return nil })
	require.ErrorIs(t, err, gateway.ErrNotFound)
	_, err = store.UpdateNode(ctx, "none", func(*gateway.Node) error { return nil })
	require.ErrorIs(t, err, gateway.ErrNotFound)
	require.ErrorIs(t, store.DeleteService(ctx, "none"), gateway.ErrNotFound)
	require.ErrorIs(t, store.DeleteNode(ctx, "none"), gateway.ErrNotFound)

	requireConflict(t, store.DeleteNode(ctx, "n2")) // the default node
	bound := probe{t, store}.login(login("1", "alice", "n3"))
	requireConflict(t, store.DeleteNode(ctx, "n3"), "1")
	_, err = store.Unbind(ctx, bound.Binding.ID)
	require.NoError(t, err)
	require.NoError(t, store.DeleteNode(ctx, "n3"))
	require.NoError(t, store.DeleteNode(ctx, "f1"))
	require.NoError(t, store.DeleteService(ctx, "full"))
	require.NoError(t, update(store, ai, func(s *gateway.Service) { s.DefaultNodeID = "" }))
	require.NoError(t, store.DeleteNode(ctx, "n2"))
}

func update(store gateway.Store, id string, change func(*gateway.Service)) error {
	_, err := store.UpdateService(context.Background(), id, func(s *gateway.Service) error { change(s); return nil })
	return err
}

func testSeeding(t *testing.T, b Backend) {
	database := b.NewDatabase(t)
	ctx := t.Context()
	withDefault := service(ai, "/js/a")
	withDefault.DefaultNodeID = "n2"
	nodes := []gateway.Node{node("n1", ai), node("n2", ai)}

	wrong := withDefault
	wrong.DefaultNodeID = "n9"
	_, err := open(t, b, database).SeedRegistry(ctx, []gateway.Service{wrong}, nodes)
	requireConflict(t, err, "n9")

	const starting = 5
	seeded := make(chan bool, starting)
	for range starting {
		store := open(t, b, database)
		go func() {
			did, err := store.SeedRegistry(ctx, []gateway.Service{withDefault}, nodes)
			seeded <- did && err == nil
		}()
	}
	seeders := 0
	for range starting {
		if <-seeded {
			seeders++
		}
	}
	require.Equal(t, 1, seeders)
	services, stored, err := open(t, b, database).LoadRegistry(ctx)
	require.NoError(t, err)
	require.Len(t, stored, 2)
	require.Equal(t, "n2", services[0].DefaultNodeID)
	did, err := open(t, b, database).SeedRegistry(ctx, []gateway.Service{service("late", "/late")}, nil)
	require.NoError(t, err)
	require.False(t, did)
}

func testFeed(t *testing.T, b Backend) {
	writer, database := setup(t, b)
	reader := open(t, b, database)
	here, there := follow(t, writer), follow(t, reader)
	p := probe{t, writer}
	told := func(changes ...gateway.Change) {
		t.Helper()
		require.NotEmpty(t, changes)
		here.requireTold(t, changes...)
		there.requireTold(t, changes...)
	}

	told(p.login(typed(login("1", "alice", "n1"), "138")).Changes...)
	told(p.bind("1", "", "n2").Changes...)
	told(p.login(login("2", "Alice", "n3")).Changes...)
	gone, err := writer.Unbind(t.Context(), p.bind("2", "", "n3").Binding.ID)
	require.NoError(t, err)
	told(gone.Changes...)

	registry := gateway.Change{Kind: gateway.ChangeRegistry}
	require.NoError(t, writer.CreateNode(t.Context(), node("n4", ai)))
	told(registry)
	require.NoError(t, update(writer, ai, func(s *gateway.Service) { s.DefaultNodeID = "n4" }))
	told(registry)
	_, err = writer.UpdateNode(t.Context(), "n4", func(n *gateway.Node) error { n.Enabled = false; return nil })
	require.NoError(t, err)
	told(registry)
}
