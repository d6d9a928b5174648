// Command imports measures import-existing and a file import of many users against
// the least that PostgreSQL itself needs for the same rows: a plain COPY into a
// staging table and one INSERT … SELECT into the same kind of table. The ways take
// turns in one run; what counts is the ratio of their times.
//
//	go run ./bench/imports -users 1000000 -rounds 3
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/internal/proc"
	"github.com/homenode/homenode/internal/testenv"
)

const (
	secret     = "a-benchmark-secret-of-32-chars-0"
	adminToken = "a-benchmark-admin-token-of-32-ch"
)

func main() {
	users := flag.Int("users", 1_000_000, "how many users")
	rounds := flag.Int("rounds", 3, "how often each way is measured")
	flag.Parse()
	if err := run(context.Background(), *users, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "imports:", err)
		os.Exit(1)
	}
}

// way is one way to make the bindings of all users; it returns how long that took
// and how much memory homenode had at most, 0 if it had no part in it.
type way struct {
	name string
	run  func(ctx context.Context, database string) (time.Duration, int64, error)
}

type bench struct {
	users    int
	dir      string
	homenode string
	postgres *testenv.Postgres
	redis    *testenv.Redis
}

func run(ctx context.Context, users, rounds int) (err error) {
	dir, err := os.MkdirTemp("", "homenode-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL runs as another user
		return err
	}
	b := &bench{users: users, dir: dir, homenode: filepath.Join(dir, "homenode")}
	progress("building homenode")
	if output, err := exec.CommandContext(ctx, "go", "build", "-o", b.homenode, "github.com/homenode/homenode/bindsvc").CombinedOutput(); err != nil {
		return fmt.Errorf("build homenode: %w\n%s", err, output)
	}
	if b.postgres, err = testenv.StartPostgres(filepath.Join(dir, "postgres")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.postgres.Close()) }()
	if b.redis, err = testenv.StartRedis(filepath.Join(dir, "redis")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.redis.Close()) }()

	ways := []way{{"COPY, INSERT … SELECT", b.plain}, {"import-existing", b.existing}, {"import of a file", b.file}}
	took := make([][]time.Duration, len(ways))
	memory := make([]int64, len(ways))
	for round := range rounds {
		for i := range ways {
			w := ways[(i+round)%len(ways)]
			database, err := b.database(ctx, fmt.Sprintf("bench_%d_%d", round, i))
			if err != nil {
				return err
			}
			progress("round %d of %d: %s", round+1, rounds, w.name)
			duration, most, err := w.run(ctx, database)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if err := b.verify(ctx, database); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			at := (i + round) % len(ways)
			took[at], memory[at] = append(took[at], duration), max(memory[at], most)
		}
	}
	return b.print(ways, took, memory)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *bench) print(ways []way, took [][]time.Duration, memory []int64) error {
	fmt.Printf("\n%d users, median of %d rounds\n\n", b.users, len(took[0]))
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "way\tseconds\tratio\tusers/s\thomenode's memory, most\t")
	median := func(all []time.Duration) time.Duration { return slices.Sorted(slices.Values(all))[len(all)/2] }
	for i, w := range ways {
		m := median(took[i])
		most := "-"
		if memory[i] > 0 {
			most = fmt.Sprintf("%d MiB", memory[i]>>20)
		}
		_, _ = fmt.Fprintf(table, "%s\t%.1f\t%.2f\t%.0f\t%s\t\n", w.name, m.Seconds(), float64(m)/float64(median(took[0])), float64(b.users)/m.Seconds(), most)
	}
	return table.Flush()
}

func username(i int) string { return fmt.Sprintf("User-%07d", i) }

// database makes a database with homenode's schema, one service and node, and the users.
func (b *bench) database(ctx context.Context, name string) (string, error) {
	url, err := b.postgres.NewDatabase(name)
	if err != nil {
		return "", err
	}
	migrate := exec.CommandContext(ctx, b.homenode, "migrate")
	migrate.Env = append(os.Environ(), b.env(url)...)
	if output, err := migrate.CombinedOutput(); err != nil {
		return "", fmt.Errorf("migrate: %w\n%s", err, output)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range []string{
		`INSERT INTO gateway_service (id, path_prefix) VALUES ('ai', '/js/a')`,
		`INSERT INTO gateway_node (id, service_id, base_url) VALUES ('node-1', 'ai', 'http://127.0.0.1:1')`,
		`CREATE TABLE sys_user (id bigint PRIMARY KEY, username varchar(100), is_admin smallint, status smallint)`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", err
		}
	}
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"sys_user"}, []string{"id", "username", "is_admin", "status"},
		pgx.CopyFromSlice(b.users, func(i int) ([]any, error) { return []any{int64(i), username(i), int16(0), int16(1)}, nil }))
	if err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, `VACUUM ANALYZE sys_user`); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, `CHECKPOINT`) // nobody pays for what others wrote before
	return url, err
}

