package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

func assessed(kind inspect.Kind, uid string, verdict inspect.Verdict) inspect.Assessment {
	return inspect.Assessment{Object: inspect.Object{Kind: kind, ID: uid, Pod: inspect.Pod{UID: uid}}, Verdict: verdict}
}

// A pod counts once as ended, and once as having left objects behind, if its end was observed.
func TestDeletions(t *testing.T) {
	var d deletions
	failed := inspect.Report{Errors: []inspect.Failure{{What: "kubelet", Error: "refused"}}}
	for i, pass := range []struct {
		report      inspect.Report
		ended, left int
	}{
		{inspect.Report{Objects: []inspect.Assessment{assessed(inspect.Mount, "a", inspect.Live),
			assessed(inspect.Mount, "b", inspect.Live), assessed(inspect.PodLogs, "c", inspect.Live),
			assessed(inspect.Mount, "before", inspect.Leftover)}}, 0, 0},
		{failed, 0, 0},
		{inspect.Report{Objects: []inspect.Assessment{assessed(inspect.Mount, "b", inspect.Candidate),
			assessed(inspect.PodLogs, "c", inspect.Candidate)}}, 3, 0},
		{inspect.Report{Objects: []inspect.Assessment{assessed(inspect.Mount, "b", inspect.Leftover),
			assessed(inspect.Cgroup, "b", inspect.Leftover), assessed(inspect.PodLogs, "c", inspect.Leftover)}}, 0, 1},
		{inspect.Report{Objects: []inspect.Assessment{assessed(inspect.Mount, "b", inspect.Leftover),
			assessed(inspect.PodLogs, "c", inspect.Leftover)}}, 0, 0},
	} {
		if ended, left := d.observe(pass.report, passError(pass.report) == nil); ended != pass.ended || left != pass.left {
			t.Errorf("pass %d: %d ended, %d left something", i, ended, left)
		}
	}
}

func TestMeasure(t *testing.T) {
	now := hosttest.Now()
	old := assessed(inspect.Mount, "a", inspect.Leftover)
	old.FirstSeen = finding.Timestamp{Wall: now.Wall, Boot: now.Boot, SinceBoot: now.SinceBoot - time.Hour}
	old.Facts = map[string]string{"bytes": "12"}
	young := assessed(inspect.Mount, "b", inspect.Unowned)
	young.FirstSeen, young.Facts = now, map[string]string{"bytes": "many"}
	candidate := assessed(inspect.Cgroup, "c", inspect.Candidate)
	want := metrics.Inspection{Complete: true, Oldest: map[string]time.Duration{"mount": time.Hour},
		Bytes: map[string]uint64{"mount": 12}}
	report := inspect.Report{Objects: []inspect.Assessment{old, young, candidate}}
	if diff := cmp.Diff(want, measure(report, true, now)); diff != "" {
		t.Error(diff)
	}
	report.Objects[2].Verdict = inspect.Unknown
	if passError(report) == nil {
		t.Error("complete although something is unknown")
	}
}
