package memory

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/memory/oomkills"
	"github.com/nodeagent/nodeagent/pkg/detect/system"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

const realPodUID = "5b0f8c3e-6a0f-4d52-8f0a-0c4e0d6f7a11"

// realPod is a cgroup that looks like a pod with one container, on the machine of the test.
type realPod struct {
	t         *testing.T
	host      *host.Host
	dir       string // of the pod
	container string
	later     time.Duration // how far the agent's clock is ahead of the real one
}

func newRealPod(t *testing.T, controller string) *realPod {
	t.Helper()
	need.Root(t, "makes cgroups")
	p := &realPod{t: t}
	p.host = &host.Host{Paths: discover.DefaultPaths(), NodeName: "node-1"}
	p.host.Clock = func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot += p.later
		return now
	}
	p.host.Paths.InitPID = os.Getpid()
	p.host.Paths.CgroupRoot = "/nodeagent-test-" + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(t.Name())
	p.host.Paths.CgroupDriver = "cgroupfs"
	hierarchy, err := checkkit.ControllerHierarchy(p.host, controller)
	need.Kernel(t, "the cgroup controller "+controller, err)
	p.dir = path.Join(hierarchy.Point, p.host.Paths.CgroupRoot, "kubepods/pod"+realPodUID)
	p.container = path.Join(p.dir, hex.EncodeToString(make([]byte, 32)))
	made := hierarchy.Point
	for _, name := range strings.Split(strings.TrimPrefix(p.container, hierarchy.Point+"/"), "/") {
		if hierarchy.V2 {
			p.write(path.Join(made, "cgroup.subtree_control"), "+"+controller)
		}
		made = path.Join(made, name)
		need.Kernel(t, "to make cgroups", os.Mkdir(made, 0o755))
		dir := made
		t.Cleanup(func() { checktest.RemoveCgroup(t, dir) })
	}
	return p
}

func (p *realPod) write(file, text string) {
	p.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// run runs a program in the container until it ends.
func (p *realPod) run(script string) {
	p.t.Helper()
	child := exec.CommandContext(p.t.Context(), "/bin/sh", "-c", "read go; "+script)
	in, err := child.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.write(filepath.Join(p.container, "cgroup.procs"), strconv.Itoa(child.Process.Pid))
	if _, err := io.WriteString(in, "go\n"); err != nil {
		p.t.Error(err)
	}
	p.t.Logf("%s: %v", script, child.Wait())
}

// reasons returns the findings of a check in short form.
func (p *realPod) reasons(check detect.Check) []string {
	p.t.Helper()
	findings, err := check.Run(p.t.Context(), p.host)
	if err != nil {
		p.t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		p.t.Logf("%+v", f)
		got = append(got, fmt.Sprintf("%s %s %s", f.Severity, f.Reason, f.Subject))
	}
	return got
}

// expect fails unless the check finds want, or does not, for the pod; it ignores other faults of the machine.
func (p *realPod) expect(check detect.Check, want string, expected bool) {
	p.t.Helper()
	if got := p.reasons(check); slices.Contains(got, want) != expected {
		p.t.Errorf("%q expected: %v; got %q", want, expected, got)
	}
}

// A pod that may not start another process is reported, until ten minutes after its last try.
func TestRealPIDsLimit(t *testing.T) {
	p, check := newRealPod(t, "pids"), system.PIDsLimits()
	const near, reached = "warning PIDsNearLimit pod/" + realPodUID, "warning PIDsLimitReached pod/" + realPodUID
	p.write(filepath.Join(p.dir, "pids.max"), "3")
	p.expect(check, reached, false)
	p.run("sleep 0.1 & sleep 0.1 & sleep 0.1 & wait")
	p.expect(check, reached, true)
	p.later += 11 * time.Minute
	p.expect(check, reached, false)
	p.expect(check, near, false)
}

// A container killed at its memory limit is reported with its pod: in cgroup v2 by the kernel's counts, in v1 by its
// log, since the counts there do not show it.
func TestRealContainerOOM(t *testing.T) {
	p := newRealPod(t, "memory")
	hierarchy, err := checkkit.ControllerHierarchy(p.host, "memory")
	if err != nil {
		t.Fatal(err)
	}
	limit, check := "memory.max", oomkills.New(nil)
	if !hierarchy.V2 {
		limit, check = "memory.limit_in_bytes", p.kernelLog()
		if _, err := oomkills.New(nil).Run(t.Context(), p.host); err == nil {
			t.Error("the counts of cgroup v1 are believed")
		}
	}
	const want = "info ContainerOOMKilled pod/" + realPodUID
	p.expect(check, want, false)
	before, err := oomkills.OOMKills(p.host.Files)
	if err != nil {
		t.Fatal(err)
	}
	p.write(filepath.Join(p.container, limit), "33554432")
	p.run("exec tail /dev/zero") // tail wants the last lines, and there is no end of a line
	if after, err := oomkills.OOMKills(p.host.Files); err != nil || after <= before {
		t.Fatalf("nothing was killed: %d before, %d after, %v", before, after, err)
	}
	p.eventually(check, want)
	p.later += 11 * time.Minute
	p.expect(check, want, false)
}

// If all pods together reach their limit, it is reported for the slice and not for a pod (cgroup v2).
func TestRealSliceOOM(t *testing.T) {
	p, check := newRealPod(t, "memory"), oomkills.New(nil)
	_, err := check.Run(t.Context(), p.host)
	need.Kernel(t, "cgroup v2, which shows whose limit an oom-kill was for", err)
	slice := path.Join(p.host.Paths.CgroupRoot, "kubepods")
	p.write(path.Join(path.Dir(p.dir), "memory.max"), "33554432")
	p.run("exec tail /dev/zero")
	want := "warning CgroupOOMKilled cgroup/" + slice
	p.expect(check, want, true)
	p.expect(check, "info ContainerOOMKilled pod/"+realPodUID, false)
	p.later += 31 * time.Minute
	p.expect(check, want, false)
}

// If the node has no memory left, the fault is the node's, and fatal at the third time (cgroup v2). It runs only where
// it harms no other program.
func TestRealNodeOOM(t *testing.T) {
	cmdline, err := os.ReadFile("/proc/cmdline")
	inGuest := err == nil && strings.Contains(string(cmdline), "nodeagent.guest")
	need.Flag(t, inGuest, "nodeagent.guest in the kernel's command line: a guest that may run out of memory")
	p, check := newRealPod(t, "memory"), oomkills.New(nil)
	_, err = check.Run(t.Context(), p.host)
	need.Kernel(t, "cgroup v2, which shows whose limit an oom-kill was for", err)
	for _, severity := range []string{"warning", "warning", "fatal"} {
		p.run("echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero")
		p.expect(check, severity+" OOMKilling node/node-1", true)
		p.expect(check, "info ContainerOOMKilled pod/"+realPodUID, false)
	}
	p.later += 31 * time.Minute
	p.expect(check, "fatal OOMKilling node/node-1", false)
}

// kernelLog returns the check of the kernel's log, which reads this machine's records from now on.
func (p *realPod) kernelLog() detect.Check {
	p.t.Helper()
	log, err := kernellog.NewKernelLog(kernellog.DefaultSettings())
	if err != nil {
		p.t.Fatal(err)
	}
	started := host.Now().SinceBoot
	watch := func(ctx context.Context, logger *slog.Logger, each func(kmsg.KernelRecord), caughtUp func()) error {
		return kmsg.WatchKernelLog(ctx, logger, func(r kmsg.KernelRecord) {
			if r.Up >= started {
				each(r)
			}
		}, caughtUp)
	}
	source := kernellog.KernelLogSource(log, slog.New(slog.DiscardHandler), watch, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1) // the goroutine must not wait for a test that failed
	go func() { done <- source.Run(ctx, func(detect.Change) {}) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			p.t.Error(err)
		}
	})
	return kernellog.New(kernellog.DefaultSettings(), log, &detect.StateSources{}, nil)
}

