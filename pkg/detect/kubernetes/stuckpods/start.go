package stuckpods

import (
	"context"
	"fmt"

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
