package hosttest

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Stop stops a child of the test with SIGSTOP and returns when all its threads have stopped: those on another processor
// continue for a moment.
func Stop(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatalf("wait until process %d has stopped: %v", pid, err)
	}
}
