package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/postgres"
)

func users(t *testing.T, store *postgres.Store, cfg postgres.UsersConfig) *postgres.Users {
	t.Helper()
	users, err := postgres.NewUsers(store, cfg)
	require.NoError(t, err)
	return users
}

func TestUsers(t *testing.T) {
	url := emptyDatabase(t)
	store := open(t, url)
	prompt(t, url, `CREATE SCHEMA app`)
	for _, test := range []struct {
		name, sql string
		cfg       postgres.UsersConfig
		users     []gateway.User // in the order of their ids
		absent    []string
	}{
		{
			"numbers",
			`CREATE TABLE sys_user (id bigint PRIMARY KEY, username varchar(64), is_admin smallint, status int);
			INSERT INTO sys_user VALUES (9007199254740993, 'Alice', 1, 1), (9, NULL, 0, 1), (10, 'Bob', NULL, NULL), (11, 'eve', 2, 0)`,
			postgres.UsersConfig{},
			[]gateway.User{{ID: "9", Active: true}, {ID: "10", Username: "Bob"}, {ID: "11", Username: "eve"}, {ID: "9007199254740993", Username: "Alice", IsAdmin: true, Active: true}},
			[]string{"8", "9007199254740992", "abc", "", " 9", "09", "9.0", "99999999999999999999", "9'; DROP TABLE sys_user; --", "9\x00"},
		},
		{
			"UUIDs and booleans, in a schema",
			`CREATE TABLE app.people (uid uuid, login text, boss boolean, alive boolean);
			INSERT INTO app.people VALUES ('018f0000-0000-7000-8000-000000000001', 'Alice', true, true), ('018f0000-0000-7000-8000-000000000000', 'Bob', false, NULL)`,
			postgres.UsersConfig{Table: "app.people", ID: "uid", Username: "login", Admin: "boss", Status: "alive"},
			[]gateway.User{{ID: "018f0000-0000-7000-8000-000000000000", Username: "Bob"}, {ID: "018f0000-0000-7000-8000-000000000001", Username: "Alice", IsAdmin: true, Active: true}},
			[]string{"018f0000-0000-7000-8000-00000000000", "018F0000-0000-7000-8000-000000000001", "7"},
		},
		{
			"short text, odd names",
			`CREATE TABLE "Users" ("user" varchar(2), "order" char(8), admin text, "Status" varchar);
			INSERT INTO "Users" VALUES ('ab', 'Alice', 'TRUE', 'T'), ('7', 'Bob', 'yes', '10')`,
			postgres.UsersConfig{Table: "Users", ID: "user", Username: "order", Admin: "admin", Status: "Status"},
			[]gateway.User{{ID: "7", Username: "Bob"}, {ID: "ab", Username: "Alice", IsAdmin: true, Active: true}},
			[]string{"abc", "07", "AB"},
		},
		{
			"blank-padded ids",
			`CREATE TABLE padded (id char(6), username text, is_admin bit(1), status numeric); INSERT INTO padded VALUES ('ab', 'Alice', '1', 1), ('cd', NULL, '0', 0)`,
			postgres.UsersConfig{Table: "padded"},
			[]gateway.User{{ID: "ab", Username: "Alice", IsAdmin: true, Active: true}, {ID: "cd"}},
			[]string{"a", "ab ", "abcdefgh"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			prompt(t, url, test.sql)
			table := users(t, store, test.cfg)
			for _, user := range test.users {
				found, err := table.UserByID(t.Context(), user.ID)
				require.NoError(t, err)
				require.Equal(t, user, found)
			}
			for _, id := range test.absent {
				_, err := table.UserByID(t.Context(), id)
				require.ErrorIs(t, err, gateway.ErrNotFound, "%q", id)
			}
			count, err := table.CountUsers(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, len(test.users), count)
			var all []gateway.User
			require.NoError(t, table.EachUser(t.Context(), func(user gateway.User) error { all = append(all, user); return nil }))
			require.Equal(t, test.users, all)
		})
	}
}

func TestManyUsers(t *testing.T) {
	url := emptyDatabase(t)
	store := open(t, url)
	prompt(t, url, `CREATE TABLE sys_user (id bigint PRIMARY KEY, username text, is_admin int, status int)`,
		`INSERT INTO sys_user SELECT n, 'user ' || n, 0, 1 FROM generate_series(12345, 1, -1) n`)
	table := users(t, store, postgres.UsersConfig{})
	count := 0
	require.NoError(t, table.EachUser(t.Context(), func(user gateway.User) error {
		count++
		require.Equal(t, fmt.Sprint(count), user.ID)
		if count == 1 {
			prompt(t, url, `DELETE FROM sys_user WHERE id > 5000`) // the users are those of the start
		}
		return nil
	}))
	require.Equal(t, 12345, count)

	enough := errors.New("enough")
	require.ErrorIs(t, table.EachUser(t.Context(), func(user gateway.User) error {
		if user.ID == "1500" {
			return enough
		}
		return nil
	}), enough)
	_, err := table.UserByID(t.Context(), "5001")
	require.ErrorIs(t, err, gateway.ErrNotFound)
}

// TestWrongUserTables: a table that cannot be read is never a user who is not there.
func TestWrongUserTables(t *testing.T) {
	url := emptyDatabase(t)
	store := open(t, url)
	for _, cfg := range []postgres.UsersConfig{
		{Table: `sys_user; --`}, {Table: "a.b.c"}, {Table: "1user"}, {Table: "sys user"}, {ID: `"id"`}, {Username: "a.b"}, {Admin: "is-admin"}, {Status: "státus"},
	} {
		_, err := postgres.NewUsers(store, cfg)
		require.ErrorContains(t, err, "admin.user", "%+v", cfg)
	}
	fails := func(table *postgres.Users, mentions ...string) {
		t.Helper()
		_, errByID := table.UserByID(t.Context(), "1")
		_, errCount := table.CountUsers(t.Context())
		errEach := table.EachUser(t.Context(), func(gateway.User) error { return nil })
		for _, err := range []error{errByID, errCount, errEach} {
			require.NotErrorIs(t, err, gateway.ErrNotFound)
			for _, text := range mentions {
				require.ErrorContains(t, err, text)
			}
		}
	}
	table := users(t, store, postgres.UsersConfig{})
	fails(table, "admin.userTable", "sys_user")
	fails(users(t, store, postgres.UsersConfig{Table: "nowhere.sys_user"}), "admin.userTable", "nowhere.sys_user")

	prompt(t, url, `CREATE TABLE sys_user (id text, username text, is_admin int)`)
	fails(table, "admin.userColumns", "sys_user", "status")
	prompt(t, url, `ALTER TABLE sys_user ADD COLUMN status int DEFAULT 1`, `INSERT INTO sys_user VALUES ('1', 'Alice', 1)`)
	user, err := table.UserByID(t.Context(), "1")
	require.NoError(t, err)
	require.Equal(t, gateway.User{ID: "1", Username: "Alice", IsAdmin: true, Active: true}, user)

	// What was known of the table is forgotten when it is no longer true.
	prompt(t, url, `ALTER TABLE sys_user ALTER COLUMN id TYPE bigint USING id::bigint`)
	_, err = table.UserByID(t.Context(), "1")
	require.NotErrorIs(t, err, gateway.ErrNotFound)
	again, err := table.UserByID(t.Context(), "1")
	require.NoError(t, err)
	require.Equal(t, user, again)
	prompt(t, url, `DROP TABLE sys_user`)
	fails(table, "sys_user")
	fails(table, "admin.userTable")
}
