package stuckpods

import (
	"cmp"
	"slices"
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
