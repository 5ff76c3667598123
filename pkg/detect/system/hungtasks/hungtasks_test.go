package hungtasks

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func FuzzTaskStatus(f *testing.F) {
	f.Add([]byte("Name:\tState:\\n\nState:\tD (disk " +
		"sleep)\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseTaskStatus(data); err != nil && s != (taskStatus{}) {
			t.Fatal("error and value")
		}
	})
}

// runAhead runs the check on the tasks of the real machine as if that much time had passed.
func runAhead(t *testing.T, ahead time.Duration, state *hungTasks) []finding.Finding {
	t.Helper()
	h := &host.Host{NodeName: "n", Paths: discover.DefaultPaths(), Clock: func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot += ahead
		return now
	}}
	hung, err := state.hung(t.Context(), h, DefaultSettings())
	if err != nil {
		t.Fatal(err)
	}
	hung = slices.DeleteFunc(hung, func(b *blockedTask) bool { // other tests hang things as well
		stat, err := h.ProcStat(b.PID)
		return err != nil || stat.PPID != os.Getpid()
	})
	return hungFindings(t.Context(), h, hung, h.Clock().SinceBoot)
}

func of(name string, findings []finding.Finding) bool {
	return slices.ContainsFunc(findings, func(f finding.Finding) bool { return f.Subject.Name == name })
}

// A task held by a dead filesystem is hung as long as it is held. A hanging probe of the agent beside it is not
// reported: hung-mounts reports the filesystem.
func TestRealHungTask(t *testing.T) {
	state := &hungTasks{}
	t.Run("hangs", func(t *testing.T) {
		dir := hosttest.HangingFUSE(t)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := probe.NewProber().Do(ctx, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: dir}); err == nil {
			t.Fatal("a hung filesystem answered")
		}
		hosttest.HungProgram(t, dir)
		deadline := time.After(time.Minute)
		for {
			*state = hungTasks{}
			if got := runAhead(t, 0, state); len(got) != 0 {
				t.Fatalf("in the first run: %+v", got)
			}
			got := runAhead(t, 121*time.Second, state)
			if of("nodeagent-probe", got) {
				t.Fatalf("the agent's own probe: %+v", got)
			}
			if of("stat", got) {
				t.Log(got[0].Message)
				break
			}
			select {
			case <-time.After(20 * time.Millisecond): // the killed child is in state D soon
			case <-deadline:
				t.Fatalf("not found: %+v", got)
			}
		}
	}) // the connection is aborted here
	deadline := time.After(time.Minute)
	for of("stat", runAhead(t, 122*time.Second, state)) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatal("still found after it was freed")
		}
	}
}

// A parent that waits for its vfork child is in state D too, by design.
func TestRealVforkParentIsNotHung(t *testing.T) {
	perl := need.Program(t, "perl") // calls vfork(2)
	number := map[string]string{"x86_64": "58"}[machine(t)]
	need.Has(t, number != "", "x86_64: vfork(2) by number")
	// Not with the test's context, which ends before the clean-up: the child would be left behind.
	parent := exec.Command(perl, "-e", `if (syscall(`+number+`) == 0) { sleep 30; require POSIX; POSIX::_exit(0) }`)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	h := &host.Host{Clock: host.Now}
	t.Cleanup(func() {
		killChildren(t, h, parent.Process.Pid)
		_ = parent.Process.Kill()
		_ = parent.Wait()
	})
	deadline := time.After(time.Minute)
	for {
		pid := parent.Process.Pid
		if stat, err := h.ProcStat(pid); err == nil && stat.State == 'D' &&
			waitsForVfork(tasks.WaitChannel(h.Files, pid, pid)) {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("the parent did not get into state D, or waits elsewhere than is known")
		}
	}
	state := &hungTasks{}
	runAhead(t, 0, state)
	for _, f := range runAhead(t, 121*time.Second, state) {
		if f.Subject.Name == "perl" {
			t.Errorf("%+v", f)
		}
	}
	if len(state.seen) == 0 {
		t.Error("the parent was not even a candidate")
	}
}

func machine(t *testing.T) string {
	t.Helper()
	name, err := exec.CommandContext(t.Context(), "uname", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(name[:len(name)-1])
}

// killChildren kills the children of a process, so that it goes on.
func killChildren(t *testing.T, h *host.Host, parent int) {
	t.Helper()
	table, err := h.ProcessTable(context.WithoutCancel(t.Context()), 0)
	if err != nil {
		t.Error(err)
	}
	for _, p := range table {
		if p.PPID != parent {
			continue
		}
		if child, err := os.FindProcess(p.PID); err == nil {
			_ = child.Kill()
		}
	}
}
