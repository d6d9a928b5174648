package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/homenode/homenode/internal/proc"
)

// RedisOptions are the settings that a test may want of its server.
type RedisOptions struct {
	Password string
	Args     []string // further command-line settings of redis-server
}

// Redis is a Redis server of its own. It saves its data only when told to (SAVE, Stop with data).
type Redis struct {
	port    int
	dir     string // holds dump.rdb and the log
	program string
	opts    RedisOptions
	process *process
	cleanup func() error
}

// StartRedis starts a server in dir ("" = a fresh folder that Close removes).
func StartRedis(dir string, options ...RedisOptions) (*Redis, error) {
	program, err := redisProgram()
	if err != nil {
		return nil, err
	}
	dir, cleanup, err := folder(dir, "redis")
	if err != nil {
		return nil, err
	}
	r := &Redis{dir: dir, program: program, cleanup: cleanup}
	for _, o := range options {
		r.opts = o
	}
	// Between choosing a free port and listening on it another process may take it.
	for range 3 {
		if r.port, err = proc.FreePort(); err == nil {
			if err = r.Start(); err == nil {
				return r, nil
			}
		}
	}
	return nil, errors.Join(err, cleanup())
}

// Start starts a stopped or killed server again, on the same port, with what was saved.
func (r *Redis) Start() error {
	args := []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--dir", r.dir, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	if r.opts.Password != "" {
		args = append(args, "--requirepass", r.opts.Password)
	}
	process, err := startProcess(exec.Command(r.program, append(args, r.opts.Args...)...), filepath.Join(r.dir, "redis.log"))
	if err != nil {
		return err
	}
	if err := process.waitUntil(r.ping); err != nil {
		process.kill()
		return err
	}
	r.process = process
	return nil
}

// ping succeeds once the server answers commands, which it does not while it loads a dump.
func (r *Redis) ping() error {
	conn, err := net.DialTimeout("tcp", r.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(answer, "+PONG") && !strings.HasPrefix(answer, "-NOAUTH") {
		return errors.New(strings.TrimSpace(answer))
	}
	return nil
}

// Addr is host:port.
func (r *Redis) Addr() string { return fmt.Sprintf("127.0.0.1:%d", r.port) }

// Dump is the file that SAVE writes and Start reads.
func (r *Redis) Dump() string { return filepath.Join(r.dir, "dump.rdb") }

// Stop ends the server in order, without saving; Start follows on the same port.
func (r *Redis) Stop() error { return r.process.stop(syscall.SIGTERM) }

// Kill ends the server at once.
func (r *Redis) Kill() { r.process.kill() }

// Pause freezes the server: connections stay open and nothing answers.
func (r *Redis) Pause() { r.process.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (r *Redis) Resume() { r.process.signal(syscall.SIGCONT) }

// Close kills the server and removes the folder that StartRedis made.
func (r *Redis) Close() error {
	r.process.kill()
	return r.cleanup()
}

const redisInstall = "apt-get update && apt-get install -y --no-install-recommends redis-server"

// redisProgram finds redis-server, and installs it where that needs nobody's leave: on Debian, as root.
func redisProgram() (string, error) {
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, nil
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil || os.Geteuid() != 0 {
		return "", errors.New("redis-server is missing; type: " + redisInstall)
	}
	// Test packages run side by side: one installs, the others wait for it.
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "homenode-install.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, nil
	}
	fmt.Fprintln(os.Stderr, "redis-server is missing, installing it: "+redisInstall)
	if err := installWithoutStarting("redis-server"); err != nil {
		return "", fmt.Errorf("redis-server is missing and could not be installed; type: %s\n%w", redisInstall, err)
	}
	return exec.LookPath("redis-server")
}

// installWithoutStarting installs a Debian package and keeps its service from
// being started: Debian asks /usr/sbin/policy-rc.d, and 101 means no.
func installWithoutStarting(name string) error {
	const policy = "/usr/sbin/policy-rc.d"
	file, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	switch {
	case err == nil:
		defer os.Remove(policy)
		_, err = file.WriteString("#!/bin/sh\nexit 101\n")
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrExist): // one that exists is a container's, and says 101 too
		return err
	}
	for _, args := range [][]string{
		{"update"},
		{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", name},
	} {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}
