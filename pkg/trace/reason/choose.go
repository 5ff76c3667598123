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

// miss is an act at its deadline.
type miss struct {
	*record.Timeline
	stages   []stage.Stage
	deadline time.Time
	promised time.Duration
}

// by reports whether a point was reached before the deadline.
func (m miss) by(p record.Point) bool { return m.At(p).By(m.deadline) }

// Choose finds the reason of a miss at its deadline: an error that was not overcome, the open stage, or the stage that
// took the time, in this order. promised is the act's promised time.
func (o Overrides) Choose(t *record.Timeline, deadline time.Time, promised time.Duration) Result {
	m := miss{t, stage.Of(t, deadline), deadline, promised}
	for _, rule := range []func() Result{m.byError, m.byOpenStage, m.bySlowStage} {
		if r := rule(); r.Reason != "" {
			r.Class = Describe(r.Reason).Class
			if r.Reason == "StageSlow" && stage.Describe(r.Stage).Owner == string(User) {
				r.Class = User
			}
			r.Class = cmp.Or(o[r.Reason], r.Class)
			return r
		}
	}
	return Result{Reason: Unknown, Class: None}
}

func (m miss) byError() (r Result) {
	found := append(m.errors(), m.ofContainers()...)
	if len(found) == 0 {
		return r
	}
	deepest := slices.MaxFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.stage, b.stage), a.at.Compare(b.at))
	})
	r = Result{Reason: deepest.reason, Stage: deepest.stage, Detail: deepest.detail}
	for _, f := range found {
		if f.reason != r.Reason && !slices.Contains(r.Others, f.reason) {
			r.Others = append(r.Others, f.reason)
		}
	}
	return r
}

// errors returns the act's reported errors that were not overcome before the deadline.
func (m miss) errors() (found []candidate) {
	if r, ok := map[string]Reason{"PreemptionByScheduler": "Preempted", "DeletionByTaintManager": "EvictedByTaint",
		"EvictionByEvictionAPI": "EvictedByApi", "TerminationByKubelet": "EvictedByPressure"}[m.Disruption]; ok && m.Act == record.Creation {
		found = append(found, candidate{r, stage.ReadinessGate, m.deadline, m.Disruption})
	}
	for _, e := range m.Errors {
		row, ok := Match(e.From, e.Text)
		if !ok || e.Arrival.After(m.deadline) || !m.concerns(row.Stage) || m.overcome(row.Stage, e.Container) {
			continue
		}
		if (e.From == "FailedMount" || e.From == "FailedMapVolume") && m.by(record.Mounted) {
			continue // all volumes are mounted since
		}
		r := row.Reason
		if c := m.Container(e.Container); c != nil && r == "CrashLoopBackOff" {
			if c.StartFailed() || m.hookFailed(c.Name) {
				continue // kubelet waits before it retries: the error of the start or of the hook is the reason
			}
			if c.Init && m.Act == record.Creation && !m.by(record.Initialized) {
				found = append(found, candidate{"InitFailed", stage.Init, e.Arrival, c.Name})
				continue
			}
		}
		switch {
		case r == "CapacityExhausted" && m.Around.ExceedsNodes:
			r = "ImpossibleRequest"
		case r == "UnschedulableConstraints" && m.Around.FaultTaints && strings.Contains(e.Text, "untolerated taint"):
			r = "NodesTaintedByFaults"
		}
		found = append(found, candidate{r, row.Stage, e.Arrival, e.Text})
	}
	return found
}

// concerns reports whether an error of a stage can delay the act. The errors of a start can delay an upgrade too; those
// of a deletion only a deletion.
func (m miss) concerns(id stage.ID) bool {
	switch {
	case m.Act == record.Refusal:
		return id == stage.Admit
	case m.Act == record.Deletion:
		return id[0] == 'd'
	case m.InPlace():
		return id[0] == 'u' || id[0] == 'c' && id >= stage.Pull
	}
	return id[0] == 'c' && id != stage.Admit
}

