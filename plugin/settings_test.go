package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"net/http"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/plugin"
)

func usualSettings() settings {
	return settings{"service": "ai", "endpoint": "http://127.0.0.1:1", "secret": secret}
}

func TestNewNeedsNothingReachable(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		_, err := build(http.NotFoundHandler(), usualSettings())
		require.NoError(t, err)
	})
}

// Traefik decodes a list over the head of a default one and keeps the tail.
func TestDefaultListsAreEmpty(t *testing.T) {
	config := plugin.CreateConfig()
	require.Nil(t, config.TokenSources)
	require.Nil(t, config.StripHeaders)
	require.Nil(t, config.Login.Success)
}

func TestEachWrongSettingIsNamed(t *testing.T) {
	short := "short-secret"
	cases := []struct {
		setting string
		value   any
		line    string
	}{
		{"service", "", "service: is required"},
		{"service", "a\nb", "service: has characters"},
		{"endpoint", "", "endpoint: is required"},
		{"endpoint", "127.0.0.1:9090", "endpoint: must be"},
		{"endpoint", "ftp://host", "endpoint: must be"},
		{"endpoint", "http://", "endpoint: must be"},
		{"endpoint", "http://host:port", "endpoint: must be"},
		{"endpoint", "http://user:" + password + "@host", "endpoint: must be"},
		{"endpoint", "http://host?q=1", "endpoint: must be"},
		{"endpoint", "unix://relative/path", "endpoint: must be"},
		{"endpoint", "unix:///", "endpoint: must be"},
		{"secret", "", "secret: is required"},
		{"secret", short, "secret: must have at least 16 characters"},
		{"secret", "0123456789abcdef\n", "secret: has characters"},
		{"secretFile", "/no/such/file", "secret: is given twice, also as secretFile"},
		{"timeout", "", "timeout: must be a positive duration"},
		{"timeout", "2", "timeout: must be a positive duration"},
		{"timeout", "0s", "timeout: must be a positive duration"},
		{"bindTimeout", "-1s", "bindTimeout: must be a positive duration"},
		{"loginPath", "sys/login", "loginPath: must be a full path"},
		{"loginPath", "/sys/login?x", "loginPath: must be a full path"},
		{"logoutPath", "sys/logout", "logoutPath: must be a full path"},
		{"login", settings{"username": ""}, "login.username: must be a field path"},
		{"login", settings{"code": "a..b"}, "login.code: must be a field path"},
		{"login", settings{"success": []string{"200", ""}}, "login.success: has an empty value"},
		{"login", settings{"token": "data."}, "login.token: must be a field path"},
		{"login", settings{"userId": ".id"}, "login.userId: must be a field path"},
		{"login", settings{"responseUsername": "."}, "login.responseUsername: must be a field path"},
		{"tokenSources", []string{"x-token"}, `tokenSources: "x-token" must be`},
		{"tokenSources", []string{"header:"}, `tokenSources: "header:" must be`},
		{"tokenSources", []string{"header:a b"}, `tokenSources: "header:a b" must be`},
		{"tokenSources", []string{"bearer:x"}, `tokenSources: "bearer:x" must be`},
		{"tokenSources", []string{"cookie:a;b"}, `tokenSources: "cookie:a;b" must be`},
		{"tokenSources", []string{"query:"}, `tokenSources: "query:" must be`},
		{"stripHeaders", []string{"a b"}, `stripHeaders: "a b" is no header name`},
		{"stripHeaders", []string{"x_token"}, `stripHeaders: "x_token" is a header that tokenSources reads`},
		{"stripHeaders", []string{"Authorization"}, `stripHeaders: "Authorization" is a header`},
		{"stripHeaders", []string{"Cookie"}, `stripHeaders: "Cookie" is a header`},
		{"messages", "de", `messages: must be zh or en, not "de"`},
	}
	onEachBuild(t, func(t *testing.T, build build) {
		for _, c := range cases {
			s := usualSettings()
			s[c.setting] = c.value
			_, err := build(http.NotFoundHandler(), s)
			require.ErrorContains(t, err, "homenode middleware test: "+c.line)
			require.NotContains(t, err.Error(), "\n", "one problem, one line")
			for _, confidential := range []string{secret, short, password} {
				require.NotContains(t, err.Error(), confidential)
			}
		}
	})
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		_, err := build(http.NotFoundHandler(), settings{
			"timeout": "x", "loginPath": "/a", "logoutPath": "/a", "secretFile": "/no/such/file",
		})
		require.Error(t, err)
		lines := strings.Split(err.Error(), "\n")
		require.Len(t, lines, 5, err)
		for place, setting := range []string{"service: ", "endpoint: ", "secretFile ", "timeout: ", "logoutPath: "} {
			require.Contains(t, lines[place], setting)
		}
	})
}

func TestSecretFileAndEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	onEachBuild(t, func(t *testing.T, build build) {
		s := usualSettings()
		s["secret"], s["secretFile"] = "", file
		_, err := build(http.NotFoundHandler(), s)
		require.NoError(t, err)
	})
	// The interpreter has its own copy of the environment, taken when it starts.
	s := usualSettings()
	s["secret"] = ""
	for name, value := range map[string]string{"HOMENODE_SECRET": secret, "HOMENODE_SECRET_FILE": file} {
		t.Setenv(name, value)
		_, err := compiled(http.NotFoundHandler(), s)
		require.NoError(t, err)
		os.Unsetenv(name)
		_, err = compiled(http.NotFoundHandler(), s)
		require.ErrorContains(t, err, "secret: is required")
	}
}

func TestPanicInNewIsAnError(t *testing.T) {
	onEachBuild(t, func(t *testing.T, build build) {
		var none http.Handler = (http.HandlerFunc)(nil)
		_, err := build(none, usualSettings())
		require.NoError(t, err, "a nil function is found out only when it is called")
	})
	_, err := plugin.New(t.Context(), nil, nil, "test")
	require.ErrorContains(t, err, "no next handler or no configuration")
}
