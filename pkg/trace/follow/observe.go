package follow

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// observation is one observed state of a pod.
type observation struct {
	p    *corev1.Pod
	now  time.Time
	late bool
}

func (o observation) mark(at metav1.Time, source record.Clock) record.Mark {
	return record.Mark{Time: at.Time, Source: source, Arrival: o.now, Late: o.late}
}

func (o observation) own() record.Mark {
	return record.Mark{Source: record.Own, Arrival: o.now, Late: o.late}
}

// measure learns the offsets of other clocks from ours: the smallest difference of arrival and time is the best
// estimate, since no event arrives before it happens.
func (f *Follower) measure(o observation) {
	if o.late {
		return
	}
	keep := func(clock string, at metav1.Time) {
		if d := o.now.Sub(at.Time); !at.IsZero() {
			if old, ok := f.skews[clock]; !ok || d < old {
				f.skews[clock] = d
			}
		}
	}
	if len(o.p.Status.Conditions) == 0 && o.p.DeletionTimestamp == nil && len(f.acts[string(o.p.UID)]) > 0 {
		keep(string(record.APIServer), o.p.CreationTimestamp)
	}
	if node := o.p.Spec.NodeName; node != "" {
		for i := range o.p.Status.Conditions {
			c := &o.p.Status.Conditions[i]
			if c.Type == corev1.ContainersReady || c.Type == corev1.PodReadyToStartContainers {
				keep("node/"+node, c.LastTransitionTime)
			}
		}
	}
}

// observe sets the marks that follow from a pod's state.
func (f *Follower) observe(o observation, t *record.Timeline) {
	if t.Node == "" && o.p.Spec.NodeName != "" {
		t.Node = f.share(o.p.Spec.NodeName)
		n := f.nodes[t.Node]
		if t.Act == record.Creation && t.OwnerKind == "DaemonSet" && !n.ready.IsZero() && o.now.Sub(n.ready) < youngNode {
			t.Exclude = "DaemonSet pod of a new node"
		}
	}
	f.applySkews(t)
	switch {
	case t.Act == record.Creation || t.Replaces != "":
		o.creation(t)
	case t.Act == record.Deletion:
		o.deletion(t)
	case t.Act == record.Upgrade:
		o.upgrade(t)
	}
}

func (f *Follower) applySkews(t *record.Timeline) {
	if t.Skews == nil {
		t.Skews = map[record.Clock]time.Duration{}
	}
	if d, ok := f.skews[string(record.APIServer)]; ok {
		t.Skews[record.APIServer] = d
	}
	if d, ok := f.skews["node/"+t.Node]; ok {
		t.Skews[record.Node] = d
	}
}

func (o observation) creation(t *record.Timeline) {
	p := o.p
	if t.Gated && len(p.Spec.SchedulingGates) == 0 {
		t.Set(record.Ungated, o.own())
	}
	if p.Status.NominatedNodeName != "" {
		t.Set(record.Nominated, o.own())
	}
	if c := condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated {
		from := "FailedScheduling"
		if c.Reason == corev1.PodReasonSchedulerError {
			from = c.Reason
		}
		t.AddError(record.Error{Mark: o.own(), From: from, Text: redact(c.Message)})
	}
	for kind, point := range map[corev1.PodConditionType]record.Point{corev1.PodScheduled: record.Scheduled,
		corev1.PodReadyToStartContainers: record.SandboxReady, corev1.PodInitialized: record.Initialized,
		corev1.ContainersReady: record.ContainersReady, corev1.PodReady: record.Ready} {
		clock := record.Node
		if kind == corev1.PodScheduled {
			clock = record.Scheduler
		}
		if c := holds(p, kind); c != nil {
			t.Set(point, o.mark(c.LastTransitionTime, clock))
		}
	}
	if p.Spec.NodeName != "" {
		t.Set(record.Scheduled, o.own()) // bound at its creation: there may be no condition
	}
	if p.Status.StartTime != nil && p.Spec.NodeName != "" {
		t.Set(record.KubeletSaw, o.mark(*p.Status.StartTime, record.Node))
	}
	if c := holds(p, corev1.DisruptionTarget); c != nil {
		t.Disruption = strings.Clone(c.Reason)
	}
	switch started := o.containers(t); {
	case p.Status.Phase == corev1.PodRunning, p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed && started:
		t.Set(record.Running, o.own())
	case p.Status.Phase == corev1.PodFailed: // its node has refused it
		t.Set(record.Failed, o.own())
	}
	if reason := p.Status.Reason; reason != "" {
		t.AddError(record.Error{Mark: o.own(), From: strings.Clone(reason), Text: redact(p.Status.Message)})
	}
}

// containers reads the states of containers, and reports whether one has started.
func (o observation) containers(t *record.Timeline) (started bool) {
	for i := range t.Containers {
		c := &t.Containers[i]
		s := statusOf(o.p, c.Name)
		if s == nil {
			continue
		}
		c.Ready = s.Ready
		for _, state := range []corev1.ContainerState{s.LastTerminationState, s.State} {
			o.state(t, c, state)
		}
		o.waits(t, c, s.State.Waiting)
		started = started || c.Started.Known()
	}
	return started
}

