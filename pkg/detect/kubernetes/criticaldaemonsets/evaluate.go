package criticaldaemonsets

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// evaluateDaemonSet returns the fault of a critical DaemonSet on this node, or why it is not known (yet).
func evaluateDaemonSet(d daemonSetState, s Settings, now time.Time) (*finding.Finding, error) {
	pod := bestPod(d.Pods)
	if pod == nil {
		return evaluateMissing(d, s, now)
	}
	if d.Placed.Err == nil && !d.Placed.Here {
		return nil, nil // a pod no longer wanted here
	}
	looping := loopingContainer(pod, now)
	switch {
	case podReady(pod) && looping == "":
		return evaluateRevision(d, s, pod), nil
	case podReady(pod):
		f := d.found(finding.Fatal, "DaemonSetPodCrashLooping",
			"pod %s is ready for now, but crashes again and again: %s", pod.Name, looping)
		f.BelowRaise = true // between two crashes a pod may be ready
		return f, nil
	case looping != "":
		return d.found(finding.Fatal, "DaemonSetPodCrashLooping", "pod %s crashes again and again: %s: read `kubectl "+
			"-n %s logs --previous %[1]s`", pod.Name, looping, pod.Namespace), nil
	case now.Sub(pod.CreationTimestamp.Time) < s.ReadyGrace && now.Sub(pod.CreationTimestamp.Time) > -s.ReadyGrace:
		return nil, fmt.Errorf("pod %s is starting", pod.Name)
	case pod.DeletionTimestamp != nil && now.Sub(pod.DeletionTimestamp.Time) < s.ReadyGrace:
		return nil, fmt.Errorf("pod %s is being replaced", pod.Name)
	case pod.DeletionTimestamp != nil:
		return d.found(finding.Fatal, "DaemonSetPodNotReady", "pod %s has not terminated since its deletion was due "+
			"at %s: read kubelet's log for the reason", pod.Name, pod.DeletionTimestamp.UTC().Format(time.RFC3339)), nil
	default:
		return d.found(finding.Fatal, "DaemonSetPodNotReady",
			"pod %s is not ready: %s: see `kubectl -n %s describe pod %[1]s`",
			pod.Name, whyNotReady(pod), pod.Namespace), nil
	}
}

// evaluateMissing handles a critical DaemonSet without a pod here.
func evaluateMissing(d daemonSetState, s Settings, now time.Time) (*finding.Finding, error) {
	switch {
	case d.Placed.Err != nil:
		return nil, fmt.Errorf("it has no pod here, and whether it should is unknown: %w", d.Placed.Err)
	case !d.Placed.Here:
		return nil, nil
	case d.Set == nil && d.SetsErr == nil:
		return d.found(finding.Warning, "DaemonSetNotFound", "the configuration lists it, but there is no such "+
			"DaemonSet: correct the configuration or create it"), nil
	case d.Set == nil && !cannotList(d.SetsErr):
		return nil, fmt.Errorf("it has no pod here, and whether it should is unknown: %w", d.SetsErr)
	case d.Set == nil:
		return d.found(finding.Fatal, "DaemonSetPodMissing", "no pod of it is on this node: check the DaemonSet's "+
			"status and events"), nil
	case now.Sub(d.Set.CreationTimestamp.Time).Abs() < s.ReadyGrace, d.Set.Status.ObservedGeneration < d.Set.Generation:
		return nil, errors.New("it has just been created or changed")
	case len(d.Pending) > 0:
		pod := &d.Pending[0]
		return d.found(finding.Fatal, "DaemonSetPodNotScheduled", "pod %s for this node is not scheduled: %s: free "+
			"resources or correct what prevents it", pod.Name, condition(pod, corev1.PodScheduled)), nil
	default:
		return d.found(finding.Fatal, "DaemonSetPodMissing", "%s", strings.TrimSuffix("no pod of it is on this node "+
			d.Open, " ")+
			": check the DaemonSet's events: its controller may be down, or a quota or an admission webhook rejects "+
			"the pod"), nil
	}
}

// evaluateRevision checks whether a healthy pod has an old revision that the controller does not replace.
func evaluateRevision(d daemonSetState, s Settings, pod *corev1.Pod) *finding.Finding {
	if d.Newest == nil {
		return nil
	}
	want, have := d.Newest.Labels[appsv1.ControllerRevisionHashLabelKey],
		pod.Labels[appsv1.ControllerRevisionHashLabelKey]
	if want == "" || have == want || d.Still < s.RevisionGrace {
		return nil
	}
	f := d.found(finding.Warning, "DaemonSetRevisionStuck", "pod %s is of revision %s, not %s, and the rollout has "+
		"made no progress for %s: check the DaemonSet's pods on other nodes (%d are unavailable), then delete this one",
		pod.Name, have, want, d.Still.Round(time.Minute), d.Set.Status.NumberUnavailable)
	f.Facts["revision"], f.Facts["newestRevision"] = have, want
	return f
}

// bestPod returns the pod in the best state: not finished, ready, not terminating, the newest.
func bestPod(pods []corev1.Pod) *corev1.Pod {
	rank := func(p *corev1.Pod) int {
		switch {
		case podReady(p) && p.DeletionTimestamp == nil:
			return 3
		case podReady(p):
			return 2
		case p.DeletionTimestamp == nil:
			return 1
		}
		return 0
	}
	var best *corev1.Pod
	for i := range pods {
		p := &pods[i]
		if checkkit.PodFinished(p) {
			continue // the controller replaces it
		}
		if best == nil || rank(p) > rank(best) || rank(p) == rank(best) &&
			best.CreationTimestamp.Before(&p.CreationTimestamp) {
			best = p
		}
	}
	return best
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// condition renders a pod's condition.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind && (c.Reason != "" || c.Message != "") {
			return checkkit.Sanitize(c.Reason+" "+c.Message, 300)
		}
	}
	return "no reason is given"
}

// whyNotReady names the container that keeps a pod from being ready.
func whyNotReady(pod *corev1.Pod) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return checkkit.Sanitize(fmt.Sprintf("container %s: %s %s", c.Name, w.Reason, w.Message), 300)
		}
	}
	return condition(pod, corev1.PodReady)
}

const (
	loopRestarts = 3                // this many restarts make a loop …
	loopWindow   = 10 * time.Minute // … when the last end is not older than this; kubelet's longest back-off is 5 min
)

// loopingContainer describes the container of a pod that crashes again and again; empty if there is none.
func loopingContainer(pod *corev1.Pod, now time.Time) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		end := c.LastTerminationState.Terminated
		if c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 {
			end = c.State.Terminated
		}
		waiting := c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		recent := end != nil && end.ExitCode != 0 && now.Sub(end.FinishedAt.Time) < loopWindow &&
			c.RestartCount >= loopRestarts
		if !waiting && !recent {
			continue
		}
		text := fmt.Sprintf("container %s has restarted %d times", c.Name, c.RestartCount)
		if end != nil {
			text += fmt.Sprintf(", the last time with exit code %d (%s) %s", end.ExitCode, end.Reason, end.Message)
		}
		return checkkit.Sanitize(text, 300)
	}
	return ""
}

func (d daemonSetState) found(severity finding.Severity, reason, format string, args ...any) *finding.Finding {
	if severity == finding.Fatal && !d.Trusted {
		severity = finding.Warning
	}
	return &finding.Finding{
		Subject: d.subject(), Severity: severity, Reason: reason,
		Message: fmt.Sprintf("critical DaemonSet %s: %s", d.Name, fmt.Sprintf(format, args...)),
		Facts:   map[string]string{"because": d.Because},
	}
}
