package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func unmarshal(t *testing.T, text []byte, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(text, into), "%s", text)
}

// pairs are parameters in the order in which they are sent.
type pairs [][2]string

// encode writes parameters as a form or a query does.
func (p pairs) encode() string {
	var parts []string
	for _, pair := range p {
		parts = append(parts, url.QueryEscape(pair[0])+"="+url.QueryEscape(pair[1]))
	}
	return strings.Join(parts, "&")
}

// signatureOf signs parameters as a partner's shell script would: the values in the order
// of their keys, the secret, sha256sum.
func signatureOf(t *testing.T, secret string, p pairs) string {
	t.Helper()
	sorted := slices.Clone(p)
	slices.SortStableFunc(sorted, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	var values strings.Builder
	for _, pair := range sorted {
		values.WriteString(pair[1])
	}
	command := exec.CommandContext(t.Context(), "sha256sum")
	command.Stdin = strings.NewReader(values.String() + secret)
	output, err := command.Output()
	require.NoError(t, err)
	return strings.Fields(string(output))[0]
}

// signQuery is the parameters with their signature, as a query or a form.
func signQuery(t *testing.T, secret string, p pairs) string {
	t.Helper()
	return append(slices.Clone(p), [2]string{"sign", signatureOf(t, secret, p)}).encode()
}

// form makes a call's body a form.
func (c call) form(body string) call {
	c.method, c.body = http.MethodPost, []byte(body)
	return c.with("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")
}

func (c call) chunked() call {
	c.change = func(r *http.Request) { r.ContentLength = -1 }
	return c
}

const partnerSecret = "the-partner's-secret-of-2026"

func signedRequests(t *testing.T, g *guarded) {
	app := func(id string, services ...string) {
		g.set(t, 0, "apps", id, map[string]any{"services": services, "secrets": []map[string]any{{"value": partnerSecret}}})
	}
	app("partner", "ai")
	app("second", "ai")
	app("elsewhere", "other")
	g.set(t, 0, "signature", "open", map[string]any{"services": []string{"ai"}, "paths": []string{"/js/a/open/**"}, "apps": []string{"partner", "elsewhere"}, "ttl": "2m"})
	g.set(t, 0, "identity", "ai", map[string]any{"services": []string{"ai"}, "mode": "token"})
	g.settle(t)

	const path = "/js/a/open/orders"
	at := func(age time.Duration) [2]string {
		return [2]string{"timestamp", fmt.Sprint(time.Now().Add(-age).Unix())}
	}
	signed := func(p ...[2]string) string {
		return signQuery(t, partnerSecret, append(pairs{{"client-id", "partner"}, at(0)}, p...))
	}
	sized := func(size int) string { // a form of that many bytes
		empty := len(signed([2]string{"pad", ""}))
		return signed([2]string{"pad", strings.Repeat("x", size-empty)})
	}
	split := pairs{{"client-id", "partner"}, at(0), {"a", "in the query"}, {"b", "in the form"}}
	sign := signatureOf(t, partnerSecret, split)
	milliseconds := [2]string{"timestamp", fmt.Sprint(time.Now().UnixMilli())}

	passing := map[string]call{
		"a query":                  {path: path + "?" + signed([2]string{"b", "2"}, [2]string{"a", "1"})},
		"HEAD":                     {method: http.MethodHead, path: path + "?" + signed([2]string{"b", "2"})},
		"repeated parameters":      {path: path + "?" + signed([2]string{"a", "2"}, [2]string{"a", "1"}, [2]string{"a", ""})},
		"empty values":             {path: path + "?" + signed([2]string{"a", ""}, [2]string{"b", ""}, [2]string{"", "x"})},
		"a key without a value":    {path: path + "?" + signed() + "&flag"},
		"unicode":                  {path: path + "?" + signed([2]string{"名称", "订单 😀"}, [2]string{"ä", "é"})},
		"plus and percent":         {path: path + "?" + signed([2]string{"q", "1+1=2 & 100%"})},
		"semicolons":               {path: path + "?" + strings.ReplaceAll(signed([2]string{"b", "2"}, [2]string{"a", "1"}), "&", ";")},
		"milliseconds":             {path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, milliseconds})},
		"a minute ago":             {path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, at(time.Minute)})},
		"in capitals":              {path: path + "?" + append(split, [2]string{"sign", strings.ToUpper(sign)}).encode()},
		"a form":                   call{path: path}.form(signed([2]string{"b", "2"}, [2]string{"a", "名"})),
		"a chunked form":           call{path: path}.form(signed([2]string{"b", "2"})).chunked(),
		"a form of 64 KiB":         call{path: path}.form(sized(64 << 10)),
		"a chunked form of 64 KiB": call{path: path}.form(sized(64 << 10)).chunked(),
		"query and form":           call{path: path + "?" + split[:3].encode()}.form(pairs{split[3], {"sign", sign}}.encode()),
		"a form after 100":         call{path: path}.form(signed()).with("Expect", "100-continue"),
		"an empty form":            call{path: path + "?" + signed()}.form(""),
		"a body that is no form":   {method: http.MethodPut, path: path + "?" + signed(), body: bytes.Repeat([]byte(`{"a":1}`), 50_000), header: map[string]string{"Content-Type": "application/json"}},
		"a signed OPTIONS":         {method: http.MethodOptions, path: path},
	}
	for name, c := range passing {
		t.Run(name, func(t *testing.T) {
			got := g.pass(t, 0, c.with("X-Homenode-App", "forged"))
			require.True(t, bytes.Equal(c.body, got.body), "the body arrived byte for byte: %.100q", got.body)
			if c.method == http.MethodOptions {
				require.Empty(t, got.header.Values("X-Homenode-App"))
				return
			}
			require.Equal(t, []string{"partner"}, got.header.Values("X-Homenode-App"))
			require.Equal(t, strings.ReplaceAll(c.path, ";", "&"), got.uri)
		})
	}

	zipped := func(text string) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(text))
		_ = w.Close()
		return b.Bytes()
	}
	gzipForm := call{path: path}.form(string(zipped(signed()))).with("Content-Encoding", "gzip")
	refused := map[string]struct {
		reason string
		call   call
	}{
		"unsigned":                  {"SIGNATURE_MISSING", call{path: path}},
		"no client-id":              {"SIGNATURE_MISSING", call{path: path + "?" + signQuery(t, partnerSecret, pairs{at(0)})}},
		"no timestamp":              {"SIGNATURE_MISSING", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}})}},
		"an empty sign":             {"SIGNATURE_MISSING", call{path: path + "?" + split.encode() + "&sign="}},
		"another secret":            {"SIGNATURE_INVALID", call{path: path + "?" + signQuery(t, partnerSecret+"!", split)}},
		"a value changed":           {"SIGNATURE_INVALID", call{path: path + "?" + strings.Replace(signed([2]string{"price", "100"}), "price=100", "price=1", 1)}},
		"a parameter added":         {"SIGNATURE_INVALID", call{path: path + "?" + signed() + "&admin=1"}},
		"a parameter in the form":   {"SIGNATURE_INVALID", call{path: path + "?" + signed()}.form("admin=1")},
		"the order of two":          {"SIGNATURE_INVALID", call{path: path + "?" + strings.Replace(signed([2]string{"a", "1"}, [2]string{"a", "2"}), "a=1&a=2", "a=2&a=1", 1)}},
		"too old":                   {"SIGNATURE_EXPIRED", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, at(3 * time.Minute)})}},
		"from the future":           {"SIGNATURE_EXPIRED", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, at(-3 * time.Minute)})}},
		"a timestamp in words":      {"SIGNATURE_UNREADABLE", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, {"timestamp", "now"}})}},
		"an unknown app":            {"SIGNATURE_UNKNOWN_APP", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "nobody"}, at(0)})}},
		"another service's app":     {"SIGNATURE_UNKNOWN_APP", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "elsewhere"}, at(0)})}},
		"an app not on the list":    {"SIGNATURE_UNKNOWN_APP", call{path: path + "?" + signQuery(t, partnerSecret, pairs{{"client-id", "second"}, at(0)})}},
		"two signatures":            {"SIGNATURE_UNREADABLE", call{path: path + "?" + signed() + "&sign=x"}},
		"two client-ids":            {"SIGNATURE_UNREADABLE", call{path: path + "?client-id=second&" + signed()}},
		"a broken escape":           {"SIGNATURE_UNREADABLE", call{path: path}.form(signed() + "&a=%zz")},
		"a form of 64 KiB + 1":      {"SIGNATURE_UNREADABLE", call{path: path}.form(sized(64<<10 + 1))},
		"the same, chunked":         {"SIGNATURE_UNREADABLE", call{path: path}.form(sized(64<<10 + 1)).chunked()},
		"the same, query signed":    {"SIGNATURE_UNREADABLE", call{path: path + "?" + signed()}.form(strings.Repeat("x", 64<<10+1))},
		"a zipped form":             {"SIGNATURE_UNREADABLE", gzipForm},
		"another spelling":          {"SIGNATURE_MISSING", call{path: "/js/a/%6fpen//orders;v=1"}},
		"a token instead of a sign": {"SIGNATURE_MISSING", call{path: path, token: g.signIn(t, 0, "/js/a", "ann")}},
	}
	for name, c := range refused {
		t.Run(name, func(t *testing.T) {
			a := g.refusedWith(t, 0, c.reason, c.call)
			status := http.StatusUnauthorized
			if c.reason == "SIGNATURE_UNREADABLE" {
				status = http.StatusBadRequest
			}
			require.Equal(t, status, a.status)
			require.NotContains(t, string(a.body), partnerSecret)
		})
	}
	g.silent(t, partnerSecret, sign)
}

