package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// cause is a known reason why the owner of an object does not remove it. It returns an empty text for any other object.
type cause struct {
	kind object.Kind
	text func(o object.Assessment) string
}

// causes returns the causes in the order in which they have to be removed.
func causes() []cause {
	return []cause{
		{object.Process, hangingProcess},
		{object.Cgroup, frozenCgroup(false, "no signal")},
		{object.Mount, mountOfAnotherPod},
		{object.Mount, heldMount},
		{object.Mount, refusedUnmount},
		{object.PodDirectory, leftVolumeRecord},
		// Last, because a frozen cgroup v2 does not stop SIGKILL, which kubelet and the runtime send in the end.
		// https://docs.kernel.org/admin-guide/cgroup-v2.html, cgroup.freeze
		{object.Cgroup, frozenCgroup(true, "no signal but SIGKILL")},
	}
}

// blocker describes why kubelet and the runtime, the owners of a pod's objects, do not remove them; it is empty if the
// facts do not show why.
func blocker(pod []object.Assessment) string {
	for _, c := range causes() {
		for _, o := range pod {
			if o.Kind != c.kind || o.Verdict != object.Leftover && o.Verdict != object.Candidate {
				continue
			}
			if text := c.text(o); text != "" {
				return text
			}
		}
	}
	return ""
}

func hangingProcess(o object.Assessment) string {
	if o.Facts["state"] != "D" || o.Facts["waitsIn"] == "" {
		return ""
	}
	return fmt.Sprintf("process %s (%s) waits in the kernel, in %s, where signals may not reach it: find the disk or "+
		"server that does not answer", o.ID, o.Facts["command"], o.Facts["waitsIn"])
}

func frozenCgroup(v2 bool, signals string) func(object.Assessment) string {
	return func(o object.Assessment) string {
		if o.Facts["frozen"] != "true" || (o.Facts["hierarchy"] == "v2") != v2 {
			return ""
		}
		return fmt.Sprintf("the cgroup %s is frozen: its processes react to %s until it is thawed", o.ID, signals)
	}
}

// mountOfAnotherPod recognizes a copy of a mount in the mount namespace of a pod that mounts host directories without
// mountPropagation HostToContainer: kubernetes#51835, #65879.
func mountOfAnotherPod(o object.Assessment) string {
	n := slices.IndexFunc(o.Holders, func(h object.Holder) bool {
		return h.How == "mount-namespace" && h.Pod.UID != "" && h.Pod.UID != o.Pod.UID
	})
	if n < 0 {
		return ""
	}
	h := o.Holders[n]
	return fmt.Sprintf("the mount %s is also in the mount namespace of pid %d %s of pod %s: that pod mounts a directory "+
		"of the host without mountPropagation HostToContainer, and keeps the mount until it is restarted", pointOf(o),
		h.PID, h.Command, shortPod(h.Pod))
}

// heldMount prefers a process that works in the mount to one that only has a copy of it: services of systemd have mount
// namespaces of their own, from which their copies disappear with the mount.
func heldMount(o object.Assessment) string {
	if len(o.Holders) == 0 {
		return ""
	}
	at := slices.IndexFunc(o.Holders, func(h object.Holder) bool { return h.How != "mount-namespace" })
	return fmt.Sprintf("the mount %s is %s: it is busy until that process ends or closes it", pointOf(o),
		holderText(o.Holders[max(at, 0)], shortPod))
}

func refusedUnmount(o object.Assessment) string {
	if o.Facts["refused"] == "" {
		return ""
	}
	return fmt.Sprintf("the mount %s must not be unmounted: %s", pointOf(o), o.Facts["refused"])
}

func leftVolumeRecord(o object.Assessment) string {
	if o.Facts["volumeRecord"] == "" {
		return ""
	}
	return "kubelet cannot remove the directory since vol_data.json is left: a known upstream bug, kubernetes#105536 (" +
		o.Facts["volumeRecord"] + ")"
}

func pointOf(o object.Assessment) string { return cmp.Or(o.Facts["point"], o.ID) }

// nextStep returns advice about the objects of a pod.
func nextStep(pod []object.Assessment) string {
	switch {
	case hasVerdict(pod, object.Leftover):
		return "nodeagent clean shows what would be released, nodeagent clean --yes releases it"
	case hasVerdict(pod, object.Candidate):
		return "wait for the proof: a running agent inspects by itself, nodeagent clean --wait 15m does it by hand"
	case hasVerdict(pod, object.Unknown):
		return "make the witness named by the reason answer, and inspect again"
	case hasVerdict(pod, object.Unowned):
		return "an administrator has to decide; nodeagent inspect --explain ID shows all that is known about an object"
	}
	return ""
}
