package reason

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// Result is the reason of a miss.
type Result struct {
	Reason Reason
	Class  Class
	Stage  stage.ID // the one that took the time
	Detail string   // the text or name that decided
	Others []Reason // other reasons found
}

// candidate is an error still in effect.
type candidate struct {
	reason Reason
	stage  stage.ID
	at     time.Time
	detail string
}

// Choose finds the reason of a miss at its deadline: an error that was not overcome, the open stage, or the stage that
// took the time, in this order. promised is the act's promised time.
func (o Overrides) Choose(t *record.Timeline, deadline time.Time, promised time.Duration) Result {
	stages := stage.Of(t, deadline)
	for _, rule := range []func() (Result, bool){
		func() (Result, bool) { return byError(t, stages, deadline) },
		func() (Result, bool) { return byOpenStage(t, stages, deadline) },
		func() (Result, bool) { return bySlowStage(t, promised) },
	} {
		if r, found := rule(); found {
			r.Class = Describe(r.Reason).Class
			if r.Reason == "StageSlow" && stage.Describe(r.Stage).User {
				r.Class = User
			}
			if class, ok := o[r.Reason]; ok {
				r.Class = class
			}
			return r
		}
	}
	return Result{Reason: Unknown, Class: None}
}

func byError(t *record.Timeline, stages []stage.Stage, deadline time.Time) (Result, bool) {
	found := append(errorsOf(t, stages, deadline), ofContainers(t, deadline)...)
	if len(found) == 0 {
		return Result{}, false
	}
	deepest := slices.MaxFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.stage, b.stage), a.at.Compare(b.at))
	})
	r := Result{Reason: deepest.reason, Stage: deepest.stage, Detail: deepest.detail}
	for _, f := range found {
		if f.reason != r.Reason && !slices.Contains(r.Others, f.reason) {
			r.Others = append(r.Others, f.reason)
		}
	}
	return r, true
}

// errorsOf returns the act's reported errors that were not overcome before the deadline.
func errorsOf(t *record.Timeline, stages []stage.Stage, deadline time.Time) (found []candidate) {
	if r, ok := disruptions()[t.Disruption]; ok && t.Act == record.Creation {
		found = append(found, candidate{r, stage.ReadinessGate, deadline, t.Disruption})
	}
	for _, e := range t.Errors {
		row, ok := Match(e.From, e.Text)
		if !ok || e.Arrival.After(deadline) || !belongs(t, row.Stage) || overcome(t, row.Stage, e.Container, stages, deadline) {
			continue
		}
		if (e.From == "FailedMount" || e.From == "FailedMapVolume") && t.At(record.Mounted).By(deadline) {
			continue // all volumes are mounted since
		}
		r := row.Reason
		if c := t.Container(e.Container); c != nil && r == "CrashLoopBackOff" {
			if c.StartFailed() || hookFailed(t, c.Name, deadline) {
				continue // kubelet waits before it retries: the error of the start or of the hook is the reason
			}
			if c.Init && t.Act == record.Creation && !t.At(record.Initialized).By(deadline) {
				found = append(found, candidate{"InitFailed", stage.Init, e.Arrival, c.Name})
				continue
			}
		}
		switch {
		case r == "CapacityExhausted" && t.Around.ExceedsNodes:
			r = "ImpossibleRequest"
		case r == "UnschedulableConstraints" && t.Around.FaultTaints && strings.Contains(e.Text, "untolerated taint"):
			r = "NodesTaintedByFaults"
		}
		found = append(found, candidate{r, row.Stage, e.Arrival, e.Text})
	}
	return found
}

func disruptions() map[string]Reason {
	return map[string]Reason{"PreemptionByScheduler": "Preempted", "DeletionByTaintManager": "EvictedByTaint",
		"EvictionByEvictionAPI": "EvictedByApi", "TerminationByKubelet": "EvictedByPressure"}
}

// belongs reports whether an error of a stage can delay an act. The errors of a start can delay an upgrade too; those
// of a deletion only a deletion.
func belongs(t *record.Timeline, id stage.ID) bool {
	switch {
	case t.Act == record.Refusal:
		return id == stage.Admit
	case t.Act == record.Deletion:
		return id[0] == 'd'
	case t.InPlace():
		return id[0] == 'u' || id[0] == 'c' && id >= stage.Pull
	}
	return id[0] == 'c' && id != stage.Admit
}

