//go:build unix

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Command says what to run.
type Command struct {
	Name    string // in messages, such as node-1
	Path    string
	Args    []string
	Dir     string   // empty = the parent's
	Env     []string // nil = the parent's
	Stdout  io.Writer
	Stderr  io.Writer
	LogFile string // takes, appended, whatever has no writer
}

// Process is a running, or ended, child. All methods are safe for concurrent use.
type Process struct {
	name    string
	logFile string
	pid     int
	done    chan struct{}
	err     error // how it ended; set before done is closed
}

// Start starts a child process.
func Start(command Command) (*Process, error) {
	cmd := exec.Command(command.Path, command.Args...)
	cmd.Dir, cmd.Env = command.Dir, command.Env
	cmd.Stdout, cmd.Stderr = command.Stdout, command.Stderr
	cmd.SysProcAttr = attributes()
	if command.LogFile != "" {
		log, err := os.OpenFile(command.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", command.Name, err)
		}
		defer log.Close()
		if cmd.Stdout == nil {
			cmd.Stdout = log
		}
		if cmd.Stderr == nil {
			cmd.Stderr = log
		}
	}

	p := &Process{name: command.Name, logFile: command.LogFile, done: make(chan struct{})}
	started := make(chan error)
	go func() { // ends with the child
		// The kernel sends the parent-death signal when the thread that started the
		// child ends, not the process: keep the thread as long as the child runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// Run starts a child process and waits for its end; when ctx ends first it is
// stopped. The error of a child that failed is an *exec.ExitError.
func Run(ctx context.Context, command Command) error {
	p, err := Start(command)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Stop(5 * time.Second)
		return ctx.Err()
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Pid is the process id, which is also the id of its process group.
func (p *Process) Pid() int { return p.pid }

// LogFile is where the output went; empty if it went elsewhere.
func (p *Process) LogFile() string { return p.logFile }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: nil while it runs and after exit status 0.
func (p *Process) Err() error {
	if p.running() {
		return nil
	}
	return p.err
}

// Signal sends a signal to the process and its descendants, if it still runs.
func (p *Process) Signal(signal syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(-p.pid, signal) // fails only if it has just ended
	}
}

// Stop asks the process to end (SIGTERM), kills it when it has not done so within
// grace, and returns how it ended: nil for exit status 0.
func (p *Process) Stop(grace time.Duration) error {
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM and was killed", p.name, grace)
	}
	return p.Err()
}

// Kill ends the process at once (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// WaitReady returns nil once GET url answers 200, and an error with the end of
// the log when the process or ctx ends first.
func (p *Process) WaitReady(ctx context.Context, url string) error {
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	for {
		last := probe(ctx, &client, url)
		if last == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before %s answered: %w\n%s", p.name, url, errors.Join(p.err), p.LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w)\n%s", p.name, last, ctx.Err(), p.LogTail(20))
		case <-poll.C:
		}
	}
}

// LogTail returns the last lines of the log file.
func (p *Process) LogTail(lines int) string {
	if p.logFile == "" {
		return ""
	}
	content, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// RSS is the memory that the process has in RAM, in bytes. Linux only.
func (p *Process) RSS() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if field, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(field), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s: no VmRSS", p.name)
}

// Free ports lie below those that Linux (from 32768) and the BSDs (from 49152) give
// to outgoing connections: one of these would otherwise take a port between the
// moment it was found free and the moment its program listens on it, or while its
// program restarts.
const firstFreePort, lastFreePort = 15000, 32000

// FreePort returns a loopback port that nobody uses at the moment, for programs
// that cannot tell which port they got when they asked for 0.
func FreePort() (int, error) {
	var taken error
	for range 100 {
		port := firstFreePort + rand.IntN(lastFreePort-firstFreePort)
		listener, err := net.Listen("tcp", loopback(port))
		if err == nil {
			return port, listener.Close()
		}
		taken = err
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", firstFreePort, lastFreePort, taken)
}

// FreeAddress is the loopback address of a FreePort.
func FreeAddress() (string, error) {
	port, err := FreePort()
	return loopback(port), err
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (p *Process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}
