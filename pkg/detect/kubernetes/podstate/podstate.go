// Package podstate evaluates how far a pod has come in starting or terminating.
package podstate

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// Pod is one pod that is late.
type Pod struct {
	Pod    *corev1.Pod
	Ending bool
	Late   time.Duration // how long it has been starting, or ending beyond its grace period
	Where  PodStage
}

// PodStarting reports whether a pod waits for something that its own programs do not do.
func PodStarting(pod *corev1.Pod) bool {
	if checkkit.PodFinished(pod) {
		return false
	}
	if len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) == 0 {
		return len(pod.Spec.Containers) > 0 && pod.Status.Phase != corev1.PodRunning
	}
	_, waits := WaitingContainer(pod)
	return waits
}

// WaitingContainer returns the container that holds up the start of a pod: the first init container that is not done,
// or else the first container that waits. One that runs, or waits for a restart after a crash, is not for the node to
// correct.
func WaitingContainer(pod *corev1.Pod) (corev1.ContainerStatus, bool) {
	for _, c := range pod.Status.InitContainerStatuses {
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0, c.Started != nil && *c.Started &&
			restartable(pod, c.Name):
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

// NodeUID is the UID that the node uses for the pod.
func (p Pod) NodeUID() string { return host.NodePodUID(p.Pod) }

// MountedVolumes are the volumes of a pod that a container mounts: kubelet sets up no others.
func MountedVolumes(pod *corev1.Pod) []corev1.Volume {
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

// VolumePlugin returns the directory of the plugin that sets up a volume under its own name, and its name for people. A
// name without a plugin is a claim; neither is a volume that leaves no trace.
func VolumePlugin(v corev1.Volume) (plugin, what string) {
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

// PodStage is where a pod is stuck. An empty stage is none: the pod makes progress.
type PodStage struct {
	Stage string // for machines: "volumes", "sandbox", "image" …
	Text  string // what it waits for, with the evidence
	Own   bool   // only the pod's specification, or its controllers, can correct it
}

// Name is namespace/name.
func (p Pod) Name() string {
	return checkkit.Sanitize(p.Pod.Namespace, 63) + "/" + checkkit.Sanitize(p.Pod.Name, 253)
}
