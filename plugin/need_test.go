package plugin_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const formType = "Content-Type: application/x-www-form-urlencoded"

// askBack answers questions that have the form, or say why not, as usual, and asks back for all others.
func askBack(needed string, usual http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost || req.Header.Get("X-Homenode-Form") != "" {
			usual(rw, req)
			return
		}
		rw.Header().Set("X-Homenode-Need", needed)
		answerStatus(http.StatusPreconditionRequired, "MORE_NEEDED")(rw, req)
	}
}

func body(t *testing.T, req *http.Request) string {
	t.Helper()
	text, err := io.ReadAll(req.Body)
	require.NoError(t, err)
	return string(text)
}

func TestQuestionsSayWhetherThereIsAForm(t *testing.T) {
	cases := map[string]struct {
		body  string
		types []string
		want  string
	}{
		"form":                    {"a=b", []string{"application/x-www-form-urlencoded"}, "form"},
		"charset":                 {"a=b", []string{" application/X-WWW-Form-Urlencoded ; charset=GBK"}, "form"},
		"as PHP ends a type":      {"a=b", []string{"application/x-www-form-urlencoded, text/plain"}, "form"},
		"second of two types":     {"a=b", []string{"text/plain", "application/x-www-form-urlencoded"}, "form"},
		"no body":                 {"", []string{"application/x-www-form-urlencoded"}, "none"},
		"no type":                 {"a=b", nil, "none"},
		"JSON":                    {"{}", []string{"application/json"}, "none"},
		"multipart":               {"--a--", []string{"Multipart/Form-Data; boundary=a"}, "form"},
		"a longer type":           {"a=b", []string{"application/x-www-form-urlencodedx"}, "none"},
		"the type as a parameter": {"a=b", []string{"text/plain; x=application/x-www-form-urlencoded"}, "none"},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range cases {
			var headers []string
			for _, value := range c.types {
				headers = append(headers, "Content-Type: "+value)
			}
			for _, reader := range []io.Reader{strings.NewReader(c.body), io.MultiReader(strings.NewReader(c.body))} {
				if c.body == "" {
					reader = nil
				}
				require.Equal(t, 200, b.do("POST", "/js/a/x", reader, headers...).status, name)
				asked := b.service.lastQuestion(t)
				require.Equal(t, "GET", asked.Method, name)
				require.Equal(t, []string{c.want}, asked.Header["X-Homenode-Have"], name)
			}
		}
		b.login("username=alice", formType)
		require.Equal(t, []string{"form"}, b.service.lastQuestion(t).Header["X-Homenode-Have"], "a login's too")
	})
}

func TestWhatIsNeededIsSentFromTheNextQuestionOn(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		needed := "address, query ,source:x-client"
		status := http.StatusOK
		b.service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
			if needed != "" {
				rw.Header().Set("X-Homenode-Need", needed)
			}
			rw.Header().Set("X-Gateway-Node", "node-1")
			if status != http.StatusOK {
				answerStatus(status, "RATE_LIMITED")(rw, req)
			}
		})
		ask := func(uri string, headers ...string) http.Header {
			require.Equal(t, status, b.do("GET", uri, nil, headers...).status)
			return b.service.lastQuestion(t).Header
		}

		header := ask("/js/a/x?q=1", "X-Client: app")
		for _, name := range []string{"X-Forwarded-For", "X-Homenode-Query", "X-Homenode-Source"} {
			require.NotContains(t, header, name, "nothing is needed yet")
		}

		header = ask("/js/a/x?q=1&x-token=t%20u", "X-Forwarded-For: 10.1.1.1", "X-Client: app/1 ä", "X-Client: other")
		require.Equal(t, []string{"10.1.1.1, 127.0.0.1"}, header["X-Forwarded-For"])
		require.Equal(t, []string{"q=1&x-token=t%20u"}, header["X-Homenode-Query"])
		require.Equal(t, []string{url.QueryEscape("app/1 ä")}, header["X-Homenode-Source"])
		require.Equal(t, []string{"/js/a/x"}, header["X-Forwarded-Uri"], "never with the query")

		header = ask("/js/a/x")
		require.Equal(t, []string{""}, header["X-Homenode-Query"], "present when empty")
		require.Equal(t, []string{""}, header["X-Homenode-Source"], "present when empty")

		status, needed = http.StatusTooManyRequests, "query,form"
		ask("/js/a/x") // a refusal counts too
		header = ask("/js/a/x?q=1", formType)
		require.Equal(t, []string{"q=1"}, header["X-Homenode-Query"])
		require.NotContains(t, header, "X-Homenode-Source")
		require.NotContains(t, header, "X-Forwarded-For")
		require.Equal(t, status, b.do("POST", "/js/a/x", strings.NewReader("a=b"), formType).status)
		require.Equal(t, "GET", b.service.lastQuestion(t).Method, "a form is only sent where it is asked for")

		status, needed = http.StatusOK, ""
		ask("/js/a/x")
		require.NotContains(t, ask("/js/a/x?q=1"), "X-Homenode-Query", "nothing is needed any more")
	})
}

