package release

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

func TestReleaseCompletePod(t *testing.T) {
	w := newWorld(t)
	neighbour := w.makePod(w.living)
	dead := w.makePod(mutatetest.UID(t))
	living := w.census(neighbour)
	data := mutatetest.Snapshot(t, dead.data)

	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Fatal(describe(outcome))
	}
	if left := w.left(dead.uid); len(left) > 0 {
		t.Errorf("left: %q\n%s", left, describe(outcome))
	}
	unchanged(t, "the data behind a bind", data, mutatetest.Snapshot(t, dead.data))
	unchanged(t, "the living pod", living, w.census(neighbour))
	if again := w.release(); len(again.Pods) > 0 || again.Acted() {
		t.Errorf("a second time: %s", describe(again))
	}
	if cut, _, err := ReadJournal(filepath.Join(w.Dir, "state")); err != nil || len(unfinished(cut)) > 0 {
		t.Errorf("journal: %v, unfinished %+v", err, unfinished(cut))
	}
}

// A crash after any step, then a new release: the same end state, and no other object touched.
func TestCrashAnywhere(t *testing.T) {
	t.Parallel()
	const parts = 4
	part, inside := mutatetest.Parts(t, parts)
	if !inside {
		return
	}
	w := newWorld(t, func(p *host.Paths) {
		if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
			p.CgroupMount = "/sys/fs/cgroup/memory" // one hierarchy of a dozen will do
		}
	})
	neighbour := w.makePod(w.living)
	living := w.census(neighbour)
	for at, crashed := 1+part, true; crashed; at += parts {
		dead := w.makePod(mutatetest.UID(t))
		crashed = w.crash(at)
		outcome := w.release()
		if left := w.left(dead.uid); len(left) > 0 {
			t.Fatalf("crash at %d: left %q\n%s", at, left, describe(outcome))
		}
		if crashed && at > 1 && len(outcome.CutOff) == 0 && len(outcome.Pods) > 0 {
			t.Errorf("crash at %d was not reported", at)
		}
		if got, err := os.ReadFile(filepath.Join(dead.data, "sub/canary")); err != nil || string(got) != "alive" {
			t.Fatalf("crash at %d: canary %q, %v", at, got, err)
		}
		t.Logf("crash at %d: %v", at, crashed)
	}
	unchanged(t, "the living pod", living, w.census(neighbour))
}

// crash lets a release crash at a point, by number; points of the kinds in skip do not count. It reports false if the
// release ended before that point.
func (w *world) crash(at int, skip ...object.Kind) (crashed bool) {
	w.t.Helper()
	crash := errors.New("crash")
	n := 0
	w.faultPoint = func(point string) error {
		if slices.ContainsFunc(skip, func(k object.Kind) bool { return strings.HasSuffix(point, ": "+string(k)) }) {
			return nil
		}
		if n++; n == at {
			crashed = true
			return crash
		}
		return nil
	}
	if _, err := w.runner().Release(w.t.Context(), w.inspect()); crashed != errors.Is(err, crash) {
		w.t.Fatalf("at %d: crashed %v, %v", at, crashed, err)
	}
	w.faultPoint = nil
	return crashed
}

// Each of these guards prevents every change.
func TestReleaseGuards(t *testing.T) {
	w := newWorld(t)
	dead := w.makePod(mutatetest.UID(t))
	before := w.census(dead)
	for _, test := range []struct {
		name   string
		set    func()
		unset  func()
		reason string
	}{
		{"kill switch", func() { w.Write(w.settings.KillSwitch, "") }, func() {
			os.Remove(w.settings.KillSwitch)
		}, "kill switch"},
		{"kill switch that cannot be read", func() { w.Mkdir(w.settings.KillSwitch) }, func() {
			os.Remove(w.settings.KillSwitch)
		}, "kill switch"},
		{"paused", func() { w.paused = "annotation" }, func() { w.paused = "" }, "annotation"},
		{"dry run", func() { w.settings.Mode = DryRun }, func() { w.settings.Mode = On }, "dry-run"},
		{"opted out", func() { w.settings.OptOut = []string{"default"} }, func() {
			w.settings.OptOut = nil
		}, "opted out"},
		{"budget", func() { w.settings.PodsPerHour = 0 }, func() { w.settings.PodsPerHour = 9 }, "budget"},
	} {
		test.set()
		outcome := w.release()
		test.unset()
		if text := describe(outcome); outcome.Acted() || !strings.Contains(text, test.reason) {
			t.Errorf("%s: %s", test.name, text)
		}
	}
	lock, err := mutate.Lock(w.settings.Lock)
	if err != nil {
		t.Fatal(err)
	}
	if outcome := w.release(); outcome.Acted() || !strings.Contains(outcome.Stopped, "another release") {
		t.Errorf("locked: %s", describe(outcome))
	}
	lock.Unlock()
	unchanged(t, "the pod", before, w.census(dead))
	if _, err := os.Lstat(filepath.Join(w.Dir, "state", journalName)); err == nil {
		t.Error("a journal was written although nothing was done")
	}
}

// Without a journal no step runs.
func TestReleaseWithoutJournal(t *testing.T) {
	w := newWorld(t)
	dead := w.makePod(mutatetest.UID(t))
	before := w.census(dead)
	w.Mount("tmpfs", filepath.Join(w.Dir, "state"), "tmpfs", 1) // MS_RDONLY
	if _, err := w.runner().Release(t.Context(), w.inspect()); err == nil {
		t.Error("no error")
	}
	unchanged(t, "the pod", before, w.census(dead))
}

