package cli_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func TestStatus(t *testing.T) {
	up, down, empty := node("node-1"), node("node-2"), service("crm")
	up.Bindings = to(int64(120))
	down.Enabled, down.AcceptNew = false, false
	down.Health = api.Health{State: api.DOWN, Since: to(moment), LastError: "no route to host"}
	empty.Enabled = false
	ai := service("ai")
	ai.Nodes, ai.DefaultNodeID = &[]api.Node{up, down}, to("node-1")
	g := setup(t)
	g.answers["getStatus"] = data(map[string]any{"version": "1.2.3", "services": []api.Service{ai, empty}, "guards": []api.GuardState{
		guardState("identity", true, false), guardState("rate-limit", true, true), guardState("access", false, false),
	}})
	o := g.done("status")
	table := lines(o.out)
	require.Equal(t, []string{"guard rate-limit is in shadow mode: it refuses nothing", "guard access is switched off"}, table[4:])
	require.Regexp(t, `^ai +/js/a +node-1 +UP +\S+ \S+ +120 +default node$`, table[1])
	require.Regexp(t, `^ai +/js/a +node-2 +DOWN +\S+ \S+ +0 +disabled, no new users +no route to host$`, table[2])
	require.Regexp(t, `^crm +/js/a +- +- +- +0 +service disabled$`, table[3])
	require.Contains(t, o.err, "1.2.3")

	var parsed struct {
		Version  string
		Services []api.Service
	}
	require.NoError(t, json.Unmarshal([]byte(g.done("status", "--output", "json").out), &parsed))
	require.Equal(t, "1.2.3", parsed.Version)
	require.Len(t, parsed.Services, 2)
}

func explained(v api.Verdict) api.Explanation {
	return api.Explanation{
		ServiceID: to("ai"), Request: "GET /js/a/cases as user 7",
		Steps: []api.ExplainStep{
			{Step: "token", Source: "Redis", Outcome: "found", Detail: "user 7", Micros: 1200},
			{Step: "binding", Source: "SQL", Outcome: "found", Detail: "node-1", Micros: 3},
		},
		Verdict: v, WhatWouldChangeIt: []string{"a rebind of user 7"},
	}
}

func TestExplain(t *testing.T) {
	forward := api.Verdict{Forward: true, NodeID: to("node-1"), UserID: to("7"), Epoch: to(int64(3)), Status: 200}
	g := setup(t)
	g.answers["explain"] = data(explained(forward))
	o := g.done("explain", "/js/a/cases?x=1&y=2", "--user", "7", "--service", "ai", "--method", "PUT", "--address", "192.0.2.7", "--source", "app")
	require.Regexp(t, `token +Redis +found +user 7 +1.2ms\nbinding +SQL +found +node-1 +3µs`, o.out)
	require.Contains(t, o.out, "Verdict: forwarded to node-1, user 7, epoch 3\n")
	require.Contains(t, o.out, "What would change it:\n  - a rebind of user 7\n")
	require.Contains(t, g.last().url, "path=%2Fjs%2Fa%2Fcases%3Fx%3D1%26y%3D2")
	for _, part := range []string{"userId=7", "serviceId=ai", "method=PUT", "address=192.0.2.7", "source=app"} {
		require.Contains(t, g.last().url, part)
	}

	t.Run("a refusal is an explanation too", func(t *testing.T) {
		g.answers["explain"] = data(explained(api.Verdict{Reason: to("NODE_DOWN"), Status: 503, Message: "down"}))
		require.Contains(t, g.done("explain", "--service", "ai", "--username", "ann").out, "Verdict: refused with 503 NODE_DOWN: down\n")
		require.Contains(t, g.last().url, "username=ann")
		require.Contains(t, g.done("explain", "--service", "ai", "-o", "json").out, `"reason": "NODE_DOWN"`)
	})
}

