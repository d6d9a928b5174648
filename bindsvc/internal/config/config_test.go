package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/config"
)

const example = `
services:
  - id: ai
    name: AI server
    pathPrefix: /js/a
    loginPath: /sys/login
    logoutPath: /sys/logout
    healthPath: /actuator/health
    defaultNodeId: node-1
    login: {username: username, code: code, success: ["200"], token: data.token, userId: data.userId, responseUsername: data.username}
    nodes:
      - {id: node-1, name: first, baseUrl: "http://127.0.0.1:8981"}
token: {sources: ["header:x-token", "bearer", "cookie:x-token", "query:x-token"], cacheTTL: 24h}
satoken: {enabled: true, tokenName: x-token, loginType: login, activeTimeout: 0s}
health: {interval: 10s, timeout: 3s, failures: 3, successes: 1}
registry: {pollInterval: 10s}
traefik: {entryPoints: [web], rule: "", tls: null}
admin: {enabled: true, ipWhitelist: ["10.0.0.7", "fd00::/8"], trustedProxies: []}
`

func load(t *testing.T, file string, environment map[string]string) (config.Config, error) {
	t.Helper()
	env := map[string]string{}
	if file != "" {
		path := filepath.Join(t.TempDir(), "homenode.yml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		env["HOMENODE_CONFIG"] = path
	}
	for name, value := range environment {
		env[name] = value
	}
	return config.Load(func(name string) string { return env[name] })
}

func TestDefaultsAreAWorkingInstallation(t *testing.T) {
	c, err := load(t, "", nil)
	require.NoError(t, err)
	require.True(t, c.Embedded())
	endpoint, err := c.PluginEndpoint()
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:9090", endpoint)
}

func TestTheFileOfTheDocumentation(t *testing.T) {
	c, err := load(t, example, nil)
	require.NoError(t, err)
	services, nodes := c.Seed()
	require.Len(t, services, 1)
	require.Len(t, nodes, 1)
	require.True(t, services[0].Enabled)
	require.Equal(t, "/js/a/sys/login", services[0].FullLoginPath())
	require.Equal(t, "ai", nodes[0].ServiceID)
	require.Equal(t, config.Duration(10*time.Second), c.Health.Interval)
}

func TestTheEnvironmentWins(t *testing.T) {
	secretFile := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secretFile, []byte("sixteen-characters\n"), 0o600))
	c, err := load(t, "listen: [127.0.0.1:1]\nadminListen: 127.0.0.1:2", map[string]string{
		"HOMENODE_LISTEN": "unix:///run/homenode.sock,127.0.0.1:3", "HOMENODE_SECRET_FILE": secretFile,
		"PG_URL": "jdbc:postgresql://db/gateway", "REDIS_HOST": "redis", "REDIS_DATABASE": "3",
	})
	require.NoError(t, err)
	require.Equal(t, config.Secret("sixteen-characters"), c.Secret)
	require.Equal(t, 3, c.RedisDB)
	require.False(t, c.Embedded())
	endpoint, err := c.PluginEndpoint()
	require.NoError(t, err)
	require.Equal(t, "unix:///run/homenode.sock", endpoint)
	url, err := c.ServiceURL()
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:3", url, "Traefik's own services cannot use a socket file")
}

