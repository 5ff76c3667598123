package mutatetest

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/test/need"
)

// partMark is the environment variable with the part that a test program runs.
const partMark = "NODEAGENT_TEST_PART"

// Parts runs the calling test, which must not be a subtest, several times in parallel, each on its own shared root. In
// these runs it returns the number of the part and true; otherwise all parts have run and the test has to return. Such
// a test may be parallel.
func Parts(t *testing.T, count int) (part int, inside bool) {
	t.Helper()
	Root(t)
	if mark := os.Getenv(partMark); mark != "" {
		part, err := strconv.Atoi(mark)
		if err != nil {
			t.Fatal(err)
		}
		return part, true
	}
	var all sync.WaitGroup
	outputs, errs := make([]string, count), make([]error, count)
	for i := range count {
		all.Go(func() { outputs[i], errs[i] = runPart(t, i) })
	}
	all.Wait()
	for i, out := range outputs {
		need.Child(t, []byte(out))
		switch {
		case errs[i] != nil:
			t.Errorf("part %d: %v\n%s", i, errs[i], out)
		case !strings.Contains(out, "--- PASS: "+t.Name()+" "):
			t.Errorf("part %d did not run: %s", i, out)
		case testing.Verbose():
			t.Logf("part %d: %s", i, out)
		}
	}
	return 0, false
}

func runPart(t *testing.T, part int) (output string, err error) {
	flags := []string{"-test.run=^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v"}
	flag.Visit(func(f *flag.Flag) { // those of the package's own
		if !strings.HasPrefix(f.Name, "test.") {
			flags = append(flags, "-"+f.Name+"="+f.Value.String())
		}
	})
	if end, ok := t.Deadline(); ok {
		flags = append(flags, "-test.timeout="+time.Until(end).String())
	}
	test := exec.CommandContext(t.Context(), "/proc/self/exe", flags...)
	test.Env = append(os.Environ(), sharedRootMark+"=", partMark+"="+strconv.Itoa(part))
	out, err := test.CombinedOutput()
	return string(out), err
}

// Table returns the mounts in the node's directory from the mount table of a process, as a text by mount ID, without
// propagation. Elsewhere copies of other mounts come and go.
func (n *Node) Table(pid int) map[int]string {
	n.t.Helper()
	mounts, err := mount.TableOf(n.Host, pid)
	if err != nil {
		n.t.Fatal(err)
	}
	table := make(map[int]string, len(mounts))
	for _, m := range mounts {
		if !mount.Below(m.Point, n.Dir) {
			continue
		}
		table[m.ID] = fmt.Sprintf("%d %s %s %s %s %s", m.Parent, m.Device(), m.Root, m.Point, m.FSType, m.Source)
	}
	return table
}

// Namespace starts a process in its own mount namespace, which has copies of all mounts, and returns its PID. script
// runs in it first. The propagation is that of unshare(1): unchanged, slave, private.
func (n *Node) Namespace(propagation, script string) int {
	n.t.Helper()
	process := exec.Command("unshare", "-m", "--propagation", propagation, "/bin/sh", "-ec", script+
		"\necho ready; exec sleep 100000")
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
