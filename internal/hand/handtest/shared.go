package handtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/test/need"
)

// onSharedRoot names the test that runs on a shared root.
const onSharedRoot = "NODEAGENT_TEST_ON_SHARED_ROOT"

// OnSharedRoot runs the calling test, which must not be a subtest, once more in a mount namespace of its own whose root is
// shared with all below it, as systemd makes it on every ordinary node, and among processes of its own. It reports true
// there; where it reports false, the test has run and is to return.
func OnSharedRoot(t *testing.T) bool {
	t.Helper()
	Root(t)
	if os.Getenv(onSharedRoot) == t.Name() {
		for _, flags := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
			if err := unix.Mount("", "/", "", unix.MS_REC|flags, ""); err != nil {
				t.Fatalf("share /: %v", err)
			}
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			t.Fatalf("mount /proc: %v", err)
		}
		return true
	}
	test := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v")
	test.Env = append(os.Environ(), onSharedRoot+"="+t.Name())
	test.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	out, err := test.CombinedOutput()
	need.Child(t, out)
	switch {
	case err != nil:
		t.Errorf("on a shared root: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()+" "):
		t.Errorf("did not run on a shared root: %s", out)
	case testing.Verbose():
		t.Logf("%s", out)
	}
	return false
}

// Table returns what of the mount table of a process lies in the node's own directory, as a text for each mount ID, without
// propagation. Elsewhere the copies of others' mounts come and go.
func (n *Node) Table(pid int) map[int]string {
	n.t.Helper()
	mounts, err := n.Host.MountsOf(pid)
	if err != nil {
		n.t.Fatal(err)
	}
	table := make(map[int]string, len(mounts))
	for _, m := range mounts {
		if !host.Below(m.Point, n.Dir) {
			continue
		}
		table[m.ID] = fmt.Sprintf("%d %s %s %s %s %s", m.Parent, m.Device(), m.Root, m.Point, m.FSType, m.Source)
	}
	return table
}

// Namespace starts a process in a mount namespace of its own, which has copies of all mounts, and returns its ID. script
// runs in it first. The propagation is that of unshare(1): unchanged, slave, private.
func (n *Node) Namespace(propagation, script string) int {
	n.t.Helper()
	process := exec.Command("unshare", "-m", "--propagation", propagation, "/bin/sh", "-ec", script+"\necho ready; exec sleep 600")
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	need.Kernel(n.t, "unshare", process.Start())
	n.t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		n.t.Fatalf("in a mount namespace: %q, %v", line, err)
	}
	return process.Process.Pid
}
