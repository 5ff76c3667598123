package podstage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// absent answers for a pod that the apiserver does not have on this node.
func (f Facts) absent() Answer {
	switch {
	case f.Kubelet.has() && isStatic(f.Kubelet.Pod):
		return f.begun(f.Kubelet.Pod) // its mirror is missing in the apiserver
	case f.hasTraces() || f.Kubelet.has():
		return f.leftBehind()
	case f.Elsewhere.has() && f.Elsewhere.Pod.Spec.NodeName != "":
		node := f.Elsewhere.Pod.Spec.NodeName
		return Answer{Verdict: Stuck, Stage: NotBoundHere, Since: since(f.Elsewhere.Pod, corev1.PodScheduled),
			Blocker: "it is on node " + node + ", and nothing of it is here",
			Next:    "on node " + node + ": nodeagent inspect pod " + f.Namespace + "/" + f.Name}
	case f.Elsewhere.has():
		return f.unscheduled(f.Elsewhere.Pod)
	case f.Elsewhere.lacks() || apierrors.IsNotFound(f.Elsewhere.Err):
		return Answer{Verdict: Stuck, Stage: NoSuchPod,
			Blocker: "there is no such pod, and nothing of one is on this node",
			Next: f.kubectl("get pods") + "; if its controller cannot create it (quota, admission): " +
				f.kubectl("get events --field-selector reason=FailedCreate") + "; " + f.kubectl("describe resourcequota")}
	}
	why := "it was not asked"
	if f.Elsewhere.Err != nil {
		why = reason(f.Elsewhere.Err)
	}
	return Answer{Verdict: Unknown, Stage: NotBoundHere,
		Blocker: "it is not on node " + f.Node + ", and nothing of it is here; whether it exists elsewhere could not " +
			"be told: " + why,
		Next: f.kubectl("get pod " + f.Name + " -o wide")}
}

func (f Facts) unscheduled(pod *corev1.Pod) Answer {
	a := Answer{Verdict: Stuck, Stage: NotBoundHere, Since: pod.CreationTimestamp.Time,
		Blocker: "it is on no node yet: the scheduler has not bound it", Next: f.kubectl("describe pod " + f.Name)}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Message != "" {
			a.Blocker = "it is on no node yet: " + c.Reason + ": " + c.Message
		}
	}
	if f.Now.Sub(a.Since) < patience {
		a.Verdict = Waiting
	}
	return a
}

// leftBehind answers for a pod unknown to the apiserver with objects on the node.
func (f Facts) leftBehind() Answer {
	a := Answer{Verdict: Stuck, Stage: LeftBehind, Holder: f.processHolder(),
		Blocker: "the apiserver has no such pod on this node, but here is still: " + f.traces(),
		Next:    "nodeagent inspect: it proves what is left over; then nodeagent clean"}
	if a.Holder == "" {
		a.Holder = f.mountHolder()
	}
	if f.Kubelet.has() {
		a.Blocker += "; kubelet still has the pod and may be ending it"
	}
	for _, s := range f.Runtime.Sandboxes {
		if at := time.Unix(0, s.CreatedAt); a.Since.IsZero() || at.Before(a.Since) {
			a.Since = at
		}
	}
	return a
}

// finished answers for a pod whose containers have ended for good.
func (f Facts) finished(pod *corev1.Pod) Answer {
	a := Answer{Verdict: Fine, Stage: Completed, Since: since(pod, corev1.ContainersReady),
		Blocker: "all of its containers have ended well"}
	if pod.Status.Phase == corev1.PodFailed {
		a.Verdict, a.Stage, a.Blocker = Stuck, Failed, "it has failed for good"
		if pod.Status.Reason != "" {
			a.Blocker += ": " + pod.Status.Reason + ": " + pod.Status.Message
		}
		for _, c := range containers(pod) {
			if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
				a.Blocker += "; container " + c.Name + " " + exited(t)
			}
		}
		a.Next = f.kubectl("logs " + f.Name)
		switch {
		case refused(pod):
			a.Next = "kubelet did not admit it: kubectl describe node " + argument(f.Node) + " shows what is allocated; it is not " +
				"tried again: " + f.kubectl("delete pod "+f.Name) + ", and its controller makes another one"
		case slices.ContainsFunc(containers(pod), func(c corev1.ContainerStatus) bool { return neverStarted(c.State.Terminated) }):
			a.Next = f.cannotStart()
		}
	}
	return a
}

// refused reports whether kubelet did not admit a pod: no container of it ran. See pkg/kubelet/lifecycle/predicate.go
// (OutOfcpu, OutOfmemory, OutOfpods and other resources, NodeAffinity …) and pkg/kubelet/cm/admission.
func refused(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Status.Reason, "OutOf") || slices.Contains([]string{"UnexpectedAdmissionError",
		"TopologyAffinityError", "NodeAffinity", "NodePorts", "SMTAlignmentError", "PodOSNotSupported",
		"PodOSSelectorNodeLabelDoesNotMatch", "InvalidNodeInfo", "AppArmor", "SysctlForbidden"}, pod.Status.Reason)
}

// neverStarted reports whether the runtime could not start the process of a container.
func neverStarted(t *corev1.ContainerStateTerminated) bool {
	return t != nil && (t.Reason == "StartError" || t.Reason == "ContainerCannotRun")
}

func exited(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exited with code %d", t.ExitCode)
	if t.Signal != 0 {
		text = fmt.Sprintf("was killed by signal %d", t.Signal)
	}
	if t.Reason != "" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}

// notReceived reports whether all signs say that kubelet does not know of the pod, if it could not be asked: kubelet
// sets the start time as soon as it does.
func (f Facts) notReceived(pod *corev1.Pod) bool {
	return !f.Kubelet.has() && pod.Status.StartTime == nil && !f.hasTraces() && f.tracesRead()
}

func (f Facts) unknownToKubelet(pod *corev1.Pod) Answer {
	a := Answer{Verdict: Stuck, Stage: UnknownToKubelet, Since: since(pod, corev1.PodScheduled),
		Blocker: "the apiserver has bound it to this node, but kubelet does not have it, and nothing of it is here",
		Next: "journalctl -u kubelet -n 200: does kubelet reach the apiserver? nodeagent check kubelet-health " +
			"kubelet-sync apiserver-reachability"}
	if f.hasTraces() {
		a.Blocker = "the apiserver has bound it to this node, but kubelet does not have it; here is: " + f.traces()
	} else if pod.Status.Phase == corev1.PodRunning {
		a.Stage, a.Since = NoTrace, since(pod, corev1.ContainersReady)
	}
	if f.Now.Sub(a.Since) < patience {
		a.Verdict = Waiting
	}
	return a
}

// noTrace answers for a pod that runs by its status but has no objects here; otherwise not ok.
func (f Facts) noTrace(pod *corev1.Pod) (Answer, bool) {
	if pod.Status.Phase != corev1.PodRunning || f.hasTraces() {
		return Answer{}, false
	}
	if !f.tracesRead() {
		return Answer{Verdict: Unknown, Stage: CouldNotTell,
			Blocker: "it runs by its status, but no trace of it was found, and not everything could be read: " +
				f.unread(), Next: "run this as root, where the runtime answers"}, true
	}
	return Answer{Verdict: Stuck, Stage: NoTrace, Since: since(pod, corev1.ContainersReady),
		Blocker: "it runs by its status, but the node has no trace of it: no sandbox or container, no directory, no " +
			"cgroup",
		Next: "journalctl -u kubelet -n 200: kubelet's view is old, or its runtime lost its state; delete the pod so " +
			"that its controller makes another one"}, true
}
