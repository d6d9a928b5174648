package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/postgres"
)

const registry = `INSERT INTO gateway_service (id, path_prefix) VALUES ('ai', '/js/a');
	INSERT INTO gateway_node (id, service_id, base_url) VALUES ('n1', 'ai', 'http://127.0.0.1:1'), ('n2', 'ai', 'http://127.0.0.1:2')`

// auditOf returns the entries that match, the oldest first.
func auditOf(t *testing.T, store *postgres.Store, filter gateway.AuditFilter) []gateway.AuditEntry {
	t.Helper()
	filter.Limit = 10_000
	page, _, err := store.ListAudit(t.Context(), filter)
	require.NoError(t, err)
	entries := make([]gateway.AuditEntry, 0, len(page))
	for i := range page {
		entries = append(entries, page[len(page)-1-i])
	}
	return entries
}

func TestBindingsChangedByHandAreAudited(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	prompt(t, url, registry)
	at := time.Date(2024, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	row := func(id int64, userID, username, nodeID string, epoch int64) *gateway.Binding {
		return &gateway.Binding{ID: id, ServiceID: "ai", UserID: userID, Username: username, NodeID: nodeID, Epoch: epoch, CreatedAt: at}
	}
	type change struct{ before, after *gateway.Binding }
	seen := 0
	for _, hand := range []struct {
		sql     string
		changes []change
	}{
		{`INSERT INTO gateway_user_route (service_id, user_id, username, node_id, create_time)
			VALUES ('ai', '9007199254740993', 'ÅSA "x"', 'n1', '2024-01-02 03:04:05.6'), ('ai', NULL, 'Advance', 'n1', '2024-01-02 03:04:05.6')`, []change{
			{nil, row(1, "9007199254740993", `ÅSA "x"`, "n1", 1)}, {nil, row(2, "", "Advance", "n1", 1)},
		}},
		{`UPDATE gateway_user_route SET node_id = 'n2', epoch = epoch + 1 WHERE id = 1`,
			[]change{{row(1, "9007199254740993", `ÅSA "x"`, "n1", 1), row(1, "9007199254740993", `ÅSA "x"`, "n2", 2)}}},
		{`UPDATE gateway_user_route SET user_id = '2' WHERE id = 2`, []change{{row(2, "", "Advance", "n1", 1), row(2, "2", "Advance", "n1", 1)}}},
		{`UPDATE gateway_user_route SET username = NULL WHERE id = 2`, []change{{row(2, "2", "Advance", "n1", 1), row(2, "2", "", "n1", 1)}}},
		{`UPDATE gateway_user_route SET epoch = 3 WHERE id = 2`, []change{{row(2, "2", "", "n1", 1), row(2, "2", "", "n1", 3)}}},
		{`UPDATE gateway_user_route SET update_time = now(), node_id = node_id`, nil},
		{`UPDATE gateway_user_route SET node_id = 'n1' WHERE id = 99`, nil},
		{`INSERT INTO gateway_user_route (id, service_id, user_id, node_id, create_time) VALUES (1, 'ai', '3', 'n1', now())
			ON CONFLICT (id) DO UPDATE SET node_id = excluded.node_id`,
			[]change{{row(1, "9007199254740993", `ÅSA "x"`, "n2", 2), row(1, "9007199254740993", `ÅSA "x"`, "n1", 2)}}},
		// Given to another user: what the one had ends, what the other has begins.
		{`UPDATE gateway_user_route SET user_id = '4' WHERE id = 2`, []change{{row(2, "2", "", "n1", 3), nil}, {nil, row(2, "4", "", "n1", 3)}}},
		{`UPDATE gateway_user_route SET id = 5 WHERE id = 2`, []change{{row(2, "4", "", "n1", 3), nil}, {nil, row(5, "4", "", "n1", 3)}}},
		{`DELETE FROM gateway_user_route WHERE id = 5`, []change{{row(5, "4", "", "n1", 3), nil}}},
		{`TRUNCATE gateway_user_route CASCADE`, []change{{row(1, "9007199254740993", `ÅSA "x"`, "n1", 2), nil}}},
	} {
		before := time.Now()
		prompt(t, url, hand.sql)
		entries := auditOf(t, store, gateway.AuditFilter{})[seen:]
		seen += len(entries)
		require.Len(t, entries, len(hand.changes), hand.sql)
		for i, change := range hand.changes {
			want, got := gateway.AuditBindingChange(change.before, keyOf(change.before), change.after, keyOf(change.after)), entries[i]
			require.WithinRange(t, got.At, before.Add(-time.Microsecond), time.Now(), hand.sql)
			require.Equal(t, gateway.Actor{Name: "sql:postgres", Address: "127.0.0.1"}, got.Actor)
			for _, side := range []struct{ want, got json.RawMessage }{{want.Before, got.Before}, {want.After, got.After}} {
				if side.want == nil {
					require.Nil(t, side.got)
					continue
				}
				wanted, err := gateway.AuditedBinding(side.want)
				require.NoError(t, err)
				found, err := gateway.AuditedBinding(side.got)
				require.NoError(t, err)
				require.Equal(t, wanted, found, hand.sql)
				var wantedFields, foundFields map[string]any
				require.NoError(t, json.Unmarshal(side.want, &wantedFields))
				require.NoError(t, json.Unmarshal(side.got, &foundFields))
				wantedFields["createTime"] = foundFields["createTime"] // written with its zeros
				require.Equal(t, wantedFields, foundFields, hand.sql)
			}
			want.ID, want.At, want.Actor, want.Before, want.After = got.ID, got.At, got.Actor, got.Before, got.After
			require.Equal(t, want, got, hand.sql)
		}
	}
	binding, err := store.BindingAt(t.Context(), "ai", "2", "", auditOf(t, store, gateway.AuditFilter{UserID: "2"})[0].At)
	require.NoError(t, err)
	require.Equal(t, "n1", binding.NodeID)

	// The gateway's own changes are its own to record, whatever its connections are called beside homenode.
	own := open(t, url+"&application_name=shop")
	_, err = own.BindIfAbsent(gateway.WithActor(t.Context(), gateway.Actor{Name: gateway.ActorLogin}), gateway.Login{ServiceID: "ai", UserID: "6", NodeID: "n1"})
	require.NoError(t, err)
	entries := auditOf(t, store, gateway.AuditFilter{UserID: "6"})
	require.Len(t, entries, 1)
	require.Equal(t, gateway.ActorLogin, entries[0].Actor.Name)
	prompt(t, url+"&application_name=homenodes", `DELETE FROM gateway_user_route WHERE user_id = '6'`)
	require.Len(t, auditOf(t, store, gateway.AuditFilter{UserID: "6", Actor: "sql:postgres"}), 1)
}

// TestOtherRolesAndZones writes as a role that the audit is none of the business of,
// in a session of another time zone.
func TestOtherRolesAndZones(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	role := fmt.Sprintf("clerk_%d", databases.Load())
	prompt(t, url, registry, `CREATE ROLE `+role+` LOGIN`, `GRANT SELECT, INSERT, UPDATE ON gateway_user_route TO `+role,
		`GRANT SELECT ON gateway_login_alias TO `+role) // which the triggers of the change feed ask as the role

	conn, err := pgx.Connect(t.Context(), url+"&user="+role+"&timezone=Asia/Shanghai")
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('ai', '1', 'n1')`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `UPDATE gateway_user_route SET node_id = 'n2'`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `SELECT FROM gateway_audit`)
	require.ErrorContains(t, err, "permission denied")
	_, err = conn.Exec(t.Context(), `CREATE TEMP TABLE forged (id bigint, service_id text, user_id text, username text, node_id text, epoch bigint)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE TRIGGER forge AFTER INSERT ON forged REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_audited()`)
	require.ErrorContains(t, err, "permission denied")

	entries := auditOf(t, store, gateway.AuditFilter{Actor: "sql:" + role})
	require.Len(t, entries, 2)
	for _, entry := range entries {
		require.WithinDuration(t, time.Now(), entry.At, time.Minute)
	}
	binding, err := store.BindingByUser(t.Context(), "ai", "1")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), binding.CreatedAt, time.Minute)
	binding, err = store.BindingAt(t.Context(), "ai", "1", "", time.Now())
	require.NoError(t, err)
	require.Equal(t, "n2", binding.NodeID)
}

func TestTheAuditIsAppendOnly(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	require.NoError(t, store.Record(t.Context(), gateway.AuditEntry{Action: gateway.ActionDenied}))
	before := auditOf(t, store, gateway.AuditFilter{})
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for statement, refused := range map[string]string{
		`UPDATE gateway_audit SET actor = 'nobody'`: "UPDATE",
		`DELETE FROM gateway_audit WHERE id = 1`:    "DELETE",
		`TRUNCATE gateway_audit`:                    "TRUNCATE",
		`INSERT INTO gateway_audit (id, actor, action) OVERRIDING SYSTEM VALUE VALUES (1, 'x', 'y') ON CONFLICT (id) DO UPDATE SET actor = 'nobody'`: "UPDATE",
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.ErrorContains(t, err, "gateway_audit is append-only: "+refused+" is refused", statement)
	}
	require.Equal(t, before, auditOf(t, store, gateway.AuditFilter{}))
}

// TestAnUndoLeavesWhatAHandHasChanged: whoever types SQL need not think of update_time.
func TestAnUndoLeavesWhatAHandHasChanged(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	prompt(t, url, registry)
	i, err := store.BeginImport(t.Context(), gateway.Import{ServiceID: "ai", NodeID: "n1", Source: gateway.ImportFile})
	require.NoError(t, err)
	batch, err := store.ImportRows(t.Context(), i, []gateway.ImportRow{{UserID: "1", NodeID: "n1"}, {UserID: "2", NodeID: "n1"}})
	require.NoError(t, err)
	require.EqualValues(t, 2, batch.Bound)
	require.Empty(t, auditOf(t, store, gateway.AuditFilter{Action: "binding"}), "imported rows bear the import's id instead")
	prompt(t, url, `UPDATE gateway_user_route SET node_id = 'n2' WHERE user_id = '1'`, `UPDATE gateway_user_route SET node_id = 'n1'  WHERE user_id = '2'`)
	undone, err := store.UndoRows(t.Context(), i, 0, 10)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1}, []int64{undone.Removed, undone.Kept})
	binding, err := store.BindingByUser(t.Context(), "ai", "1")
	require.NoError(t, err)
	require.Equal(t, "n2", binding.NodeID)
}

func keyOf(b *gateway.Binding) gateway.UsernameKey {
	if b == nil {
		return ""
	}
	return gateway.KeyOf(b.Username)
}

// TestTheRecorderIsNobodysTool: the trigger that records changes made by hand runs as
// the tables' owner, whoever makes the change, and whatever they call their own tables.
func TestTheRecorderIsNobodysTool(t *testing.T) {
	url := backend.NewDatabase(t)
	store := open(t, url)
	prompt(t, url, registry, `INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('ai', '1', 'n1')`,
		`DROP ROLE IF EXISTS clerk`, `CREATE ROLE clerk`, `GRANT SELECT, UPDATE ON gateway_user_route TO clerk`,
		`GRANT SELECT ON gateway_login_alias TO clerk`)
	t.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, url)
		require.NoError(t, err)
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, `DROP OWNED BY clerk; DROP ROLE clerk`)
		require.NoError(t, err)
	})
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, statement := range []string{
		`SET ROLE clerk`,
		`CREATE TEMP TABLE gateway_audit (id bigint, at timestamp, actor varchar, address varchar, request_id varchar, action varchar, service_id varchar,
			node_id varchar, user_id text, username varchar, username_key_before varchar, username_key_after varchar, before jsonb, after jsonb)`,
		`CREATE TEMP TABLE ran_as (who name)`,
		`CREATE FUNCTION pg_temp.own() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO pg_temp.ran_as VALUES (current_user); RETURN NEW; END $f$`,
		`CREATE TRIGGER t BEFORE INSERT ON pg_temp.gateway_audit FOR EACH ROW EXECUTE FUNCTION pg_temp.own()`,
		`CREATE FUNCTION pg_temp.gateway_audit_binding(r jsonb) RETURNS jsonb LANGUAGE sql AS $f$ SELECT '{}'::jsonb $f$`,
		`UPDATE gateway_user_route SET node_id = 'n2' WHERE user_id = '1'`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	var ran int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM ran_as`).Scan(&ran))
	require.Zero(t, ran)
	entries := auditOf(t, store, gateway.AuditFilter{Action: gateway.ActionBindingRebind})
	require.Len(t, entries, 1)
	require.Equal(t, "n2", entries[0].NodeID)
}
