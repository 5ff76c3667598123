package stuckpods

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// latePod is one late pod.
type latePod struct {
	pod    *corev1.Pod
	ending bool
	late   time.Duration // how long it has been starting, or ending beyond its grace period
	where  stage
}

// stage is the step in which a pod is stuck. An empty stage is none: the pod makes progress.
type stage struct {
	stage podstate.Stage
	text  string // the step it waits for, with the evidence
	own   bool   // only the pod's specification, or its controllers, can correct it
}

// nodeUID is the UID that the node uses for the pod.
func (p latePod) nodeUID() string { return host.NodePodUID(p.pod) }

func (p latePod) name() string { return checkkit.PodName(p.pod) }

// podClock holds when a pod began to start, and when it had to be gone, by the time since boot.
type podClock struct {
	starting time.Duration // since when; -1 while it does not
	due      time.Duration // when its grace period ends; -1 while it is not being deleted
	grace    int64         // seconds, as it was when due was set
}

// late returns the pods that start or end too late, the latest first, and keeps the clocks of all.
func (m *stuckState) late(pods []corev1.Pod, now finding.Timestamp, s Settings) []latePod {
	fresh := m.last.Boot != now.Boot
	if fresh {
		clear(m.pods)
		clear(m.traceless)
	}
	clocks := make(map[string]podClock, len(pods))
	var late []latePod
	for i := range pods {
		pod := &pods[i]
		uid := string(pod.UID)
		clock, known := m.pods[uid]
		if !known {
			clock = podClock{starting: -1, due: -1}
		}
		clock.advance(pod, now, fresh)
		clocks[uid] = clock
		switch {
		case clock.due >= 0:
			if over := now.SinceBoot - clock.due; over >= s.TerminateAfter {
				late = append(late, latePod{pod: pod, ending: true, late: over})
			}
		case clock.starting >= 0:
			if age := now.SinceBoot - clock.starting; age >= s.StartAfter {
				late = append(late, latePod{pod: pod, late: age})
			}
		}
	}
	m.last, m.pods = now, clocks
	slices.SortStableFunc(late, func(a, b latePod) int {
		return cmp.Or(cmp.Compare(b.late, a.late), cmp.Compare(a.pod.Namespace, b.pod.Namespace),
			cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return late
}

// advance sets the clock from the readings of a run. In the first run the wall clock shows the age, at most since boot.
func (c *podClock) advance(pod *corev1.Pod, now finding.Timestamp, fresh bool) {
	if pod.DeletionTimestamp != nil {
		grace := int64(30) // the default
		if pod.DeletionGracePeriodSeconds != nil {
			grace = max(*pod.DeletionGracePeriodSeconds, 0)
		}
		if c.due >= 0 && c.grace == grace {
			return
		}
		left := time.Duration(min(grace, 1<<31)) * time.Second
		if fresh {
			left = min(max(pod.DeletionTimestamp.Sub(now.Wall), -now.SinceBoot), left)
		}
		if c.due >= 0 {
			left = min(left, c.due-now.SinceBoot) // it was shortened
		}
		c.due, c.grace = now.SinceBoot+left, grace
		return
	}
	c.due = -1
	switch {
	case !podstate.IsStarting(pod):
		c.starting = -1
	case c.starting < 0:
		c.starting = now.SinceBoot
		if fresh {
			c.starting -= min(max(now.Wall.Sub(began(pod)), 0), now.SinceBoot)
		}
	}
}

// began returns when the pod entered its present phase: it was given to the node, or a container ended.
func began(pod *corev1.Pod) time.Time {
	latest := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		latest = pod.Status.StartTime.Time
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, ended := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated,
			c.State.Terminated} {
			if ended != nil && ended.FinishedAt.After(latest) {
				latest = ended.FinishedAt.Time
			}
		}
	}
	return latest
}

// untracedPod is a pod that runs by its status, but of which the node has no trace.
type untracedPod struct {
	pod *corev1.Pod
	age time.Duration // since a run found none
}

// untraced returns the pods without a trace for long enough, and keeps since when. If every pod has its directory that
// costs one listing of kubelet's. A failed read is no evidence: then no pod is reported.
func (m *stuckState) untraced(ctx context.Context, pods []corev1.Pod, e *podEvidence) []untracedPod {
	names, err := e.host.Files.List(podstate.Dir(e.host, ""))
	if err != nil {
		return nil
	}
	proven := false // the place is right: kubelet keeps a pod of the list there
	var missing []*corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if slices.Contains(names, host.NodePodUID(pod)) {
			proven = true
		} else if leavesTraces(pod) {
			missing = append(missing, pod)
		}
	}
	if !proven || len(missing) == 0 {
		clear(m.traceless)
		return nil
	}
	traced, ok := e.tracedPods(ctx)
	if !ok {
		return nil
	}
	missing = slices.DeleteFunc(missing, func(pod *corev1.Pod) bool { return traced[string(pod.UID)] })
	return m.overdue(missing, e.host.Clock().SinceBoot, e.settings.TraceAfter)
}

// overdue returns those of the pods without a trace that have had none for long enough, and keeps since when.
func (m *stuckState) overdue(missing []*corev1.Pod, now, limit time.Duration) []untracedPod {
	since := map[string]time.Duration{}
	var found []untracedPod
	for _, pod := range missing {
		first, known := m.traceless[string(pod.UID)]
		if !known { // one run is no evidence: the list may be older than the state of the node
			first = now
		}
		since[string(pod.UID)] = first
		if age := now - first; known && age >= limit {
			found = append(found, untracedPod{pod, age})
		}
	}
	m.traceless = since
	return found
}

