package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/postgres"
	migrations "github.com/homenode/homenode/sql"
)

// requireAudited requires that a hand's entries are what the gateway itself would write.
func requireAudited(t *testing.T, want, got []gateway.AuditEntry, hand string) {
	t.Helper()
	require.Len(t, got, len(want), hand)
	for i, entry := range got {
		require.Equal(t, gateway.Actor{Name: "sql:postgres", Address: "127.0.0.1"}, entry.Actor, hand)
		require.WithinDuration(t, time.Now(), entry.At, time.Minute)
		for _, side := range []struct{ want, got json.RawMessage }{{want[i].Before, entry.Before}, {want[i].After, entry.After}} {
			require.Equal(t, side.want == nil, side.got == nil, hand)
			if side.want != nil {
				require.JSONEq(t, string(side.want), string(side.got), hand)
			}
		}
		expected := want[i]
		expected.ID, expected.At, expected.Actor, expected.Before, expected.After = entry.ID, entry.At, entry.Actor, entry.Before, entry.After
		require.Equal(t, expected, entry, hand)
	}
}

// requireToldAll requires what is told next, in any order.
func requireToldAll(t *testing.T, changes <-chan gateway.Change, want []gateway.Change, hand string) {
	t.Helper()
	var told []gateway.Change
	for range want {
		select {
		case change := <-changes:
			told = append(told, change)
		case <-time.After(time.Second):
			require.Fail(t, "not told within a second", "%s: only %v", hand, told)
		}
	}
	require.ElementsMatch(t, want, told, hand)
}

func TestPoliciesChangedByHandCount(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	changes := make(chan gateway.Change, 10_000)
	following(t, store, changes)
	told := []gateway.Change{{Kind: gateway.ChangePolicies}}
	body := func(text string) json.RawMessage {
		if text == "" {
			return nil
		}
		return json.RawMessage(text)
	}
	entry := func(id string, revision int64, before, after string) gateway.AuditEntry {
		return gateway.AuditPolicyChange("guards", id, revision, body(before), body(after))
	}
	seen := 0
	for _, hand := range []struct {
		sql      string
		revision int64
		stored   string
		audited  []gateway.AuditEntry
	}{
		{`INSERT INTO gateway_policy (kind, id, body, revision) VALUES ('guards', 'a', '{"n": 1}', 99), ('guards', 'b', '{}', 98)`, 1, `a={"n": 1}@1 b={}@1`,
			[]gateway.AuditEntry{entry("a", 1, "", `{"n":1}`), entry("b", 1, "", `{}`)}},
		{`UPDATE gateway_policy SET body = '{"n":2}' WHERE id = 'a'`, 2, `a={"n": 2}@2 b={}@1`, []gateway.AuditEntry{entry("a", 2, `{"n":1}`, `{"n":2}`)}},
		{`UPDATE gateway_policy SET body = '{"n":2.0}', revision = 7 WHERE id = 'a'`, 2, `a={"n": 2.0}@2 b={}@1`, nil},
		{`UPDATE gateway_policy SET body = '{"n":2}' WHERE id = 'none'`, 2, `a={"n": 2.0}@2 b={}@1`, nil},
		{`DELETE FROM gateway_policy WHERE id = 'none'`, 2, `a={"n": 2.0}@2 b={}@1`, nil},
		{`INSERT INTO gateway_policy (kind, id, body) VALUES ('guards', 'a', '{}') ON CONFLICT DO NOTHING`, 2, `a={"n": 2.0}@2 b={}@1`, nil},
		{`INSERT INTO gateway_policy (kind, id, body) VALUES ('guards', 'a', '{"n":3}'), ('guards', 'c', '{}') ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body`,
			3, `a={"n": 3}@3 b={}@1 c={}@3`, []gateway.AuditEntry{entry("a", 3, `{"n":2.0}`, `{"n":3}`), entry("c", 3, "", `{}`)}},
		{`UPDATE gateway_policy SET id = 'd' WHERE id = 'c'`, 4, `a={"n": 3}@3 b={}@1 d={}@4`, []gateway.AuditEntry{entry("c", 4, `{}`, ""), entry("d", 4, "", `{}`)}},
		{`DELETE FROM gateway_policy WHERE id <> 'a'`, 5, `a={"n": 3}@3`, []gateway.AuditEntry{entry("b", 5, `{}`, ""), entry("d", 5, `{}`, "")}},
		// All that a transaction changes is one revision.
		{`BEGIN; INSERT INTO gateway_policy (kind, id, body) VALUES ('guards', 'b', '{}'); UPDATE gateway_policy SET body = '{"x":1}' WHERE id = 'b'; DELETE FROM gateway_policy WHERE id = 'a'; COMMIT`,
			6, `b={"x": 1}@6`, []gateway.AuditEntry{entry("b", 6, "", `{}`), entry("b", 6, `{}`, `{"x":1}`), entry("a", 6, `{"n":3}`, "")}},
		{`BEGIN; DELETE FROM gateway_policy; ROLLBACK`, 6, `b={"x": 1}@6`, nil},
		{`TRUNCATE gateway_policy`, 7, ``, []gateway.AuditEntry{entry("b", 7, `{"x":1}`, "")}},
		{`TRUNCATE gateway_policy`, 7, ``, nil},
	} {
		prompt(t, url, hand.sql)
		if hand.audited != nil {
			requireToldAll(t, changes, told, hand.sql)
		}
		policies, revision, err := store.LoadPolicies(t.Context())
		require.NoError(t, err)
		require.Equal(t, hand.revision, revision, hand.sql)
		var stored []string
		for _, p := range policies {
			stored = append(stored, fmt.Sprintf("%s=%s@%d", p.ID, p.Body, p.Revision))
			require.WithinDuration(t, time.Now(), p.UpdatedAt, time.Minute)
		}
		require.Equal(t, hand.stored, strings.Join(stored, " "), hand.sql)
		entries := auditOf(t, store, gateway.AuditFilter{})[seen:]
		seen += len(entries)
		requireAudited(t, hand.audited, entries, hand.sql)
	}
	require.Empty(t, changes, "told of what was no change")
	history, err := store.PolicyHistory(t.Context(), gateway.PolicyGuards, 5, 10)
	require.NoError(t, err)
	require.Len(t, history, 4)
}

