package podstage

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
)

// ending answers for a pod being deleted.
func (f Facts) ending(pod *corev1.Pod) Answer {
	due := pod.DeletionTimestamp.Time // the end of its grace period
	e := podstate.End{Frozen: f.Local.Frozen, Processes: f.Local.Processes, RuntimeErr: f.Runtime.Err,
		Attached: len(f.Local.Attachments) > 0, Finalizers: pod.Finalizers}
	ready, _ := podstate.SandboxesOf(f.Runtime.Sandboxes, f.UID)
	e.Sandbox, e.Running = ready != nil, podstate.RunningOf(f.Runtime.Containers, f.UID)
	for _, m := range f.Local.Mounts {
		e.Mounts = append(e.Mounts, mount.Mount{Point: m.Point})
	}
	stage := e.Stage()
	a := Answer{Verdict: Stuck, Since: due}
	switch {
	case f.Now.Before(due) && (len(e.Processes) > 0 || len(e.Running) > 0) && stage != podstate.Frozen &&
		stage != podstate.Blocked:
		a.Verdict, a.Stage = Waiting, GracePeriod
		a.Since = due.Add(-time.Duration(grace(pod)) * time.Second)
		a.Blocker = fmt.Sprintf("its grace period ends in %s; until then its containers may run",
			due.Sub(f.Now).Round(time.Second))
		return a
	case f.Local.CgroupsErr != nil && len(e.Processes) == 0 && stage != podstate.Unknown:
		a.Verdict, a.Stage = Unknown, CouldNotTell
		a.Blocker = "whether its processes have ended could not be read: " + f.Local.CgroupsErr.Error()
		a.Next = "run this as root"
		return a
	}
	f.endStage(stage, e, &a)
	switch stage {
	case podstate.Frozen, podstate.Blocked, podstate.Finalizers, podstate.Unknown:
		return a // time alone does not help
	}
	named := stage == podstate.Volumes && a.Holder != "" || stage == podstate.Sandbox && f.event(killFailed) != ""
	if !named {
		f.wait(&a, patience)
	}
	return a
}

// killFailed is the reason of kubelet's event for a pod that it cannot end.
const killFailed = "FailedKillPod"

func grace(pod *corev1.Pod) int64 {
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	return 30
}

func (f Facts) endStage(stage podstate.Stage, e podstate.End, a *Answer) {
	switch stage {
	case podstate.Frozen, podstate.Blocked, podstate.Processes:
		f.endProcesses(stage, e, a)
	case podstate.Unknown:
		a.Verdict, a.Stage = Unknown, CouldNotTell
		a.Blocker = "none of its processes run, and the container runtime does not answer: " + e.RuntimeErr.Error()
		a.Next = "nodeagent check runtime-health"
	case podstate.Container:
		a.Stage = EndContainer
		a.Blocker = "none of its processes run, but the runtime reports container " + e.Running[0] +
			" as running: its shim or the runtime hangs"
		a.Next = f.journal()
	case podstate.Sandbox:
		f.endSandbox(a)
	case podstate.Volumes:
		a.Stage, a.Holder = EndVolumes, f.mountHolder()
		f.endVolumes(a)
	case podstate.Finalizers:
		a.Stage = EndFinalizers
		a.Blocker = "nothing of it is left on this node; its finalizers keep the object: " +
			strings.Join(e.Finalizers, ", ")
		a.Holder = "the controllers of these finalizers, not this node"
		a.Next = "look at the log of the controller that sets the finalizer; " +
			f.kubectl("get pod "+f.Name+" -o jsonpath='{.metadata.finalizers}'")
	default:
		a.Stage = EndRelease
		a.Blocker = "nothing of it is left on this node, but kubelet has not let the apiserver delete it"
		a.Next = "journalctl -u kubelet | grep " + argument(f.UID) + "; nodeagent check kubelet-health " +
			"apiserver-reachability"
	}
}

func (f Facts) endProcesses(stage podstate.Stage, e podstate.End, a *Answer) {
	a.Stage, a.Holder = EndContainer, f.processHolder()
	switch stage {
	case podstate.Frozen:
		a.Blocker = "its processes are frozen by cgroup " + e.Frozen + ", and cannot be killed until they are thawed"
		a.Next = "find who froze it, then: " + f.Local.Thaw
	case podstate.Blocked:
		blocked := podstate.BlockedOf(e.Processes)
		a.Blocker = fmt.Sprintf("%d of its processes hang in the kernel (state D, in %s), and cannot be killed",
			len(blocked), blocked[0].Wchan)
		a.Next = fmt.Sprintf("cat /proc/%d/stack shows what it waits for: a disk, or the server of a network or FUSE "+
			"filesystem, which must answer; nodeagent check hung-tasks hung-mounts io-hang", blocked[0].PID)
	default:
		a.Blocker = fmt.Sprintf("%d of its processes still run: kubelet or the runtime does not kill them",
			len(e.Processes))
		a.Next = "journalctl -u kubelet -u " + f.unit() + " | grep " + argument(f.UID)
	}
}

func (f Facts) endSandbox(a *Answer) {
	a.Stage = EndSandbox
	a.Blocker = "its containers have exited, but its sandbox cannot be stopped: the runtime or its network plugin (CNI " +
		"DEL) fails or hangs"
	if e := f.event(killFailed); e != "" {
		a.Blocker += ": " + e
	}
	if len(f.Local.Attachments) > 0 {
		a.Holder = "network " + strings.Join(f.Local.Attachments, ", ")
	}
	a.Next = f.journal() + "; nodeagent check cni-config runtime-health"
	if len(f.Runtime.Sandboxes) > 0 {
		a.Next = "crictl stopp " + argument(short(f.Runtime.Sandboxes[0].Id)) + " shows the error; nodeagent check " +
			"cni-config runtime-health"
	}
}

func (f Facts) endVolumes(a *Answer) {
	held := f.Local.Mounts[0]
	for _, m := range f.Local.Mounts {
		if len(m.Holders) > 0 {
			held = m
			break
		}
	}
	a.Blocker = fmt.Sprintf("its containers have exited, but %d volumes are still mounted: %s (%s)", len(f.Local.Mounts),
		held.Point, held.FSType)
	a.Next = "journalctl -u kubelet | grep " + argument(f.UID) + " shows why the unmount fails"
	switch {
	case len(held.Holders) > 0:
		a.Next = fmt.Sprintf("end what holds it (ps -o pid,lstart,args -p %d), then kubelet unmounts it by itself",
			held.Holders[0].PID)
	case f.Local.HoldersErr != nil:
		a.Holder = "could not be told: " + f.Local.HoldersErr.Error()
	}
}
