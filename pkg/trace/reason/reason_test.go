package reason

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/test/trace/texts"
)

var start = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

const promised = time.Minute

func at(seconds float64) record.Mark {
	moment := start.Add(time.Duration(seconds * float64(time.Second)))
	return record.Mark{Source: record.Own, Arrival: moment}
}

type play func(*record.Timeline)

func mark(p record.Point, seconds float64) play {
	return func(t *record.Timeline) { t.Set(p, at(seconds)) }
}

func report(from, text, container string, seconds float64) play {
	return func(t *record.Timeline) {
		t.AddError(record.Error{Mark: at(seconds), From: from, Text: text, Container: container})
	}
}

func container(change func(*record.Container)) play {
	return func(t *record.Timeline) { change(t.Container("c")) }
}

// bound has finished all stages up to the sandbox.
func bound(t *record.Timeline) {
	for p, s := range map[record.Point]float64{record.Scheduled: 1, record.KubeletSaw: 2} {
		t.Set(p, at(s))
	}
}

// started is a pod with a running container.
func started(t *record.Timeline) {
	bound(t)
	for p, s := range map[record.Point]float64{record.SandboxReady: 3, record.Initialized: 3, record.Running: 5} {
		t.Set(p, at(s))
	}
	t.Container("c").Started = at(5)
	t.Container("c").Shown = at(5.1)
}

func pulled(from, to float64) play {
	return func(t *record.Timeline) {
		p := t.PullOf(&record.Container{Name: "c", Image: "a:1"})
		p.Began = at(from)
		if to > 0 {
			p.Ended = at(to)
		}
	}
}

func creation(plays ...play) *record.Timeline {
	t := &record.Timeline{Act: record.Creation, UID: "u", Namespace: "default", Name: "a", Node: "n", RestartAlways: true,
		Containers: []record.Container{{Name: "c", Image: "a:1"}}}
	t.Set(record.Created, at(0))
	for _, p := range plays {
		p(t)
	}
	return t
}

func deletion(plays ...play) *record.Timeline {
	t := creation(plays...)
	t.Act = record.Deletion
	t.Set(record.DeleteRequested, at(0))
	t.Grace = 10 * time.Second
	return t
}

func upgrade(plays ...play) *record.Timeline {
	t := creation(plays...)
	t.Act = record.Upgrade
	t.Set(record.ChangeAccepted, at(0))
	t.Set(record.ChangeNoticed, at(1))
	return t
}

func refusal(plays ...play) *record.Timeline {
	t := creation(plays...)
	t.Act = record.Refusal
	t.Set(record.Refused, at(0))
	return t
}

func choose(t *record.Timeline) Result {
	return Overrides(nil).Choose(t, start.Add(promised), promised)
}

// Each example yields its reason while its stage is open, alone and after an error of another stage; once the stage has
// ended, it does not.
func TestTexts(t *testing.T) {
	for _, e := range texts.All(t) {
		row, ok := Match(e.From, e.Text)
		if !ok || string(row.Reason) != e.Reason {
			t.Errorf("%s: %q is matched by %q", e.Reason, e.Text, row.Reason)
			continue
		}
		t.Run(e.Reason+" "+e.Text, func(t *testing.T) {
			make := creation
			switch {
			case row.Stage == stage.Admit:
				make = refusal
			case row.Stage[0] == 'd':
				make = deletion
			case row.Stage[0] == 'u':
				make = upgrade
			}
			if got := choose(make(bound, report(e.From, e.Text, "c", 5))); got.Reason != row.Reason {
				t.Errorf("alone: %+v", got)
			}
			late := make(bound, report("FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.", "", 0.5), report(e.From, e.Text, "c", 59))
			if got := choose(late); got.Reason != row.Reason && row.Stage != stage.Schedule {
				t.Errorf("after another error: %+v", got)
			}
			if after := choose(make(bound, report(e.From, e.Text, "c", 60.5))); after.Reason == row.Reason && row.Reason != "SandboxFailed" && row.Reason != "CreateFailed" {
				t.Errorf("after the deadline: %+v", after)
			}
			if row.Stage == stage.Admit || row.Stage == stage.AdmitOnNode || row.Stage[0] != 'c' {
				return // it is final, or of another act
			}
			overcome := creation(started, report(e.From, e.Text, "c", 2), report(e.From, e.Text, "c", 2.5), mark(record.ContainersReady, 20))
			overcome.ReadinessGates = []string{"lb.example/ready"}
			if got := choose(overcome); got.Reason != "ReadinessGateWaiting" || got.Detail != "lb.example/ready" {
				t.Errorf("overcome: %+v", got)
			}
			inTime := creation(started, report(e.From, e.Text, "c", 2))
			if got := choose(inTime); got.Reason != "ReadinessSlow" && row.Stage <= stage.Start {
				t.Errorf("overcome by the start: %+v", got)
			}
		})
	}
}

