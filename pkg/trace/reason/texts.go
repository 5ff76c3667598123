package reason

import (
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

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

// Match finds the row of a text. Reports without errors and unknown texts have none.
func Match(table []Text, from, text string) (Text, bool) {
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
