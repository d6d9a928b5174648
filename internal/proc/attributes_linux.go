package proc

import "syscall"

// attributes put the child into a process group of its own, so that a Ctrl-C at
// the terminal reaches only the parent, which then stops its children in order.
// Should the parent die without doing so, the kernel kills the child.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