// Each row of the table has an example that no earlier row matches, and a reason with a description.
func TestTextsHaveExamples(t *testing.T) {
	matches := func(row Text) bool {
		return slices.ContainsFunc(texts.All(t), func(e texts.Example) bool {
			got, ok := Match(e.From, e.Text)
			return ok && reflect.DeepEqual(got, row)
		})
	}
	for _, row := range Texts() {
		if !matches(row) {
			t.Errorf("%s, %s: no example", row.Reason, row.Stage)
		}
		if Describe(row.Reason).Advice == "" {
			t.Errorf("%s is not described", row.Reason)
		}
	}
}

func TestRules(t *testing.T) {
	insufficient := report("FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.", "", 1)
	taint := report("FailedScheduling", "0/1 nodes are available: 1 node(s) had untolerated taint(s).", "", 1)
	cordoned := report("FailedScheduling", "0/1 nodes are available: 1 node(s) were unschedulable.", "", 1)
	cordonedAndOthers := report("FailedScheduling",
		"0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector.", "", 1)
	around := func(change func(*record.Surroundings)) play { return func(t *record.Timeline) { change(&t.Around) } }
	tests := map[string]struct {
		timeline *record.Timeline
		want     Reason
		class    Class
	}{
		"no result":             {creation(), "SchedulerSlow", System},
		"no result, stale":      {creation(around(func(s *record.Surroundings) { s.SchedulerStale = true })), "SchedulerDown", System},
		"nominated":             {creation(mark(record.Nominated, 3), around(func(s *record.Surroundings) { s.VictimsPresent = true })), "PreemptionWait", System},
		"gated":                 {creation(func(t *record.Timeline) { t.Gated = true }), "SchedulingGated", User},
		"too large":             {creation(insufficient, around(func(s *record.Surroundings) { s.ExceedsNodes = true })), "ImpossibleRequest", User},
		"full":                  {creation(insufficient), "CapacityExhausted", System},
		"tainted by a fault":    {creation(taint, around(func(s *record.Surroundings) { s.FaultTaints = true })), "NodesTaintedByFaults", System},
		"cordoned":              {creation(cordoned), "NodesTaintedByFaults", System},
		"cordoned, and others":  {creation(cordonedAndOthers), "UnschedulableConstraints", User},
		"tainted":               {creation(taint), "UnschedulableConstraints", User},
		"kubelet":               {creation(mark(record.Scheduled, 1)), "KubeletSlow", System},
		"kubelet's node lost":   {creation(mark(record.Scheduled, 1), around(func(s *record.Surroundings) { s.NodeLost = true })), "NodeLost", System},
		"lost while it started": {creation(bound, around(func(s *record.Surroundings) { s.NodeLost = true })), "NodeLost", System},
		"sandbox":               {creation(bound), "SandboxFailed", System},
		"volumes":               {creation(bound, func(t *record.Timeline) { t.Volumes = true }), "MountSlow", System},
		"pull is open":          {creation(bound, mark(record.SandboxReady, 3), mark(record.Initialized, 3), pulled(4, 0)), "ImagePullCostTime", System},
		"pull took it":          {creation(started, pulled(4, 50), mark(record.ContainersReady, 70), mark(record.Ready, 70)), "ImagePullCostTime", System},
		"late without the pull": {creation(started, pulled(4, 20), container(func(c *record.Container) { c.Started = at(21) }),
			mark(record.ContainersReady, 100), mark(record.Ready, 100)), "StageSlow", User},
		"pull queued": {creation(bound, mark(record.SandboxReady, 3), mark(record.Initialized, 3), pulled(4, 59),
			func(t *record.Timeline) { t.Pulls[0].Took, t.Pulls[0].Waited = 5*time.Second, 50*time.Second },
			container(func(c *record.Container) { c.Started = at(59.5) }), mark(record.ContainersReady, 61), mark(record.Ready, 61)), "ImagePullQueued", System},
		"no start": {creation(bound, mark(record.SandboxReady, 3), mark(record.Initialized, 3), pulled(4, 6)), "RuntimeError", System},
		"init runs": {creation(bound, mark(record.SandboxReady, 3), container(func(c *record.Container) {
			c.Init, c.Started = true, at(5)
		})), "InitSlow", User},
		"init failed": {creation(bound, mark(record.SandboxReady, 3), container(func(c *record.Container) {
			c.Init, c.Started, c.Exited, c.ExitCode = true, at(5), at(9), 1
		})), "InitFailed", User},
		"init failed, then did not": {creation(started, mark(record.Initialized, 10), func(t *record.Timeline) {
			t.Containers = append(t.Containers, record.Container{Name: "i", Init: true, Started: at(3), Exited: at(4), ExitCode: 1})
		}), "ReadinessSlow", User},
		"crash": {creation(started, container(func(c *record.Container) { c.Exited, c.ExitCode = at(6), 2 })), "CrashLoopBackOff", User},
		"the hook failed, and kubelet ended the container": {creation(started, report("FailedPostStartHook", "", "c", 5.5),
			container(func(c *record.Container) { c.Exited, c.ExitCode = at(6), 137 }),
			report("CrashLoopBackOff", "back-off 10s restarting failed container=c", "c", 7)), "PostStartFailed", User},
		"crash, then ready": {creation(started, container(func(c *record.Container) { c.Exited, c.ExitCode, c.Ready = at(6), 2, true }),
			mark(record.ContainersReady, 20), func(t *record.Timeline) { t.ReadinessGates = []string{"g"} }), "ReadinessGateWaiting", System},
		"oom by limit": {creation(started, container(func(c *record.Container) {
			c.Exited, c.ExitReason, c.MemLimit = at(6), "OOMKilled", true
		})), "OOMKilledByLimit", User},
		"oom by node":            {creation(started, container(func(c *record.Container) { c.Exited, c.ExitReason = at(6), "OOMKilled" })), "OOMKilledByNode", System},
		"probe":                  {creation(started, container(func(c *record.Container) { c.Unhealthy = true })), "ProbeFailing", User},
		"not ready":              {creation(started), "ReadinessSlow", User},
		"taint":                  {creation(started, func(t *record.Timeline) { t.Disruption = "DeletionByTaintManager" }), "EvictedByTaint", System},
		"preempted":              {creation(started, func(t *record.Timeline) { t.Disruption = "PreemptionByScheduler" }), "Preempted", System},
		"drained":                {creation(bound, func(t *record.Timeline) { t.Disruption = "EvictionByEvictionAPI" }), "EvictedByApi", System},
		"not stopped":            {deletion(), "StopNotNoticed", System},
		"unkillable":             {deletion(mark(record.KillNoticed, 1)), "ContainerUnkillable", System},
		"not gone":               {deletion(mark(record.KillNoticed, 1), mark(record.ContainersEnded, 5)), "GoneNotReported", System},
		"finalizer":              {deletion(mark(record.KillNoticed, 1), mark(record.ContainersEnded, 5), func(t *record.Timeline) { t.Finalizers = []string{"x/y"} }), "FinalizerHeld", System},
		"deleted on a lost node": {deletion(around(func(s *record.Surroundings) { s.NodeLost = true })), "NodeLost", System},
		"slow schedule": {creation(mark(record.Scheduled, 55), mark(record.KubeletSaw, 56), mark(record.SandboxReady, 57), mark(record.Initialized, 57),
			container(func(c *record.Container) { c.Started = at(58) }), mark(record.ContainersReady, 59.5), mark(record.Ready, 61)), "StageSlow", System},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := choose(tt.timeline); got.Reason != tt.want || got.Class != tt.class {
				t.Errorf("%+v, want %s, %s", got, tt.want, tt.class)
			}
		})
	}
}

// A pod ready in time by its node's clock, even if five minutes ahead, but shown late: the control plane.
func TestControlPlaneSlow(t *testing.T) {
	for _, ahead := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute} {
		ready := record.Mark{Time: start.Add(40*time.Second + ahead), Source: record.Node, Arrival: start.Add(75 * time.Second)}
		timeline := creation(started, func(t *record.Timeline) {
			t.Set(record.Ready, ready)
			t.Set(record.ContainersReady, ready)
			t.Skews = map[record.Clock]time.Duration{record.Node: -ahead}
		})
		if got := choose(timeline); got.Reason != "ControlPlaneSlow" {
			t.Errorf("ahead %v: %+v", ahead, got)
		}
		timeline.Skews = nil // without a measured offset, the times are no proof
		if got := choose(timeline); got.Reason == "ControlPlaneSlow" {
			t.Errorf("ahead %v, not measured: %+v", ahead, got)
		}
	}
}

func TestUnknownText(t *testing.T) {
	got := choose(creation(bound, report("FailedSomethingNew", "a text that is new", "", 5)))
	if got.Reason != "SandboxFailed" || got.Stage != stage.Sandbox {
		t.Errorf("%+v: an unknown text must leave the reason to the stage", got)
	}
}