// overcome reports whether a stage ended before the deadline; for errors of a container, its own stage.
func (m miss) overcome(id stage.ID, container string) bool {
	if m.InPlace() {
		return m.by(record.ReadyAgain) || id < stage.BecomeReady && m.by(record.NewStarted)
	}
	if m.by(record.ContainersReady) && id[0] == 'c' && id <= stage.BecomeReady {
		return true
	}
	switch c := m.Container(container); {
	case c == nil:
	case id == stage.PostStart && c.Exited.Known():
		return false // kubelet ends the container of a failed hook
	case id <= stage.Start:
		p := m.FirstPull(container)
		return c.Started.By(m.deadline) || id == stage.Pull && p != nil && p.Ended.By(m.deadline)
	}
	switch id {
	case stage.Schedule:
		return m.by(record.Scheduled)
	case stage.Notice:
		return m.by(record.KubeletSaw)
	case stage.AdmitOnNode:
		return false // kubelet's refusal is final
	case stage.Attach:
		return m.by(record.Attached) || m.by(record.SandboxReady)
	}
	return slices.ContainsFunc(m.stages, func(s stage.Stage) bool { return s.ID == id && s.End.By(m.deadline) })
}

// ofContainers returns exits and failed probes of containers that explain why the pod is not ready.
func (m miss) ofContainers() (found []candidate) {
	if m.Act == record.Deletion || m.End().By(m.deadline) {
		return nil
	}
	for _, c := range m.Containers {
		why, ended, id := Reason(""), c.Exited.By(m.deadline) && !c.Ready, stage.BecomeReady
		if c.Init {
			id = stage.Init
		}
		switch {
		case c.Init && m.by(record.Initialized):
		case ended && c.ExitReason == "OOMKilled" && c.MemLimit:
			why = "OOMKilledByLimit"
		case ended && c.ExitReason == "OOMKilled":
			why = "OOMKilledByNode"
		case ended && c.Init && c.ExitCode != 0:
			why = "InitFailed"
		case ended && !c.Init && !c.StartFailed() && !m.hookFailed(c.Name):
			why = "CrashLoopBackOff"
		case c.Unhealthy && !c.Ready && !c.Init: // any other is later
			found = append(found, candidate{"ProbeFailing", id, m.deadline.Add(-time.Hour), c.Name})
		}
		if why != "" {
			found = append(found, candidate{why, id, c.Exited.Arrival, c.Name})
		}
	}
	return found
}

// hookFailed reports whether a container's PostStart hook failed: kubelet ends the container then.
func (m miss) hookFailed(container string) bool {
	return slices.ContainsFunc(m.Errors, func(e record.Error) bool {
		return e.Container == container && (e.From == "FailedPostStartHook" || e.From == "PostStartHookError") && !e.Arrival.After(m.deadline)
	})
}

// byOpenStage blames the owner of the deepest stage open at the deadline.
func (m miss) byOpenStage() (r Result) {
	end := m.End()
	skew, measured := m.Skews[end.Source]
	switch {
	case end.Known() && measured && !end.Time.IsZero() && end.Time.Add(skew+2*time.Second).Before(m.deadline) && end.Arrival.After(m.deadline):
		return Result{Reason: "ControlPlaneSlow", Stage: stage.Reported} // in time by the node's clock
	case end.Known():
		return r // all stages have ended by now
	}
	for _, s := range m.stages {
		if s.Start.By(m.deadline) && !s.End.By(m.deadline) && s.ID != stage.AdmitOnNode {
			r.Stage = max(r.Stage, s.ID)
		}
	}
	switch {
	case r.Stage == "":
	case m.Around.NodeLost && r.Stage >= stage.Notice && r.Stage != stage.Finalizers:
		r.Reason, r.Detail = "NodeLost", m.Node
	default:
		r.Reason, r.Detail = m.ofStage(r.Stage)
	}
	return r
}

