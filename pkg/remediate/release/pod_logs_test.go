package release

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/listers"
)

// Logs of a deleted pod are removed after they have been seen for a day, if opted in. Until then they block no release:
// the pod's release is complete without them. Those of a living pod stay.
func TestReleasePodLogs(t *testing.T) {
	w := newWorld(t)
	logs := w.Mkdir(filepath.Join(w.Dir, "pod-logs"))
	w.Host.Paths.PodLogs = logs
	var passed time.Duration
	w.Host.Clock = func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot, now.Wall = now.SinceBoot+passed, now.Wall.Add(passed)
		return now
	}
	w.inspector.Listing(listers.All())
	dead := mutatetest.UID(t)
	for _, uid := range []string{dead, w.living} {
		w.Write(filepath.Join(logs, "default_app_"+uid, "app/0.log"), "a line")
		w.Write(filepath.Join(logs, "default_app_"+uid, "app/0.log.20260102-150405.gz"), "lines")
	}
	living := filepath.Join(logs, "default_app_"+w.living)
	before := mutatetest.Snapshot(t, living)
	w.Cgroups(dead, "")
	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released || len(results(outcome)[inspect.PodLogs]) > 0 {
		t.Fatalf("before they are a day old: %s", describe(outcome))
	}
	passed = 25 * time.Hour
	if outcome := w.release(); outcome.Acted() || len(w.left(dead)) != 1 {
		t.Fatalf("they were not opted in: %s", describe(outcome))
	}
	w.Cgroups(dead, "")
	if outcome := w.release(); len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Fatalf("beside logs that were not opted in: %s", describe(outcome))
	}
	w.settings.Kinds = map[inspect.Kind]Mode{inspect.PodLogs: On}
	for _, point := range []string{"intent: pod-logs", "done: pod-logs"} {
		w.Write(filepath.Join(logs, "default_app_"+dead, "app/0.log"), "a line")
		w.inspect()
		passed += 25 * time.Hour
		w.crashAt(point)
	}
	outcome = w.release()
	if left := w.left(dead); len(left) > 0 {
		t.Errorf("left: %q\n%s", left, describe(outcome))
	}
	unchanged(t, "the logs of the living pod", before, mutatetest.Snapshot(t, living))
}

// Which objects must go before logs and units, and which are never planned.
func TestMinorActions(t *testing.T) {
	thing := func(kind inspect.Kind) inspect.Assessment { return leftover(kind, uid1, "x") }
	for _, test := range []struct {
		kind, beside inspect.Kind
		want         string
	}{
		{inspect.PodLogs, inspect.PodLogs, ""}, {inspect.PodLogs, inspect.PodDirectory, "pod-directory x"},
		{inspect.PodLogs, inspect.Mount, "mount x"}, {inspect.SystemdUnit, inspect.PodLogs, ""},
		{inspect.SystemdUnit, inspect.Process, "process x"}, {inspect.SystemdUnit, inspect.Cgroup, "cgroup x"},
	} {
		action, _ := actionFor(test.kind)
		got := action.Needs(thing(test.kind), []inspect.Assessment{thing(test.beside)}, Defaults())
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s beside %s: %q, want %q", test.kind, test.beside, got, test.want)
		}
	}
	action, _ := actionFor(inspect.SystemdUnit)
	refused := map[string]bool{}
	for _, state := range []string{"failed", "active", "inactive", ""} {
		o := thing(inspect.SystemdUnit)
		o.Facts = map[string]string{"active": state}
		_, why := action.Plan(o, Defaults())
		refused[state] = why != ""
	}
	if diff := cmp.Diff(map[string]bool{"failed": false, "active": true, "inactive": true, "": true}, refused); diff != "" {
		t.Error(diff)
	}
}

// Pods with only logs left do not use up the budget of others, and unknown facts about logs stop no release.
func TestMinorComesLast(t *testing.T) {
	logs, mount, unknown := leftover(inspect.PodLogs, uid1, "a"), leftover(inspect.Mount, uid2, "b"),
		leftover(inspect.PodLogs, uid2, "c")
	unknown.Verdict = inspect.Unknown
	s := Defaults()
	s.Mode, s.PodsPerHour, s.Kinds = On, 1, map[inspect.Kind]Mode{inspect.PodLogs: On}
	report := inspect.Report{Objects: []inspect.Assessment{logs, mount, unknown}}
	acts := map[string]bool{}
	for _, step := range Plan(report, Policy{Settings: s}, host.Now()) {
		acts[step.ID] = step.Acts()
	}
	if diff := cmp.Diff(map[string]bool{"a": false, "b": true}, acts); diff != "" {
		t.Error(diff)
	}
}
