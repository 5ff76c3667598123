package release

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Logs of a deleted pod are removed after they have been seen for a day, if opted in. Until then they block no release:
// the pod's release is complete without them. Those of a living pod stay.
func TestReleasePodLogs(t *testing.T) {
	w := newWorld(t)
	w.kinds = nil
	logs := w.Mkdir(filepath.Join(w.Dir, "pod-logs"))
	w.Host.Paths.PodLogs = logs
	var passed time.Duration
	w.Host.Clock = func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot, now.Wall = now.SinceBoot+passed, now.Wall.Add(passed)
		return now
	}
	dead := mutatetest.UID(t)
	for _, uid := range []string{dead, w.living} {
		w.Write(filepath.Join(logs, "default_app_"+uid, "app/0.log"), "a line")
		w.Write(filepath.Join(logs, "default_app_"+uid, "app/0.log.20260102-150405.gz"), "lines")
	}
	living := filepath.Join(logs, "default_app_"+w.living)
	before := mutatetest.Snapshot(t, living)
	w.Cgroups(dead, "")
	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released || len(results(outcome)[object.PodLogs]) > 0 {
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
	w.settings.Kinds = map[object.Kind]Mode{object.PodLogs: On}
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

// Pods with only logs left do not use up the budget of others, and unknown facts about logs stop no release.
func TestMinorComesLast(t *testing.T) {
	logs, mount, unknown := leftover(object.PodLogs, uid1, "a"), leftover(object.Mount, uid2, "b"),
		leftover(object.PodLogs, uid2, "c")
	unknown.Verdict = object.Unknown
	s := Defaults()
	s.Mode, s.PodsPerHour, s.Kinds = On, 1, map[object.Kind]Mode{object.PodLogs: On}
	report := object.Report{Objects: []object.Assessment{logs, mount, unknown}}
	acts := map[string]bool{}
	for _, step := range Plan(report, Policy{Settings: s}, host.Now()) {
		acts[step.ID] = step.Acts()
	}
	if diff := cmp.Diff(map[string]bool{"a": false, "b": true}, acts); diff != "" {
		t.Error(diff)
	}
}