// Between plan and act a witness learns of the pod, or an object is replaced.
func TestConfirmStops(t *testing.T) {
	w := newWorld(t)
	dead := w.makePod(mutatetest.UID(t))
	before := w.census(dead)
	w.onConfirm = func(int) { w.known[dead.uid] = true }
	outcome := w.release()
	delete(w.known, dead.uid)
	if outcome.Acted() || outcome.Pods[0].Result != Stopped {
		t.Error(describe(outcome))
	}
	w.onConfirm = nil
	unchanged(t, "the pod", before, w.census(dead))

	report := w.inspect()
	for i := range report.Objects {
		if report.Objects[i].Kind == object.Process {
			report.Objects[i].Identity.Process.StartTime = 1
		}
	}
	w.settings.RetryAfter = 0
	outcome, err := w.runner().Release(t.Context(), report)
	if err != nil || outcome.Acted() || !strings.Contains(describe(outcome),
		"no longer the object that was inspected") {
		t.Errorf("%v: %s", err, describe(outcome))
	}
	unchanged(t, "the pod", before, w.census(dead))
}

// The witnesses are asked again between groups: the pod comes back midway.
func TestConfirmStopsInTheMiddle(t *testing.T) {
	w := newWorld(t)
	dead := w.makePod(mutatetest.UID(t))
	w.onConfirm = func(n int) {
		if n > 1 {
			w.known[dead.uid] = true
		}
	}
	outcome := w.release()
	if outcome.Pods[0].Result != Stopped {
		t.Error(describe(outcome))
	}
	for _, s := range outcome.Pods[0].Steps {
		if (s.Result == Released) != (s.Kind == object.Process) {
			t.Errorf("%s %s is %s", s.Kind, s.ID, s.Result)
		}
	}
}

func TestReleaseInterrupted(t *testing.T) {
	w := newWorld(t)
	dead := w.makePod(mutatetest.UID(t))
	ctx, cancel := context.WithCancel(t.Context())
	w.faultPoint = func(point string) error {
		if strings.HasPrefix(point, "group done") {
			cancel()
		}
		return nil
	}
	outcome, err := w.runner().Release(ctx, w.inspect())
	if err != nil || outcome.Pods[0].Result != Interrupted {
		t.Errorf("%v: %s", err, describe(outcome))
	}
	w.faultPoint = nil
	w.release() // at once
	if left := w.left(dead.uid); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A plan does not refuse a directory because of a mount that it releases first, but does for one that stays.
func TestPlanUnmountsFirst(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
	volume := w.PodDir(uid, "volumes/kubernetes.io~secret/s")
	for range 2 { // stacked
		w.Mount("tmpfs", volume, "tmpfs", 0)
	}
	w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~projected/p"), "tmpfs", 0)
	report := w.inspect()
	r := w.runner()
	directory := func(when string) Step {
		t.Helper()
		steps, err := r.Plan(t.Context(), report)
		if err != nil || len(steps) == 0 || steps[len(steps)-1].Kind != object.PodDirectory {
			t.Fatalf("%s: %v %+v", when, err, steps)
		}
		return steps[len(steps)-1]
	}
	if s := directory("all is unmounted"); strings.Contains(s.Blocked, "mount point") || s.refused {
		t.Errorf("%+v", s)
	}
	r.options.Settings.Kinds = map[object.Kind]Mode{object.Mount: Off}
	if s := directory("mounts are off"); !s.refused {
		t.Errorf("%+v", s)
	}
	r.options.Settings.Kinds = nil
	unmount := &r.options.table[slices.IndexFunc(r.options.table,
		func(a actions.Action) bool { return a.Kind == object.Mount })]
	refused := false
	unmount.Look = func(_ context.Context, _ actions.Tools, o object.Assessment) string {
		if o.Identity.Mount.Point != volume || refused {
			return ""
		}
		refused = true
		return "another pod's"
	}
	if s := directory("one of two on a point stays"); !strings.Contains(s.Blocked, "volumes/kubernetes.io~secret/s is a mount point") {
		t.Errorf("%+v", s)
	}
}

// User data keeps the whole directory; all other objects are released.
func TestReleaseKeepsUserData(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
	w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
	w.Write(w.PodDir(uid, "volumes/kubernetes.io~empty-dir/db/table"), "precious")
	w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
	steps, err := w.runner().Plan(t.Context(), w.inspect())
	if err != nil || len(steps) != 2 || !strings.Contains(steps[1].Blocked, "user data in an emptyDir") {
		t.Errorf("plan: %v %+v", err, steps)
	}
	outcome := w.release()
	if text := describe(outcome); outcome.Pods[0].Result != Incomplete ||
		!strings.Contains(text, "user data in an emptyDir") {
		t.Error(text)
	}
	want := map[string]string{
		w.PodDir(uid): "d---------", w.PodDir(uid, "etc-hosts"): "----------:hosts",
		w.PodDir(uid, "volumes"): "d---------", w.PodDir(uid, "volumes/kubernetes.io~empty-dir"): "d---------",
		w.PodDir(uid, "volumes/kubernetes.io~empty-dir/db"):       "d---------",
		w.PodDir(uid, "volumes/kubernetes.io~empty-dir/db/table"): "----------:precious",
		w.PodDir(uid, "volumes/kubernetes.io~secret"):             "d---------",
		w.PodDir(uid, "volumes/kubernetes.io~secret/s"):           "d---------",
	}
	if diff := cmp.Diff(want, mutatetest.Snapshot(t, w.PodDir(uid))); diff != "" {
		t.Error(diff)
	}
	w.settings.AllowEmptyDir = true
	w.release()
	if left := w.left(uid); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	kept := false
	for _, content := range mutatetest.Snapshot(t, w.Mutator.QuarantineDir()) {
		kept = kept || strings.HasSuffix(content, ":precious")
	}
	if !kept {
		t.Error("the data is not in quarantine")
	}
}
