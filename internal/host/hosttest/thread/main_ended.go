package thread

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

const endMain = "NODEAGENT_TEST_END_MAIN_THREAD"

// init runs on the main thread.
func init() {
	if os.Getenv(endMain) == "" {
		return
	}
	runtime.LockOSThread()
	time.AfterFunc(10*time.Minute, func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }) // if the test does not end it
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)                                      // of this thread, not of the process
}

// WithoutMain starts a process whose main thread ends while its others run on: a zombie with threads. It is killed at
// the end of the test.
func WithoutMain(t testing.TB, change func(*exec.Cmd)) (pid int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), endMain+"=1")
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for {
		stat, err := proc.Read(files.Tree{}, proc.File(cmd.Process.Pid, "stat"))
		if err != nil {
			t.Fatal(err)
		}
		if stat.State == 'Z' {
			return cmd.Process.Pid
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the main thread has not ended")
		case <-time.After(time.Millisecond):
		}
	}
}
