package cli_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

func imported(id int64) api.Import {
	return api.Import{
		ID: id, ServiceID: "ai", NodeID: to("node-1"), Source: api.Users, State: api.DONE, Actor: "admin-token",
		Counts: api.ImportCounts{Read: 10, Bound: 8, Conflicts: 2}, CreateTime: moment, UpdateTime: moment,
	}
}

func conflict(line int64, user, name string) api.ImportConflict {
	return api.ImportConflict{Line: line, UserID: user, Username: name, NodeID: "node-1", Reason: api.BOUNDELSEWHERE, BoundNodeID: "node-2", Detail: "bound"}
}

// events streams the events, then leaves how to end to then.
func events(then func(*http.Request), all ...api.ImportEvent) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if accept := r.Header.Get("Accept"); accept != "application/x-ndjson" {
			panic("accepts " + accept)
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, event := range all {
			_ = json.NewEncoder(w).Encode(event)
		}
		w.(http.Flusher).Flush()
		then(r)
	}
}

func end(*http.Request) {}

func begin(id int64) api.ImportEvent {
	return api.ImportEvent{Event: api.Begin, ImportID: &id, Total: to(int64(100))}
}

func finished(counts api.ImportCounts) api.ImportEvent {
	return api.ImportEvent{Event: api.Done, Counts: &counts}
}

func conflicts(n int) (all []api.ImportEvent) {
	for i := range n {
		all = append(all, api.ImportEvent{Event: api.Conflict, Conflict: to(conflict(int64(i+1), strconv.Itoa(i+1), "ann"))})
	}
	return all
}

func TestImportExisting(t *testing.T) {
	counts := api.ImportCounts{Read: 100, Bound: 90, Unchanged: 5, Skipped: 2, Conflicts: 3}
	g := setup(t)
	all := append([]api.ImportEvent{begin(12)}, conflicts(3)...)
	g.answers["importExisting"] = events(end, append(all, api.ImportEvent{Event: api.Progress, Counts: &counts}, finished(counts))...)
	o := g.done("import", "existing", "--service", "ai", "node-1")
	require.JSONEq(t, `{"serviceId":"ai","nodeId":"node-1"}`, g.last().body)
	require.Equal(t, "false", g.lastQuery("dryRun"))
	require.Equal(t, []string{"12", "100", "90", "5", "2", "3", "0"}, fields(lines(o.out)[1]))
	require.Regexp(t, `1 +1 +ann +node-1 +BOUND_ELSEWHERE +node-2 +bound\n`, o.out)

	g.done("import", "existing", "--service", "ai", "node-1", "--resume", "12")
	require.JSONEq(t, `{"serviceId":"ai","nodeId":"node-1","importId":12}`, g.last().body)

	var report api.ImportReport
	require.NoError(t, json.Unmarshal([]byte(g.done("import", "existing", "--service", "ai", "node-1", "-o", "json").out), &report))
	require.Equal(t, counts, report.Counts)
	require.Equal(t, to(int64(12)), report.ImportID)
	require.Len(t, report.Conflicts, 3)
}

func TestDryRun(t *testing.T) {
	g := setup(t)
	g.answers["importExisting"] = events(end, finished(api.ImportCounts{Read: 1, Bound: 1}))
	o := g.done("import", "existing", "--service", "ai", "node-1", "--dry-run")
	require.Equal(t, "true", g.lastQuery("dryRun"))
	require.Contains(t, o.err, "nothing has changed")
	require.JSONEq(t, `{"importId":null,"dryRun":true,"counts":{"read":1,"bound":1,"unchanged":0,"skipped":0,"conflicts":0,"invalid":0},"conflicts":[],"conflictsLeftOut":0}`,
		g.done("import", "existing", "--service", "ai", "node-1", "--dry-run", "-o", "json").out)
}

func TestImportFile(t *testing.T) {
	const users = "userId,username\n7,安娜\n"
	path := filepath.Join(t.TempDir(), "users.csv")
	require.NoError(t, os.WriteFile(path, []byte(users), 0o600))
	for _, c := range []struct{ from, stdin string }{{path, ""}, {"-", users}} {
		g := setup(t)
		g.answers["importFile"] = events(end, begin(3), finished(api.ImportCounts{Read: 1, Bound: 1}))
		o := g.runWith(context.Background(), c.stdin, "import", "file", c.from, "--service", "ai", "--node", "node-1", "--resume", "3")
		require.Equal(t, cli.ExitDone, o.code, o.err)
		require.Equal(t, users, g.last().body)
		require.Equal(t, "text/csv", g.last().header.Get("Content-Type"))
		require.Equal(t, "node-1", g.lastQuery("nodeId"))
		require.Equal(t, "3", g.lastQuery("importId"))
	}
}