// A nonce is good once, on whichever gateway.
func nonceIsGoodOnce(t *testing.T, g *guarded) {
	g.set(t, 0, "apps", "partner", map[string]any{"secrets": []map[string]any{{"value": partnerSecret}}})
	g.set(t, 0, "signature", "once", map[string]any{"services": []string{"ai"}, "paths": []string{"/js/a/open/**"}, "nonce": true})
	g.settle(t)
	last := g.last()
	signed := func(nonce string) call {
		return call{path: "/js/a/open/x?" + signQuery(t, partnerSecret, pairs{{"client-id", "partner"}, {"timestamp", fmt.Sprint(time.Now().Unix())}, {"nonce", nonce}})}
	}
	first := signed("one")
	g.pass(t, 0, first)
	g.refusedWith(t, last, "SIGNATURE_REPLAYED", first)
	g.refusedWith(t, 0, "SIGNATURE_REPLAYED", signed("one"))
	g.pass(t, last, signed("two"))
	g.refusedWith(t, 0, "SIGNATURE_MISSING", signed(""))
	g.refusedWith(t, 0, "SIGNATURE_UNREADABLE", signed(strings.Repeat("n", 129)))
	g.refusedWith(t, 0, "SIGNATURE_REPLAYED", signed("two"))

	raced := signed("raced")
	var passed, replayed atomic.Int64
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			switch a := g.clients[i%len(g.clients)].get(raced.path, ""); {
			case a.status == http.StatusOK:
				passed.Add(1)
			case a.reason() == "SIGNATURE_REPLAYED":
				replayed.Add(1)
			default:
				t.Errorf("%s", a)
			}
		})
	}
	wait.Wait()
	require.EqualValues(t, 1, passed.Load())
	require.EqualValues(t, 19, replayed.Load())
}

