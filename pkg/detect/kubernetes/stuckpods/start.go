package stuckpods

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/podstate"
)

// startStage returns what a pod that does not start waits for.
func (e *podEvidence) startStage(ctx context.Context, p podstate.Pod) podstate.PodStage {
	c, waits := podstate.WaitingContainer(p.Pod)
	if waits {
		if stage := waitingStage(c); stage.Stage != "" {
			return stage
		}
	}
	if err := e.ask(ctx); err != nil {
		return podstate.PodStage{Stage: "unknown", Text: "the stage is unknown, because the container runtime does " +
			"not answer: " + checkkit.Sanitize(err.Error(), checkkit.MaxReported)}
	}
	ready, other := e.sandboxesOf(p.NodeUID())
	switch {
	case ready != nil && e.containerOf(ready.Id, c.Name) != nil:
		return podstate.PodStage{Stage: "container",
			Text: fmt.Sprintf("container %s is created, but the runtime does not start it", c.Name)}
	case ready != nil && p.Late < e.settings.PullAfter:
		return podstate.PodStage{} // an image may be large
	case ready != nil:
		return podstate.PodStage{Stage: "image", Text: fmt.Sprintf("its sandbox is ready, but container %s is not "+
			"created: its image %s is still being pulled, or the runtime hangs in creating the container", c.Name,
			checkkit.Sanitize(imageOf(p.Pod, c.Name), checkkit.MaxReported))}
	}
	if missing := e.missingVolumes(p); len(missing) > 0 && other == 0 {
		return podstate.PodStage{Stage: "volumes", Text: "waits for volumes: " + checkkit.JoinFirst(missing, 5) +
			"; kubelet's log and `kubectl describe pod` show why"}
	}
	if e.networkNotReady != "" && !p.Pod.Spec.HostNetwork {
		return podstate.PodStage{Stage: "network", Text: "has no sandbox, because the runtime has no network: " +
			e.networkNotReady}
	}
	if other > 0 {
		return podstate.PodStage{Stage: "sandbox",
			Text: fmt.Sprintf("its sandbox does not become ready (%d were tried): see `journalctl -u containerd` for "+
				"its network (CNI) or runtime class", other)}
	}
	text := "its volumes are set up, but it has no sandbox: the runtime or its network plugin (CNI) hangs or fails " +
		"in creating one"
	if len(p.Pod.Status.ContainerStatuses) == 0 {
		text = "kubelet has not started working on it: it may wait for its image credentials, its devices or the end " +
			"of an earlier pod of the same name"
	}
	return podstate.PodStage{Stage: "sandbox", Text: text}
}

// waitingStage is the stage, if kubelet itself reports it:
// https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go and pkg/kubelet/kuberuntime.
func waitingStage(c corev1.ContainerStatus) podstate.PodStage {
	said := fmt.Sprintf("container %s: %s: %s", c.Name, c.State.Waiting.Reason,
		checkkit.Sanitize(c.State.Waiting.Message, checkkit.MaxReported))
	switch c.State.Waiting.Reason {
	case "ErrImageNeverPull", "InvalidImageName":
		return podstate.PodStage{Stage: "image", Text: said, Own: true}
	case "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		return podstate.PodStage{Stage: "image", Text: said}
	case "CreateContainerConfigError":
		return podstate.PodStage{Stage: "container", Text: said, Own: true}
	case "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
		return podstate.PodStage{Stage: "container", Text: said}
	}
	return podstate.PodStage{}
}

func imageOf(pod *corev1.Pod, container string) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == container {
			return c.Image
		}
	}
	return "?"
}

// sandboxesOf returns the sandbox of a pod that is ready, and how many others it has.
func (e *podEvidence) sandboxesOf(uid string) (ready *cri.PodSandbox, others int) {
	for _, s := range e.sandboxes {
		switch {
		case s.GetMetadata().GetUid() != uid:
		case s.State == cri.PodSandboxState_SANDBOX_READY:
			ready = s
		default:
			others++
		}
	}
	return ready, others
}

func (e *podEvidence) containerOf(sandbox, name string) *cri.Container {
	for _, c := range e.containers {
		if c.PodSandboxId == sandbox && c.GetMetadata().GetName() == name &&
			c.State == cri.ContainerState_CONTAINER_CREATED {
			return c
		}
	}
	return nil
}

// missingVolumes names the volumes that a container wants to mount and that are not set up. Kubelet makes
// volumes/<plugin>/<volume> when it sets one up; claims have the name of their PersistentVolume, which the pod does not
// show, so they are counted. A hostPath leaves no trace.
func (e *podEvidence) missingVolumes(p podstate.Pod) []string {
	there, err := e.setUp(p.NodeUID())
	if err != nil {
		return nil
	}
	var missing, claims []string
	for _, v := range podstate.MountedVolumes(p.Pod) {
		switch plugin, what := podstate.VolumePlugin(v); {
		case plugin == "" && what != "":
			claims = append(claims, v.Name+" ("+what+")")
		case plugin == "":
		case !there[plugin+"/"+v.Name]:
			missing = append(missing, v.Name+" ("+what+")")
		default:
			delete(there, plugin+"/"+v.Name)
		}
	}
	if bound := len(there); bound < len(claims) {
		missing = append(missing, claims...)
		if bound > 0 {
			missing = append(missing, fmt.Sprintf("of which %d are set up", bound))
		}
	}
	return missing
}

// setUp returns the volumes of a pod that are set up, as plugin/volume. Those of CSI must be mounted too: their
// directory comes first.
func (e *podEvidence) setUp(uid string) (map[string]bool, error) {
	files, dir := e.host.Files, path.Join("/", e.host.Paths.KubeletRoot, "pods", uid)
	there := map[string]bool{}
	for _, kind := range []string{"volumes", "volumeDevices"} {
		plugins, err := files.List(path.Join(dir, kind))
		if err != nil {
			if kind == "volumes" {
				return nil, err
			}
			continue
		}
		for _, plugin := range plugins {
			volumes, err := files.List(path.Join(dir, kind, plugin))
			if err != nil {
				return nil, err
			}
			for _, volume := range volumes {
				point := path.Join(dir, kind, plugin, volume)
				there[plugin+"/"+volume] = kind != "volumes" || plugin != "kubernetes.io~csi" || e.mounted(point)
			}
		}
	}
	for name, ready := range there {
		if !ready {
			delete(there, name)
		}
	}
	return there, nil
}

// mounted reports whether anything is mounted at or below a directory.
func (e *podEvidence) mounted(dir string) bool {
	return slices.ContainsFunc(e.mounts, func(m mount.Mount) bool { return mount.Below(m.Point, dir) })
}
