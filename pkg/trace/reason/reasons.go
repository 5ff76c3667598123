// Package reason finds why an act of a pod missed its time, and whether the cause is the system or the user. It is
// pure.
package reason

import (
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// Class is the party that causes a reason.
type Class string

// The classes.
const (
	System Class = "system"
	User   Class = "user"
	None   Class = "none" // for Unknown
)

// Reason names a cause. Names are permanent: stores and metrics contain them.
type Reason string

// Info describes a reason.
type Info struct {
	Reason Reason
	Class  Class
	Signal string // how it is recognized
	Advice string
}

// Unknown is the reason of a miss without any other.
const Unknown Reason = "Unknown"

// Reasons returns all reasons, in the order of the stages. UnmountStuck and CgroupStuck need evidence from the node.
func Reasons() []Info {
	return []Info{
		{"QuotaExceeded", User, "FailedCreate of the owner: exceeded quota", "Raise the quota, or request less."},
		{"AdmissionDenied", User, "FailedCreate: denied by a webhook or policy, PodSecurity or LimitRange", "Correct the pod's template."},
		{"AdmissionUnavailable", System, "FailedCreate: the webhook cannot be called", "Look at the service of the webhook."},
		{"CreateFailed", System, "FailedCreate: the apiserver or etcd failed, or the text is not known", "Look at the apiserver and etcd."},
		{"InvalidSpec", User, "FailedCreate: is invalid, or service account or priority class not found", "Correct the owner's template."},
		{"SchedulingGated", User, "PodScheduled has this reason", "Remove the gate, or ask the controller that owns it."},
		{"UnschedulableConstraints", User, "FailedScheduling: selector, affinity, spread or ports", "Compare the pod's constraints with the labels and taints of the nodes."},
		{"ImpossibleRequest", User, "the requests exceed the allocatable of each node", "Request less, or add larger nodes."},
		{"CapacityExhausted", System, "FailedScheduling: Insufficient …, Too many pods", "Add nodes, or free some."},
		{"NodesTaintedByFaults", System, "FailedScheduling: taints, and nodes have taints of faults; or all nodes that fit are cordoned", "Repair the nodes that have the taints, or uncordon some."},
		{"PVCMissing", User, "persistentvolumeclaim not found", "Create the claim that the pod names."},
		{"VolumeUnbound", System, "FailedScheduling: the claim is not bound", "Look at the claim's Events and at the provisioner."},
		{"VolumeZoneConflict", System, "volume node affinity conflict", "Add a node in the volume's zone."},
		{"DevicesUnavailable", System, "resource claims not allocated, FailedPrepareDynamicResources, or UnexpectedAdmissionError", "Look at the device plugin or DRA driver of the node."},
		{"PreemptionWait", System, "a node is nominated, and its victims are still present", "Look at the victims: their deletion is late."},
		{"SchedulerSlow", System, "no result from the scheduler, its Lease is fresh", "Look at the scheduler's queue and latency."},
		{"SchedulerDown", System, "no result from the scheduler, its Lease is stale", "Restart the scheduler."},
		{"SchedulerError", System, "FailedScheduling: binding rejected, or an error of the scheduler", "Read the scheduler's log."},
		{"NodeLost", System, "the Node is not ready, or unknown", "Repair the node."},
		{"KubeletSlow", System, "no status from kubelet, its node is alive", "Look at kubelet on the node."},
		{"RejectedByNode", System, "Failed with OutOfcpu, OutOfmemory, OutOfpods, NodeAffinity, TopologyAffinityError or AppArmor", "The scheduler and the node disagree about the room: compare them."},
		{"NodeReadOnly", System, "read-only file system, in any text; or the agent's finding filesystem-readonly", "Repair the node's disk."},
		{"NodeDiskFull", System, "no space left on device, in any text", "Free space on the node."},
		{"NodeShutdown", System, "rejected or ended by the node's shutdown", "The node shuts down: place the pod elsewhere."},
		{"EvictedByPressure", System, "Evicted: the node was low on a resource", "Find who uses the node's resource."},
		{"EvictedByOwnLimit", User, "Evicted: the pod's own ephemeral or emptyDir limit", "Raise the limit, or write less."},
		{"Preempted", System, "DisruptionTarget: PreemptionByScheduler", "A pod of higher priority took the place: add nodes."},
		{"EvictedByTaint", System, "DisruptionTarget: DeletionByTaintManager", "Repair the node that has the taint."},
		{"EvictedByApi", System, "DisruptionTarget: EvictionByEvictionAPI", "Somebody drained the node."},
		{"AttachFailed", System, "FailedAttachVolume", "Look at the CSI driver's controller."},
		{"VolumeInUse", System, "Multi-Attach error", "The volume is still attached elsewhere: look at that node."},
		{"MountFailed", System, "FailedMount", "Look at the CSI driver on the node."},
		{"MountSlow", System, "no sandbox, the pod has volumes, no error", "Look at the CSI driver on the node."},
		{"CSIDriverMissing", System, "the driver is not in the list of registered drivers; or the agent's finding csi-registration", "Start the driver's DaemonSet on the node."},
		{"ConfigMissing", User, "ConfigMap, Secret or key not found", "Create the object that the pod names."},
		{"HostPathInvalid", User, "hostPath type check failed", "Correct the path or its type."},
		{"VolumeOwnershipSlow", User, "VolumePermissionChangeInProgress", "Set fsGroupChangePolicy: OnRootMismatch."},
		{"NetworkNotReady", System, "network is not ready", "Start the network plugin on the node."},
		{"IPExhausted", System, "no address left, by the plugins' texts", "Find leaked addresses, or enlarge the range."},
		{"NetworkFailed", System, "setup network for sandbox", "Look at the network plugin on the node."},
		{"SandboxFailed", System, "FailedCreatePodSandBox, or no sandbox without an error", "Look at the container runtime."},
		{"SandboxTimeout", System, "FailedCreatePodSandBox: deadline exceeded", "Look at the container runtime, and at the node's disk."},
		{"RuntimeClassMissing", User, "the runtime's handler is not known", "Correct the pod's runtimeClassName, or place it on a node that has the handler."},
		{"InvalidImageName", User, "waiting reason", "Correct the image's name."},
		{"ImageNeverPull", User, "waiting reason ErrImageNeverPull", "Load the image, or change imagePullPolicy."},
		{"ImageNotFound", User, "not found, manifest unknown, no matching platform", "Correct the image's name or tag."},
		{"ImagePullDenied", User, "401, 403, no credentials", "Correct the imagePullSecrets."},
		{"RegistryUnavailable", System, "connection error, TLS error, 429, 5xx", "Look at the registry and the way to it."},
		{"ImagePullFailed", System, "any other error of a pull", "Read the text."},
		{"ImageInspectError", System, "waiting reason", "Look at the container runtime."},
		{"ImagePullCostTime", System, "the pull took the time", "Make the image smaller, or bring it to the node before."},
		{"ImagePullQueued", System, "waiting takes over half of the pull", "Let kubelet pull in parallel (serializeImagePulls)."},
		{"InitFailed", User, "an init container ended with an error", "Read the init container's log."},
		{"InitSlow", User, "an init container still runs", "Read the init container's log."},
		{"ContainerConfigInvalid", User, "CreateContainerConfigError", "Read the text, and correct the pod."},
		{"CommandFailed", User, "executable not found or not permitted", "Correct the command or the image."},
		{"RuntimeError", System, "CreateContainerError or RunContainerError of the runtime itself, or no start without an error", "Look at the container runtime."},
		{"PostStartFailed", User, "FailedPostStartHook", "Correct the hook."},
		{"CrashLoopBackOff", User, "waiting reason, or a container ended before Ready", "Read the container's log."},
		{"OOMKilledByLimit", User, "OOMKilled, the container has a limit", "Raise the limit, or use less."},
		{"OOMKilledByNode", System, "OOMKilled, the container has no limit", "Find who uses the node's memory."},
		{"ProbeFailing", User, "Unhealthy", "Read the container's log, and the probe."},
		{"ReadinessSlow", User, "running, and no probe failed", "Look at the time that the program needs to start."},
		{"ReadinessGateWaiting", System, "ContainersReady, but not Ready", "Ask the controller that writes the gate."},
		{"ControlPlaneSlow", System, "in time by the node's clock, but reported late", "Look at the apiserver and etcd."},
		{"StageSlow", System, "all stages ended, but late; its class is that of the stage's owner", "Look at the owner of the stage."},
		{"FinalizerHeld", System, "deletion: only finalizers are left", "Ask the controller that owns the finalizer."},
		{"StopNotNoticed", System, "kubelet has not begun to stop the pod, its node is alive", "Look at kubelet on the node."},
		{"ContainerUnkillable", System, "containers run longer than the grace period", "Look for processes in state D on the node."},
		{"NetworkReleaseFailed", System, "FailedKillPod: the network plugin", "Look at the network plugin on the node."},
		{"SandboxStopFailed", System, "FailedKillPod; or the agent sees the sandbox still", "Look at the container runtime."},
		{"UnmountStuck", System, "deletion: the agent sees volumes that are still mounted", "The text names the mount: nodeagent inspect --pod on the node shows its holder."},
		{"CgroupStuck", System, "deletion: the agent sees processes in the pod's cgroup, although its containers have ended", "Look for processes in state D on the node."},
		{"GoneNotReported", System, "all containers have ended, but the object is there", "nodeagent inspect --pod on the node shows what holds it."},
		{"ResizeDeferred", System, "ResizeDeferred", "The node has no room now: free some, or move the pod."},
		{"ResizeInfeasible", User, "ResizeInfeasible", "Request less."},
		{Unknown, None, "no rule fits", "Please report it with the pod's timeline."},
	}
}

// Describe returns the description of a reason; the zero Info if it does not exist.
func Describe(r Reason) Info {
	for _, info := range Reasons() {
		if info.Reason == r {
			return info
		}
	}
	return Info{Reason: r, Class: None}
}

// Overrides are a cluster's classes for reasons, instead of the table's.
type Overrides map[Reason]Class

// Text recognizes a reason by its reporter and a part of the text.
type Text struct {
	Reason Reason
	Stage  stage.ID // it happens in this stage, whose end overcomes it
	From   []string // reasons of Events, of waiting, or of the pod; none: any
	Any    []string // parts of the text, in lower case, one is enough; none: any text
}

// Texts returns the table, more specific rows before more general ones. Each row has examples in test/trace/texts, with the
// component and version that writes them.
func Texts() []Text {
	refused := []string{"FailedCreate"}
	sandbox := []string{"FailedCreatePodSandBox"}
	pull := []string{"ErrImagePull", "ImagePullBackOff", "Failed:pull"}
	mount := []string{"FailedMount", "FailedMapVolume"}
	start := []string{"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun", "Failed"}
	config := []string{"CreateContainerConfigError"}
	scheduling := []string{"FailedScheduling", "Unschedulable"}
	return []Text{
		// Failures of the apiserver come first: their texts may contain "forbidden" as well.
		{"AdmissionUnavailable", stage.Admit, refused, []string{"failed calling webhook", "failed to call webhook"}},
		{"CreateFailed", stage.Admit, refused, []string{"quota evaluation timed out", "status unknown for quota", "not yet ready to handle request",
			"etcdserver", "too many requests", "cannot create resource", "the server is currently unable", "connection refused",
			"timeout: request did not complete", "internal error occurred", "the object has been modified"}},
		{"QuotaExceeded", stage.Admit, refused, []string{"exceeded quota", "failed quota", "insufficient quota"}},
		{"InvalidSpec", stage.Admit, refused, []string{" is invalid", "serviceaccount \"", "no priorityclass with name"}},
		{"AdmissionDenied", stage.Admit, refused, []string{"denied the request", "denied request", "violates podsecurity", "is forbidden: "}},

		{"NodeReadOnly", stage.Sandbox, []string{"FailedMount", "FailedCreatePodSandBox", "FailedCreatePodContainer", "FailedKillPod"},
			[]string{"read-only file system"}},
		{"NodeDiskFull", stage.Sandbox, []string{"FailedMount", "FailedCreatePodSandBox", "FailedCreatePodContainer"},
			[]string{"no space left on device"}},
		{"NodeDiskFull", stage.Pull, pull, []string{"no space left on device"}},

		{"PVCMissing", stage.Schedule, scheduling, []string{"persistentvolumeclaim \""}},
		{"VolumeUnbound", stage.Schedule, scheduling, []string{"unbound immediate persistentvolumeclaims", "pvc(s) bound to non-existent pv(s)",
			"didn't find available persistent volumes to bind"}},
		{"VolumeZoneConflict", stage.Schedule, scheduling, []string{"volume node affinity", "had no available volume zone",
			"didn't match persistentvolume's node affinity"}},
		{"DevicesUnavailable", stage.Schedule, scheduling, []string{"cannot allocate all claims", "resourceclaim"}},
		{"CapacityExhausted", stage.Schedule, scheduling, []string{"insufficient ", "too many pods", "exceed max volume count",
			"did not have enough free storage"}},
		{"NodesTaintedByFaults", stage.Schedule, scheduling, []string{"untolerated taint {node.kubernetes.io/", "untolerated taint {nodeagent"}},
		{"UnschedulableConstraints", stage.Schedule, scheduling, []string{"didn't match pod's node affinity", "scheduler-enforced node affinity", "pod affinity",
			"anti-affinity", "topology spread", "free ports", "untolerated taint", "requested node name", "required features"}},
		{"NodesTaintedByFaults", stage.Schedule, scheduling, []string{"were unschedulable"}}, // and for no other cause
		{"SchedulerError", stage.Schedule, append([]string{"SchedulerError"}, scheduling...), []string{"binding rejected", "running ", "error"}},

		{"NodeLost", stage.Notice, []string{"NodeLost"}, nil},
		{"NodeShutdown", stage.AdmitOnNode, []string{"NodeShutdown", "Terminated"}, []string{"shutting down", "node shutdown"}},
		{"DevicesUnavailable", stage.AdmitOnNode, []string{"UnexpectedAdmissionError"}, nil},
		{"DevicesUnavailable", stage.Sandbox, []string{"FailedPrepareDynamicResources"}, nil},
		{"RejectedByNode", stage.AdmitOnNode, []string{"OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "NodeAffinity",
			"TopologyAffinityError", "AppArmor", "PodLevelResourcesNotSupported"}, nil},
		{"EvictedByOwnLimit", stage.BecomeReady, []string{"Evicted"}, []string{"exceeds the limit", "exceeds the total limit"}},
		{"EvictedByPressure", stage.BecomeReady, []string{"Evicted"}, nil},

		{"VolumeInUse", stage.Attach, []string{"FailedAttachVolume"}, []string{"multi-attach error"}},
		{"AttachFailed", stage.Attach, []string{"FailedAttachVolume"}, nil},
		{"CSIDriverMissing", stage.Sandbox, mount, []string{"not found in the list of registered csi drivers"}},
		{"HostPathInvalid", stage.Sandbox, mount, []string{"hostpath type check failed"}},
		{"ConfigMissing", stage.Sandbox, mount, []string{"configmap \"", "secret \"", "references non-existent config key",
			"references non-existent secret key"}},
		{"MountFailed", stage.Sandbox, mount, nil},
		{"VolumeOwnershipSlow", stage.Sandbox, []string{"VolumePermissionChangeInProgress"}, nil},

		{"NetworkNotReady", stage.Sandbox, []string{"NetworkNotReady"}, nil},
		{"IPExhausted", stage.Sandbox, sandbox, []string{"no ip addresses available in range set", "no more ips", "failed to assign an ip address",
			"no available ip"}},
		{"RuntimeClassMissing", stage.Sandbox, sandbox, []string{"runtimeclass", "runtime handler", "no runtime for \""}},
		{"NetworkFailed", stage.Sandbox, sandbox, []string{"network for sandbox"}},
		{"SandboxTimeout", stage.Sandbox, sandbox, []string{"deadlineexceeded", "deadline exceeded"}},
		{"SandboxFailed", stage.Sandbox, sandbox, nil},
		{"NetworkReleaseFailed", stage.Disappear, []string{"FailedKillPod"}, []string{"network for sandbox", "cni"}},
		{"SandboxStopFailed", stage.Disappear, []string{"FailedKillPod"}, nil},

		{"InvalidImageName", stage.Pull, []string{"InvalidImageName"}, nil},
		{"ImageNeverPull", stage.Pull, []string{"ErrImageNeverPull"}, nil},
		{"ImageInspectError", stage.Pull, []string{"ImageInspectError"}, nil},
		{"ImagePullDenied", stage.Pull, pull, []string{"401 unauthorized", "403 forbidden", "unauthorized:", "pull access denied",
			"authorization failed", "no basic auth"}},
		{"RegistryUnavailable", stage.Pull, pull, []string{"connection refused", "i/o timeout", "no such host", "x509:", "tls: ", "tls handshake",
			"429 too many requests", "toomanyrequests", "500 internal", "502 bad", "503 service", "504 gateway", "connection reset",
			"no route to host", "network is unreachable", "server misbehaving", "registryunavailable", "client.timeout exceeded"}},
		{"ImageNotFound", stage.Pull, pull, []string{": not found", "manifest unknown", "no match for platform", "name unknown", "404 not found"}},
		{"ImagePullFailed", stage.Pull, append([]string{"SignatureValidationFailed"}, pull...), nil},

		{"ConfigMissing", stage.Start, config, []string{"configmap \"", "secret \"", "couldn't find key"}},
		{"ContainerConfigInvalid", stage.Start, config, nil},
		{"CommandFailed", stage.Start, start, []string{"executable file not found", "exec: \"", "exec format error", "permission denied: unknown",
			"no command specified"}},
		{"RuntimeError", stage.Start, []string{"CreateContainerError", "RunContainerError", "FailedCreatePodContainer"}, nil},
		{"PostStartFailed", stage.PostStart, []string{"FailedPostStartHook", "PostStartHookError"}, nil},
		{"CrashLoopBackOff", stage.BecomeReady, []string{"CrashLoopBackOff"}, nil},
		{"ResizeDeferred", stage.ReadyAgain, []string{"ResizeDeferred"}, nil},
		{"ResizeInfeasible", stage.ReadyAgain, []string{"ResizeInfeasible"}, nil},
	}
}

var table = Texts()

// Match finds the row of a text. Reports without errors and unknown texts have none.
func Match(from, text string) (Text, bool) {
	lower := strings.ToLower(text)
	for _, row := range table {
		if len(row.From) > 0 && !slices.Contains(row.From, from) {
			continue
		}
		if len(row.Any) == 0 || slices.ContainsFunc(row.Any, func(part string) bool { return strings.Contains(lower, part) }) {
			return row, true
		}
	}
	return Text{}, false
}
