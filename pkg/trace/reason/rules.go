package reason

import (
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

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
		return ofScheduler(t), ""
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

func ofScheduler(t *record.Timeline) Reason {
	switch {
	case t.At(record.Nominated).Known() && t.Around.VictimsPresent:
		return "PreemptionWait"
	case t.Around.SchedulerStale:
		return "SchedulerDown"
	}
	return "SchedulerSlow"
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