// leavesTraces reports whether the node must have traces of a pod. Static pods and their mirrors are left out: a mirror
// may outlive its manifest.
func leavesTraces(pod *corev1.Pod) bool {
	source := pod.Annotations["kubernetes.io/config.source"]
	fromAPI := (source == "" || source == "api") && host.NodePodUID(pod) == string(pod.UID)
	return fromAPI && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil &&
		!runningSince(pod).IsZero()
}

// runningSince returns since when a container of a pod has run by its status; zero if none runs.
func runningSince(pod *corev1.Pod) (first time.Time) {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil && (first.IsZero() || c.State.Running.StartedAt.Time.Before(first)) {
			first = c.State.Running.StartedAt.Time
		}
	}
	return first
}

// tracedPods returns the UIDs of the pods of which the runtime or the cgroups have a trace; ok is false if either of
// them cannot be read.
func (e *podEvidence) tracedPods(ctx context.Context) (traced map[string]bool, ok bool) {
	e.readMounts()
	cgroups := e.podCgroups()
	if e.cgroupsErr != nil || e.ask(ctx) != nil {
		return nil, false
	}
	traced = map[string]bool{}
	for uid := range cgroups {
		traced[uid] = true
	}
	for _, s := range e.sandboxes {
		traced[s.GetMetadata().GetUid()] = true
	}
	for _, c := range e.containers {
		traced[c.Labels["io.kubernetes.pod.uid"]] = true
	}
	return traced, true
}

// untracedFindings reports pods without a trace, the longest ones first.
func untracedFindings(h *host.Host, pods []untracedPod) []finding.Finding {
	var found []finding.Finding
	slices.SortStableFunc(pods, func(a, b untracedPod) int { return cmp.Compare(b.age, a.age) })
	for _, p := range pods[:min(len(pods), maxStuckPods)] {
		name := checkkit.PodName(p.pod)
		running := h.Clock().Wall.Sub(runningSince(p.pod)).Round(time.Second)
		found = append(found, finding.Finding{
			Subject:  finding.Subject{Kind: "pod", Name: name, UID: string(p.pod.UID)},
			Severity: finding.Warning, Reason: "PodWithoutTrace",
			Message: fmt.Sprintf("has run for %s by its status, but for %s the node has had no trace of it: no sandbox or "+
				"container in the runtime, no cgroup, no %s; see `nodeagent inspect pod %s`",
				running, p.age.Round(time.Second), path.Join(h.Paths.KubeletRoot, "pods", string(p.pod.UID)), name),
			Facts: map[string]string{"stage": "no-trace", "pods": name, "phase": string(p.pod.Status.Phase),
				"untracedSeconds": strconv.Itoa(int(p.age.Seconds()))},
		})
	}
	return found
}

// stuckFindings reports individually the pods stuck for longest, and once a stage in which many pods are.
func stuckFindings(h *host.Host, stuck []latePod, s Settings) []finding.Finding {
	found := manyStuck(h, stuck, s.Many)
	for _, p := range stuck[:min(len(stuck), maxStuckPods)] {
		f := finding.Finding{
			Subject: finding.Subject{Kind: "pod", Name: p.name(), UID: string(p.pod.UID)}, Severity: finding.Warning,
			Facts: map[string]string{
				"stage": string(p.where.stage), "lateSeconds": strconv.Itoa(int(p.late.Seconds())),
				"phase": string(p.pod.Status.Phase),
				"pods":  p.name(),
			},
		}
		if p.where.own {
			f.Severity = finding.Info
		}
		late := p.late.Round(time.Second)
		if p.ending {
			f.Reason = "PodStuckTerminating"
			if p.where.own {
				f.Reason = "PodHeldByFinalizers"
			}
			f.Message = fmt.Sprintf("still here %s after its grace period: %s", late, p.where.text)
		} else {
			f.Reason = "PodStuckStarting"
			if p.where.own {
				f.Reason = "PodCannotStart"
			}
			f.Message = fmt.Sprintf("has not started for %s: %s", late, p.where.text)
		}
		found = append(found, f)
	}
	return found
}

// manyStuck reports the stage with the most pods.
func manyStuck(h *host.Host, stuck []latePod, many int) []finding.Finding {
	names := map[string][]string{}
	for _, p := range stuck {
		if !p.where.own {
			stage := "starting: " + string(p.where.stage)
			if p.ending {
				stage = "terminating: " + string(p.where.stage)
			}
			names[stage] = append(names[stage], p.name())
		}
	}
	worst := ""
	for stage, pods := range names {
		if len(pods) > len(names[worst]) || len(pods) == len(names[worst]) && stage < worst {
			worst = stage
		}
	}
	if many <= 0 || len(names[worst]) < many {
		return nil
	}
	pods := names[worst]
	slices.Sort(pods)
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "ManyPodsStuck",
		Message: fmt.Sprintf(
			"%d pods are stuck in the same stage (%s): the cause is most likely the node, not the pods: %s", len(pods),
			worst, finding.JoinFirst(pods, 5)),
		Facts: map[string]string{"stage": worst, "count": strconv.Itoa(len(pods)),
			"pods": finding.JoinFirst(pods, 50)},
	}}
}