func TestWhatIsNeededOfHostileRequests(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		service := newBindingService(t)
		service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("X-Homenode-Need", "query,source:X-Client")
			rw.Header().Set("X-Gateway-Node", "node-1")
		})
		handler, err := build(http.NotFoundHandler(), settings{"service": "ai", "endpoint": service.server.URL, "secret": secret})
		require.NoError(t, err)
		ask := func(query, client string) (*http.Request, int) {
			req := httptest.NewRequest("GET", "/js/a", nil)
			req.URL.RawQuery = query
			req.Header["X-Client"] = []string{client}
			rw := httptest.NewRecorder()
			handler.ServeHTTP(rw, req)
			require.Equal(t, query, req.URL.RawQuery, "the node gets the query as it was")
			return service.lastQuestion(t), rw.Code
		}
		ask("", "")
		for _, c := range []struct{ query, want string }{
			{"a=b%20c&d", "a=b%20c&d"},
			{"a=\x00\r\n", "a=%00%0D%0A"},
			{" a=b ", "%20a=b%20"},
			{"a=ä&b=\xff\xfe", "a=%C3%A4&b=%FF%FE"},
			{"a=\u00a0\u007f", "a=%C2%A0%7F"},
			{"%zz;=+", "%zz;=+"},
		} {
			asked, status := ask(c.query, "")
			require.Equal(t, http.StatusNotFound, status)
			require.Equal(t, []string{c.want}, asked.Header["X-Homenode-Query"])
		}
		for client, want := range map[string]string{
			strings.Repeat("c", 10<<10): strings.Repeat("c", 256),
			"a\r\nX-Gateway-Node: n":    "a%0D%0AX-Gateway-Node%3A+n",
			"\xff":                      "%FF",
		} {
			asked, status := ask("", client)
			require.Equal(t, http.StatusNotFound, status)
			require.Equal(t, []string{want}, asked.Header["X-Homenode-Source"])
		}

		before := len(service.questions())
		_, status := ask(strings.Repeat("ä", 100<<10), "")
		require.Equal(t, http.StatusServiceUnavailable, status, "no client gets around the guards, a query too long")
		require.Len(t, service.questions(), before)
		_, status = ask("", "")
		require.Equal(t, http.StatusNotFound, status, "and none makes the service look down")
	})
}

func TestTooLongToAskAboutIsNoOutage(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for _, r := range []response{
			b.get("Accept-Language: " + strings.Repeat("a", 600<<10)),
			b.do(strings.Repeat("A", 1<<20+3<<10), "/js/a/x", nil), // longer than a question's headers may be
		} {
			require.Equal(t, 503, r.status)
			require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", r.reason(t))
			require.Zero(t, b.nodeRequests(), "an anonymous request must not reach the pool around the guards")
		}
	})
}

func TestWhatNoPluginKnowsIsNotNeeded(t *testing.T) {
	garbage := []string{
		"", ",", " , ,", "address:", "query:x", "form:", "ADDRESS", "Query", "source", "source:", "source: X-Client", "source:a b", "source:ä",
		"body", "*", "address query", `"address"`, strings.Repeat("x,", 10<<10), "source:" + strings.Repeat("(", 1000),
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for _, needed := range garbage {
			b.service.onDecide(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header()["X-Homenode-Need"] = []string{needed}
				rw.Header().Set("X-Gateway-Node", "node-1")
			})
			for range 2 {
				require.Equal(t, 200, b.do("GET", "/js/a?q=1", nil, "X-Client: c").status, needed)
				require.NotContains(t, b.atNode().header, "X-Homenode-Need")
			}
			header := b.service.lastQuestion(t).Header
			for _, name := range []string{"X-Forwarded-For", "X-Homenode-Query", "X-Homenode-Source"} {
				require.NotContains(t, header, name, needed)
			}
		}
		b.service.onDecide(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["X-Homenode-Need"] = []string{"new,,query", " source:(,source:X-Client,source:X-Other"}
			rw.Header().Set("X-Gateway-Node", "node-1")
		})
		for range 2 {
			require.Equal(t, 200, b.do("GET", "/js/a?q=1", nil, "X-Client: c", "X-Other: o").status)
		}
		header := b.service.lastQuestion(t).Header
		require.Equal(t, []string{"q=1"}, header["X-Homenode-Query"], "what is known counts")
		require.Equal(t, []string{"c"}, header["X-Homenode-Source"], "of two the first")
	})
}