// overcome reports whether a stage ended before the deadline; for errors of a container, its own stage.
func overcome(t *record.Timeline, id stage.ID, container string, stages []stage.Stage, deadline time.Time) bool {
	if t.InPlace() {
		return t.At(record.ReadyAgain).By(deadline) || id < stage.BecomeReady && t.At(record.NewStarted).By(deadline)
	}
	if t.At(record.ContainersReady).By(deadline) && id[0] == 'c' && id <= stage.BecomeReady {
		return true
	}
	switch c := t.Container(container); {
	case c == nil:
	case id == stage.PostStart && c.Exited.Known():
		return false // kubelet ends the container of a failed hook
	case id <= stage.Start:
		p := t.FirstPull(container)
		return c.Started.By(deadline) || id == stage.Pull && p != nil && p.Ended.By(deadline)
	}
	switch id {
	case stage.Schedule:
		return t.At(record.Scheduled).By(deadline)
	case stage.Notice:
		return t.At(record.KubeletSaw).By(deadline)
	case stage.AdmitOnNode:
		return false // kubelet's refusal is final
	case stage.Attach:
		return t.At(record.Attached).By(deadline) || t.At(record.SandboxReady).By(deadline)
	}
	i := slices.IndexFunc(stages, func(s stage.Stage) bool { return s.ID == id })
	return i >= 0 && stages[i].End.By(deadline)
}

// ofContainers returns exits and failed probes of containers that explain why the pod is not ready.
func ofContainers(t *record.Timeline, deadline time.Time) (found []candidate) {
	if t.Act == record.Deletion || t.End().By(deadline) {
		return nil
	}
	for _, c := range t.Containers {
		ended, id := c.Exited.By(deadline) && !c.Ready, stage.BecomeReady
		if c.Init {
			id = stage.Init
		}
		switch {
		case c.Init && t.At(record.Initialized).By(deadline):
		case ended && c.ExitReason == "OOMKilled" && c.MemLimit:
			found = append(found, candidate{"OOMKilledByLimit", id, c.Exited.Arrival, c.Name})
		case ended && c.ExitReason == "OOMKilled":
			found = append(found, candidate{"OOMKilledByNode", id, c.Exited.Arrival, c.Name})
		case ended && c.Init && c.ExitCode != 0:
			found = append(found, candidate{"InitFailed", id, c.Exited.Arrival, c.Name})
		case ended && !c.Init && !c.StartFailed() && !hookFailed(t, c.Name, deadline):
			found = append(found, candidate{"CrashLoopBackOff", id, c.Exited.Arrival, c.Name})
		case c.Unhealthy && !c.Ready && !c.Init:
			found = append(found, candidate{"ProbeFailing", id, deadline.Add(-time.Hour), c.Name})
		}
	}
	return found
}

// hookFailed reports whether a container's PostStart hook failed: kubelet ends the container then.
func hookFailed(t *record.Timeline, container string, deadline time.Time) bool {
	return slices.ContainsFunc(t.Errors, func(e record.Error) bool {
		return e.Container == container && (e.From == "FailedPostStartHook" || e.From == "PostStartHookError") && !e.Arrival.After(deadline)
	})
}

// byOpenStage blames the owner of the deepest stage open at the deadline.
func byOpenStage(t *record.Timeline, stages []stage.Stage, deadline time.Time) (Result, bool) {
	if reportedLate(t, deadline) {
		return Result{Reason: "ControlPlaneSlow", Stage: stage.Reported}, true
	}
	if t.End().Known() {
		return Result{}, false // all stages have ended by now
	}
	var open *stage.Stage
	for i, s := range stages {
		isOpen := s.Start.By(deadline) && !s.End.By(deadline) && s.ID != stage.AdmitOnNode
		if isOpen && (open == nil || s.ID > open.ID) {
			open = &stages[i]
		}
	}
	if open == nil {
		return Result{}, false
	}
	if t.Around.NodeLost && open.ID >= stage.Notice && open.ID != stage.Finalizers {
		return Result{Reason: "NodeLost", Stage: open.ID, Detail: t.Node}, true
	}
	r, detail := ofStage(t, *open, deadline)
	return Result{Reason: r, Stage: open.ID, Detail: detail}, true
}

// reportedLate reports whether the pod was ready in time by the node's clock, but this arrived after the deadline.
func reportedLate(t *record.Timeline, deadline time.Time) bool {
	end := t.End()
	skew, measured := t.Skews[end.Source]
	return end.Known() && measured && !end.Time.IsZero() &&
		end.Time.Add(skew+2*time.Second).Before(deadline) && end.Arrival.After(deadline)
}

