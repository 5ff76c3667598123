package cri

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/need"
)

// socketOfRoot names root's socket in the environment of the test's own child, which runs without rights (UID 65534).
const socketOfRoot = "NODEAGENT_TEST_SOCKET"

// TestSocketWithoutRights: a process that may not connect gets exactly that error, however many calls share a
// connection and whichever of them closes it. A second process of this test binary, without rights, makes the calls.
func TestSocketWithoutRights(t *testing.T) {
	if socket := os.Getenv(socketOfRoot); socket != "" {
		callWithoutRights(t, socket)
		return
	}
	need.Root(t, "takes rights away")
	dir, err := os.MkdirTemp("/tmp", "na") // the other user must have access too
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, program := filepath.Join(dir, "cri.sock"), filepath.Join(dir, "test")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Chmod(socket, 0o600), os.Chmod(dir, 0o755), executable.Write(program, self)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program, "-test.run=^TestSocketWithoutRights$", "-test.count=1")
	child.Dir, child.Env = "/", []string{socketOfRoot + "=" + socket}
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

func callWithoutRights(t *testing.T, socket string) {
	runtime := newRuntime(t, socket)
	const rounds, together = 1000, 8
	var wrong sync.Map
	for range rounds {
		var calls sync.WaitGroup
		for range together {
			calls.Go(func() {
				if _, err := runtime.Version(t.Context()); !errors.Is(err, fs.ErrPermission) {
					wrong.Store(text(err), true)
				}
			})
		}
		calls.Wait()
	}
	wrong.Range(func(got, _ any) bool { t.Errorf("got %q instead of a lack of permission", got); return true })
}

func text(err error) string {
	if err == nil {
		return "nothing"
	}
	return err.Error()
}
