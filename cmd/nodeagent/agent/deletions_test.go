package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

func assessed(kind object.Kind, uid string, verdict object.Verdict) object.Assessment {
	return object.Assessment{Object: object.Object{Kind: kind, ID: uid, Pod: object.Pod{UID: uid}}, Verdict: verdict}
}

// A pod counts once as ended, and once as having left objects behind, if its end was observed.
func TestDeletions(t *testing.T) {
	var d deletions
	failed := object.Report{Errors: []object.Failure{{What: "kubelet", Error: "refused"}}}
	for i, pass := range []struct {
		report      object.Report
		ended, left int
	}{
		{object.Report{Objects: []object.Assessment{assessed(object.Mount, "a", object.Live),
			assessed(object.Mount, "b", object.Live), assessed(object.PodLogs, "c", object.Live),
			assessed(object.Mount, "before", object.Leftover)}}, 0, 0},
		{failed, 0, 0},
		{object.Report{Objects: []object.Assessment{assessed(object.Mount, "b", object.Candidate),
			assessed(object.PodLogs, "c", object.Candidate)}}, 3, 0},
		{object.Report{Objects: []object.Assessment{assessed(object.Mount, "b", object.Leftover),
			assessed(object.Cgroup, "b", object.Leftover), assessed(object.PodLogs, "c", object.Leftover)}}, 0, 1},
		{object.Report{Objects: []object.Assessment{assessed(object.Mount, "b", object.Leftover),
			assessed(object.PodLogs, "c", object.Leftover)}}, 0, 0},
	} {
		if ended, left := d.observe(pass.report, passError(pass.report) == nil); ended != pass.ended || left != pass.left {
			t.Errorf("pass %d: %d ended, %d left something", i, ended, left)
		}
	}
}

func TestMeasure(t *testing.T) {
	now := hosttest.Now()
	old := assessed(object.Mount, "a", object.Leftover)
	old.FirstSeen = finding.Timestamp{Wall: now.Wall, Boot: now.Boot, SinceBoot: now.SinceBoot - time.Hour}
	old.Facts = map[string]string{"bytes": "12"}
	young := assessed(object.Mount, "b", object.Unowned)
	young.FirstSeen, young.Facts = now, map[string]string{"bytes": "many"}
	candidate := assessed(object.Cgroup, "c", object.Candidate)
	want := metrics.Inspection{Complete: true, Oldest: map[string]time.Duration{"mount": time.Hour},
		Bytes: map[string]uint64{"mount": 12}}
	report := object.Report{Objects: []object.Assessment{old, young, candidate}}
	if diff := cmp.Diff(want, measure(report, true, now)); diff != "" {
		t.Error(diff)
	}
	report.Objects[2].Verdict = object.Unknown
	if passError(report) == nil {
		t.Error("complete although something is unknown")
	}
}