func TestAQuestionIsPutOnceMore(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.onDecide(askBack("query,address,source:X-Client,form", func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("X-Gateway-Node", "node-2")
		}))
		r := b.do("POST", "/js/a/x?q=1", strings.NewReader("a=b&c=d"), formType, "X-Client: app", "X-Token: "+token, "X-Request-Id: id-1")
		require.Equal(t, 200, r.status)
		require.Equal(t, "id-1", r.header.Get("X-Request-Id"))
		require.Equal(t, []string{"node-2"}, b.atNode().header["X-Gateway-Node"])
		require.Equal(t, "a=b&c=d", b.atNode().body)

		asked := b.service.questions()
		require.Len(t, asked, 2)
		require.Equal(t, "GET", asked[0].Method)
		require.Equal(t, "POST", asked[1].Method)
		require.Equal(t, "a=b&c=d", body(t, asked[1]))
		require.Equal(t, []string{"application/x-www-form-urlencoded"}, asked[1].Header["Content-Type"])
		for name, want := range map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Homenode-Query": "q=1", "X-Homenode-Source": "app", "X-Homenode-Token": token,
			"X-Forwarded-Method": "POST", "X-Request-Id": "id-1", "X-Homenode-Have": "form",
		} {
			require.Equal(t, []string{want}, asked[1].Header[name], name)
		}
		require.NotContains(t, asked[1].Header, "Idempotency-Key")

		b.do("POST", "/js/a/x?q=1", strings.NewReader("a=b"), formType)
		require.NotContains(t, b.service.questions()[2].Header, "X-Homenode-Query", "what one request needs is not remembered")

		b.service.onDecide(askBack("form", answerStatus(401, "SIGNATURE_WRONG")))
		r = b.do("POST", "/js/a/x", strings.NewReader("a=b"), formType)
		require.Equal(t, "SIGNATURE_WRONG", r.reason(t))
		require.Equal(t, 2, b.nodeRequests())
	})
}

func TestAskingBackInVain(t *testing.T) {
	more := func(needed string) http.HandlerFunc {
		return func(rw http.ResponseWriter, req *http.Request) {
			rw.Header()["X-Homenode-Need"] = []string{needed}
			rw.Header().Set("X-Gateway-Node", "node-1")
			answerStatus(http.StatusPreconditionRequired, "MORE_NEEDED")(rw, req)
		}
	}
	cases := map[string]struct {
		answer    http.HandlerFunc
		questions int
	}{
		"again and again":     {more("query"), 2},
		"form, though none":   {more("form"), 2},
		"nothing":             {more(""), 1},
		"nothing that exists": {more("body,source:"), 1},
		"by somebody else": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X-Homenode-Need", "query")
			rw.WriteHeader(http.StatusPreconditionRequired)
		}, 1},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		for name, c := range cases {
			b.service.onDecide(c.answer)
			before := len(b.service.questions())
			r := b.get("X-Token: " + token)
			require.Equal(t, 503, r.status, name)
			require.Equal(t, "BINDING_SERVICE_UNAVAILABLE", r.reason(t), name)
			require.NotContains(t, r.header, "X-Homenode-Need", name)
			require.Len(t, b.service.questions(), before+c.questions, name)
			require.NotContains(t, b.service.lastQuestion(t).Header, "X-Homenode-Form", name)

			require.Equal(t, 200, b.get().status, name)
			require.Equal(t, []string{"ai"}, b.atNode().header["X-Homenode-Pool"], name)
			require.NotContains(t, b.atNode().header, "X-Gateway-Node", name)
			require.Len(t, b.service.questions(), before+2*c.questions, "who answers is asked again")
		}
	})
}

