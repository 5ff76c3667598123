package stuckpods

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// startStage returns the step for which a pod that does not start waits.
func (e *podEvidence) startStage(ctx context.Context, p latePod) stage {
	c, _ := podstate.WaitingContainer(p.pod)
	start := podstate.Start{Waiting: c, Begun: len(p.pod.Status.ContainerStatuses) > 0,
		HostNetwork: p.pod.Spec.HostNetwork}
	is, own := podstate.WaitingStage(c)
	if is != "" {
		return stage{stage: is, own: own, text: fmt.Sprintf("container %s: %s: %s", c.Name,
			c.State.Waiting.Reason, checkkit.Sanitize(c.State.Waiting.Message, checkkit.MaxReported))}
	}
	start.RuntimeErr = e.ask(ctx)
	ready, others := podstate.SandboxesOf(e.sandboxes, p.nodeUID())
	start.Ready, start.Others, start.NetworkNotReady = ready != nil, others, e.networkNotReady
	start.Created = podstate.IsCreated(e.containers, ready, c.Name)
	if ready == nil && start.RuntimeErr == nil {
		start.Missing, _ = podstate.MissingVolumes(e.host, e.mounts, p.pod) // unknown: no volume is named
	}
	is = start.Stage()
	if is == podstate.Pull && p.late < e.settings.PullAfter {
		return stage{} // an image may be large
	}
	return stage{stage: reported(is), text: startText(is, start, p.pod)}
}

// reported returns the stage for the report: these two have the same name.
func reported(is podstate.Stage) podstate.Stage {
	switch is {
	case podstate.Pull:
		return podstate.Image
	case podstate.Begin:
		return podstate.Sandbox
	}
	return is
}

func startText(is podstate.Stage, s podstate.Start, pod *corev1.Pod) string {
	switch is {
	case podstate.Unknown:
		return "the stage is unknown, because the container runtime does not answer: " +
			checkkit.Sanitize(s.RuntimeErr.Error(), checkkit.MaxReported)
	case podstate.Container:
		return fmt.Sprintf("container %s is created, but the runtime does not start it", s.Waiting.Name)
	case podstate.Pull:
		return fmt.Sprintf("its sandbox is ready, but container %s is not created: its image %s is still being "+
			"pulled, or the runtime hangs in creating the container", s.Waiting.Name,
			checkkit.Sanitize(podstate.ImageOf(pod, s.Waiting.Name), checkkit.MaxReported))
	case podstate.Volumes:
		return "waits for volumes: " + finding.JoinFirst(s.Missing, 5) +
			"; kubelet's log and `kubectl describe pod` show why"
	case podstate.Network:
		return "has no sandbox, because the runtime has no network: " + s.NetworkNotReady
	case podstate.Begin:
		return "kubelet has not started working on it: it may wait for its image credentials, its devices or the " +
			"end of an earlier pod of the same name"
	}
	if s.Others > 0 {
		return fmt.Sprintf("its sandbox does not become ready (%d were tried): see `journalctl -u containerd` for "+
			"its network (CNI) or runtime class", s.Others)
	}
	return "its volumes are set up, but it has no sandbox: the runtime or its network plugin (CNI) hangs or fails in " +
		"creating one"
}

// endStage returns the step for which a pod that does not end waits.
func (e *podEvidence) endStage(ctx context.Context, p latePod) stage {
	uid := p.nodeUID()
	end := podstate.End{Finalizers: p.pod.Finalizers}
	if end.Frozen, end.Processes = podstate.ProcessesOf(e.host, e.podCgroups()[uid]); len(end.Processes) == 0 {
		end.RuntimeErr = e.ask(ctx)
		ready, _ := podstate.SandboxesOf(e.sandboxes, uid)
		end.Sandbox, end.Running = ready != nil, podstate.RunningOf(e.containers, uid)
		end.Mounts = podstate.MountsOf(e.host, e.mounts, uid)
		attachments, _ := podstate.AttachmentsOf(e.host, uid, e.sandboxes) // unknown: the next stage gets the blame
		end.Attached = len(attachments) > 0
	}
	is := end.Stage()
	return stage{stage: is, text: e.endText(is, end, uid), own: is == podstate.Finalizers}
}

func (e *podEvidence) endText(is podstate.Stage, end podstate.End, uid string) string {
	switch is {
	case podstate.Frozen:
		return fmt.Sprintf("its processes are frozen by cgroup %s and cannot be killed: %s", end.Frozen,
			processNames(end.Processes))
	case podstate.Blocked:
		return "its processes hang in the kernel (state D) and cannot be killed: " +
			processNames(podstate.BlockedOf(end.Processes))
	case podstate.Processes:
		return fmt.Sprintf("%d of its processes still run: %s: kubelet or the runtime does not kill them; see "+
			"`journalctl -u kubelet -u containerd`", len(end.Processes), processNames(end.Processes))
	case podstate.Unknown:
		return "none of its processes run, and the container runtime does not answer: " +
			checkkit.Sanitize(end.RuntimeErr.Error(), checkkit.MaxReported)
	case podstate.Container:
		return fmt.Sprintf("none of its processes run, but the runtime reports container %s as running: its "+
			"shim or the runtime hangs", checkkit.Sanitize(end.Running[0], 63))
	case podstate.Sandbox:
		return "its containers have exited, but its sandbox remains, or its network: the runtime or its network plugin (CNI DEL) " +
			"fails; see `journalctl -u containerd`"
	case podstate.Volumes:
		points := e.mountNames(end, uid)
		return fmt.Sprintf("its containers have exited, but %d volumes are still mounted: %s", len(points),
			finding.JoinFirst(points, 3))
	case podstate.Finalizers:
		return "nothing of it is left on the node; its finalizers keep the object: " +
			checkkit.Sanitize(finding.JoinFirst(end.Finalizers, 5), checkkit.MaxReported)
	}
	return "nothing of it is left on the node, but kubelet has not let the apiserver delete it: check " +
		"`journalctl -u kubelet`, and whether kubelet reaches the apiserver"
}

// mountNames returns the mounts below the directory of a pod, as volume names if the paths show them.
func (e *podEvidence) mountNames(end podstate.End, uid string) []string {
	var points []string
	for _, m := range end.Mounts {
		points = append(points, checkkit.Sanitize(strings.TrimPrefix(m.Point, podstate.Dir(e.host, uid)+"/"), 200)+
			" ("+checkkit.Sanitize(m.FSType, 40)+")")
	}
	slices.Sort(points)
	return slices.Compact(points)
}

func processNames(processes []podstate.Process) string {
	var names []string
	for _, p := range processes {
		name := fmt.Sprintf("%s (%d)", checkkit.Sanitize(p.Comm, 15), p.PID)
		if p.Wchan != "" {
			name += " in " + checkkit.Sanitize(p.Wchan, 64)
		}
		names = append(names, name)
	}
	return finding.JoinFirst(names, 5)
}
