package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// question is what the plugin asks about a request.
func question(path string, more ...string) map[string]string {
	header := map[string]string{"X-Homenode-Service": "ai", "X-Forwarded-Method": "GET", "X-Forwarded-Uri": path, "X-Homenode-Have": "none"}
	for i := 0; i < len(more); i += 2 {
		header[more[i]] = more[i+1]
	}
	return header
}

func (b *bundle) set(t *testing.T, kind gateway.PolicyKind, id, body string) {
	t.Helper()
	answer := b.call(http.MethodPut, "/policies/"+string(kind)+"/"+id, body)
	require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
}

func (b *bundle) login(t *testing.T, user, token string) {
	t.Helper()
	report, err := json.Marshal(map[string]string{"service": "ai", "node": "n1", "username": "user-" + user, "token": token, "userId": user, "loginUsername": "", "requestId": "1"})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, b.v1(http.MethodPost, "/v1/logins", nil, string(report)).Code)
}

func (b *bundle) logout(token string) int {
	return b.v1(http.MethodPost, "/v1/logouts", nil, `{"service":"ai","token":"`+token+`","requestId":"1"}`).Code
}

func TestARefusalIsWhatItsClientReads(t *testing.T) {
	b := setup(t, nil)
	b.set(t, "answers", "all", `{"sourceHeader":"X-From","clientSources":["app"],"codes":{"MAINTENANCE":5030},"messages":{"RATE_LIMITED":{"zh":"慢一点"}}}`)
	b.set(t, "maintenance", "main", `{"paths":["/js/a/m"],"message":{"zh":"升级","en":"Upgrading"},"end":"2100-01-01T00:00:00Z"}`)
	b.set(t, "rate-limit", "r", `{"path":"/js/a/r","rate":1,"per":"1h","burst":1}`)
	b.set(t, "access", "method", `{"type":"method","path":"/js/a/list","methods":["GET","HEAD"]}`)

	more := b.decide(question("/js/a/m"))
	require.Equal(t, http.StatusPreconditionRequired, more.Code)
	require.Equal(t, "source:X-From", more.Header().Get("X-Homenode-Need"))
	require.Equal(t, "NEEDS_MORE", more.Header().Get("X-Gateway-Reason"))

	for source, clientStatus := range map[string]string{"app": "200", "browser": "", "": ""} {
		refusal := b.decide(question("/js/a/m", "X-Homenode-Source", source, "Accept-Language", "en"))
		require.Equal(t, http.StatusServiceUnavailable, refusal.Code)
		require.Equal(t, clientStatus, refusal.Header().Get("X-Homenode-Client-Status"), source)
		require.Equal(t, "source:X-From", refusal.Header().Get("X-Homenode-Need"), "what the next question has to carry")
		require.NotEmpty(t, refusal.Header().Get("Retry-After"))
		e, data := open(t, refusal)
		require.Equal(t, 5030, e.Code)
		require.Equal(t, "Upgrading", e.Message)
		require.Equal(t, map[string]any{"message": "Upgrading", "end": "2100-01-01T00:00:00Z"}, data["maintenance"])
	}
	passing := b.decide(question("/js/a/r", "X-Homenode-Source", "app"))
	require.Equal(t, http.StatusOK, passing.Code)
	require.Equal(t, "1", passing.Header().Get("X-Homenode-Client"))
	require.Equal(t, "no-store", passing.Header().Get("Cache-Control"))
	e, _ := open(t, b.decide(question("/js/a/r", "X-Homenode-Source", "")))
	require.Equal(t, 429, e.Code, "no code is agreed")
	require.Equal(t, "慢一点", e.Message)
	require.Equal(t, "GET, HEAD", b.decide(question("/js/a/list", "X-Homenode-Source", "", "X-Forwarded-Method", "PUT")).Header().Get("Allow"))

	// A caller of the forward-auth convention passes the client's headers on.
	refusal := b.decide(map[string]string{"X-Forwarded-Uri": "/js/a/m", "X-From": "app"})
	require.Equal(t, "200", refusal.Header().Get("X-Homenode-Client-Status"))
}

func TestTheClientsAddress(t *testing.T) {
	b := setup(t, nil)
	b.set(t, "maintenance", "main", `{"testers":{"addresses":["198.51.100.7","2001:db8::/32"]}}`)
	for forwarded, status := range map[string]int{
		"198.51.100.7": 200, "10.0.0.1, 198.51.100.7": 200, "198.51.100.7, 10.0.0.1": 503, "::ffff:198.51.100.7": 200, "2001:db8::1": 200, "": 503, "nonsense": 503,
	} {
		require.Equal(t, status, b.decide(question("/js/a/x", "X-Forwarded-For", forwarded)).Code, forwarded)
	}
	require.Equal(t, "address", b.decide(question("/js/a/x")).Header().Get("X-Homenode-Need"))
}