func TestEveryWrongSettingIsNamed(t *testing.T) {
	type env = map[string]string
	production := env{"PG_URL": "postgres://db/x", "REDIS_HOST": "redis", "HOMENODE_SECRET": "0123456789abcdef"}
	tests := map[string]struct {
		file string
		env  env
		want string
	}{
		"no such file":              {env: env{"HOMENODE_CONFIG": "/does/not/exist.yml"}, want: "HOMENODE_CONFIG"},
		"not YAML":                  {file: "services: [", want: "homenode.yml"},
		"unknown key":               {file: "traefik: {entrypoint: web}", want: "entrypoint"},
		"wrong type":                {file: "health: {failures: many}", want: "failures"},
		"no duration":               {file: "health: {interval: 10}", want: "10s"},
		"negative":                  {file: "health: {timeout: -1s}", want: "health.timeout"},
		"zero failures":             {file: "health: {failures: 0}", want: "health.failures"},
		"PostgreSQL alone":          {env: env{"PG_URL": "postgres://db/x"}, want: "PG_URL and Redis"},
		"Redis alone":               {env: env{"REDIS_HOST": "redis"}, want: "PG_URL and Redis"},
		"production without secret": {env: env{"PG_URL": "postgres://db/x", "REDIS_HOST": "redis"}, want: "HOMENODE_SECRET"},
		"short secret":              {env: env{"HOMENODE_SECRET": "short"}, want: "at least 16"},
		"short admin token":         {env: env{"HOMENODE_ADMIN_TOKEN": "short"}, want: "HOMENODE_ADMIN_TOKEN"},
		"secret file missing":       {env: env{"HOMENODE_SECRET_FILE": "/does/not/exist"}, want: "HOMENODE_SECRET_FILE"},
		"Redis database":            {env: env{"PG_URL": production["PG_URL"], "REDIS_HOST": "r", "HOMENODE_SECRET": production["HOMENODE_SECRET"], "REDIS_DATABASE": "x"}, want: "REDIS_DATABASE"},
		"unspecified host":          {env: env{"HOMENODE_LISTEN": "0.0.0.0:9090"}, want: "HOMENODE_ENDPOINT"},
		"unspecified v6 host":       {env: env{"HOMENODE_LISTEN": "[::]:9090"}, want: "HOMENODE_ENDPOINT"},
		"unspecified admin host":    {env: env{"HOMENODE_ADMIN_LISTEN": ":9091"}, want: "HOMENODE_ADMIN_ENDPOINT"},
		"socket alone":              {env: env{"HOMENODE_LISTEN": "unix:///run/x.sock"}, want: "beside the unix socket"},
		"relative socket":           {env: env{"HOMENODE_LISTEN": "unix://x.sock,127.0.0.1:1"}, want: "absolute"},
		"no port":                   {env: env{"HOMENODE_LISTEN": "127.0.0.1"}, want: "host:port"},
		"endpoint":                  {env: env{"HOMENODE_ENDPOINT": "ftp://x"}, want: "traefik.endpoint"},
		"token source":              {file: "token: {sources: [body]}", want: `"body"`},
		"token header name":         {file: "token: {sources: ['header:x token']}", want: "header:x token"},
		"strip header name":         {file: "traefik: {stripHeaders: ['a b']}", want: "traefik.stripHeaders"},
		"strips the token":          {file: "traefik: {stripHeaders: [X-Token]}", want: "traefik.stripHeaders"},
		"no token source":           {file: "token: {sources: []}", want: "token.sources"},
		"language":                  {file: "messages: fr", want: "messages"},
		"log level":                 {file: "log: {level: loud}", want: "log.level"},
		"whitelist":                 {file: "admin: {ipWhitelist: [10.0.0.300]}", want: "admin.ipWhitelist"},
		"service id":                {file: "services: [{id: 'a b', pathPrefix: /a}]", want: "id"},
		"path prefix":               {file: "services: [{id: a, pathPrefix: a}]", want: "pathPrefix"},
		"prefix with dots":          {file: "services: [{id: a, pathPrefix: /a/../b}]", want: "pathPrefix"},
		"prefix of the admin API":   {file: "services: [{id: a, pathPrefix: /gateway/admin/x}]", want: "admin API"},
		"prefix twice":              {file: "services: [{id: a, pathPrefix: /a}, {id: b, pathPrefix: /a}]", want: "twice"},
		"base URL with a path":      {file: "services: [{id: a, pathPrefix: /a, nodes: [{id: n, baseUrl: 'http://x/y'}]}]", want: "baseUrl"},
		"node twice":                {file: "services: [{id: a, pathPrefix: /a, nodes: [{id: n, baseUrl: 'http://x'}, {id: n, baseUrl: 'http://y'}]}]", want: "twice"},
		"foreign default node":      {file: "services: [{id: a, pathPrefix: /a, defaultNodeId: m, nodes: [{id: n, baseUrl: 'http://x'}]}]", want: "defaultNodeId"},
		"sentinels without master":  {file: "redis: {sentinels: ['s:1']}", env: production, want: "redis.sentinelMaster"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, test.file, test.env)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	_, err := load(t, "messages: fr\nlog: {level: loud}", map[string]string{"HOMENODE_SECRET": "short"})
	for _, want := range []string{"messages", "log.level", "HOMENODE_SECRET"} {
		require.ErrorContains(t, err, want)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	const secret = "topsecret-0123456789"
	c, err := load(t, "messages: fr", map[string]string{
		"HOMENODE_SECRET": secret, "PG_URL": "postgres://u:" + secret + "@db/x", "PG_PASSWORD": secret, "REDIS_URL": "redis://:" + secret + "@r", "REDIS_PASSWORD": secret,
	})
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(format, c), secret)
	}
}

func FuzzFile(f *testing.F) {
	f.Add(example)
	f.Add("services: [{id: a}]")
	f.Add("{")
	f.Fuzz(func(t *testing.T, file string) {
		path := filepath.Join(t.TempDir(), "homenode.yml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		c, err := config.Load(func(name string) string { return map[string]string{"HOMENODE_CONFIG": path}[name] })
		if err == nil {
			require.NoError(t, c.Verify(), "what loads is valid")
		}
	})
}
