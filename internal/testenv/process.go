package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// startLimit bounds the start and the end of a server; a loaded machine is slow.
const startLimit = 60 * time.Second

// starter runs every cmd.Start on one thread that never ends: the kernel sends
// Pdeathsig when the thread that created the child exits, not when the process does.
var starter = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// process is one server process, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when the process has been reaped
}

// startProcess starts cmd with its output appended to the file log.
func startProcess(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.exited)
	}()
	return p, nil
}

// waitUntil calls ready until it succeeds; it fails, with the end of the log,
// when the process exits before or the limit passes.
func (p *process) waitUntil(ready func() error) error {
	deadline := time.After(startLimit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended at once:\n%s", p.cmd.Path, tail(p.log))
		case <-deadline:
			return fmt.Errorf("%s not ready after %s (%w):\n%s", p.cmd.Path, startLimit, err, tail(p.log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop asks the process to end with the signal and waits; a stubborn one is killed.
func (p *process) stop(signal syscall.Signal) error {
	if p == nil {
		return nil
	}
	p.signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.exited:
		return nil
	case <-time.After(startLimit):
		p.kill()
		return fmt.Errorf("%s did not end after %s:\n%s", p.cmd.Path, signal, tail(p.log))
	}
}

// kill ends the process and all its descendants, as a power cut would.
func (p *process) kill() {
	if p == nil {
		return
	}
	family := p.family()
	p.signal(syscall.SIGKILL)
	<-p.exited
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for syscall.Kill(pid, 0) == nil && !isZombie(pid) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// signal reaches the process and its descendants: those of PostgreSQL leave its process group.
func (p *process) signal(signal syscall.Signal) {
	for _, pid := range append([]int{p.cmd.Process.Pid}, p.family()...) {
		_ = syscall.Kill(pid, signal)
	}
}

// family lists the living descendants.
func (p *process) family() []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		if fields, ok := statFields(file); ok {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			parent, _ := strconv.Atoi(string(fields[1]))
			children[parent] = append(children[parent], pid)
		}
	}
	var family []int
	for next := []int{p.cmd.Process.Pid}; len(next) > 0; next = next[1:] {
		family = append(family, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return family
}

func isZombie(pid int) bool {
	fields, ok := statFields(fmt.Sprintf("/proc/%d/stat", pid))
	return ok && string(fields[0]) == "Z"
}

// statFields returns the fields of a /proc/PID/stat behind the program's name: state, parent, ...
func statFields(file string) ([][]byte, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, false
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	return fields, len(fields) > 1
}

func tail(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	const enough = 4 << 10
	return string(data[max(0, len(data)-enough):])
}

// folder returns dir, or a fresh one when dir is "". Its parents can be entered by
// any user, which t.TempDir() does not promise.
func folder(dir, name string) (path string, cleanup func() error, err error) {
	if dir != "" {
		return dir, func() error { return nil }, os.MkdirAll(dir, 0o755)
	}
	path, err = os.MkdirTemp("", "homenode-"+name+"-")
	if err != nil {
		return "", nil, err
	}
	return path, func() error { return os.RemoveAll(path) }, os.Chmod(path, 0o755)
}
