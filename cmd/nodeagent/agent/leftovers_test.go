package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// scripted is an inspector that makes one pass and then rests.
type scripted struct {
	report object.Report
	passes int
}

func (s *scripted) Rests(context.Context) bool { return s.passes > 0 }

func (s *scripted) Pass(context.Context, object.History, ...object.Kind) (object.Report, object.History) {
	s.passes++
	return s.report, nil
}

// The findings of a pass hold while the inspection rests: a gate that stays closed, or an object without an owner, is
// not reported as gone.
func TestFindingsHoldAtRest(t *testing.T) {
	report := object.Report{At: second(4000), Objects: []object.Assessment{assessed(object.Netns, "", object.Unowned)},
		Gates: []object.Gate{{Name: "host-namespaces", Why: "the agent does not see them", Since: second(1)}}}
	passes := &scripted{report: report}
	h := &host.Host{Clock: func() finding.Timestamp { return second(4000) }}
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, nil }
	l := &leftovers{host: h, log: slog.New(slog.DiscardHandler), meter: metrics.New(metrics.Config{}),
		inspector: passes, activity: startReports(t, stateMap{}, t.TempDir()).activities, work: make(chan object.Report, 1)}
	for run := range 3 {
		found, err := l.run(t.Context())
		if err != nil || len(found) != 2 {
			t.Errorf("run %d: %v, %v", run, found, err)
		}
	}
	if passes.passes != 1 {
		t.Errorf("%d passes", passes.passes)
	}
}

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

	l := &leftovers{log: slog.New(slog.DiscardHandler), meter: metrics.New(metrics.Config{})}
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
