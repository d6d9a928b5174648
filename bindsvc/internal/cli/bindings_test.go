package cli_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/cli"
)

// bindings answers with the page that is asked for.
func bindings(all ...api.Binding) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		page, size := 1, 20
		if text := r.URL.Query().Get("page"); text != "" {
			page, _ = strconv.Atoi(text)
		}
		if text := r.URL.Query().Get("size"); text != "" {
			size, _ = strconv.Atoi(text)
		}
		records := []api.Binding{}
		for i := (page - 1) * size; i < min(page*size, len(all)); i++ {
			records = append(records, all[i])
		}
		data(map[string]any{"total": len(all), "page": page, "size": size, "records": records})(w, r)
	}
}

func manyBindings(n int) (all []api.Binding) {
	for i := range n {
		id := strconv.Itoa(i + 1)
		all = append(all, binding(int64(i+1), &id, to("user-"+id)))
	}
	return all
}

func TestRoutes(t *testing.T) {
	g := setup(t)
	g.answers["listRoutes"] = bindings(manyBindings(45)...)
	o := g.done("routes")
	require.Len(t, lines(o.out), 21)
	require.Equal(t, "page 1 of 3, 45 bindings; --all shows all\n", o.err)
	require.Equal(t, "/gateway/admin/routes", g.last().url)

	o = g.done("routes", "50%_ann & co", "--service", "ai", "--page", "2", "--size", "40")
	require.Len(t, lines(o.out), 6)
	require.Contains(t, g.last().url, "keyword=50%25_ann+%26+co")
	for _, part := range []string{"serviceId=ai", "page=2", "size=40"} {
		require.Contains(t, g.last().url, part)
	}
}

func TestAllRoutes(t *testing.T) {
	for _, n := range []int{0, 1, 200, 450} {
		g := setup(t)
		g.answers["listRoutes"] = bindings(manyBindings(n)...)
		require.Len(t, lines(g.done("routes", "--all").out), n+1)
		require.Len(t, g.asked(), n/200+1)
		var parsed struct {
			Total   int           `json:"total"`
			Records []api.Binding `json:"records"`
		}
		require.NoError(t, json.Unmarshal([]byte(g.done("routes", "--all", "-o", "json").out), &parsed))
		require.Equal(t, n, parsed.Total)
		require.Len(t, parsed.Records, n)
		require.NotNil(t, parsed.Records)
	}
}

func TestBind(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		body string
	}{
		{"by id", []string{"--user", "9007199254740993"}, `{"serviceId":"ai","nodeId":"node-1","userId":"9007199254740993"}`},
		{"by name", []string{"--username", "安 娜"}, `{"serviceId":"ai","nodeId":"node-1","username":"安 娜"}`},
		{"by both", []string{"--user", "7", "--username", "ann"}, `{"serviceId":"ai","nodeId":"node-1","userId":"7","username":"ann"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["bind"] = data(binding(4711, to("7"), nil))
			o := g.done(append([]string{"bind", "--service", "ai", "node-1"}, c.args...)...)
			require.Equal(t, []string{"4711", "ai", "7", "-", "node-1", "1", "-"}, fields(lines(o.out)[1])[:7])
			require.JSONEq(t, c.body, g.last().body)
		})
	}
	g := setup(t)
	g.answers["bind"] = refuse(http.StatusConflict, "CONFLICT", "two bindings")
	require.Equal(t, cli.ExitFailed, g.run("bind", "--service", "ai", "--user", "7", "--username", "bob", "node-1").code)
}

func TestUnbind(t *testing.T) {
	all := append(manyBindings(450), binding(900, nil, to("Ann")), binding(901, to("USER-7"), nil))
	for _, c := range []struct {
		name string
		args []string
		path string // empty: refused
	}{
		{"by id of the binding", []string{"4711"}, "/gateway/admin/routes/4711"},
		{"by user id, not by a part of one", []string{"--service", "ai", "--user", "45"}, "/gateway/admin/routes/45"},
		{"on a later page", []string{"--service", "ai", "--user", "450"}, "/gateway/admin/routes/450"},
		{"by username in any case", []string{"--service", "ai", "--username", "aNN"}, "/gateway/admin/routes/900"},
		{"not by an id in another case", []string{"--service", "ai", "--user", "user-7"}, ""},
		{"not by the id of a username", []string{"--service", "ai", "--username", "7"}, ""},
		{"not by a part of a name", []string{"--service", "ai", "--username", "an"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := setup(t)
			g.answers["listRoutes"] = bindings(all...)
			g.answers["unbind"] = data(binding(1, to("7"), to("ann")))
			o := g.run(append([]string{"unbind"}, c.args...)...)
			if c.path == "" {
				require.Equal(t, cli.ExitFailed, o.code)
				require.Contains(t, o.err, "has no binding in service ai")
				require.NotContains(t, g.operations(), "unbind")
				return
			}
			require.Equal(t, cli.ExitDone, o.code, o.err)
			require.Equal(t, "unbind", g.last().operation)
			require.Equal(t, c.path, g.last().url)
			require.Contains(t, o.out, "ann")
		})
	}
}
