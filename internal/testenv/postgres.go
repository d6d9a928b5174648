package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/internal/proc"
)

const postgresHint = "PostgreSQL's programs initdb and postgres are missing; type: apt-get update && apt-get install -y --no-install-recommends postgresql"

// Postgres is a PostgreSQL server of its own: superuser "postgres", no password.
type Postgres struct {
	port    int
	dir     string // holds data/, log, the socket
	bin     string
	owner   *syscall.Credential // nil: the user that runs the test
	process *process
	cleanup func() error
}

// StartPostgres makes a cluster in dir ("" = a fresh folder that Close removes)
// and starts it. It does not sync to disk, which survives SIGKILL but not a power cut.
func StartPostgres(dir string) (*Postgres, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	owner, err := postgresOwner()
	if err != nil {
		return nil, err
	}
	dir, cleanup, err := folder(dir, "postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{dir: dir, bin: bin, owner: owner, cleanup: cleanup}
	if err := p.initialise(); err != nil {
		return nil, errors.Join(err, cleanup())
	}
	// Between choosing a free port and listening on it another process may take it.
	for range 3 {
		if p.port, err = proc.FreePort(); err == nil {
			if err = p.Start(); err == nil {
				return p, nil
			}
		}
	}
	return nil, errors.Join(err, cleanup())
}

func postgresPrograms() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errors.New(postgresHint)
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// postgresOwner is who runs the server: it refuses to run as root.
func postgresOwner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
			gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(errUID, errGID)
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody")
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }
func (p *Postgres) log() string  { return filepath.Join(p.dir, "postgres.log") }

func (p *Postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner}
	return cmd
}

func (p *Postgres) initialise() error {
	if p.owner != nil {
		if err := os.Chown(p.dir, int(p.owner.Uid), int(p.owner.Gid)); err != nil {
			return err
		}
	}
	initdb := p.command("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "-D", p.data())
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// Start starts a stopped or killed server again, on the same port and data.
func (p *Postgres) Start() error {
	settings := map[string]string{
		"listen_addresses": "127.0.0.1", "port": strconv.Itoa(p.port), "unix_socket_directories": p.dir,
		"fsync": "off", "full_page_writes": "off", // speed: nobody pulls the plug of a test
		"shared_buffers": "32MB", "max_connections": "200",
	}
	args := []string{"-D", p.data()}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	process, err := startProcess(p.command("postgres", args...), p.log())
	if err != nil {
		return err
	}
	if err := process.waitUntil(func() error { return p.exec("SELECT 1") }); err != nil {
		process.kill()
		return err
	}
	p.process = process
	return nil
}

func (p *Postgres) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// Addr is host:port, for a Proxy in front of the server.
func (p *Postgres) Addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// URL names the database "postgres".
func (p *Postgres) URL() string { return p.URLOf(p.Addr(), "postgres") }

// URLOf names a database as reached through addr, such as a Proxy's.
func (p *Postgres) URLOf(addr, database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr, database)
}

// NewDatabase makes an empty database and returns its URL.
func (p *Postgres) NewDatabase(name string) (string, error) {
	if err := p.exec("CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE template0"); err != nil {
		return "", err
	}
	return p.URLOf(p.Addr(), name), nil
}

// Stop ends the server in order, whoever is connected; its data stays for Start.
func (p *Postgres) Stop() error { return p.process.stop(syscall.SIGINT) }

// Kill ends every process of the server at once, as a crash does; its data stays for Start.
func (p *Postgres) Kill() { p.process.kill() }

// Pause freezes the server: connections stay open and nothing answers.
func (p *Postgres) Pause() { p.process.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (p *Postgres) Resume() { p.process.signal(syscall.SIGCONT) }

// Close kills the server and removes the folder that StartPostgres made.
func (p *Postgres) Close() error {
	p.process.kill()
	return p.cleanup()
}