// ofStage returns the reason of an open stage, and the text or name that explains it.
func (m miss) ofStage(id stage.ID) (r Reason, detail string) {
	r = cmp.Or(ofOpenStage[id], Unknown)
	says := m.Says.Fresh(m.deadline)
	switch id {
	case stage.Schedule:
		switch {
		case m.Around.VictimsPresent:
			r = "PreemptionWait"
		case m.Around.SchedulerStale:
			r = "SchedulerDown"
		}
	case stage.Sandbox:
		if m.At(record.Mounted).Known() || says {
			return m.ofNode(r)
		}
		if m.Volumes {
			r = "MountSlow"
		}
	case stage.Pull, stage.NewPull:
		return m.ofPull(m.deadline)
	case stage.Mount, stage.Start, stage.NewRun:
		return m.ofNode(r)
	case stage.PostStart:
		detail = stage.Describe(id).Name
	case stage.ReadinessGate:
		detail = strings.Join(m.ReadinessGates, ", ")
	case stage.Finalizers:
		detail = strings.Join(m.Finalizers, ", ")
	case stage.Stop, stage.OldStop, stage.StopSandbox, stage.Unmount:
		if says {
			detail = m.Says.Text
		}
		if id == stage.Unmount && says && m.Says.Stage != "volumes" {
			r = "CgroupStuck"
		}
		detail = cmp.Or(detail, m.Node)
	case stage.Notice, stage.ChangeSeen, stage.Noticed, stage.Disappear:
		detail = m.Node
	}
	return r, detail
}

// ofOpenStage has the reason of an open stage, if it depends on the stage only.
var ofOpenStage = map[stage.ID]Reason{
	stage.Admit: "CreateFailed", stage.Gated: "SchedulingGated", stage.Schedule: "SchedulerSlow", stage.Notice: "KubeletSlow",
	stage.Attach: "AttachFailed", stage.Mount: "MountSlow", stage.Sandbox: "SandboxFailed", stage.Init: "InitSlow", stage.Start: "RuntimeError",
	stage.PostStart: "StageSlow", stage.BecomeReady: "ReadinessSlow", stage.ReadinessGate: "ReadinessGateWaiting",
	stage.Noticed: "StopNotNoticed", stage.Stop: "ContainerUnkillable", stage.StopSandbox: "SandboxStopFailed", stage.Unmount: "UnmountStuck",
	stage.Finalizers: "FinalizerHeld", stage.Disappear: "GoneNotReported",
	stage.ChangeSeen: "KubeletSlow", stage.OldStop: "ContainerUnkillable", stage.NewRun: "RuntimeError", stage.ReadyAgain: "ReadinessSlow",
}

// ofNode returns the finding of the node's agent that explains an open stage, otherwise the stage's own reason.
func (m miss) ofNode(otherwise Reason) (Reason, string) {
	if !m.Says.By(m.deadline) {
		return otherwise, ""
	}
	for _, f := range m.Says.Findings {
		switch check, rest, _ := strings.Cut(f, "/"); {
		case check == "filesystem-readonly":
			return "NodeReadOnly", rest
		case check == "csi-registration" && otherwise == "MountSlow":
			return "CSIDriverMissing", rest
		}
	}
	return otherwise, m.Says.Text
}

// ofPull distinguishes a slow pull from one that waited for others.
func (m miss) ofPull(until time.Time) (r Reason, image string) {
	for _, p := range m.Pulls {
		if p.Waited > 0 && 2*p.Waited > p.Took+p.Waited {
			return "ImagePullQueued", p.Image
		}
	}
	if len(m.Pulls) > 0 {
		open := slices.IndexFunc(m.Pulls, func(p record.Pull) bool { return !p.Ended.By(until) })
		image = m.Pulls[max(open, 0)].Image
	}
	return "ImagePullCostTime", image
}

// bySlowStage blames a stage if all have ended, but late. Without a baseline of the cluster, it blames the pull if the
// pod would have been in time without it; otherwise the longest stage.
func (m miss) bySlowStage() (r Result) {
	if !m.End().Known() {
		return r
	}
	var longest, pull stage.Stage
	for _, s := range stage.Of(m.Timeline, m.End().Arrival) {
		switch s.ID {
		case stage.Gated, stage.PostStart, stage.Stop, stage.OldStop:
			continue // the user's time does not count
		case stage.Pull, stage.NewPull:
			pull = s
		}
		if s.Spent.Middle() > longest.Spent.Middle() {
			longest = s
		}
	}
	without := m.ByOurs(m.Begin(), m.End()).Middle() - pull.Spent.Middle()
	switch {
	case longest.ID == "":
	case pull.Spent.Middle() > 0 && (longest.ID == pull.ID || without <= m.promised):
		r.Stage = pull.ID
		r.Reason, r.Detail = m.ofPull(m.End().Arrival)
	default:
		r = Result{Reason: "StageSlow", Stage: longest.ID, Detail: stage.In(m.Timeline, longest.ID).Name}
	}
	return r
}
