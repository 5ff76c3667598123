package hungmounts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem/filesystemtest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// hungChildren counts the probes that are left in the kernel.
func hungChildren(t *testing.T) int {
	t.Helper()
	h := &host.Host{}
	pids, err := h.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, pid := range pids {
		if stat, err := h.ProcStat(pid); err == nil && stat.PPID == os.Getpid() && stat.Comm == "nodeagent-probe" {
			n++
		}
	}
	return n
}

// onlyMounts limits the check to the root and these mounts: tests of others mount FUSE too.
func onlyMounts(t *testing.T, n *filesystemtest.RealNode, dirs []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(table)) {
		if point := strings.Fields(line)[4]; point == "/" || slices.Contains(dirs, point) {
			lines.WriteString(line)
		}
	}
	n.Host.Files = host.Files{Root: n.Dir}
	file := n.Path(fmt.Sprintf("proc/%d/mountinfo", os.Getpid()))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// expectHung runs the check and fails unless it finds exactly these reasons, by mount point.
func expectHung(t *testing.T, n *filesystemtest.RealNode, dirs []string, later time.Duration, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, hung(t, n, dirs, later)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// hung runs the check, and returns its findings by the number of the mount point.
func hung(t *testing.T, n *filesystemtest.RealNode, dirs []string, later time.Duration) map[string]string {
	t.Helper()
	n.Later += later
	onlyMounts(t, n, dirs)
	findings, err := n.Check.Run(t.Context(), n.Host)
	_, isPartial := errors.AsType[*finding.PartialError](err)
	_, isNone := errors.AsType[*finding.NotApplicableError](err)
	if err != nil && !isPartial && !isNone {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, f := range findings {
		if i := slices.Index(dirs, f.Subject.Name); i >= 0 {
			got[fmt.Sprint(i)] = string(f.Severity) + " " + f.Reason
		}
	}
	return got
}

// One child finds a hung server and stays the only one for it; another server takes a second child. When the connection
// is aborted, the child ends and the mount refuses all calls; after the unmount there is no finding.
func TestRealHungMounts(t *testing.T) {
	settings := DefaultSettings()
	settings.Patience = 3 * time.Second // must be enough to start a child
	n := filesystemtest.NewRealNode(t, New(settings))
	var dirs []string
	t.Run("hang", func(t *testing.T) {
		dirs = append(dirs, hosttest.HangingFUSE(t))
		expectHung(t, n, dirs, time.Minute, map[string]string{"0": "warning MountHung"})
		for range 10 {
			expectHung(t, n, dirs, time.Minute, map[string]string{"0": "warning MountHung"})
		}
		if got := hungChildren(t); got != 1 {
			t.Errorf("%d children hang, want 1", got)
		}
		t.Run("second", func(t *testing.T) {
			dirs = append(dirs, hosttest.HangingFUSE(t))
			expectHung(t, n, dirs, time.Minute, map[string]string{"0": "warning MountHung", "1": "warning MountHung"})
			expectHung(t, n, dirs, time.Minute, map[string]string{"0": "warning MountHung", "1": "warning MountHung"})
			if got := hungChildren(t); got != 2 {
				t.Errorf("%d children hang, want 2", got)
			}
			// A third one is not probed: others need to probe too.
			third := hosttest.HangingFUSE(t)
			expectHung(t, n, append(slices.Clone(dirs), third), time.Minute, map[string]string{"0": "warning MountHung",
				"1": "warning MountHung"})
			if got := hungChildren(t); got != 2 {
				t.Errorf("%d children hang, want 2", got)
			}
			if _, err := n.Host.Prober.Do(t.Context(), probe.ProbeRequest{Op: probe.ProbeStatfs,
				Path: "/"}); err != nil {
				t.Error(err)
			}
			hosttest.AbortFUSE(t, dirs[1])
			untilChildren(t, 1)
			var found map[string]string
			for range 600 { // woken each time: the end of the child is noticed a moment later
				if found = hung(t, n, dirs, time.Second); found["1"] == "warning MountBroken" {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if diff := cmp.Diff(map[string]string{"0": "warning MountHung", "1": "warning MountBroken"}, found); diff != "" {
				t.Error(diff)
			}
		})
		expectHung(t, n, dirs, time.Minute, map[string]string{"0": "warning MountHung"})
	})
	untilChildren(t, 0)
	expectHung(t, n, dirs, time.Minute, map[string]string{})
}

// untilChildren waits until this many children are left: the kernel releases them a moment after the abort.
func untilChildren(t *testing.T, want int) {
	t.Helper()
	deadline := time.After(time.Minute)
	for hungChildren(t) != want {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%d children, want %d", hungChildren(t), want)
		}
	}
}

// The daemon of a mount is killed. Any change of the mount table after that (in the field the end of its container) has
// the mount reported at once: by one run, although a mount that only hangs takes two.
func TestRealServerKilled(t *testing.T) {
	server := hosttest.ServeFUSE(t, 0, unix.EACCES)
	n := filesystemtest.NewRealNode(t, New(DefaultSettings()))
	check := n.Check
	check.Every = time.Hour
	tracker := finding.NewTracker(map[string]finding.Policy{check.ID: check.Policy}, nil)
	raised, ran := make(chan finding.Finding, 1), make(chan struct{}, 1)
	watching := make(chan struct{})
	source := detect.Source{Name: detect.WakeMounts, Run: func(ctx context.Context, wake func(detect.Change)) error {
		close(watching)
		return watch.WatchMounts(ctx, os.Getpid(), func() { wake(detect.Change{}) })
	}}
	engine := detect.NewEngine(n.Host, slog.New(slog.DiscardHandler), []detect.Check{check}, []detect.Source{source},
		detect.Observer{}, func(l finding.Observation) {
			for _, u := range tracker.Observe(l) {
				if u.Kind == finding.Raised && u.Finding.Subject.Name == server.Point {
					raised <- u.Finding
				}
			}
			select {
			case ran <- struct{}{}:
			default:
			}
		})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = engine.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-watching
	<-ran
	server.Kill()
	other := t.TempDir()
	// Repeated because the watch may only just have started, and earlier changes are not reported.
	for range 600 {
		need.Kernel(t, "tmpfs", unix.Mount("tmpfs", other, "tmpfs", 0, "size=64k"))
		if err := unix.Unmount(other, 0); err != nil {
			t.Fatal(err)
		}
		select {
		case f := <-raised:
			if f.Reason != reasonMountBroken || f.Facts["error"] != unix.ENOTCONN.Error() {
				t.Errorf("%+v", f)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("not reported")
}