// waits takes why a container waits, and sets the marks that this proves, unless an Event or another status has set them.
func (o observation) waits(t *record.Timeline, c *record.Container, w *corev1.ContainerStateWaiting) {
	if w == nil || slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason) {
		return
	}
	switch stage.OfWaiting(w.Reason) {
	case stage.Pull:
		t.PullOf(c).Began.Set(o.own())
	case stage.PostStart:
		if !c.StartFailed() {
			c.Started.Set(o.own())
		}
		fallthrough
	case stage.Start:
		c.Imaged.Set(o.own())
	}
	t.AddError(record.Error{Mark: o.own(), From: strings.Clone(w.Reason), Container: c.Name, Text: redact(w.Message)})
}

func (o observation) state(t *record.Timeline, c *record.Container, state corev1.ContainerState) {
	if r := state.Running; r != nil {
		started := o.mark(r.StartedAt, record.Node)
		started.Late = started.Late || c.Hook // kubelet waits for the hook before it reports
		c.Started.Set(started)
		c.Shown.Set(o.own())
	}
	e := state.Terminated
	if e == nil || e.Reason == "ContainerStatusUnknown" {
		return
	}
	c.ExitCode, c.ExitReason = e.ExitCode, strings.Clone(e.Reason) // the runtime may learn of an OOM kill later
	if c.StartFailed() {
		t.AddError(record.Error{Mark: o.own(), From: c.ExitReason, Container: c.Name, Text: redact(e.Message)})
	} else if !e.StartedAt.IsZero() {
		c.Started.Set(o.mark(e.StartedAt, record.Node))
	}
	c.Shown.Set(o.own())
	if !c.Exited.Known() || !c.Exited.Time.Equal(e.FinishedAt.Time) {
		c.Exited = o.mark(e.FinishedAt, record.Node)
	}
}

func (o observation) deletion(t *record.Timeline) {
	p := o.p
	if len(t.Finalizers) > 0 && len(p.Finalizers) == 0 {
		t.Set(record.FinalizersGone, o.own())
	}
	t.Finalizers = slices.Clone(p.Finalizers)
	ended, some := true, false
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		some = some || s.State.Terminated != nil
		ended = ended && s.State.Running == nil
	}
	if some {
		t.Set(record.KillNoticed, o.own())
	}
	if ended && (some || isTerminal(p)) {
		t.Set(record.ContainersEnded, o.own())
	}
}

func (o observation) upgrade(t *record.Timeline) {
	p := o.p
	if p.DeletionTimestamp != nil {
		t.Set(record.DeleteRequested, o.own())
	}
	if p.Status.ObservedGeneration >= t.Generation && t.Generation > 0 {
		t.Set(record.ChangeNoticed, o.own())
	}
	for kind, from := range map[corev1.PodConditionType]string{corev1.PodResizePending: "Resize", corev1.PodResizeInProgress: "ResizeError"} {
		if c := holds(p, kind); c != nil && c.Message != "" {
			if kind == corev1.PodResizePending {
				from += c.Reason // Deferred, Infeasible
			}
			t.AddError(record.Error{Mark: o.own(), From: from, Text: redact(c.Message)})
		}
	}
	restarted, current := false, true
	for i := range t.Containers {
		c := &t.Containers[i]
		s := statusOf(p, c.Name)
		if s == nil || c.Init {
			continue
		}
		if r := s.State.Running; r != nil && !r.StartedAt.Time.Equal(c.Started.Time) {
			restarted = true
			t.Set(record.OldEnded, o.own())
			t.Set(record.NewStarted, o.mark(r.StartedAt, record.Node))
		} else if r == nil {
			current = false
			t.Set(record.OldEnded, o.own())
		}
		o.waits(t, c, s.State.Waiting)
	}
	noticed := t.At(record.ChangeNoticed).Known()
	resized := condition(p, corev1.PodResizePending) == nil && condition(p, corev1.PodResizeInProgress) == nil
	runsOther := func(c corev1.Container) bool { // image than the specified one
		s := statusOf(p, c.Name)
		return s == nil || !strings.Contains(s.Image, strings.TrimPrefix(c.Image, "docker.io/"))
	}
	if noticed && current && resized && holds(p, corev1.PodReady) != nil && (restarted || !slices.ContainsFunc(p.Spec.Containers, runsOther)) {
		t.Set(record.ReadyAgain, o.own())
	}
}

// redact removes the command from a runtime's text: it is an argument of the pod.
func redact(text string) string {
	const sign = `exec: "`
	before, rest, found := strings.Cut(text, sign)
	if !found {
		return strings.Clone(text)
	}
	_, after, closed := strings.Cut(rest, `": `)
	if !closed {
		return before + sign + `…"`
	}
	return before + sign + `…": ` + after
}
