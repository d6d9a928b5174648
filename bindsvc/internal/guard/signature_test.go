package guard_test

import (
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const (
	appSecret   = "the secret of a partner"
	otherSecret = "the next secret of that partner"
)

// sha256sum signs what is concatenated already with the program of that name, which
// shares nothing with this one.
func sha256sum(t *testing.T, concatenated string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sha256sum")
	command.Stdin = strings.NewReader(concatenated)
	output, err := command.Output()
	require.NoError(t, err, "sha256sum is of the package coreutils")
	return strings.Fields(string(output))[0]
}

func signed(query string, change ...func(*gateway.Request)) gateway.Request {
	return with(get("/js/a/open/orders"), func(r *gateway.Request) {
		r.Query = query
		for _, c := range change {
			c(r)
		}
	})
}

func form(body string) func(*gateway.Request) {
	return func(r *gateway.Request) {
		r.Method, r.Form = "POST", gateway.Form{State: gateway.FormGiven, Body: body}
	}
}

func newSigned(t testing.TB) *world {
	w := newWorld(t)
	w.set(gateway.PolicyApps, "partner", `{"secrets":[{"id":"1","value":"`+appSecret+`"}]}`)
	w.set(gateway.PolicySignature, "open", `{"paths":["/js/a/open/**"]}`)
	return w
}

// The seed's algorithm: parameters by key, values concatenated, the secret appended.
func TestSignatures(t *testing.T) {
	w := newSigned(t)
	w.set(gateway.PolicyIdentity, "all", `{"mode":"token"}`)
	now := fmt.Sprint(start.UnixMilli())
	for name, test := range map[string]struct {
		query, form string
		values      string // in the order of their keys, without the secret
	}{
		"query":                   {query: "timestamp=" + now + "&client-id=partner&b=2&a=1", values: "12partner" + now},
		"seconds":                 {query: "timestamp=" + fmt.Sprint(start.Unix()) + "&client-id=partner", values: "partner" + fmt.Sprint(start.Unix())},
		"form":                    {query: "client-id=partner&z=9", form: "timestamp=" + now + "&a=1", values: "1partner" + now + "9"},
		"repeated: in order":      {query: "client-id=partner&a=2&a=1&timestamp=" + now, form: "a=0", values: "210partner" + now},
		"empty values":            {query: "client-id=partner&a=&b&=x&timestamp=" + now, values: "xpartner" + now},
		"empty pairs":             {query: "&&client-id=partner&&timestamp=" + now + "&", values: "partner" + now},
		"unicode":                 {query: "client-id=partner&%E5%90%8D=%E5%BC%A0%E4%B8%89&timestamp=" + now, values: "partner" + now + "张三"},
		"raw unicode":             {query: "client-id=partner&名=张三&timestamp=" + now, values: "partner" + now + "张三"},
		"beyond the first plane":  {query: "client-id=partner&" + url.QueryEscape("\uFFFD") + "=1&" + url.QueryEscape("😀") + "=2&timestamp=" + now, values: "partner" + now + "21"},
		"plus and percent":        {query: "client-id=partner&a=x+y%2Bz%26&timestamp=" + now, values: "x y+z&partner" + now},
		"capitals before letters": {query: "client-id=partner&B=1&a=2&timestamp=" + now, values: "12partner" + now},
		"; is what Traefik makes": {query: "client-id=partner;a=1&timestamp=" + now, values: "1partner" + now},
	} {
		t.Run(name, func(t *testing.T) {
			sign := sha256sum(t, test.values+appSecret)
			request := signed(test.query + "&sign=" + sign)
			if test.form != "" {
				form(test.form)(&request)
			}
			refusal, q := w.check(t.Context(), request)
			require.Nil(t, refusal, "%v", refusal)
			require.Equal(t, "partner", q.App, "and no user is needed")
			require.Empty(t, w.ask(signedWith(request, strings.ToUpper(sign))))
			require.Equal(t, gateway.SignatureInvalid, w.ask(signedWith(request, sha256sum(t, test.values+"another secret"))))
			require.Equal(t, gateway.SignatureInvalid, w.ask(with(request, func(r *gateway.Request) { r.Query += "&more=1" })))
		})
	}
}

func signedWith(request gateway.Request, sign string) gateway.Request {
	before, _, _ := strings.Cut(request.Query, "&sign=")
	request.Query = before + "&sign=" + sign
	return request
}

func TestSignaturesThatAreRefused(t *testing.T) {
	w := newSigned(t)
	w.set(gateway.PolicyApps, "disabled", `{"enabled":false,"secrets":[{"value":"`+appSecret+`"}]}`)
	w.set(gateway.PolicyApps, "elsewhere", `{"services":["docs"],"secrets":[{"value":"`+appSecret+`"}]}`)
	at := func(moment time.Time) string {
		return "client-id=partner&timestamp=" + fmt.Sprint(moment.UnixMilli()) + "&sign=" + sha256sum(t, "partner"+fmt.Sprint(moment.UnixMilli())+appSecret)
	}
	by := func(app string) string {
		return "client-id=" + app + "&timestamp=" + fmt.Sprint(start.UnixMilli()) + "&sign=" + sha256sum(t, app+fmt.Sprint(start.UnixMilli())+appSecret)
	}
	for name, test := range map[string]struct {
		request gateway.Request
		reason  gateway.Reason
	}{
		"good":                  {signed(at(start)), ""},
		"as old as may be":      {signed(at(start.Add(-5 * time.Minute))), ""},
		"too old":               {signed(at(start.Add(-5*time.Minute - time.Millisecond))), gateway.SignatureExpired},
		"from the future":       {signed(at(start.Add(5*time.Minute + time.Millisecond))), gateway.SignatureExpired},
		"not signed":            {signed(""), gateway.SignatureMissing},
		"no client-id":          {signed("timestamp=1&sign=x"), gateway.SignatureMissing},
		"empty sign":            {signed("client-id=partner&timestamp=1&sign="), gateway.SignatureMissing},
		"unknown app":           {signed(by("nobody")), gateway.SignatureUnknownApp},
		"disabled app":          {signed(by("disabled")), gateway.SignatureUnknownApp},
		"another service's app": {signed(by("elsewhere")), gateway.SignatureUnknownApp},
		"two signs":             {signed(at(start) + "&sign=x"), gateway.SignatureUnreadable},
		"two clients":           {signed(at(start), form("client-id=other")), gateway.SignatureUnreadable},
		"no number":             {signed("client-id=partner&timestamp=now&sign=x"), gateway.SignatureUnreadable},
		"a huge number":         {signed("client-id=partner&timestamp=99999999999999999999&sign=x"), gateway.SignatureUnreadable},
		"half a percent":        {signed(at(start) + "&a=%4"), gateway.SignatureUnreadable},
		"too many":              {signed(at(start) + strings.Repeat("&a=1", 1000)), gateway.SignatureUnreadable},
		"a form too large":      {signed(at(start), func(r *gateway.Request) { r.Form.State = gateway.FormTooLarge }), gateway.SignatureUnreadable},
		"a form broken off":     {signed(at(start), func(r *gateway.Request) { r.Form.State = gateway.FormUnreadable }), gateway.SignatureUnreadable},
		"another caller's form": {signed(at(start), func(r *gateway.Request) {
			r.Method, r.CanTellMore, r.Form.State = "POST", false, gateway.FormNotTold
		}), gateway.SignatureUnreadable},
		"a preflight": {signed("", func(r *gateway.Request) { r.Method = "OPTIONS" }), ""},
	} {
		require.Equal(t, test.reason, w.ask(test.request), name)
	}
	needs, _ := w.check(t.Context(), signed(at(start), func(r *gateway.Request) { r.Method, r.Form.State, r.QueryTold = "POST", gateway.FormNotTold, false }))
	require.Equal(t, gateway.NeedsMore, needs.Reason)
	require.ElementsMatch(t, []string{"query", "form"}, needs.Need)
	require.Empty(t, w.ask(with(get("/js/a/other"), func(r *gateway.Request) { r.Method, r.Form.State = "POST", gateway.FormNotTold })), "no form is asked for elsewhere")
}

func TestSecretsRotate(t *testing.T) {
	w := newSigned(t)
	query := func(secret string) gateway.Request {
		now := fmt.Sprint(w.now.UnixMilli())
		return signed("client-id=partner&timestamp=" + now + "&sign=" + sha256sum(t, "partner"+now+secret))
	}
	w.set(gateway.PolicyApps, "partner", `{"secrets":[{"id":"1","notAfter":"2026-01-03T00:00:00Z"},{"id":"2","value":"`+otherSecret+`"}]}`)
	require.Empty(t, w.ask(query(appSecret)))
	require.Empty(t, w.ask(query(otherSecret)))
	w.now = start.Add(24 * time.Hour)
	require.Equal(t, gateway.SignatureInvalid, w.ask(query(appSecret)))
	require.Empty(t, w.ask(query(otherSecret)))
	w.set(gateway.PolicyApps, "partner", `{"secrets":[{"id":"2"}]}`)
	require.Empty(t, w.ask(query(otherSecret)))
}

func TestANonceIsGoodOnce(t *testing.T) {
	w := newSigned(t)
	w.set(gateway.PolicySignature, "open", `{"paths":["/js/a/open/**"],"nonce":true}`)
	request := func(nonce string) gateway.Request {
		now := fmt.Sprint(start.UnixMilli())
		return signed("client-id=partner&nonce=" + nonce + "&timestamp=" + now + "&sign=" + sha256sum(t, "partner"+nonce+now+appSecret))
	}
	ctx, _ := gateway.WithTrace(t.Context())
	refusal, _ := w.check(ctx, request("n1"))
	require.Nil(t, refusal, "an explanation uses nothing up")
	require.Equal(t, gateway.SignatureInvalid, w.ask(with(request("n1"), func(r *gateway.Request) { r.Query += "0" })), "nor does a bad signature")
	require.Empty(t, w.ask(request("n1")))
	require.Equal(t, gateway.SignatureReplayed, w.ask(request("n1")))
	require.Empty(t, w.ask(request("n2")))
	require.Equal(t, gateway.SignatureMissing, w.ask(request("")))
	require.Equal(t, gateway.SignatureUnreadable, w.ask(request(strings.Repeat("n", 129))))
	w.nonces = downLimiter{}
	require.Equal(t, gateway.StoreUnavailable, w.ask(request("n3")), "closed: it could be a replay")
}

func FuzzSignedParameters(f *testing.F) {
	f.Add("client-id=partner&timestamp=1767323045000&sign=x", "a=1")
	f.Add("%", ";;;&=&")
	f.Add("a=%E5%BC%A0&a=1;sign=1", "\x00=\xff")
	w := newSigned(f)
	f.Fuzz(func(t *testing.T, query, body string) {
		w.t = t
		if reason := w.ask(signed(query, form(body))); reason == "" {
			t.Fatalf("%q %q: a signature that nobody has made", query, body)
		}
	})
}