func TestAFormComesInThePostedQuestion(t *testing.T) {
	b := setup(t, nil)
	b.set(t, "apps", "partner", `{"secrets":[{"id":"1","value":"the secret of a partner"}]}`)
	b.set(t, "signature", "open", `{"paths":["/js/a/open/**"]}`)
	header := question("/js/a/open/x", "X-Forwarded-Method", "POST", "X-Homenode-Have", "form")
	more := b.decide(header)
	require.Equal(t, http.StatusPreconditionRequired, more.Code)
	require.ElementsMatch(t, []string{"query", "form"}, strings.Split(more.Header().Get("X-Homenode-Need"), ", "))
	header["X-Homenode-Query"] = "client-id=partner"
	for body, reason := range map[string]string{"timestamp=1&sign=x": "SIGNATURE_EXPIRED", "": "SIGNATURE_MISSING"} {
		require.Equal(t, reason, b.v1(http.MethodPost, "/v1/decide", header, body).Header().Get("X-Gateway-Reason"))
	}
	require.Equal(t, "VALIDATION", b.v1(http.MethodPost, "/v1/decide", header, strings.Repeat("a", 64<<10+1)).Header().Get("X-Gateway-Reason"))
	for _, problem := range []string{"too-large", "unreadable", "encoded"} {
		header["X-Homenode-Form"] = problem
		require.Equal(t, "SIGNATURE_UNREADABLE", b.decide(header).Header().Get("X-Gateway-Reason"), problem)
	}
	other := b.decide(question("/js/a/x", "X-Forwarded-Method", "POST", "X-Homenode-Have", "form", "X-Homenode-Query", ""))
	require.Equal(t, http.StatusOK, other.Code)
	require.Equal(t, "query", other.Header().Get("X-Homenode-Need"))
}

func TestLogout(t *testing.T) {
	b := setup(t, nil)
	asked := func(token string) int { return b.decide(question("/js/a/x", "X-Homenode-Token", token)).Code }
	b.login(t, "7", "t7")
	require.Equal(t, "7", b.decide(question("/js/a/x", "X-Homenode-Token", "t7")).Header().Get("X-User-Id"))
	require.Equal(t, http.StatusOK, b.logout("t7"))
	require.Empty(t, b.decide(question("/js/a/x", "X-Homenode-Token", "t7")).Header().Get("X-User-Id"), "the token is forgotten")

	b.set(t, "identity", "ai", `{"services":["ai"],"mode":"token"}`)
	require.Equal(t, http.StatusUnauthorized, asked("t7"))
	b.login(t, "7", "t7")
	require.Equal(t, http.StatusOK, asked("t7"))
	require.Equal(t, http.StatusOK, b.logout("t7"))
	require.Equal(t, http.StatusOK, b.logout("t7"), "again")
	require.Equal(t, http.StatusUnauthorized, asked("t7"))
	b.login(t, "7", "t7")
	require.Equal(t, http.StatusOK, asked("t7"), "a login with the same token ends its logout")

	kicked := b.call(http.MethodPost, "/sessions/kick-out", `{"serviceId":"ai","userId":"7"}`)
	require.Equal(t, http.StatusOK, kicked.Code, kicked.Body.String())
	require.Equal(t, http.StatusUnauthorized, asked("t7"))
	b.login(t, "7", "t7b")
	require.Equal(t, http.StatusOK, asked("t7b"))
	require.Equal(t, http.StatusUnauthorized, asked("t7"))

	for body, status := range map[string]int{
		`{}`: 400, `{"service":"ai"}`: 400, `{"service":"no","token":"x"}`: 400, `[]`: 400, `{"service":"ai","token":"nobody's","requestId":""}`: 200,
	} {
		require.Equal(t, status, b.v1(http.MethodPost, "/v1/logouts", nil, body).Code, body)
	}
	require.Equal(t, http.StatusUnauthorized, send(b.internal, http.MethodPost, "/v1/logouts", nil, `{"service":"ai","token":"x"}`).Code, "wants the shared secret")
}

func TestAJWTOfALogoutIsRevokedForItsLife(t *testing.T) {
	const key = "a secret of thirty-two characters"
	b := setup(t, nil)
	b.set(t, "identity", "ai", `{"services":["ai"],"mode":"jwt","jwt":{"algorithms":["HS256"],"keys":[{"id":"k","value":"`+key+`"}],"channelClaim":"channel"}}`)
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "7", "channel": "web", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(key))
	require.NoError(t, err)
	b.login(t, "7", token)
	answer := b.decide(question("/js/a/x", "X-Homenode-Token", token))
	require.Equal(t, "7", answer.Header().Get("X-User-Id"))
	require.Equal(t, "web", answer.Header().Get("X-Channel"))
	require.Equal(t, http.StatusOK, b.logout(token))
	require.Equal(t, http.StatusUnauthorized, b.decide(question("/js/a/x", "X-Homenode-Token", token)).Code)
	require.Equal(t, http.StatusOK, b.logout("not.a.jwt"), "nothing to revoke")
}
