package agent

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// The status keeps the released steps, and drops a plan once there is none.
func TestRecord(t *testing.T) {
	step := func(kind object.Kind, id string, result release.Result, blocked string) release.StepOutcome {
		return release.StepOutcome{Step: release.Step{Kind: kind, ID: id, Description: "remove " + id,
			Blocked: blocked}, Result: result}
	}
	pod := object.Pod{UID: "u", Namespace: "default", Name: "web"}
	planned := release.Outcome{Pods: []release.PodOutcome{{Group: "u", Pod: pod, Result: release.NotActed,
		Steps: []release.StepOutcome{
			step(object.Cgroup, "/a", release.NotActed, "dry-run"),
			step(object.Mount, "/m", release.NotActed, "dry-run"),
			step(object.Cgroup, "/b", release.NotActed, "dry-run"),
			step(object.Cgroup, "/c", release.NotActed, "it is busy"),
		}}}}
	released := release.Outcome{Pods: []release.PodOutcome{{Group: "u", Pod: pod, Result: "released",
		Steps: []release.StepOutcome{step(object.Cgroup, "/a", release.Released, "")}}}}
	plan := []string{
		"not-acted   cgroup         2 of pod default/web (not released: dry-run)",
		"not-acted   mount          1 of pod default/web (not released: dry-run)",
		"not-acted   cgroup         1 of pod default/web (not released: it is busy)",
	}
	done := []string{"pod u: released", "released    cgroup         /a: remove /a"}

	l := &leftovers{log: slog.New(slog.DiscardHandler), meter: meter{metrics.New(metrics.Config{})}}
	for _, test := range []struct {
		name    string
		outcome release.Outcome
		want    []string
	}{
		{"planned", planned, plan},
		{"gone by itself", release.Outcome{}, nil},
		{"planned again", planned, plan},
		{"released", released, done},
		{"nothing to do", release.Outcome{}, done},
		{"another plan", planned, append(done[:2:2], plan...)},
	} {
		l.record(test.outcome)
		if diff := cmp.Diff(strings.Join(test.want, "\n"), strings.Join(l.status().Last, "\n")); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
	}
}
