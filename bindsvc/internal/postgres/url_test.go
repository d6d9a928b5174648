package postgres_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/postgres"
)

func TestParseURL(t *testing.T) {
	for _, test := range []struct {
		url                            string
		host                           string
		port                           uint16
		database, user, password, path string
	}{
		{"postgres://u:p@db:5433/cases", "db", 5433, "cases", "u", "p", ""},
		{"postgresql://db/cases", "db", 5432, "cases", "given", "given secret", ""},
		{"jdbc:postgresql://192.168.0.106:5432/cases?currentSchema=gw&useSSL=false&serverTimezone=Asia/Shanghai&stringtype=unspecified&reWriteBatchedInserts=true",
			"192.168.0.106", 5432, "cases", "given", "given secret", "gw"},
		{"jdbc:postgresql:cases", "localhost", 5432, "cases", "given", "given secret", ""},
		{"jdbc:postgresql://db/cases?user=q&password=s%26x", "db", 5432, "cases", "q", "s&x", ""},
		{"postgres://a%40b:p%3A%2F@[::1]:5432/my%20db", "::1", 5432, "my db", "a@b", "p:/", ""},
		{"postgres://u:it's@db/it's?search_path=a,b", "db", 5432, "it's", "u", "it's", "a,b"},
	} {
		t.Run(test.url, func(t *testing.T) {
			user, password := "", ""
			if test.user == "given" {
				user, password = test.user, test.password
			}
			config, err := postgres.ParseURL(test.url, user, password)
			require.NoError(t, err)
			got := config.ConnConfig
			require.Equal(t, []any{test.host, test.port, test.database, test.user, test.password, test.path},
				[]any{got.Host, got.Port, got.Database, got.User, got.Password, got.RuntimeParams["search_path"]})
			require.NotContains(t, got.RuntimeParams, "serverTimezone")
			require.GreaterOrEqual(t, config.MaxConns, int32(8))
		})
	}

	t.Setenv("PGAPPNAME", "somebody")
	for url, name := range map[string]string{
		"postgres://db/x":                               "homenode",
		"postgres://db/x?application_name=":             "homenode",
		"postgres://db/x?application_name=homenode":     "homenode",
		"postgres://db/x?application_name=homenode:one": "homenode:one",
		"postgres://db/x?application_name=homenodes":    "homenode:homenodes",
		"jdbc:postgresql://db/x?ApplicationName=shop":   "homenode:shop",
	} {
		config, err := postgres.ParseURL(url, "u", "p")
		require.NoError(t, err)
		require.Equal(t, name, config.ConnConfig.RuntimeParams["application_name"], url)
	}

	config, err := postgres.ParseURL("jdbc:postgresql://db/x?ssl=true", "u", "p")
	require.NoError(t, err)
	require.False(t, config.ConnConfig.TLSConfig.InsecureSkipVerify)
	require.Equal(t, "db", config.ConnConfig.TLSConfig.ServerName)

	config, err = postgres.ParseURL("jdbc:postgresql://one:1,two:2/x?targetServerType=primary&sslmode=disable", "u", "p")
	require.NoError(t, err)
	require.Equal(t, "one", config.ConnConfig.Host)
	require.Equal(t, "two", config.ConnConfig.Fallbacks[0].Host)

	config, err = postgres.ParseURL("postgres://inside:old@db/x?pool_max_conns=3", "outside", "new")
	require.NoError(t, err)
	require.Equal(t, []any{"outside", "new", int32(3)}, []any{config.ConnConfig.User, config.ConnConfig.Password, config.MaxConns})
}

func TestParseURLRefusesWithoutShowingThePassword(t *testing.T) {
	for _, url := range []string{
		"", "hidden", "mysql://u:hidden@db/x", "postgres:u:hidden@db/x", "postgres://u:hidden%zz@db/x", "postgres://u:hidden@db:port/x",
		"postgres://u:hidden@db/x?sslmode=perhaps", "postgres://u:hidden@db/x?password=hidden%zz", "postgres://u:hidden@db/x?pool_max_conns=many",
		"jdbc:postgresql://db/x?password=hidden&sslmode=perhaps", "postgres://u:hidden%00@db/x", "host=db password=hidden",
	} {
		_, err := postgres.ParseURL(url, "", "")
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "hidden")
		_, err = postgres.ParseURL(strings.ReplaceAll(url, "hidden", "x"), "u", "hidden\x00")
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hidden")
	}
}

func FuzzParseURL(f *testing.F) {
	for _, url := range []string{
		"postgres://u:p@db:5433/cases?sslmode=disable", "jdbc:postgresql://a:1,[::1]:2/x?currentSchema=y&ssl=true", "jdbc:postgresql:x", "postgres://@:/?=",
	} {
		f.Add(url, "s3cret-password")
	}
	f.Fuzz(func(t *testing.T, url, password string) {
		config, err := postgres.ParseURL(url, "user", password)
		if err != nil {
			if len(password) > 8 && !strings.Contains(url, password) {
				require.NotContains(t, err.Error(), password)
			}
			return
		}
		if password != "" {
			require.Equal(t, password, config.ConnConfig.Password)
		}
		require.Equal(t, "user", config.ConnConfig.User)
	})
}
