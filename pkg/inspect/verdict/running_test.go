package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// The missing conditions of a running pod, one at a time.
func TestRunningPodRules(t *testing.T) {
	answer := func(bend func(*object.NameAnswer)) object.NameAnswer {
		a := object.NameAnswer{At: inspecttest.At(55 * time.Minute), Gone: true, Why: "nobody"}
		bend(&a)
		return a
	}
	for name, test := range map[string]struct {
		denials []time.Duration
		named   object.NameAnswer
		want    string
	}{
		"proven": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(*object.NameAnswer) {}),
			""},
		"never denied": {nil, answer(func(*object.NameAnswer) {}), "must deny it twice"},
		"denied once": {[]time.Duration{40 * time.Minute}, answer(func(*object.NameAnswer) {}),
			"must deny it twice"},
		"denied twice, too soon": {[]time.Duration{40*time.Minute + 1, 50 * time.Minute},
			answer(func(*object.NameAnswer) {}),
			"must deny it twice"},
		"not asked by name": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, object.NameAnswer{},
			"was not asked for it by name yet"},
		"asked long ago": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *object.NameAnswer) {
			a.At = inspecttest.At(50 * time.Minute)
		}), "by name recently"},
		"asked in an old boot": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *object.NameAnswer) {
			a.At.Boot = "boot-0"
		}), "by name recently"},
		"asked, proved nothing": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *object.NameAnswer) {
			a.Gone = false
		}), "proved nothing: nobody"},
		"asked in the future": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *object.NameAnswer) {
			a.At = inspecttest.At(2 * time.Hour)
		}), "by name recently"},
		"asked, and it was alive": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *object.NameAnswer) {
			a.Gone, a.Alive = false, true
		}), "has its"},
	} {
		t.Run(name, func(t *testing.T) {
			o := inspecttest.Object(object.Cgroup, dead)
			inventory, history := inspecttest.Healthy(), seenLong(o)
			inventory.Runtime.Running = map[string]bool{dead: true}
			inventory.Runtime.Pods[dead] = witness.SandboxFact{Pod: object.Pod{UID: dead, Namespace: "default", Name: "x"},
				State: "READY"}
			s := object.Sighting{First: inspecttest.At(30 * time.Minute), Last: inspecttest.At(50 * time.Minute),
				Passes: 5, Named: test.named}
			for _, d := range test.denials {
				s.Denials = append(s.Denials, inspecttest.At(d))
			}
			history[object.PodKey(dead)] = s
			inventory.Cluster.At = inspecttest.At(50 * time.Minute) // the list of the last denial
			if len(test.denials) < 2 {
				inventory.Cluster.At = inspecttest.At(40 * time.Minute)
			}
			if test.denials == nil {
				inventory.Cluster.At = inspecttest.At(30 * time.Minute)
			}
			history[object.Key(&o)] = object.Sighting{
				Identity: o.Identity, First: inspecttest.At(30 * time.Minute), Last: inspecttest.At(50 * time.Minute),
				Passes:  5,
				Denials: []finding.Timestamp{inspecttest.At(31 * time.Minute), inspecttest.At(40 * time.Minute)},
			}
			report, _ := Evaluate([]object.Object{o}, inventory, history, inspecttest.Settings(), inspecttest.Hour)
			got := report.Objects[0]
			switch {
			case test.want == "" && got.Verdict != object.Leftover:
				t.Errorf("%s: %s", got.Verdict, got.Why)
			case test.named.Alive && got.Verdict != object.Live:
				t.Errorf("%s: %s", got.Verdict, got.Why)
			case test.want != "" && !test.named.Alive &&
				(got.Verdict != object.Candidate || !strings.Contains(got.Why, test.want)):
				t.Errorf("%s: %s", got.Verdict, got.Why)
			}
			if !got.Running {
				t.Error("is not marked as running")
			}
		})
	}
}

// Of several proven pods the first denied one is chosen, and of those denied at once the one with the lower UID.
func TestFirstDeniedIsFirst(t *testing.T) {
	denied := func(d time.Duration) *runningPod {
		return &runningPod{Sighting: object.Sighting{Denials: []finding.Timestamp{inspecttest.At(d)}}}
	}
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c", "a"}} {
		j := evaluation{pods: map[string]*runningPod{"a": denied(2 * time.Minute), "b": denied(time.Minute),
			"c": denied(time.Minute)}}
		var objects []object.Assessment
		for _, uid := range order {
			objects = append(objects, object.Assessment{Object: inspecttest.Object(object.Process, uid),
				Verdict: object.Leftover, Running: true})
		}
		objects = append(objects, object.Assessment{Object: inspecttest.Object(object.Process, "d"),
			Verdict: object.Leftover})
		j.onlyOneRuns(objects)
		for _, o := range objects {
			if want := map[string]object.Verdict{"a": object.Candidate, "b": object.Leftover, "c": object.Candidate,
				"d": object.Leftover}[o.Pod.UID]; o.Verdict != want {
				t.Errorf("%v: %s is %s", order, o.Pod.UID, o.Verdict)
			}
		}
	}
}