// eventually waits until a check finds want: the log is read a moment after it was written.
func (p *realPod) eventually(check detect.Check, want string) {
	p.t.Helper()
	deadline := time.After(time.Minute)
	for !slices.Contains(p.reasons(check), want) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			p.t.Fatalf("never %q", want)
		}
	}
}

// Swap switched on under a kubelet that refuses it is reported until it is off again.
func TestRealSwap(t *testing.T) {
	need.Root(t, "switches swap on")
	dir := t.TempDir()
	file, config := filepath.Join(dir, "swap"), filepath.Join(dir, "config.yaml")
	for name, content := range map[string][]byte{file: make([]byte, 1<<20),
		config: []byte("kind: KubeletConfiguration\n")} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := &host.Host{NodeName: "node-1", Paths: host.Paths{KubeletConfig: config}, Clock: host.Now}
	h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: 1, Comm: "kubelet"}, nil }
	runCheck := func() string {
		findings, err := Swap().Run(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, f := range findings {
			text += f.Reason + ": " + f.Message
		}
		return text
	}
	need.Has(t, runCheck() == "", "a machine without swap of its own")
	for _, command := range [][]string{{"mkswap", file}, {"swapon", file}} {
		_, err := exec.CommandContext(t.Context(), command[0], command[1:]...).Output()
		need.Kernel(t, "to switch swap on", err)
	}
	off := func() {
		if out, err := exec.Command("swapoff", file).CombinedOutput(); err != nil {
			t.Errorf("swapoff: %v: %s", err, out)
		}
	}
	on := true
	t.Cleanup(func() {
		if on {
			off()
		}
	})
	if got := runCheck(); !strings.Contains(got, "SwapUnexpected") || !strings.Contains(got, file) {
		t.Errorf("swap is on: %q", got)
	}
	off()
	on = false
	if got := runCheck(); got != "" {
		t.Errorf("swap is off again: %q", got)
	}
}
