// Package podstate determines the progress of a pod in starting or ending: the state in its object, its traces on the
// node, and its stage. Its stages are pure functions. It returns external text as it is: the caller must sanitize it
// before printing.
package podstate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// IsFinished reports whether all containers of a pod have ended permanently.
func IsFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// IsStarting reports whether a pod waits for something other than its own programs.
func IsStarting(pod *corev1.Pod) bool {
	if IsFinished(pod) {
		return false
	}
	if len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) == 0 {
		return len(pod.Spec.Containers) > 0 && pod.Status.Phase != corev1.PodRunning
	}
	_, waits := WaitingContainer(pod)
	return waits
}

// WaitingContainer returns the container that holds up the start of a pod: the first unfinished init container, or else
// the first waiting container. The node cannot correct a container that runs, or waits for a restart after a crash.
func WaitingContainer(pod *corev1.Pod) (corev1.ContainerStatus, bool) {
	if c, init := UnfinishedInit(pod); init {
		if c.State.Waiting == nil || c.State.Waiting.Reason == crashLoop {
			return corev1.ContainerStatus{}, false
		}
		return c, true
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != crashLoop {
			return c, true
		}
	}
	return corev1.ContainerStatus{}, false
}

// crashLoop is the reason of a container waiting for its restart after a crash.
const crashLoop = "CrashLoopBackOff"

// UnfinishedInit returns the first unfinished init container.
func UnfinishedInit(pod *corev1.Pod) (corev1.ContainerStatus, bool) {
	for _, c := range pod.Status.InitContainerStatuses {
		done := c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		if !done && (c.Started == nil || !*c.Started || !restartable(pod, c.Name)) {
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

// ImageOf returns the image of a container, or "?" if the pod has no such container.
func ImageOf(pod *corev1.Pod, container string) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == container {
			return c.Image
		}
	}
	return "?"
}

// MountedVolumes returns the volumes of a pod that a container mounts: kubelet sets up no others.
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

// VolumePlugin returns the directory of the plugin that sets up a volume under its own name, and its name for display.
// A name without a plugin means a claim; neither means a volume that leaves no trace.
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
		return csiPlugin, "CSI driver " + strings.ToValidUTF8(v.CSI.Driver, "?")
	case v.NFS != nil:
		return "kubernetes.io~nfs", "NFS " + v.NFS.Server
	case v.PersistentVolumeClaim != nil:
		return "", "claim " + v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return "", "ephemeral claim"
	}
	return "", ""
}

const csiPlugin = "kubernetes.io~csi"