func (b *bench) verify(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var rows int
	err = conn.QueryRow(ctx, `SELECT count(*) FROM gateway_user_route r JOIN sys_user u ON r.user_id = u.id::text AND r.username = u.username
		WHERE r.node_id = 'node-1' AND r.username_key = lower(u.username)`).Scan(&rows)
	if err == nil && rows != b.users {
		err = fmt.Errorf("%d of %d users are bound", rows, b.users)
	}
	return err
}

// plain is what PostgreSQL needs for the same rows, with the same indexes and triggers;
// not the audit of what other programs change, which would be a second table to fill.
func (b *bench) plain(ctx context.Context, database string) (time.Duration, int64, error) {
	config, err := pgx.ParseConfig(database)
	if err != nil {
		return 0, 0, err
	}
	config.RuntimeParams["application_name"] = "homenode"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `CREATE TABLE staging (user_id text, username text, username_key text)`); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"staging"}, []string{"user_id", "username", "username_key"},
		pgx.CopyFromSlice(b.users, func(i int) ([]any, error) {
			return []any{fmt.Sprint(i), username(i), strings.ToLower(username(i))}, nil
		}))
	if err != nil {
		return 0, 0, err
	}
	_, err = conn.Exec(ctx, `INSERT INTO gateway_user_route (service_id, user_id, username, username_key, node_id, epoch)
		SELECT 'ai', user_id, username, username_key, 'node-1', 1 FROM staging`)
	return time.Since(start), 0, err
}

func (b *bench) existing(ctx context.Context, database string) (time.Duration, int64, error) {
	return b.through(ctx, database, func(admin string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodPost, admin+"/gateway/admin/routes/import-existing", strings.NewReader(`{"serviceId":"ai","nodeId":"node-1"}`))
	})
}

func (b *bench) file(ctx context.Context, database string) (time.Duration, int64, error) {
	var content bytes.Buffer
	content.WriteString("userId,username\n")
	for i := range b.users {
		fmt.Fprintf(&content, "%d,%s\n", i, username(i))
	}
	return b.through(ctx, database, func(admin string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodPost, admin+"/gateway/admin/routes/import?serviceId=ai&nodeId=node-1", &content)
	})
}

// through measures a request to a homenode of its own.
func (b *bench) through(ctx context.Context, database string, request func(admin string) (*http.Request, error)) (took time.Duration, most int64, err error) {
	internal, err := proc.FreeAddress()
	if err != nil {
		return 0, 0, err
	}
	admin, err := proc.FreeAddress()
	if err != nil {
		return 0, 0, err
	}
	env := append(os.Environ(), b.env(database)...)
	env = append(env, "HOMENODE_LISTEN="+internal, "HOMENODE_ADMIN_LISTEN="+admin)
	process, err := proc.Start(proc.Command{Name: "homenode", Path: b.homenode, Args: []string{"serve"}, Env: env, LogFile: filepath.Join(b.dir, "homenode.log")})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, process.Stop(10*time.Second)) }()
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := process.WaitReady(ready, "http://"+internal+"/readyz"); err != nil {
		return 0, 0, err
	}
	r, err := request("http://" + admin)
	if err != nil {
		return 0, 0, err
	}
	r.Header.Set("x-token", adminToken)
	memory := watchMemory(process)
	start := time.Now()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	took, most = time.Since(start), memory()
	if err == nil && (response.StatusCode != http.StatusOK || !json.Valid(body)) {
		err = fmt.Errorf("%s: %.500s", response.Status, body)
	}
	return took, most, err
}

// watchMemory returns a function that ends the watch and tells the most resident memory seen.
func watchMemory(process *proc.Process) func() int64 {
	var most atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when stop is closed
		defer close(done)
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			if rss, err := process.RSS(); err == nil {
				most.Store(max(most.Load(), rss))
			}
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() int64 {
		close(stop)
		<-done
		return most.Load()
	}
}

func (b *bench) env(database string) []string {
	host, port, _ := strings.Cut(b.redis.Addr(), ":")
	return []string{
		"PG_URL=" + database, "REDIS_HOST=" + host, "REDIS_PORT=" + port,
		"HOMENODE_SECRET=" + secret, "HOMENODE_ADMIN_TOKEN=" + adminToken, "HOMENODE_CONFIG=",
	}
}