func TestAFormReachesBindingServiceAndNode(t *testing.T) {
	form := func(length int) string { return "a=" + strings.Repeat("x", length-2) }
	cases := map[string]struct {
		body    string
		headers []string
		problem string
	}{
		"usual":        {"a=b&c=%E4", nil, ""},
		"any bytes":    {"\x00\xff\r\n", nil, ""},
		"64 KiB":       {form(64 << 10), nil, ""},
		"one more":     {form(64<<10 + 1), nil, "too-large"},
		"1 MiB":        {form(1 << 20), nil, "too-large"},
		"identity":     {"a=b", []string{"Content-Encoding: Identity"}, ""},
		"gzip":         {zip("a=b"), []string{"Content-Encoding: gzip"}, "encoded"},
		"two codings":  {zip("a=b"), []string{"Content-Encoding: identity", "Content-Encoding: gzip"}, "encoded"},
		"100-continue": {"a=b", []string{"Expect: 100-continue"}, ""},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.onDecide(askBack("form", b.service.decide))
		for name, c := range cases {
			for _, chunked := range []bool{false, true} {
				var seen []received
				for _, base := range []string{b.bare.URL, b.gateway.URL} {
					var reader io.Reader = strings.NewReader(c.body)
					if chunked {
						reader = io.MultiReader(reader)
					}
					r, err := send(context.Background(), base, "POST", "/js/a/form", reader, append(c.headers, formType, "X-Request-Id: id-1")...)
					require.NoError(t, err, name)
					require.Equal(t, 200, r.status, name)
					got := b.atNode()
					require.True(t, c.body == got.body, name)
					got.body = ""
					delete(got.header, "Expect")
					seen = append(seen, got)
				}
				delete(seen[1].header, "X-Gateway-Node")
				require.Equal(t, seen[0], seen[1], "%s, chunked %v", name, chunked)
				require.Equal(t, chunked, seen[1].length == -1, name)

				asked := b.service.lastQuestion(t)
				require.Equal(t, c.problem, asked.Header.Get("X-Homenode-Form"), name)
				if c.problem == "" {
					require.Equal(t, "POST", asked.Method, name)
					require.True(t, c.body == body(t, asked), name)
					continue
				}
				require.Equal(t, "GET", asked.Method, name)
				require.Empty(t, body(t, asked), name)
				require.NotContains(t, asked.Header, "Content-Type", name)
			}
		}

		require.Equal(t, 200, b.do("POST", "/js/a/form", struct{ io.Reader }{strings.NewReader("")}, formType).status)
		asked := b.service.lastQuestion(t)
		require.Equal(t, "POST", asked.Method, "chunked, and empty after all")
		require.Zero(t, asked.ContentLength)
	})
}

// Its fields are parameters to some backends, and nobody has signed them.
func TestAMultipartBodyIsNoReadableForm(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.onDecide(askBack("form", b.service.decide))
		body := "--a\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--a--\r\n"
		require.Equal(t, 200, b.do("POST", "/js/a/x", strings.NewReader(body), "Content-Type: multipart/form-data; boundary=a").status)
		asked := b.service.lastQuestion(t)
		require.Equal(t, "GET", asked.Method)
		require.Equal(t, []string{"unreadable"}, asked.Header["X-Homenode-Form"])
		require.Equal(t, body, b.atNode().body, "untouched")
	})
}

func TestALoginCanBeAForm(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.onDecide(askBack("form", b.service.decide))
		b.onNode(respondWith(200, aliceResponse))
		for _, text := range []string{"username=alice", "username=" + strings.Repeat("x", 64<<10)} {
			require.Equal(t, aliceResponse, b.login(text, formType).body)
			require.True(t, text == b.atNode().body)
		}
		asked := b.service.questions()
		require.Len(t, asked, 4)
		require.Equal(t, "username=alice", body(t, asked[1]))
		require.Equal(t, []string{"too-large"}, asked[3].Header["X-Homenode-Form"])
		require.Equal(t, []string{""}, asked[3].Header["X-Homenode-Username"])
		require.Len(t, b.service.logins(), 2)
	})
}

func TestAFormThatBreaksOff(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		b.service.onDecide(askBack("form", b.service.decide))
		conn, err := net.Dial("tcp", b.gateway.Listener.Addr().String())
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST /js/a/form HTTP/1.1\r\nHost: h\r\n"+formType+"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nbroken\r\n")
		require.NoError(t, err)
		_, err = http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return b.nodeRequests() > 0 }, 5*time.Second, 5*time.Millisecond)
		require.Equal(t, "hello", b.atNode().body)
		require.True(t, b.atNode().bodyError)
		require.Equal(t, []string{"unreadable"}, b.service.lastQuestion(t).Header["X-Homenode-Form"])
	})
}