// While an app's secret is rotated, both are good; none is ever shown.
func secretIsRotated(t *testing.T, g *guarded) {
	const old, fresh = "the-old-secret-of-2025", "the-new-secret-of-2026"
	last := g.last()
	put := func(secrets ...map[string]any) {
		g.set(t, 0, "apps", "partner", map[string]any{"secrets": secrets})
	}
	put(map[string]any{"id": "2025", "value": old})
	g.set(t, 0, "signature", "open", map[string]any{"services": []string{"ai"}, "paths": []string{"/js/a/open/**"}})
	g.settle(t)
	signed := func(secret string) call {
		return call{path: "/js/a/open/x?" + signQuery(t, secret, pairs{{"client-id", "partner"}, {"timestamp", fmt.Sprint(time.Now().Unix())}})}
	}
	g.pass(t, last, signed(old))
	g.refusedWith(t, last, "SIGNATURE_INVALID", signed(fresh))

	put(map[string]any{"id": "2025"}, map[string]any{"id": "2026", "value": fresh})
	g.pass(t, 0, signed(fresh))
	t.Logf("the new secret is good on the other instance after %s", g.within(t, last, signed(fresh), ""))
	g.pass(t, last, signed(old))
	shown, err := json.Marshal(g.services[0].administer(t, http.MethodGet, "/policies/apps/partner", nil))
	require.NoError(t, err)
	history, err := json.Marshal(g.services[0].administer(t, http.MethodGet, "/policies/apps/history", nil))
	require.NoError(t, err)
	for _, text := range []string{string(shown), string(history)} {
		require.Contains(t, text, "2026")
		for _, hidden := range []string{old, fresh, "sealed"} {
			require.NotContains(t, text, hidden)
		}
	}

	put(map[string]any{"id": "2026"})
	g.refusedWith(t, 0, "SIGNATURE_INVALID", signed(old))
	t.Logf("the old secret is refused by the other instance after %s", g.within(t, last, signed(old), "SIGNATURE_INVALID"))
	g.pass(t, last, signed(fresh))

	put(map[string]any{"id": "2026", "notAfter": time.Now().Add(-time.Second)})
	g.refusedWith(t, 0, "SIGNATURE_INVALID", signed(fresh))
	if g.postgres != nil {
		stored := strings.Join(column(t, g.direct, `SELECT body::text FROM gateway_policy UNION ALL SELECT coalesce(before, after)::text FROM gateway_audit WHERE action LIKE 'policy.apps%'`), "\n")
		require.Contains(t, stored, "sealed")
		require.NotContains(t, stored, old)
		require.NotContains(t, stored, fresh)
	}
	g.silent(t, old, fresh)
}