// TestAHandAndTheGatewayWait: a transaction at the prompt that has not ended is one that
// every other change comes after.
func TestAHandAndTheGatewayWait(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO gateway_policy (kind, id, body) VALUES ('guards', 'hand', '{}')`)
	require.NoError(t, err)

	revisions, errs := make(chan int64, 1), make(chan error, 1)
	go func() {
		revision, err := store.ChangePolicies(t.Context(), func(now []gateway.Policy, revision int64) ([]gateway.PolicyChange, error) {
			if len(now) != 1 || revision != 1 {
				return nil, fmt.Errorf("%d policies at revision %d", len(now), revision)
			}
			return []gateway.PolicyChange{{Kind: "guards", ID: "gateway", Body: json.RawMessage(`{}`)}, {Kind: "guards", ID: "hand"}}, nil
		})
		revisions <- revision
		errs <- err
	}()
	require.Eventually(t, func() bool {
		var waiting int
		require.NoError(t, store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting))
		return waiting > 0
	}, 10*time.Second, 10*time.Millisecond)
	revision, err := store.PolicyRevision(t.Context())
	require.NoError(t, err)
	require.Zero(t, revision, "what is not committed is not there, and readers do not wait for it")
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-errs)
	require.EqualValues(t, 2, <-revisions)
}

func TestRolesChangedByHandCount(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	prompt(t, url, registry, `INSERT INTO gateway_service (id, path_prefix) VALUES ('gone', '/gone')`)
	changes := make(chan gateway.Change, 10_000)
	following(t, store, changes)
	user := func(id string) gateway.Change {
		return gateway.Change{Kind: gateway.ChangeRoles, ServiceID: "ai", UserID: id}
	}
	anybody := gateway.Change{Kind: gateway.ChangeRoles}
	roles := func(list ...string) []string { return list }
	seen := 0
	for _, hand := range []struct {
		sql     string
		told    []gateway.Change
		audited []gateway.AuditEntry
	}{
		{`INSERT INTO gateway_user_role VALUES ('ai', '1', 'b'), ('ai', '2', 'x'), ('ai', '1', 'a')`, []gateway.Change{user("1"), user("2")},
			[]gateway.AuditEntry{gateway.AuditRoles("ai", "1", nil, roles("a", "b")), gateway.AuditRoles("ai", "2", nil, roles("x"))}},
		{`INSERT INTO gateway_user_role VALUES ('ai', '1', 'B')`, []gateway.Change{user("1")}, []gateway.AuditEntry{gateway.AuditRoles("ai", "1", roles("a", "b"), roles("B", "a", "b"))}},
		{`INSERT INTO gateway_user_role VALUES ('ai', '1', 'B') ON CONFLICT DO NOTHING`, nil, nil},
		{`UPDATE gateway_user_role SET role = 'c' WHERE role = 'a'`, []gateway.Change{user("1")}, []gateway.AuditEntry{gateway.AuditRoles("ai", "1", roles("B", "a", "b"), roles("B", "b", "c"))}},
		{`UPDATE gateway_user_role SET user_id = '3' WHERE role = 'x'`, []gateway.Change{user("2"), user("3")},
			[]gateway.AuditEntry{gateway.AuditRoles("ai", "2", roles("x"), nil), gateway.AuditRoles("ai", "3", nil, roles("x"))}},
		{`DELETE FROM gateway_user_role WHERE user_id = '1' AND role <> 'b'`, []gateway.Change{user("1")}, []gateway.AuditEntry{gateway.AuditRoles("ai", "1", roles("B", "b", "c"), roles("b"))}},
		{`DELETE FROM gateway_user_role`, []gateway.Change{user("1"), user("3")},
			[]gateway.AuditEntry{gateway.AuditRoles("ai", "1", roles("b"), nil), gateway.AuditRoles("ai", "3", roles("x"), nil)}},
		{`INSERT INTO gateway_user_role VALUES ('ai', repeat('x', 2500), 'a')`, []gateway.Change{user(strings.Repeat("x", 2500))},
			[]gateway.AuditEntry{gateway.AuditRoles("ai", strings.Repeat("x", 2500), nil, roles("a"))}},
		{`TRUNCATE gateway_user_role`, []gateway.Change{anybody}, []gateway.AuditEntry{gateway.AuditRoles("ai", strings.Repeat("x", 2500), roles("a"), nil)}},
		{`INSERT INTO gateway_user_role VALUES ('gone', '9', 'a')`, []gateway.Change{{Kind: gateway.ChangeRoles, ServiceID: "gone", UserID: "9"}},
			[]gateway.AuditEntry{gateway.AuditRoles("gone", "9", nil, roles("a"))}},
		{`DELETE FROM gateway_service WHERE id = 'gone'`,
			[]gateway.Change{{Kind: gateway.ChangeRoles, ServiceID: "gone", UserID: "9"}, {Kind: gateway.ChangeRegistry}}, []gateway.AuditEntry{gateway.AuditRoles("gone", "9", roles("a"), nil)}},
	} {
		prompt(t, url, hand.sql)
		requireToldAll(t, changes, hand.told, hand.sql)
		entries := auditOf(t, store, gateway.AuditFilter{})[seen:]
		seen += len(entries)
		requireAudited(t, hand.audited, entries, hand.sql)
	}

	prompt(t, url, `INSERT INTO gateway_user_role SELECT 'ai', n::text, 'a' FROM generate_series(1, 10000) n`)
	requireToldAll(t, changes, []gateway.Change{anybody}, "many")
	require.Len(t, auditOf(t, store, gateway.AuditFilter{Action: gateway.ActionRoleSet})[seen:], 10_000-seen)
	require.Empty(t, changes)
}

// TestWhoMayChangePoliciesNeedNothingElse: the triggers are their owner's, and nobody else's tool.
func TestWhoMayChangePoliciesNeedNothingElse(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	role := fmt.Sprintf("operator_%d", databases.Load())
	prompt(t, url, registry, `CREATE ROLE `+role+` LOGIN`, `GRANT SELECT, INSERT, UPDATE, DELETE ON gateway_policy, gateway_user_role TO `+role)
	changes := make(chan gateway.Change, 100)
	following(t, store, changes)

	conn, err := pgx.Connect(t.Context(), url+"&user="+role+"&timezone=Asia/Shanghai")
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, statement := range []string{
		`CREATE TEMP TABLE gateway_policy_revision (revision bigint)`,
		`CREATE TEMP TABLE gateway_audit (actor text, address text, action text, service_id text, user_id text, before jsonb, after jsonb)`,
		`CREATE FUNCTION pg_temp.gateway_policy_own_revision() RETURNS bigint LANGUAGE sql AS 'SELECT 1000::bigint'`,
		`INSERT INTO gateway_policy (kind, id, body) VALUES ('guards', 'x', '{}')`,
		`UPDATE gateway_policy SET body = '{"on":true}'`,
		`DELETE FROM gateway_policy`,
		`INSERT INTO gateway_user_role VALUES ('ai', '1', 'a')`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	requireToldAll(t, changes, []gateway.Change{
		{Kind: gateway.ChangePolicies}, {Kind: gateway.ChangePolicies}, {Kind: gateway.ChangePolicies}, {Kind: gateway.ChangeRoles, ServiceID: "ai", UserID: "1"},
	}, role)
	revision, err := store.PolicyRevision(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, revision)
	entries := auditOf(t, store, gateway.AuditFilter{Actor: "sql:" + role})
	require.Len(t, entries, 4)
	for _, entry := range entries {
		require.WithinDuration(t, time.Now(), entry.At, time.Minute)
	}
	for _, statement := range []string{
		`SELECT FROM public.gateway_audit`,
		`UPDATE public.gateway_policy_revision SET revision = 0`,
		`CREATE TRIGGER forge AFTER INSERT ON pg_temp.gateway_audit REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_changed()`,
		`CREATE TRIGGER forge AFTER INSERT ON pg_temp.gateway_audit REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_role_changed()`,
		`CREATE TRIGGER forge BEFORE INSERT ON pg_temp.gateway_audit FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_begin()`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.ErrorContains(t, err, "permission denied", statement)
	}
}

// TestPoliciesAreAddedToADatabaseInUse migrates one that the version before has filled.
func TestPoliciesAreAddedToADatabaseInUse(t *testing.T) {
	url := emptyDatabase(t)
	config, err := postgres.ParseURL(url, "", "")
	require.NoError(t, err)
	db := stdlib.OpenDB(*config.ConnConfig)
	defer db.Close()
	files, err := fs.Sub(migrations.FS, "postgres")
	require.NoError(t, err)
	before, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("gateway_schema_version"), goose.WithDisableGlobalRegistry(true),
		goose.WithGoMigrations(goose.NewGoMigration(3, nil, nil))) // there are no rows yet whose keys it would fill
	require.NoError(t, err)
	_, err = before.UpTo(t.Context(), 5)
	require.NoError(t, err)
	prompt(t, url, registry, `INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('ai', '1', 'n1')`,
		`INSERT INTO gateway_audit (actor, action, after) VALUES ('user:7', 'import.done', '{"id": 1}'), ('user:7', 'access.denied', NULL)`)

	require.NoError(t, postgres.Migrate(t.Context(), postgres.Config{URL: url}))
	store := open(t, url)
	policies, revision, err := store.LoadPolicies(t.Context())
	require.NoError(t, err)
	require.Empty(t, policies)
	require.Zero(t, revision)
	revision, err = store.ChangePolicies(t.Context(), func([]gateway.Policy, int64) ([]gateway.PolicyChange, error) {
		return []gateway.PolicyChange{{Kind: "guards", ID: "x", Body: json.RawMessage(`{}`)}}, nil
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, revision)
	require.NoError(t, store.SetRoles(t.Context(), "ai", "1", []string{"admin"}))
	require.Len(t, auditOf(t, store, gateway.AuditFilter{}), 5)
	binding, err := store.BindingByUser(t.Context(), "ai", "1")
	require.NoError(t, err)
	require.Equal(t, "n1", binding.NodeID)
}

// TestTheHistoryUsesItsIndex: the audit holds every login, the policies' part of it is small.
func TestTheHistoryUsesItsIndex(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	prompt(t, url, `INSERT INTO gateway_audit (actor, action, after) SELECT 'login', 'binding.create', '{}' FROM generate_series(1, 20000)`, `ANALYZE gateway_audit`)
	_, err := store.PolicyHistory(t.Context(), gateway.PolicyGuards, 0, 10)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var scans int
		require.NoError(t, store.Pool().QueryRow(t.Context(), `SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'gateway_audit_policy'`).Scan(&scans))
		return scans > 0
	}, 10*time.Second, 50*time.Millisecond)
}