func ofStage(t *record.Timeline, s stage.Stage, deadline time.Time) (Reason, string) {
	switch s.ID {
	case stage.Admit:
		return "CreateFailed", ""
	case stage.Gated:
		return "SchedulingGated", ""
	case stage.Schedule:
		switch {
		case t.At(record.Nominated).Known() && t.Around.VictimsPresent:
			return "PreemptionWait", ""
		case t.Around.SchedulerStale:
			return "SchedulerDown", ""
		}
		return "SchedulerSlow", ""
	case stage.Notice, stage.ChangeSeen:
		return "KubeletSlow", t.Node
	case stage.Attach:
		return "AttachFailed", ""
	case stage.Mount:
		return ofNode(t, "MountSlow", deadline)
	case stage.Sandbox:
		if t.At(record.Mounted).Known() || t.Says.Fresh(deadline) {
			return ofNode(t, "SandboxFailed", deadline)
		}
		if t.Volumes {
			return "MountSlow", ""
		}
		return "SandboxFailed", ""
	case stage.Pull, stage.NewPull:
		return ofPull(t, deadline)
	case stage.Init:
		return "InitSlow", ""
	case stage.Start, stage.NewRun:
		return ofNode(t, "RuntimeError", deadline)
	case stage.PostStart:
		return "StageSlow", stage.Describe(s.ID).Name
	case stage.BecomeReady, stage.ReadyAgain:
		return "ReadinessSlow", ""
	case stage.ReadinessGate:
		return "ReadinessGateWaiting", strings.Join(t.ReadinessGates, ", ")
	case stage.Noticed:
		return "StopNotNoticed", t.Node
	case stage.Stop, stage.OldStop:
		return "ContainerUnkillable", nodeText(t, deadline)
	case stage.StopSandbox:
		return "SandboxStopFailed", nodeText(t, deadline)
	case stage.Unmount:
		if t.Says.Fresh(deadline) && t.Says.Stage != "volumes" {
			return "CgroupStuck", nodeText(t, deadline)
		}
		return "UnmountStuck", nodeText(t, deadline)
	case stage.Finalizers:
		return "FinalizerHeld", strings.Join(t.Finalizers, ", ")
	case stage.Disappear:
		return "GoneNotReported", t.Node
	}
	return Unknown, ""
}

// nodeText is the agent's word about a pod, otherwise the node.
func nodeText(t *record.Timeline, deadline time.Time) string {
	if t.Says.Fresh(deadline) && t.Says.Text != "" {
		return t.Says.Text
	}
	return t.Node
}

// ofNode returns the finding of the node's agent that explains an open stage, otherwise the stage's own reason.
func ofNode(t *record.Timeline, otherwise Reason, deadline time.Time) (Reason, string) {
	if !t.Says.By(deadline) {
		return otherwise, ""
	}
	for _, f := range t.Says.Findings {
		switch check, rest, _ := strings.Cut(f, "/"); {
		case check == "filesystem-readonly":
			return "NodeReadOnly", rest
		case check == "csi-registration" && otherwise == "MountSlow":
			return "CSIDriverMissing", rest
		}
	}
	return otherwise, t.Says.Text
}

// ofPull distinguishes a slow pull from one that waited for others.
func ofPull(t *record.Timeline, deadline time.Time) (Reason, string) {
	for _, p := range t.Pulls {
		if p.Waited > 0 && 2*p.Waited > p.Took+p.Waited {
			return "ImagePullQueued", p.Image
		}
	}
	for _, p := range t.Pulls {
		if !p.Ended.By(deadline) {
			return "ImagePullCostTime", p.Image
		}
	}
	if len(t.Pulls) > 0 {
		return "ImagePullCostTime", t.Pulls[0].Image
	}
	return "ImagePullCostTime", ""
}

// bySlowStage blames a stage if all have ended, but late. Without a baseline of the cluster, it blames the pull if the
// pod would have been in time without it; otherwise the longest stage.
func bySlowStage(t *record.Timeline, promised time.Duration) (Result, bool) {
	if !t.End().Known() {
		return Result{}, false
	}
	var longest stage.Stage
	var pull time.Duration
	pullStage := stage.Pull
	if t.InPlace() {
		pullStage = stage.NewPull
	}
	for _, s := range stage.Of(t, t.End().Arrival) {
		switch s.ID {
		case stage.Gated, stage.PostStart, stage.Stop, stage.OldStop:
			continue // the user's time does not count
		case pullStage:
			pull = s.Spent.Middle()
		}
		if s.Spent.Middle() > longest.Spent.Middle() {
			longest = s
		}
	}
	if longest.ID == "" {
		return Result{}, false
	}
	total := t.ByOurs(t.Begin(), t.End()).Middle()
	if pull > 0 && (longest.ID == pullStage || total-pull <= promised) {
		r, image := ofPull(t, t.End().Arrival)
		return Result{Reason: r, Stage: pullStage, Detail: image}, true
	}
	return Result{Reason: "StageSlow", Stage: longest.ID, Detail: stage.In(t, longest.ID).Name}, true
}
