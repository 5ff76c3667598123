// Package stage divides an act of a pod into stages, each with an owner. It is pure: its input is a timeline.
package stage

import (
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

// ID names a stage: c for creation, d for deletion, u for an upgrade in place. Higher is deeper.
type ID string

// The stages. c1, c5, c16 and c17 have reasons; their durations need evidence beyond the watch. c9, d3 and d4 are known from
// the agent's evidence only.
const (
	Admit, Gated, Provision, Schedule, Preempt     ID = "c01", "c02", "c03", "c04", "c05"
	Notice, AdmitOnNode, Attach, Mount, Sandbox    ID = "c06", "c07", "c08", "c09", "c10"
	Pull, Init, Start, PostStart, BecomeReady      ID = "c11", "c12", "c13", "c14", "c15"
	ReadinessGate, Reported                        ID = "c16", "c17"
	Noticed, Stop, StopSandbox, Unmount            ID = "d1", "d2", "d3", "d4"
	Finalizers, Disappear                          ID = "d5", "d6"
	Accepted, ChangeSeen, NewPull, OldStop, NewRun ID = "u1", "u2", "u3", "u4", "u5"
	ReadyAgain                                     ID = "u6"
)

// Info describes a stage. The owner "user" is the pod's user.
type Info struct{ Name, Owner string }

// Describe returns the description of a stage.
func Describe(id ID) Info {
	return map[ID]Info{
		Admit: {"admit", "apiserver, webhooks"}, Gated: {"gated", "user"},
		Provision: {"provision volume", "storage"}, Schedule: {"queue and schedule", "scheduler"},
		Preempt: {"preempt", "scheduler"}, Notice: {"kubelet notices", "kubelet"},
		AdmitOnNode: {"admit on node", "kubelet"}, Attach: {"attach", "storage (controller-manager)"},
		Mount: {"mount", "storage (kubelet, CSI)"}, Sandbox: {"mount and sandbox", "storage, runtime, CNI"},
		Pull: {"pull", "image"}, Init: {"init", "user"}, Start: {"create and start", "runtime"},
		PostStart: {"PostStart", "user"}, BecomeReady: {"become ready", "user"},
		ReadinessGate: {"readiness gates", "the writer of the gate"}, Reported: {"reported", "kubelet, apiserver"},
		Noticed: {"noticed", "apiserver, kubelet"}, Stop: {"stop", "user"},
		StopSandbox: {"sandbox", "runtime, CNI"}, Unmount: {"unmount, cgroup", "storage, kubelet"},
		Finalizers: {"finalizers", "owner of the finalizer"}, Disappear: {"gone", "kubelet, apiserver"},
		Accepted: {"accepted", "apiserver"}, ChangeSeen: {"noticed", "kubelet"},
		NewPull: {"pull", "image"}, OldStop: {"stop", "user"}, NewRun: {"create and start", "runtime"},
		ReadyAgain: {"become ready", "user"},
	}[id]
}

// In returns the description of a stage of an act: with the agent's marks, mount and sandbox are two stages.
func In(t *record.Timeline, id ID) Info {
	if id == Sandbox && t.At(record.Mounted).Known() {
		return Info{"sandbox and network", "runtime, CNI"}
	}
	return Describe(id)
}

// Stage is a stage of an act; all of them have begun.
type Stage struct {
	ID    ID
	Start record.Mark
	End   record.Mark // unknown while it is open
	Spent record.Span // until the end, or until now; overlapping intervals are united
}

// Open reports whether the stage has not ended.
func (s Stage) Open() bool { return !s.End.Known() }

// Of returns the stages of an act that have begun, in order; open ones last until now.
func Of(t *record.Timeline, now time.Time) []Stage {
	b := builder{Timeline: t, now: now}
	switch t.Act {
	case record.Creation:
		b.creation()
	case record.Deletion:
		b.deletion()
	case record.Upgrade:
		b.upgrade()
	case record.Refusal:
		b.interval(Admit, t.At(record.Refused), t.At(record.Admitted))
	}
	return b.stages
}

type builder struct {
	*record.Timeline
	now    time.Time
	stages []Stage
}

// interval adds a stage between two marks; none if it has not begun.
func (b *builder) interval(id ID, start, end record.Mark) {
	if start.Known() {
		b.stages = append(b.stages, Stage{id, start, end, b.spent(start, end)})
	}
}

func (b *builder) spent(start, end record.Mark) record.Span {
	if end.Known() {
		return b.Between(start, end)
	}
	return b.Passed(start, b.now)
}

func (b *builder) creation() {
	created, scheduled, kubelet, ready := b.At(record.Created), b.At(record.Scheduled), b.At(record.KubeletSaw), b.At(record.Ready)
	if b.Gated {
		b.interval(Gated, created, first(b.At(record.Ungated), scheduled))
		created = b.At(record.Ungated)
	}
	b.interval(Schedule, first(created, scheduled), scheduled)
	b.interval(Notice, scheduled, kubelet)
	// kubelet's first status ends the admission too, unless it has refused the pod.
	b.interval(AdmitOnNode, b.At(record.Failed), b.At(record.Failed))
	if b.At(record.Attached).Known() {
		b.interval(Attach, scheduled, b.At(record.Attached))
	}
	// The sandbox ends at the condition, or at the first sign of a step that needs it: the condition may arrive together with
	// that sign, and some runtime classes and kubelet versions lack it.
	sandbox, running, allRun := b.At(record.SandboxReady), record.Mark{}, true
	for _, p := range b.Pulls {
		sandbox = first(sandbox, p.Began)
	}
	for _, c := range b.Containers {
		sandbox = first(sandbox, first(c.Imaged, c.Started))
		if allRun = allRun && (c.Init || c.Started.Known()); !c.Init && c.Started.Arrival.After(running.Arrival) {
			running = c.Started
		}
	}
	sandbox = first(sandbox, ready)
	switch mounted := b.At(record.Mounted); {
	case mounted.Known():
		b.interval(Mount, kubelet, mounted)
		b.interval(Sandbox, mounted, sandbox)
	case !sandbox.Known() && b.Says.Fresh(b.now) && b.Says.Stage == "volumes":
		b.interval(Mount, kubelet, sandbox)
	default:
		b.interval(Sandbox, kubelet, sandbox)
	}
	b.containers()
	if allRun {
		b.interval(BecomeReady, running, first(b.At(record.ContainersReady), ready))
	}
	if len(b.ReadinessGates) > 0 {
		b.interval(ReadinessGate, b.At(record.ContainersReady), ready)
	}
}

// containers adds pull, init, start and PostStart.
func (b *builder) containers() {
	t := b.Timeline
	var hooks, starts [][2]record.Mark
	initBegan, usable := record.Mark{}, t.At(record.SandboxReady)
	for i, c := range t.Containers {
		if c.Init {
			initBegan = first(initBegan, c.Started)
		}
		if c.Hook && c.Started.Known() { // until the next container starts, for which kubelet waits, or a status shows this one running
			end := c.Shown
			for _, next := range t.Containers[i+1:] {
				if !next.Init {
					end = first(end, next.Started)
				}
			}
			hooks = append(hooks, [2]record.Mark{c.Started, end})
		}
		switch p := t.FirstPull(c.Name); {
		case p != nil && pullEnd(t, p).Known():
			starts = append(starts, [2]record.Mark{pullEnd(t, p), c.Started})
		case p != nil:
		case c.Imaged.Known():
			starts = append(starts, [2]record.Mark{c.Imaged, c.Started})
		case !c.Init && usable.Known() && t.At(record.Initialized).Known():
			starts = append(starts, [2]record.Mark{usable, c.Started})
		}
	}
	b.united(Pull, pulls(t))
	b.interval(Init, initBegan, t.At(record.Initialized))
	b.united(Start, starts)
	b.united(PostStart, hooks)
}

// pulls returns the intervals of pulls that have begun.
func pulls(t *record.Timeline) (all [][2]record.Mark) {
	for i := range t.Pulls {
		if p := &t.Pulls[i]; p.Began.Known() {
			all = append(all, [2]record.Mark{p.Began, pullEnd(t, p)})
		}
	}
	return all
}

// pullEnd is the Event's time, or the first sign that the container continues without it. For an upgrade, the known
// start is the previous one.
func pullEnd(t *record.Timeline, p *record.Pull) record.Mark {
	c := t.Container(p.Container)
	switch {
	case p.Ended.Known():
		return p.Ended
	case c == nil || t.InPlace():
		return t.At(record.NewStarted)
	}
	return first(c.Imaged, c.Started)
}

func (b *builder) deletion() {
	t := b.Timeline
	requested, ended := t.At(record.DeleteRequested), t.At(record.ContainersEnded)
	noticed := first(t.At(record.KillNoticed), first(ended, t.At(record.Gone)))
	if t.Node != "" {
		b.interval(Noticed, requested, noticed)
		b.interval(Stop, noticed, first(ended, t.At(record.Gone)))
	}
	after := ended
	if t.Node == "" {
		after = requested
	}
	if stopped := t.At(record.SandboxStopped); stopped.Known() {
		b.interval(StopSandbox, after, stopped)
		after = stopped
		left := t.Says.Fresh(b.now) && t.Says.Stage != "finalizers" && t.Says.Stage != "release"
		if unmounted := t.At(record.Unmounted); unmounted.Known() || left {
			after = first(unmounted, t.At(record.Gone))
			b.interval(Unmount, stopped, after)
		}
	} else if t.Says.Fresh(b.now) && t.Says.Stage == "sandbox" {
		b.interval(StopSandbox, after, t.At(record.Gone))
		after = t.At(record.Gone)
	}
	if len(t.Finalizers) > 0 || t.At(record.FinalizersGone).Known() {
		b.interval(Finalizers, after, t.At(record.FinalizersGone))
		after = t.At(record.FinalizersGone)
	}
	b.interval(Disappear, after, t.At(record.Gone))
}

func (b *builder) upgrade() {
	t := b.Timeline
	accepted, noticed := t.At(record.ChangeAccepted), t.At(record.ChangeNoticed)
	if t.Replaces != "" { // the end of the old pod, and the creation of the new one
		old := t.At(record.OldEnded)
		b.interval(ChangeSeen, accepted, first(noticed, first(old, t.At(record.Created))))
		b.interval(OldStop, noticed, old)
		b.interval(Disappear, old, t.At(record.Created))
		b.creation()
		return
	}
	b.interval(ChangeSeen, accepted, noticed)
	all := pulls(t)
	b.united(NewPull, all)
	b.interval(OldStop, noticed, t.At(record.OldEnded))
	if !slices.ContainsFunc(all, func(p [2]record.Mark) bool { return !p[1].Known() }) {
		b.interval(NewRun, t.At(record.OldEnded), t.At(record.NewStarted))
	}
	b.interval(ReadyAgain, t.At(record.NewStarted), t.At(record.ReadyAgain))
}

// united adds a stage with several intervals: from the first start to the last end, with the time of their union.
func (b *builder) united(id ID, intervals [][2]record.Mark) {
	if len(intervals) == 0 {
		return
	}
	slices.SortFunc(intervals, func(x, y [2]record.Mark) int { return x[0].Arrival.Compare(y[0].Arrival) })
	runs := intervals[:1] // without overlaps
	for _, next := range intervals[1:] {
		if run := &runs[len(runs)-1]; !run[1].Known() || !next[0].Arrival.After(run[1].Arrival) {
			run[1] = last(run[1], next[1])
			continue
		}
		runs = append(runs, next)
	}
	s := Stage{ID: id, Start: runs[0][0], End: runs[len(runs)-1][1]}
	for _, run := range runs {
		spent := b.spent(run[0], run[1])
		s.Spent.Low, s.Spent.High = s.Spent.Low+spent.Low, s.Spent.High+spent.High
	}
	b.stages = append(b.stages, s)
}

// first returns the earlier of two marks, ignoring unknown ones.
func first(a, b record.Mark) record.Mark {
	if !a.Known() || b.Known() && b.Arrival.Before(a.Arrival) {
		return b
	}
	return a
}

// last returns the later of two ends: an unknown end is later than any.
func last(a, b record.Mark) record.Mark {
	if first(a, b) == a {
		return b
	}
	return a
}

// OfWaiting returns the latest stage that a waiting container proves to have begun, by kubelet's reason; empty if it
// proves none. Kubelet reaches each of them after the sandbox.
func OfWaiting(reason string) ID {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable",
		"SignatureValidationFailed":
		return Pull
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError":
		return Start
	case "PostStartHookError", "CrashLoopBackOff":
		return PostStart
	}
	return ""
}