func TestTrailersOfAFormAreNoHeadersOfTheGateway(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		service := newBindingService(t)
		service.onDecide(askBack("form", service.decide))
		trailers := make(chan http.Header, 1)
		next := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			trailers <- req.Trailer
		})
		handler, err := build(next, settings{"service": "ai", "endpoint": service.server.URL, "secret": secret})
		require.NoError(t, err)
		gateway := httptest.NewServer(handler)
		defer gateway.Close()
		conn, err := net.Dial("tcp", gateway.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "POST /js/a/form HTTP/1.1\r\nHost: h\r\n"+formType+"\r\nTransfer-Encoding: chunked\r\n"+
			"Trailer: X-Gateway-Node, X-Sum\r\n\r\n3\r\na=b\r\n0\r\nX-Gateway-Node: node-2\r\nX-Sum: 1\r\n\r\n")
		require.NoError(t, err)
		require.Equal(t, http.Header{"X-Sum": {"1"}}, <-trailers)
	})
}

// A user whose login is on its way is waited for, however often the binding service asks back.
func TestAskingBackWhileALoginIsOnItsWay(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"bindTimeout": "20ms"})
		b.onNode(respondWith(200, aliceResponse))
		var down, bound atomic.Bool
		down.Store(true)
		b.service.onLogin(func(rw http.ResponseWriter, req *http.Request) {
			if down.Load() {
				answerStatus(503, "STORE_UNAVAILABLE")(rw, req)
				return
			}
			bound.Store(true)
		})
		require.Equal(t, aliceResponse, b.login(aliceRequest).body)
		require.Eventually(t, func() bool { return len(b.service.logins()) >= 2 }, 5*time.Second, 5*time.Millisecond)

		usual := placedUntilBound(&bound)
		b.service.onDecide(askBack("form", func(rw http.ResponseWriter, req *http.Request) {
			usual(rw, req)
			down.Store(false)
		}))
		before := len(b.service.questions())
		require.Equal(t, 200, b.do("POST", "/js/a/x", strings.NewReader("a=b"), formType, "X-Token: tok-a").status)
		require.Equal(t, "node-2", b.atNode().header.Get("X-Gateway-Node"))
		require.Equal(t, "a=b", b.atNode().body)
		var methods []string
		for _, asked := range b.service.questions()[before:] {
			methods = append(methods, asked.Method)
		}
		require.Equal(t, []string{"GET", "POST", "GET", "POST"}, methods)
	})
}

func TestNeedsChangeWhileManyAsk(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, nil)
		var count atomic.Int64
		b.service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("X-Gateway-Node", "node-1")
			switch count.Add(1) % 3 {
			case 0:
				rw.Header().Set("X-Homenode-Need", "address,query")
			case 1:
				rw.Header().Set("X-Homenode-Need", "source:X-Client")
			default:
				if req.Method == http.MethodGet {
					rw.Header().Set("X-Homenode-Need", "form")
					answerStatus(http.StatusPreconditionRequired, "MORE_NEEDED")(rw, req)
				}
			}
		})
		b.onNode(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(200) })
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				for range 20 {
					r, err := send(context.Background(), b.gateway.URL, "POST", "/js/a/x", strings.NewReader(fmt.Sprint("n=", n)), formType)
					if err != nil || r.status != 200 {
						t.Errorf("%v, %v", r, err)
					}
				}
			})
		}
		all.Wait()
		require.Equal(t, 160, b.nodeRequests())
	})
}

func TestWhatAnAnswerSetsOnTheRequest(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		b := setup(t, build, settings{"stripHeaders": []string{"X-Homenode-Need", "x_homenode_pool"}})
		between := []string{"X-Homenode-Need", "X-Homenode-Pool", "X-Homenode-Client-Status", "X-Homenode-Query", "X-Homenode-Other"}
		status := http.StatusOK
		b.service.onDecide(func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("X-Gateway-Node", "node-1")
			for _, name := range append(between, "X-Homenode-Client", "X-Homenode-Fallback", "X-Homenode-App") {
				rw.Header().Set(name, "of the answer")
			}
			if status != http.StatusOK {
				answerStatus(status, "RATE_LIMITED")(rw, req)
			}
		})
		r := b.get("X-Homenode-Client: forged", "X_Homenode_App: forged", "X-Homenode-Need: forged")
		require.Equal(t, 200, r.status)
		for _, name := range []string{"X-Homenode-Client", "X-Homenode-Fallback", "X-Homenode-App"} {
			require.Equal(t, []string{"of the answer"}, b.atNode().header[name], name)
		}
		for _, name := range append(between, "X_Homenode_App") {
			require.NotContains(t, b.atNode().header, name)
		}
		status = http.StatusTooManyRequests
		for _, r := range []response{r, b.get()} {
			for name := range r.header {
				require.NotContains(t, name, "Homenode", "the client learns nothing of it")
			}
		}
	})
}
