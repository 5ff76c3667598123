package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

// HangingFUSE mounts a filesystem whose server completes the kernel's handshake and then never answers again: every
// process that touches it waits in the kernel, in state D and immune to SIGKILL, as with a dead NFS server or a crashed
// FUSE daemon: after the server has read a request, a signal can no longer interrupt it. The connection is aborted when
// the test ends, which frees all waiting processes.
func HangingFUSE(t testing.TB) (mountpoint string) {
	t.Helper()
	return serveFUSE(t, "hang", func(*os.File, []byte) {}).point
}

// HungProgram starts a program that hangs in a mountpoint of HangingFUSE, and kills it: it stays in state D until the
// connection is aborted. It is a child of the test, named "stat".
func HungProgram(t testing.TB, mountpoint string) (pid int) {
	t.Helper()
	program := need.Program(t, "stat")
	// Not with the test's context: waiting for it before the connection is aborted would take forever.
	cmd := exec.Command(program, "-f", mountpoint)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it was killed
	}()
	wchan, stat := fmt.Sprintf("/proc/%d/wchan", cmd.Process.Pid), fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)
	killed := false
	for range 6000 {
		if where, err := os.ReadFile(wchan); err == nil && strings.Contains(string(where), "request_wait_answer") {
			_ = cmd.Process.Kill()
			killed = true
		}
		if state, err := os.ReadFile(stat); killed && err == nil && strings.Contains(string(state), ") D ") {
			return cmd.Process.Pid
		}
		select {
		case <-ended:
			if cmd.ProcessState.ExitCode() < 0 { // killed before the filesystem had taken its request
				return HungProgram(t, mountpoint)
			}
			t.Fatalf("%s -f %s has ended", program, mountpoint)
		case <-time.After(10 * time.Millisecond):
		}
	}
	_ = cmd.Process.Kill()
	t.Fatalf("%s -f %s does not wait for the filesystem", program, mountpoint)
	return 0
}