func TestManyConflicts(t *testing.T) {
	dir := t.TempDir()
	g := setup(t)
	g.answers["importExisting"] = events(end, append(conflicts(1010), finished(api.ImportCounts{Conflicts: 1010}))...)
	args := []string{"import", "existing", "--service", "ai", "node-1"}
	o := g.done(args...)
	require.Equal(t, 20, strings.Count(o.out, "BOUND_ELSEWHERE"))
	require.Contains(t, o.out, "And 990 more; --report")

	var report api.ImportReport
	require.NoError(t, json.Unmarshal([]byte(g.done(append(args, "-o", "json")...).out), &report))
	require.Len(t, report.Conflicts, 1000)
	require.Equal(t, int64(10), report.ConflictsLeftOut)

	for _, name := range []string{"c.csv", "c.JSON"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("of an import before"), 0o600))
		require.Contains(t, g.done(append(args, "--report", path)...).out, "All 1010 are in "+path)
	}
	file, err := os.Open(filepath.Join(dir, "c.csv"))
	require.NoError(t, err)
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1011)
	require.Equal(t, []string{"line", "userId", "username", "nodeId", "reason", "boundNodeId", "otherUserId", "detail"}, rows[0])
	require.Equal(t, []string{"1010", "1010", "ann", "node-1", "BOUND_ELSEWHERE", "node-2", "", "bound"}, rows[1010])
	raw, err := os.ReadFile(filepath.Join(dir, "c.JSON"))
	require.NoError(t, err)
	var all []api.ImportConflict
	require.NoError(t, json.Unmarshal(raw, &all))
	require.Len(t, all, 1010)
}

func TestAReportWithoutConflictsIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.json")
	g := setup(t)
	g.answers["importExisting"] = events(end, finished(api.ImportCounts{}))
	g.done("import", "existing", "--service", "ai", "node-1", "--report", path)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, "[]", string(raw))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestASpreadsheetRunsNothingOfAReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.csv")
	names := []string{"=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "a=b", "安娜", `quo"te,d`}
	var all []api.ImportEvent
	for _, name := range names {
		all = append(all, api.ImportEvent{Event: api.Conflict, Conflict: to(conflict(1, "7", name))})
	}
	g := setup(t)
	g.answers["importExisting"] = events(end, append(all, finished(api.ImportCounts{}))...)
	g.done("import", "existing", "--service", "ai", "node-1", "--report", path)
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	for i, name := range names {
		want := name
		if i < 7 {
			want = "'" + name
		}
		require.Equal(t, want, rows[i+1][2])
	}
}

func TestAnImportThatIsCutOffSaysHowToGoOn(t *testing.T) {
	dir := t.TempDir()
	users := filepath.Join(dir, "the users'.csv")
	require.NoError(t, os.WriteFile(users, []byte("userId\n7\n"), 0o600))
	report := filepath.Join(dir, "c.json")
	fail := api.ImportEvent{Event: api.Failed, Reason: to("STORE_UNAVAILABLE"), Message: to("the store\x1b[2J is gone")}
	hangUp := func(*http.Request) { panic(http.ErrAbortHandler) }
	existing := []string{"import", "existing", "--service", "ai", "node-1"}
	for _, c := range []struct {
		name   string
		args   []string
		then   func(*http.Request)
		events []api.ImportEvent
		says   []string
	}{
		{"failed", existing, end, []api.ImportEvent{begin(12), fail}, []string{
			`the store\x1b[2J is gone (STORE_UNAVAILABLE)`, "homenode import existing --service ai node-1 --resume 12",
		}},
		{"broken", existing, hangUp, []api.ImportEvent{begin(12)}, []string{"connection broke", "--resume 12"}},
		{"ended early", existing, end, []api.ImportEvent{begin(12)}, []string{"connection broke", "--resume 12"}},
		{"broken while it was resumed", append(existing, "--resume", "9"), hangUp, nil, []string{"--resume 9"}},
		{"broken before it was known", existing, hangUp, nil, []string{"homenode import list"}},
		{"broken dry run", append(existing, "--dry-run"), hangUp, nil, []string{"Nothing has changed"}},
		{"of a file", []string{"import", "file", users, "--service", "ai", "--node", "node-1", "--report", report}, hangUp, append([]api.ImportEvent{begin(12)}, conflicts(1)...), []string{
			fmt.Sprintf(`homenode import file '%s' --service ai --node node-1 --report %s --resume 12`, strings.ReplaceAll(users, "'", `'\''`), report),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["importExisting"] = events(c.then, c.events...)
			g.answers["importFile"] = g.answers["importExisting"]
			o := g.run(c.args...)
			require.Equal(t, cli.ExitFailed, o.code)
			require.Empty(t, o.out)
			for _, text := range c.says {
				require.Contains(t, o.err, text)
			}
		})
	}
	raw, err := os.ReadFile(report)
	require.NoError(t, err)
	var all []api.ImportConflict
	require.NoError(t, json.Unmarshal(raw, &all), "what was reported before the end")
	require.Len(t, all, 1)
}

func TestCtrlCStopsAnImport(t *testing.T) {
	report := filepath.Join(t.TempDir(), "c.csv")
	g := setup(t)
	ctx, cancel := context.WithCancel(context.Background())
	g.answers["importExisting"] = events(func(r *http.Request) {
		assert.Eventually(t, func() bool {
			written, err := os.ReadFile(report)
			return err == nil && strings.Contains(string(written), "BOUND_ELSEWHERE")
		}, 10*time.Second, time.Millisecond, "a conflict is in the report as soon as it is known")
		cancel()
		<-r.Context().Done()
	}, append([]api.ImportEvent{begin(12)}, conflicts(1)...)...)
	o := g.runWith(ctx, "", "import", "existing", "--service", "ai", "node-1", "--server", g.URL, "--report", report)
	require.Equal(t, cli.ExitFailed, o.code)
	require.Contains(t, o.err, "interrupted")
	require.NotContains(t, o.err, "broke")
	require.Contains(t, o.err, "homenode import existing --service ai node-1 --report "+report+" --server "+g.URL+" --resume 12")
}

func TestARefusedImportHasNotBegun(t *testing.T) {
	g := setup(t)
	g.answers["importExisting"] = refuse(http.StatusConflict, "CONFLICT", "no such node")
	o := g.run("import", "existing", "--service", "ai", "node-1", "--resume", "12")
	require.Equal(t, cli.ExitFailed, o.code)
	require.Equal(t, "no such node (CONFLICT, request r-1)", o.err)

	g.answers["importExisting"] = data(api.ImportReport{Conflicts: []api.ImportConflict{}}) // does not know events
	o = g.run("import", "existing", "--service", "ai", "node-1")
	require.Equal(t, cli.ExitFailed, o.code)
}

func TestImports(t *testing.T) {
	g := setup(t)
	g.answers["listImports"] = data(map[string]any{"total": 1, "page": 1, "size": 20, "records": []api.Import{imported(12)}})
	o := g.done("import", "list", "--service", "ai", "--page", "1")
	require.Regexp(t, `12 +\S+ \S+ +ai +users +node-1 +DONE +10 +8 +2 +0 +0 +0 +admin-token`, o.out)
	require.Equal(t, "ai", g.lastQuery("serviceId"))

	cut := imported(12)
	cut.State, cut.UpdateTime = api.RUNNING, time.Now().Add(-time.Hour)
	g.answers["getImport"] = data(cut)
	require.Contains(t, g.done("import", "show", "12").err, "it was cut off; go on with --resume 12")
	cut.UpdateTime = time.Now()
	g.answers["getImport"] = data(cut)
	require.Empty(t, g.done("import", "show", "12").err)
	require.Equal(t, "/gateway/admin/imports/12", g.last().url)
}

func TestUndoImport(t *testing.T) {
	undone := imported(12)
	undone.State, undone.Removed, undone.Kept = api.UNDONE, 7, 1
	g := setup(t)
	g.answers["undoImport"] = data(undone)
	require.Equal(t, "7 bindings deleted, 1 kept since they have changed\n", g.done("import", "undo", "12").err)
	require.Contains(t, g.done("import", "undo", "12", "-o", "json").out, `"state": "UNDONE"`)

	g.answers["undoImport"] = refuse(http.StatusConflict, "CONFLICT", "it runs")
	require.Equal(t, "it runs (CONFLICT, request r-1)", g.run("import", "undo", "12").err)
	g.answers["undoImport"] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	o := g.run("import", "undo", "12")
	require.Equal(t, cli.ExitUnreachable, o.code)
	require.Contains(t, o.err, "Run it again")
}

// A report never costs what is there already: neither the users nor an older report.
func TestAReportReplacesNothingBeforeTheImportBegins(t *testing.T) {
	dir := t.TempDir()
	users, report := filepath.Join(dir, "users.csv"), filepath.Join(dir, "report.csv")
	require.NoError(t, os.WriteFile(users, []byte("userId\n1\n"), 0o600))
	require.NoError(t, os.WriteFile(report, []byte("of yesterday"), 0o600))
	link := filepath.Join(dir, "link.csv")
	require.NoError(t, os.Symlink(users, link))
	g := setup(t)
	for _, same := range []string{users, link} {
		o := g.run("import", "file", users, "--service", "ai", "--node", "node-1", "--report", same)
		require.Equal(t, cli.ExitUsage, o.code)
		require.Contains(t, o.err, "the file to import")
	}
	content, err := os.ReadFile(users)
	require.NoError(t, err)
	require.Equal(t, "userId\n1\n", string(content))

	g.answers["importFile"] = refuse(http.StatusConflict, "CONFLICT", "no such node")
	require.Equal(t, cli.ExitFailed, g.run("import", "file", users, "--service", "ai", "--node", "node-1", "--report", report).code)
	content, err = os.ReadFile(report)
	require.NoError(t, err)
	require.Equal(t, "of yesterday", string(content))
}
