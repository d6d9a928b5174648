//go:build unix && !linux

package proc

import "syscall"

// attributes put the child into a process group of its own, so that a Ctrl-C at
// the terminal reaches only the parent, which then stops its children in order.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
