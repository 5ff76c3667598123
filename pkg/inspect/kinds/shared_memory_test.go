package kinds_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Shared memory is a leftover of the pod whose process created it, if a pass has seen that process; also after a
// restart of the agent. Segments of a living pod, of no pod, and with an unseen creator are not reported.
func TestSharedMemory(t *testing.T) {
	n := newNode(t)
	n.Add(dead, "job")
	cgroup := func(uid string) []string {
		return n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/burstable/pod" + uid)
	}
	names := map[string]string{}
	alive, _ := hosttest.SharedMemory(t, cgroup(living)...)
	ours, end := hosttest.SharedMemory(t, cgroup(dead)...)
	admin, _ := hosttest.SharedMemory(t)
	unseen, endUnseen := hosttest.SharedMemory(t, cgroup(dead)...)
	names[alive], names[ours], names[admin], names[unseen] = "living", "dead", "admin", "unseen"
	endUnseen()
	check := func(report object.Report, want object.Verdict) {
		t.Helper()
		got := map[string]object.Verdict{}
		for _, o := range report.Objects {
			if name := names[o.ID]; o.Kind == object.SharedMemory && name != "" {
				got[name] = o.Verdict
			}
		}
		if diff := cmp.Diff(map[string]object.Verdict{"living": object.Live, "dead": want, "admin": object.Foreign,
			"unseen": object.Foreign}, got); diff != "" {
			t.Error(diff, inspecttest.Whys(report, dead))
		}
	}
	i := n.inspector()
	report, history := passes(t, n, i, nil, 1, time.Minute)
	check(report, object.Live)
	end()
	n.Remove(dead)
	report, history = passes(t, n, i, history, 3, 4*time.Minute)
	check(report, object.Candidate)
	report, history = passes(t, n, n.inspector(), history, 1, 4*time.Minute) // started again
	check(report, object.Leftover)
	last := n.inspector()
	_, history = passes(t, n, last, history, 1, 2*time.Hour)
	later, _ := passes(t, n, last, history, 3, 10*time.Minute)
	for id, want := range map[string]object.Verdict{unseen: object.Unowned, admin: object.Foreign, alive: object.Live} {
		if o := one(t, later, object.SharedMemory, id); o.Verdict != want {
			t.Errorf("%s: %s: %s", names[id], o.Verdict, o.Why)
		}
	}
	if o := one(t, report, object.SharedMemory, ours); o.Facts["bytes"] != "4096" || o.Facts["size"] != "8192" ||
		o.Pod.UID != dead {
		t.Errorf("%+v", o)
	}
}
