package podstate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Stage is the progress of a pod. Kubelet waits for volumes, then creates the sandbox and its network, then pulls
// images and creates containers; it ends containers, then the sandbox, then volumes, then the cgroup, and only then
// lets the apiserver delete the pod. The stage is the first of these steps not done.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
type Stage string

// The stages. Users see them: see the facts of stuck-pods.
const (
	Unknown    Stage = "unknown"    // the runtime does not answer
	Volumes    Stage = "volumes"    // starting: not all are set up; ending: not all are unmounted
	Network    Stage = "network"    // no sandbox, because the runtime has no network
	Sandbox    Stage = "sandbox"    // starting: no sandbox is ready; ending: it cannot be stopped
	Begin      Stage = "begin"      // kubelet has not started to work on it
	Pull       Stage = "pull"       // the sandbox is ready, a container is not created: the image, or the runtime
	Image      Stage = "image"      // kubelet reports that the image cannot be pulled
	Container  Stage = "container"  // starting: it cannot be created or started; ending: it does not exit
	Frozen     Stage = "frozen"     // ending: its processes are frozen
	Blocked    Stage = "blocked"    // … or hang in the kernel
	Processes  Stage = "processes"  // … or continue to run
	Finalizers Stage = "finalizers" // only the object is left
	Release    Stage = "release"    // the object is left without finalizers
)

// Start is the known state of a pod that does not start.
type Start struct {
	Waiting         corev1.ContainerStatus // see WaitingContainer; zero if none waits
	Begun           bool                   // kubelet has set the status of its containers
	HostNetwork     bool
	RuntimeErr      error
	Ready           bool     // it has a ready sandbox,
	Others          int      // this number of other sandboxes,
	Created         bool     // and the waiting container is created
	Missing         []string // volumes that are not set up
	NetworkNotReady string   // the runtime's reason
}

// Stage returns the step that the pod waits for.
func (s Start) Stage() Stage {
	if stage, _ := WaitingStage(s.Waiting); stage != "" {
		return stage
	}
	switch {
	case s.RuntimeErr != nil:
		return Unknown
	case s.Ready && s.Created:
		return Container
	case s.Ready:
		return Pull
	case len(s.Missing) > 0 && s.Others == 0:
		return Volumes
	case s.NetworkNotReady != "" && !s.HostNetwork:
		return Network
	case s.Others == 0 && !s.Begun:
		return Begin
	}
	return Sandbox
}

// WaitingStage returns the stage, if kubelet itself reports it; own means that only the pod's specification can correct
// it: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go and pkg/kubelet/kuberuntime.
func WaitingStage(c corev1.ContainerStatus) (stage Stage, own bool) {
	if c.State.Waiting == nil {
		return "", false
	}
	switch c.State.Waiting.Reason {
	case "ErrImageNeverPull", "InvalidImageName":
		return Image, true
	case "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		return Image, false
	case "CreateContainerConfigError":
		return Container, true
	case "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
		return Container, false
	}
	return "", false
}

// End contains the remains of a pod that must end.
type End struct {
	Frozen     string // path of a frozen cgroup
	Processes  []Process
	RuntimeErr error
	Running    []string // running containers, according to the runtime
	Sandbox    bool     // it has a ready sandbox
	Attached   bool     // to a network: CNI DEL, which follows the end of the sandbox, has not succeeded
	Mounts     []mount.Mount
	Finalizers []string
}

// Stage returns the step that keeps the pod.
func (e End) Stage() Stage {
	switch {
	case len(e.Processes) > 0 && e.Frozen != "":
		return Frozen
	case len(e.Processes) > 0 && len(BlockedOf(e.Processes)) > 0:
		return Blocked
	case len(e.Processes) > 0:
		return Processes
	case e.RuntimeErr != nil:
		return Unknown
	case len(e.Running) > 0:
		return Container
	case e.Sandbox, e.Attached: // kubelet unmounts no volume before
		return Sandbox
	case len(e.Mounts) > 0:
		return Volumes
	case len(e.Finalizers) > 0:
		return Finalizers
	}
	return Release
}
