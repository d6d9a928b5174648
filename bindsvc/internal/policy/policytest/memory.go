// Package policytest has stores of policies in memory, for tests of what reads policies.
package policytest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// ErrDown is what a store that is down answers.
var ErrDown = errors.New("the store is down")

// Memory is a gateway.Policies. It is safe for concurrent use.
type Memory struct {
	mu       sync.Mutex
	down     bool
	policies []gateway.Policy
	revision int64
	history  []gateway.AuditEntry // the newest last
}

// SetDown makes every call fail, or no longer.
func (m *Memory) SetDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

// LoadPolicies implements gateway.Policies.
func (m *Memory) LoadPolicies(context.Context) ([]gateway.Policy, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, 0, ErrDown
	}
	return m.policies, m.revision, nil
}

// PolicyRevision implements gateway.Policies.
func (m *Memory) PolicyRevision(ctx context.Context) (int64, error) {
	_, revision, err := m.LoadPolicies(ctx)
	return revision, err
}

// ChangePolicies implements gateway.Policies.
func (m *Memory) ChangePolicies(ctx context.Context, decide func([]gateway.Policy, int64) ([]gateway.PolicyChange, error)) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return 0, ErrDown
	}
	changes, err := decide(m.policies, m.revision)
	if err != nil || len(changes) == 0 {
		return m.revision, err
	}
	m.revision++
	for _, change := range changes {
		var before []byte
		for _, p := range m.policies {
			if p.Kind == change.Kind && p.ID == change.ID {
				before = p.Body
			}
		}
		if before != nil || change.Body != nil {
			entry := gateway.AuditPolicyChange(change.Kind, change.ID, m.revision, before, change.Body)
			entry.Actor, entry.At = gateway.ActorOf(ctx), time.Now()
			m.history = append(m.history, entry)
		}
	}
	m.policies = policy.Applied(m.policies, changes)
	for i := range m.policies {
		if m.policies[i].Revision < 0 {
			m.policies[i].Revision, m.policies[i].UpdatedAt = m.revision, time.Now()
		}
	}
	return m.revision, nil
}

// Put stores a body as it is, as somebody at the SQL prompt does.
func (m *Memory) Put(kind gateway.PolicyKind, id, body string) {
	_, err := m.ChangePolicies(context.Background(), func([]gateway.Policy, int64) ([]gateway.PolicyChange, error) {
		return []gateway.PolicyChange{{Kind: kind, ID: id, Body: []byte(body)}}, nil
	})
	if err != nil {
		panic(err)
	}
}

// PolicyHistory implements gateway.Policies.
func (m *Memory) PolicyHistory(_ context.Context, kind gateway.PolicyKind, since int64, limit int) ([]gateway.AuditEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var entries []gateway.AuditEntry
	for i := len(m.history) - 1; i >= 0 && len(entries) < limit; i-- {
		change, _, revision, err := gateway.AuditedPolicy(m.history[i])
		if err != nil {
			return nil, err
		}
		if change.Kind == kind && revision > since {
			entries = append(entries, m.history[i])
		}
	}
	return entries, nil
}

// NewKeeper returns a Keeper over the store that has been refreshed once.
func NewKeeper(tb testing.TB, store gateway.Policies, cache gateway.PolicyCache, now func() time.Time) *policy.Keeper {
	tb.Helper()
	sealer, err := policy.NewSealer("a key of the tests' policies")
	require.NoError(tb, err)
	k := policy.NewKeeper(policy.Parts{Store: store, Cache: cache, Sealer: sealer, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: now})
	require.NoError(tb, k.Refresh(tb.Context()))
	return k
}

// Set makes a policy as an administrator does.
func Set(tb testing.TB, k *policy.Keeper, kind gateway.PolicyKind, id, body string) {
	tb.Helper()
	_, err := k.Change(tb.Context(), []policy.Wish{{Kind: kind, ID: id, Body: []byte(body)}})
	require.NoError(tb, err)
}
