package agent

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/remediate"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// The status keeps the released steps, and drops a plan once there is none.
func TestRecord(t *testing.T) {
	step := func(kind inspect.Kind, id string, result remediate.Result, blocked string) remediate.StepOutcome {
		return remediate.StepOutcome{Step: remediate.Step{Kind: kind, ID: id, Description: "remove " + id,
			Blocked: blocked}, Result: result}
	}
	pod := inspect.Pod{UID: "u", Namespace: "default", Name: "web"}
	planned := remediate.Outcome{Pods: []remediate.PodOutcome{{Group: "u", Pod: pod, Result: remediate.NotActed,
		Steps: []remediate.StepOutcome{
			step(inspect.Cgroup, "/a", remediate.NotActed, "dry-run"),
			step(inspect.Mount, "/m", remediate.NotActed, "dry-run"),
			step(inspect.Cgroup, "/b", remediate.NotActed, "dry-run"),
			step(inspect.Cgroup, "/c", remediate.NotActed, "it is busy"),
		}}}}
	released := remediate.Outcome{Pods: []remediate.PodOutcome{{Group: "u", Pod: pod, Result: "released",
		Steps: []remediate.StepOutcome{step(inspect.Cgroup, "/a", remediate.Released, "")}}}}
	plan := []string{
		"not-acted   cgroup         2 of pod default/web (not released: dry-run)",
		"not-acted   mount          1 of pod default/web (not released: dry-run)",
		"not-acted   cgroup         1 of pod default/web (not released: it is busy)",
	}
	done := []string{"pod u: released", "released    cgroup         /a: remove /a"}

	l := &leftovers{log: slog.New(slog.DiscardHandler), meter: meter{metrics.New(metrics.Config{})}}
	for _, test := range []struct {
		name    string
		outcome remediate.Outcome
		want    []string
	}{
		{"planned", planned, plan},
		{"gone by itself", remediate.Outcome{}, nil},
		{"planned again", planned, plan},
		{"released", released, done},
		{"nothing to do", remediate.Outcome{}, done},
		{"another plan", planned, append(done[:2:2], plan...)},
	} {
		l.record(test.outcome)
		if diff := cmp.Diff(strings.Join(test.want, "\n"), strings.Join(l.status().Last, "\n")); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
	}
}
