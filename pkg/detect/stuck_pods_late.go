package detect

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// podClock is when a pod began to start, and when it had to be gone, by the time since boot.
type podClock struct {
	starting time.Duration // since when; -1 while it does not
	due      time.Duration // when its grace period ends; -1 while nobody wants it gone
	grace    int64         // seconds, as it was when due was set
}

// stuckPod is one pod that is late.
type stuckPod struct {
	pod    *corev1.Pod
	ending bool
	late   time.Duration // how long it has been starting, or ending beyond its grace period
	where  podStage
}

// late returns the pods that start or end too late, the latest first, and keeps the clocks of all.
func (m *stuckMemory) late(pods []corev1.Pod, now finding.Stamp, s StuckPodsSettings) []stuckPod {
	fresh := m.looked.Boot != now.Boot
	if fresh {
		clear(m.pods)
	}
	clocks := make(map[string]podClock, len(pods))
	var late []stuckPod
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
			if over := now.Up - clock.due; over >= s.TerminateAfter {
				late = append(late, stuckPod{pod: pod, ending: true, late: over})
			}
		case clock.starting >= 0:
			if age := now.Up - clock.starting; age >= s.StartAfter {
				late = append(late, stuckPod{pod: pod, late: age})
			}
		}
	}
	m.looked, m.pods = now, clocks
	slices.SortStableFunc(late, func(a, b stuckPod) int {
		return cmp.Or(cmp.Compare(b.late, a.late), cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return late
}

// advance sets the clock by what a look shows. In the first look of all the wall clock tells how long something has been so,
// at most since boot.
func (c *podClock) advance(pod *corev1.Pod, now finding.Stamp, fresh bool) {
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
			left = min(max(pod.DeletionTimestamp.Sub(now.Wall), -now.Up), left)
		}
		if c.due >= 0 {
			left = min(left, c.due-now.Up) // it was shortened
		}
		c.due, c.grace = now.Up+left, grace
		return
	}
	c.due = -1
	switch {
	case !podStarting(pod):
		c.starting = -1
	case c.starting < 0:
		c.starting = now.Up
		if fresh {
			c.starting -= min(max(now.Wall.Sub(began(pod)), 0), now.Up)
		}
	}
}

// began is when the pod began to do what it does now: it was given to the node, or a container ended.
func began(pod *corev1.Pod) time.Time {
	latest := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		latest = pod.Status.StartTime.Time
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, ended := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if ended != nil && ended.FinishedAt.After(latest) {
				latest = ended.FinishedAt.Time
			}
		}
	}
	return latest
}

// podStarting reports whether a pod waits for something that its own programs do not do.
func podStarting(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	if len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) == 0 {
		return len(pod.Spec.Containers) > 0 && pod.Status.Phase != corev1.PodRunning
	}
	_, waits := waitingContainer(pod)
	return waits
}

// waitingContainer returns the container that holds up the start of a pod: the first init container that is not done, or
// else the first container that waits. One that runs, or waits to be started again after a crash, holds up nothing that the
// node could mend.
func waitingContainer(pod *corev1.Pod) (corev1.ContainerStatus, bool) {
	for _, c := range pod.Status.InitContainerStatuses {
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0, c.Started != nil && *c.Started && restartable(pod, c.Name):
			continue
		case c.State.Waiting == nil || c.State.Waiting.Reason == "CrashLoopBackOff":
			return corev1.ContainerStatus{}, false
		}
		return c, true
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "CrashLoopBackOff" {
			return c, true
		}
	}
	return corev1.ContainerStatus{}, false
}

// restartable reports whether an init container is a sidecar: the next ones start while it runs.
func restartable(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
}

// nodeUID is the UID that the node uses for the pod.
func (p stuckPod) nodeUID() string { return host.NodePodUID(p.pod) }
