package load

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/test/need"
)

// blockedNow scans the machine of the test until the condition holds for the tasks that the scan takes for blocked.
func blockedNow(t *testing.T, h *host.Host, until func([]tasks.Task) bool) []tasks.Task {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		scan, err := tasks.TaskScan{}.Renew(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		if until(scan.Blocked) {
			return scan.Blocked
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("blocked tasks: %+v", scan.Blocked)
		}
	}
}

// A task held by a dead filesystem counts, and its wait channel is reported. A probe of the agent does not count.
func TestRealBlockedTask(t *testing.T) {
	dir := hosttest.HangingFUSE(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := probe.NewProber().Do(ctx, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: dir}); err == nil {
		t.Fatal("a hung filesystem answered")
	}
	h := &host.Host{Clock: host.Now, Paths: discover.DefaultPaths()}
	program := hosttest.HungProgram(t, dir)
	waits := func(x tasks.Task) bool { return x.PID == program && strings.Contains(x.Wchan, "request_wait_answer") }
	blocked := blockedNow(t, h, func(all []tasks.Task) bool { return slices.ContainsFunc(all, waits) })
	for _, task := range blocked {
		if task.Comm == "nodeagent-probe" {
			if stat, err := h.ProcStat(task.PID); err == nil && stat.PPID == os.Getpid() {
				t.Errorf("the agent's own probe: %+v", task)
			}
		}
	}
}

// A task frozen on purpose does not count, although its state is the same.
func TestRealFrozenTask(t *testing.T) {
	need.Root(t, "makes a cgroup")
	h := &host.Host{Clock: host.Now, Paths: discover.DefaultPaths()}
	cgroup := filepath.Join(h.Paths.CgroupMount, "freezer", "nodeagent-test-"+rand.Text())
	need.Kernel(t, "the freezer of cgroup v1", os.Mkdir(cgroup, 0o755))
	t.Cleanup(func() { checktest.RemoveCgroup(t, cgroup) })
	put := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(cgroup, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "100"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		put("freezer.state", "THAWED") // or it would not die
		_ = child.Kill()
		_, _ = child.Wait()
	})
	put("cgroup.procs", strconv.Itoa(child.Pid))
	put("freezer.state", "FROZEN")
	blockedNow(t, h, func([]tasks.Task) bool { // wait for the state
		stat, err := h.ProcStat(child.Pid)
		return err == nil && stat.State == 'D'
	})
	blocked := blockedNow(t, h, func([]tasks.Task) bool { return true })
	if slices.ContainsFunc(blocked, func(x tasks.Task) bool { return x.PID == child.Pid }) {
		t.Errorf("a frozen task counts as blocked: %+v", blocked)
	}
}
