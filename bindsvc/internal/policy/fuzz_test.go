package policy_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// one is a durable store that holds one policy.
type one struct {
	gateway.Policies
	policy gateway.Policy
}

func (o one) LoadPolicies(context.Context) ([]gateway.Policy, int64, error) {
	return []gateway.Policy{o.policy}, 1, nil
}
func (o one) PolicyRevision(context.Context) (int64, error) { return 1, nil }

// snapshotOf compiles the one policy.
func snapshotOf(t *testing.T, sealer *policy.Sealer, p gateway.Policy) *policy.Snapshot {
	t.Helper()
	keeper := policy.NewKeeper(policy.Parts{Store: one{policy: p}, Sealer: sealer, Log: discard, Now: time.Now})
	require.NoError(t, keeper.Refresh(t.Context()))
	return keeper.Snapshot()
}

// Whatever is given as a policy, or found in a store: nothing panics, what is accepted
// can be used, and no view of it shows a secret.
func FuzzPolicies(f *testing.F) {
	sealer, err := policy.NewSealer("a-policy-key-of-32-characters000")
	require.NoError(f, err)
	for kind, body := range map[int]string{
		0: `{"enabled":false,"shadow":true}`,
		1: `{"services":["ai"],"paths":["/js/a/**","/"],"testers":{"addresses":["10.0.0.0/8","::ffff:10.0.0.1","fd00::1%eth0"],"users":["7"]},"start":"2026-01-01T00:00:00Z"}`,
		2: `{"mode":"jwt","public":["/a/{b}/*"],"jwt":{"algorithms":["HS256"],"keys":[{"id":"k","value":"a-secret-of-16-or-more"}],"leeway":"5m"}}`,
		3: `{"secrets":[{"id":"1","value":"a-secret-of-16-or-more","notAfter":"2026-01-01T00:00:00Z"}]}`,
		4: `{"paths":["/open/**"],"methods":["GET"],"ttl":"1h","nonce":true,"signParam":"s"}`,
		5: `{"path":"/a/{b}","rate":1e-300,"per":"24h","by":"address"}`,
		6: `{"type":"grey","path":"/a","percent":99.99,"users":["7"]}`,
		7: `{"core":["^/a"],"coreCode":1,"breaker":"NetworkErrorRatio() > 0.5"}`,
		8: `{"sourceHeader":"X-Client","clientSources":["app"],"codes":{"MAINTENANCE":1},"messages":{"NOT_FOUND":{"zh":"无"}}}`,
	} {
		f.Add(kind, "access", body)
	}
	f.Add(2, "i", `{"mode":"jwt","jwt":{"algorithms":["EdDSA"],"keys":[{"publicKey":"{}"}]}}`)
	f.Add(5, "r", `null`)
	f.Fuzz(func(t *testing.T, n int, id, body string) {
		kind := gateway.PolicyKinds[uint(n)%uint(len(gateway.PolicyKinds))]
		look(snapshotOf(t, sealer, gateway.Policy{Kind: kind, ID: id, Body: json.RawMessage(body)}))
		policy.View(kind, json.RawMessage(body))
		stored, err := sealer.Prepare(kind, id, []byte(body), nil, time.Now())
		if err != nil {
			return
		}
		accepted := snapshotOf(t, sealer, gateway.Policy{Kind: kind, ID: id, Body: stored})
		require.Empty(t, accepted.Problems)
		look(accepted)
		view := policy.View(kind, stored)
		require.NotContains(t, string(view), `"sealed"`)
		again, err := sealer.Prepare(kind, id, view, stored, time.Now())
		require.NoError(t, err, "what is shown can be given back: %s", view)
		require.Empty(t, snapshotOf(t, sealer, gateway.Policy{Kind: kind, ID: id, Body: again}).Problems, "with the secrets that stay")
	})
}

// look asks the snapshot everything that a request does.
func look(s *policy.Snapshot) {
	now := time.Now()
	for _, path := range []string{"/", "/a", "/a/b/c", "/js/a/x", strings.Repeat("/x", 100)} {
		s.At(path).Maintenance("ai", now, func(m *policy.MaintenanceRule) bool {
			m.IsTester("7", "ann")
			return m.IsTestersAddress(netip.MustParseAddr("10.0.0.1"))
		})
		s.At(path).Signature("ai", "GET")
		s.At(path).Limits("ai", "GET")
		for _, kind := range []string{policy.AccessRBAC, policy.AccessGrey, policy.AccessMethod} {
			s.At(path).Access(kind, "ai", "GET")
		}
		if rule := s.Identity("ai"); rule != nil {
			rule.IsPublic(path)
			rule.Leeway()
		}
		if rule := s.Degradation("ai"); rule != nil {
			rule.IsCore(path)
		}
	}
	if app := s.App("ai", "access"); app != nil {
		app.GoodSecrets(now)
	}
	s.Answers("ai").IsClient("app")
	s.Needs("ai")
	s.IsPerRequest("ai")
	for _, guard := range []string{policy.GuardMaintenance, policy.GuardAccess} {
		s.IsEnabled(guard)
		s.IsBroken(guard, "ai")
	}
}
