package detect

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

// maxReported bounds what kubelet or the runtime say, in bytes, in a message.
const maxReported = 300

// startStage says what a pod that does not start waits for.
func (e *podEvidence) startStage(ctx context.Context, p stuckPod) podStage {
	c, waits := waitingContainer(p.pod)
	if waits {
		if stage := saidStage(c); stage.stage != "" {
			return stage
		}
	}
	if err := e.ask(ctx); err != nil {
		return podStage{stage: "unknown", text: "what it waits for cannot be told, because the container runtime does not answer: " + plainText(err.Error(), maxReported)}
	}
	ready, other := e.sandboxesOf(p.nodeUID())
	switch {
	case ready != nil && e.containerOf(ready.Id, c.Name) != nil:
		return podStage{stage: "container", text: fmt.Sprintf("container %s is created, but the runtime does not start it", c.Name)}
	case ready != nil && p.late < e.settings.PullAfter:
		return podStage{} // an image may be large
	case ready != nil:
		return podStage{stage: "image", text: fmt.Sprintf("its sandbox is ready, but container %s is not created: its image %s is still being pulled, or the runtime hangs in "+
			"creating the container", c.Name, plainText(imageOf(p.pod, c.Name), maxReported))}
	}
	if missing := e.missingVolumes(p); len(missing) > 0 && other == 0 {
		return podStage{stage: "volumes", text: "waits for volumes: " + firstOf(missing, 5) + "; kubelet's log and `kubectl describe pod` say why"}
	}
	if e.networkNotReady != "" && !p.pod.Spec.HostNetwork {
		return podStage{stage: "network", text: "has no sandbox, because the runtime has no network: " + e.networkNotReady}
	}
	if other > 0 {
		return podStage{stage: "sandbox", text: fmt.Sprintf("its sandbox does not become ready (%d were tried): see `journalctl -u containerd` for its network (CNI) or runtime class", other)}
	}
	text := "its volumes are there, but it has no sandbox: the runtime or its network plugin (CNI) hangs or fails in creating one"
	if len(p.pod.Status.ContainerStatuses) == 0 {
		text = "kubelet has not begun with it: it may wait for its image credentials, its devices or the end of an earlier pod of the same name"
	}
	return podStage{stage: "sandbox", text: text}
}

// saidStage is the stage where kubelet itself names it: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go
// and pkg/kubelet/kuberuntime.
func saidStage(c corev1.ContainerStatus) podStage {
	said := fmt.Sprintf("container %s: %s: %s", c.Name, c.State.Waiting.Reason, plainText(c.State.Waiting.Message, maxReported))
	switch c.State.Waiting.Reason {
	case "ErrImageNeverPull", "InvalidImageName":
		return podStage{stage: "image", text: said, own: true}
	case "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		return podStage{stage: "image", text: said}
	case "CreateContainerConfigError":
		return podStage{stage: "container", text: said, own: true}
	case "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
		return podStage{stage: "container", text: said}
	}
	return podStage{}
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
		if c.PodSandboxId == sandbox && c.GetMetadata().GetName() == name && c.State == cri.ContainerState_CONTAINER_CREATED {
			return c
		}
	}
	return nil
}

// missingVolumes names the volumes that a container wants to mount and that are not set up. Kubelet makes
// volumes/<plugin>/<volume> when it sets one up; claims are there under the name of their PersistentVolume, which the node
// does not know by the pod, so they are counted. A hostPath leaves no trace.
func (e *podEvidence) missingVolumes(p stuckPod) []string {
	there, err := e.setUp(p.nodeUID())
	if err != nil {
		return nil
	}
	var missing, claims []string
	for _, v := range mountedVolumes(p.pod) {
		switch plugin, what := volumePlugin(v); {
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
			missing = append(missing, fmt.Sprintf("of which %d are there", bound))
		}
	}
	return missing
}

// setUp returns the volumes of a pod that are set up, as plugin/volume. Those of CSI must be mounted too: their directory
// comes first.
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
	return slices.ContainsFunc(e.mounts, func(m host.Mount) bool { return host.Below(m.Point, dir) })
}

// mountedVolumes are the volumes of a pod that a container mounts: kubelet sets up no others.
func mountedVolumes(pod *corev1.Pod) []corev1.Volume {
	used := map[string]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			used[m.Name] = true
		}
		for _, d := range c.VolumeDevices {
			used[d.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(pod.Spec.Volumes), func(v corev1.Volume) bool { return !used[v.Name] })
}

// volumePlugin returns the directory of the plugin that sets up a volume under its own name, and what people call it. No
// plugin and a name is a claim; neither is a volume that leaves no trace.
func volumePlugin(v corev1.Volume) (plugin, what string) {
	switch {
	case v.ConfigMap != nil:
		return "kubernetes.io~configmap", "ConfigMap " + v.ConfigMap.Name
	case v.Secret != nil:
		return "kubernetes.io~secret", "Secret " + v.Secret.SecretName
	case v.Projected != nil:
		return "kubernetes.io~projected", "projected"
	case v.DownwardAPI != nil:
		return "kubernetes.io~downward-api", "downwardAPI"
	case v.EmptyDir != nil:
		return "kubernetes.io~empty-dir", "emptyDir"
	case v.CSI != nil:
		return "kubernetes.io~csi", "CSI driver " + strings.ToValidUTF8(v.CSI.Driver, "?")
	case v.NFS != nil:
		return "kubernetes.io~nfs", "NFS " + v.NFS.Server
	case v.PersistentVolumeClaim != nil:
		return "", "claim " + v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return "", "ephemeral claim"
	}
	return "", ""
}
