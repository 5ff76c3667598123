package mutate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

func ended(t *testing.T, n *mutatetest.Node, p mutate.Process, most time.Duration) bool {
	t.Helper()
	ended, err := n.Mutator.AwaitEnd(t.Context(), p, most)
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func TestTerminateAndKill(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	cgroups := n.Cgroups(uid, "")
	polite := n.Shell(uid, cgroups, "echo ready; while :; do sleep 0.1; done")
	deaf := n.Shell(uid, cgroups, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
	for _, p := range []mutate.Process{polite, deaf} {
		if err := n.Mutator.Terminate(p); err != nil {
			t.Fatal(err)
		}
	}
	if !ended(t, n, polite, time.Minute) {
		t.Error("SIGTERM did not end a polite process")
	}
	if ended(t, n, deaf, 300*time.Millisecond) {
		t.Error("SIGTERM ended a process that ignores it")
	}
	for range 2 { // the second time it is gone
		if err := n.Mutator.Kill(deaf); err != nil {
			t.Fatal(err)
		}
		if !ended(t, n, deaf, time.Minute) {
			t.Error("SIGKILL did not end it")
		}
	}
}

// A process whose main thread has ended is ended like any other.
func TestKillWithoutMainThread(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	p := mutate.Process{PID: thread.WithoutMain(t, mutatetest.IntoV1(n.Cgroups(uid, ""))), UID: uid}
	stat, err := n.Host.ProcStat(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	p.StartTime = stat.StartTime
	if ended(t, n, p, 0) {
		t.Fatal("it has ended")
	}
	if err := n.Mutator.Kill(p); err != nil {
		t.Fatal(err)
	}
	if !ended(t, n, p, time.Minute) {
		t.Error("SIGKILL did not end it")
	}
}

// If the main thread has ended, what hangs is another.
func TestStuckWithoutMainThread(t *testing.T) {
	h := hosttest.Host(t)
	h.Paths.CRISocket = ""
	thread.Ending(t, h.Files.Root, "900 1 0:9 / / rw - tmpfs tmpfs rw\n")
	hosttest.WriteHostFile(t, h, "proc/7/wchan", "0")
	hosttest.WriteHostFile(t, h, "proc/7/task/9/wchan", "rpc_wait_bit_killable")
	d, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := "x (7) is in state Z, and its thread 9 in state D in rpc_wait_bit_killable"
	if got := d.Stuck(mutate.Process{PID: thread.EndingPID, StartTime: 77}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// An exiting process needs no signal, and is not another process because cgroup v1 no longer shows its cgroups. Here it
// is the init of a PID namespace, which waits until one of its processes is reaped.
func TestSignalToAProcessThatEnds(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	parent := n.Shell(uid, n.Cgroups(uid, ""), "unshare --pid --fork sh -c 'echo ready; exec sleep 1000' & wait")
	child := func(pid int) (child int) {
		mutatetest.Await(t, func() bool {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
			child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
			return child > 0
		})
		return child
	}
	init := child(child(parent.PID))
	stat, err := n.Host.ProcStat(init)
	if err != nil {
		t.Fatal(err)
	}
	inside := exec.Command("nsenter", "-t", strconv.Itoa(init), "-p", "sleep", "1000")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = inside.Process.Signal(unix.SIGCONT)
		_ = inside.Wait() // its process was killed with the namespace
	})
	child(inside.Process.Pid)
	if err := inside.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	mutatetest.Await(t, func() bool { // before, it could still reap its child
		stat, err := n.Host.ProcStat(inside.Process.Pid)
		return err == nil && stat.State == 'T'
	})
	if err := unix.Kill(init, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	mutatetest.Await(t, func() bool {
		stat, err := n.Host.ProcStat(init)
		return err == nil && stat.Flags&4 != 0
	})
	p := mutate.Process{PID: init, StartTime: stat.StartTime, UID: uid, Driver: parent.Driver}
	if err := errors.Join(n.Mutator.Terminate(p), n.Mutator.Kill(p)); err != nil {
		t.Error(err)
	}
	if ended(t, n, p, 0) {
		t.Error("it has ended: this test proves nothing")
	}
}

// AwaitEnd waits until the process has ended, the time is over, or the agent ends.
func TestAwaitEnd(t *testing.T) {
	h := &host.Host{Clock: host.Now}
	d, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("/bin/sleep", "100000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	stat, err := h.ProcStat(sleeper.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := mutate.Process{PID: sleeper.Process.Pid, StartTime: stat.StartTime}
	for _, most := range []time.Duration{0, 100 * time.Millisecond} {
		if ended, err := d.AwaitEnd(t.Context(), p, most); ended || err != nil {
			t.Errorf("it lives: %v, %v", ended, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := d.AwaitEnd(ctx, p, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("the agent ends: %v", err)
	}
	other := p
	other.StartTime++
	if ended, err := d.AwaitEnd(t.Context(), other, time.Hour); !ended || err != nil {
		t.Errorf("its number is another's: %v, %v", ended, err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = sleeper.Process.Kill() })
	for _, is := range []string{"it ends", "nobody has reaped it"} {
		if ended, err := d.AwaitEnd(t.Context(), p, time.Hour); !ended || err != nil {
			t.Errorf("%s: %v, %v", is, ended, err)
		}
	}
	_ = sleeper.Wait()
	if ended, err := d.AwaitEnd(t.Context(), p, time.Hour); !ended || err != nil {
		t.Errorf("it is gone: %v, %v", ended, err)
	}
}

func TestSignalRefuses(t *testing.T) {
	n, uid, other := mutatetest.New(t), mutatetest.UID(t), mutatetest.UID(t)
	p := n.Shell(uid, n.Cgroups(uid, ""), "echo ready; while :; do sleep 0.1; done")
	outside := n.Shell(uid, nil, "echo ready; while :; do sleep 0.1; done")
	reused, elsewhere := p, p
	reused.StartTime++
	elsewhere.UID = other
	for name, try := range map[string]mutate.Process{
		"PID was given again": reused, "another pod's": elsewhere, "in no pod's cgroup": outside,
	} {
		if err := n.Mutator.Kill(try); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, try := range map[string]mutate.Process{
		"init": {PID: 1, StartTime: 1, UID: uid}, "ourselves": {PID: os.Getpid(), UID: uid},
		"no pod": {PID: p.PID, StartTime: p.StartTime},
	} {
		if err := n.Mutator.Kill(try); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, p := range []mutate.Process{p, outside} {
		if ended(t, n, p, 0) {
			t.Errorf("process %d was killed", p.PID)
		}
	}
}

// A process in cgroups of two pods must not be killed.
func TestSignalRefusesProcessOfTwoPods(t *testing.T) {
	n, uid, other := mutatetest.New(t), mutatetest.UID(t), mutatetest.UID(t)
	mine, theirs := n.Cgroups(uid, ""), n.Cgroups(other, "")
	need.Has(t, len(mine) > 1, "cgroup v1: two hierarchies")
	p := n.Shell(uid, append(theirs[1:], mine[0]), "echo ready; while :; do sleep 0.1; done")
	for _, uid := range []string{uid, other} {
		p.UID = uid
		if err := n.Mutator.Kill(p); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("pod %s: %v", uid, err)
		}
	}
	if ended(t, n, p, 300*time.Millisecond) {
		t.Error("it was killed")
	}
}

// If the driver of our kubelet is unknown, cgroups in either tree may be another kubelet's.
func TestNoDriverNoAction(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	n.Host.Paths.CgroupDriver = ""
	cgroups := n.Cgroups(uid, "")
	p := n.Shell(uid, cgroups, "echo ready; while :; do sleep 0.1; done")
	var refusal mutate.Refusal
	for _, driver := range []string{"", host.SystemdDriver} {
		p.Driver = driver
		if err := n.Mutator.Kill(p); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("driver %q: %v", driver, err)
		}
		for _, dir := range n.Cgroups(uid, "empty") {
			c := podCgroup(t, uid, dir)
			c.Driver = driver
			if err := n.Mutator.RemoveCgroup(t.Context(), c); !errors.As(err, &refusal) {
				t.Errorf("driver %q: %s: %v", driver, dir, err)
			}
		}
	}
	if ended(t, n, p, 300*time.Millisecond) {
		t.Fatal("it was killed")
	}
	p.Driver = host.CgroupfsDriver
	if err := n.Mutator.Kill(p); err != nil || !ended(t, n, p, time.Minute) {
		t.Errorf("its own driver: %v", err)
	}
}

// A kernel thread can be moved into a cgroup like any process. It must never get a signal.
func TestSignalRefusesKernelThread(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	pid := n.Shell(uid, nil, "echo ready; while :; do sleep 0.1; done").PID
	files := hosttest.Host(t).Files
	n.Host.Files = files
	defer func() { n.Host.Files = host.Files{} }()
	dir := filepath.Join(files.Root, "proc", strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cgroup := "0::" + n.Host.Paths.CgroupRoot + "/kubepods/pod" + uid + "\n"
	for _, flags := range []string{"2129984", "4194304"} { // with PF_KTHREAD, and without
		stat := strconv.Itoa(pid) + " (kworker) S 2 0 0 0 -1 " + flags + " 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n"
		for name, content := range map[string]string{"stat": stat, "cgroup": cgroup} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var refusal mutate.Refusal
		err := n.Mutator.Terminate(mutate.Process{PID: pid, StartTime: 77, UID: uid})
		if kernel := flags == "2129984"; errors.As(err, &refusal) != kernel {
			t.Errorf("flags %s: %v", flags, err)
		}
	}
}

// A frozen process of cgroup v1 is in state D, and no signal kills it until it is thawed.
func TestThawFrozen(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	cgroups := n.Cgroups(uid, mutatetest.Hex(t, 64))
	p := n.Shell(uid, cgroups, "echo ready; while :; do sleep 0.1; done")
	frozen := ""
	for _, dir := range cgroups {
		for _, at := range []string{dir, filepath.Dir(dir)} { // the container's and the pod's
			if err := os.WriteFile(filepath.Join(at, "freezer.state"), []byte("FROZEN"), 0); err == nil {
				frozen = dir
			}
		}
	}
	need.Has(t, frozen != "", "the freezer of cgroup v1")
	if err := n.Mutator.Kill(p); err != nil {
		t.Fatal(err)
	}
	if ended(t, n, p, 300*time.Millisecond) {
		t.Fatal("a frozen process died: this test shows nothing")
	}
	if why := n.Mutator.Stuck(p); !strings.Contains(why, "state D") {
		t.Logf("stuck: %s", why)
	}
	if thawed, err := n.Mutator.Thaw(p); err != nil || !thawed {
		t.Fatalf("thawed %v, %v", thawed, err)
	}
	if !ended(t, n, p, time.Minute) {
		t.Error("it lives on after the thaw")
	}
}

func TestThawV2(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	cgroups := n.Cgroups(uid, "")
	p := n.Shell(uid, cgroups, "echo ready; while :; do sleep 0.1; done")
	frozen := ""
	for _, dir := range cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0); err == nil {
			frozen = dir
		}
	}
	need.Has(t, frozen != "", "cgroup v2")
	if thawed, err := n.Mutator.Thaw(p); err != nil || !thawed {
		t.Fatalf("thawed %v, %v", thawed, err)
	}
	if now, _ := os.ReadFile(filepath.Join(frozen, "cgroup.freeze")); strings.TrimSpace(string(now)) != "0" {
		t.Errorf("cgroup.freeze is %q", now)
	}
}