func TestATokenToExplainIsInNoURL(t *testing.T) {
	const token = "a-users-token"
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	for _, c := range []struct{ from, stdin string }{{file, ""}, {"-", token + "\n"}} {
		g := setup(t)
		g.answers["explain"] = data(explained(api.Verdict{Status: 503}))
		o := g.runWith(context.Background(), c.stdin, "explain", "--token-file", c.from, "/js/a")
		require.Equal(t, cli.ExitDone, o.code, o.err)
		require.Equal(t, token, g.last().header.Get("X-Explain-Token"))
		require.NotContains(t, g.last().url, token)
	}
	for name, stdin := range map[string]string{"two lines": "a\nb", "control": "a\x1bb", "long": strings.Repeat("a", 64<<10+1)} {
		t.Run(name, func(t *testing.T) {
			o := setup(t).runWith(context.Background(), stdin, "explain", "/js/a", "--token-file", "-")
			require.Equal(t, cli.ExitUsage, o.code)
			require.NotContains(t, o.err, "aaa")
		})
	}
}

func TestAudit(t *testing.T) {
	g := setup(t)
	g.answers["listAudit"] = data(map[string]any{"total": 21, "page": 1, "size": 20, "records": []api.AuditEntry{
		{
			ID: 2, Time: moment, Actor: "user:1", Address: "10.0.0.1", Action: "binding.rebind", ServiceID: to("ai"), NodeID: to("node-2"), UserID: to("7"), RequestID: "q",
			Before: &map[string]any{"nodeId": "node-1", "epoch": 1, "id": 5}, After: &map[string]any{"nodeId": "node-2", "epoch": 2, "id": 5},
		},
		{ID: 3, Time: moment, Actor: "admin-token", Action: "role.set", UserID: to("8"), After: &map[string]any{"roles": []string{"admin"}}, RequestID: "r"},
		{ID: 1, Time: moment, Actor: "login", Action: "binding.create", After: &map[string]any{"nodeId": "node-1"}},
	}})
	before := time.Now()
	o := g.done("audit", "--service", "ai", "--node", "node-2", "--user", "7", "--username", "ann", "--actor", "user:1", "--action", "binding",
		"--request", "q", "--since", "24h", "--until", "2026-01-31T08:00:00+08:00", "--page", "1", "--size", "20")
	require.Regexp(t, `user:1 +10.0.0.1 +binding.rebind +ai +node-2 +7 +- +epoch: 1 -> 2, nodeId: node-1 -> node-2 +q`, o.out)
	require.Regexp(t, `role.set .*roles: - -> \["admin"\] +r`, o.out)
	require.Equal(t, "page 1 of 2, 21 changes\n", o.err)
	for _, part := range []string{
		"serviceId=ai", "nodeId=node-2", "userId=7", "username=ann", "actor=user%3A1", "action=binding", "requestId=q", "until=2026-01-31T08%3A00%3A00%2B08%3A00", "page=1", "size=20",
	} {
		require.Contains(t, g.last().url, part)
	}
	require.WithinDuration(t, before.Add(-24*time.Hour), g.queryTime("since"), time.Minute)

	g.done("audit", "--since", "7d")
	require.WithinDuration(t, before.AddDate(0, 0, -7), g.queryTime("since"), time.Minute)
	require.NotContains(t, g.last().url, "until")
	require.Contains(t, g.done("audit", "-o", "json").out, `"action": "binding.rebind"`)
}

func (g *fakeGateway) queryTime(name string) time.Time {
	g.t.Helper()
	at, err := time.Parse(time.RFC3339, g.lastQuery(name))
	require.NoError(g.t, err)
	return at
}

func TestWhereAUserWasBound(t *testing.T) {
	g := setup(t)
	g.answers["bindingAt"] = data(api.PastBinding{ServiceID: "ai", UserID: to("7"), NodeID: "node-1", Epoch: 3})
	o := g.done("audit", "where", "--service", "ai", "--user", "7", "--at", "2026-01-31T08:00:00Z")
	require.Equal(t, []string{"ai", "7", "-", "node-1", "3"}, fields(lines(o.out)[1]))
	require.Equal(t, "2026-01-31T08:00:00Z", g.lastQuery("at"))

	g.answers["bindingAt"] = data(nil)
	require.Contains(t, g.done("audit", "where", "--service", "ai", "--username", "ann", "--at", "24h").out, "bound nowhere")
	require.Equal(t, "null\n", g.done("audit", "where", "--service", "ai", "--username", "ann", "--at", "24h", "-o", "json").out)
}
