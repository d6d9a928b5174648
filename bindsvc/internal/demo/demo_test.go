package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type envelope struct {
	Code int
	Data json.RawMessage
}

func call(t *testing.T, server *httptest.Server, method, path, token, body string) envelope {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("x-token", token)
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var e envelope
	require.NoError(t, json.NewDecoder(response.Body).Decode(&e))
	return e
}

func startNode(t *testing.T, dir string) *httptest.Server {
	t.Helper()
	n, err := newNode("node-1", dir)
	require.NoError(t, err)
	server := httptest.NewServer(n.handler("/js/a"))
	t.Cleanup(server.Close)
	return server
}

func login(t *testing.T, server *httptest.Server, name string) string {
	t.Helper()
	e := call(t, server, http.MethodPost, "/js/a/sys/login", "", `{"username":"`+name+`","password":"p"}`)
	require.Equal(t, 200, e.Code)
	var data struct {
		Token  string
		UserID json.Number `json:"userId"`
	}
	require.NoError(t, json.Unmarshal(e.Data, &data))
	require.Greater(t, len(data.UserID), 16, "beyond 2^53")
	return data.Token
}

func TestANodeKeepsNotesAndSessionsThroughARestart(t *testing.T) {
	dir := t.TempDir()
	first := startNode(t, dir)
	token := login(t, first, "ann")
	require.Equal(t, 200, call(t, first, http.MethodPost, "/js/a/notes", token, `{"text":"remember"}`).Code)
	first.Close()
	second := startNode(t, dir)
	require.JSONEq(t, `["remember"]`, string(call(t, second, http.MethodGet, "/js/a/notes", token, "").Data))
	require.JSONEq(t, `[]`, string(call(t, second, http.MethodGet, "/js/a/notes", login(t, second, "../../ann"), "").Data))
}

func TestANodeRefuses(t *testing.T) {
	node, elsewhere := startNode(t, t.TempDir()), startNode(t, t.TempDir())
	require.Equal(t, 401, call(t, node, http.MethodGet, "/js/a/notes", login(t, elsewhere, "ann"), "").Code, "a token of another node")
	require.Equal(t, 500, call(t, node, http.MethodPost, "/js/a/sys/login", "", `{"username":"ann","password":"wrong"}`).Code)
	require.Equal(t, 400, call(t, node, http.MethodPost, "/js/a/sys/login", "", `{"username":""}`).Code)
	token := login(t, node, "ann")
	require.Equal(t, 400, call(t, node, http.MethodPost, "/js/a/notes", token, strings.Repeat("x", 1<<20)).Code)
	for range maxNotes {
		require.Equal(t, 200, call(t, node, http.MethodPost, "/js/a/notes", token, `{"text":"n"}`).Code)
	}
	require.Equal(t, 400, call(t, node, http.MethodPost, "/js/a/notes", token, `{"text":"n"}`).Code)
}

func TestTheStoryStopsAtTheFirstStepThatDoesNotHold(t *testing.T) {
	var out bytes.Buffer
	st, ran := &story{}, 0
	hold := func(context.Context) error {
		ran++
		st.show(row{"ann", "GET /", "200", "node-1", "fine"})
		return nil
	}
	fail := func(context.Context) error { return errors.New("another node answered") }
	err := runSteps(t.Context(), &out, st, []step{{"one", hold}, {"two", fail}, {"three", hold}})
	require.ErrorContains(t, err, "step 2 (two): another node answered")
	require.Equal(t, 1, ran)
	require.Contains(t, out.String(), "✘ another node answered")
	require.NotContains(t, out.String(), "steps held")
	require.NoError(t, runSteps(t.Context(), io.Discard, st, []step{{"one", hold}}))
}
