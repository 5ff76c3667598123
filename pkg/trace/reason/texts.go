package reason

import (
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// Example is a text written by a component.
type Example struct {
	Source string // component, version, file
	From   string // reason of the Event, of waiting, or of the pod
	Text   string
}

// Text recognizes a reason by its reporter and a part of the text.
type Text struct {
	Reason   Reason
	Stage    stage.ID // it happens in this stage, whose end overcomes it
	From     []string // reasons of Events, of waiting, or of the pod; none: any
	Any      []string // parts of the text, in lower case, one is enough; none: any text
	Examples []Example
}

// The source files of the examples, with the versions in which they were read.
const (
	kubelet    = "kubelet 1.36.3, pkg/kubelet/"
	volumes    = "kubelet 1.36.3, pkg/volume/"
	plugins    = "kube-scheduler 1.36.3, pkg/scheduler/framework/plugins/"
	containerd = "containerd 2.2.9, "
)

var (
	sandboxEvents = []string{"FailedCreatePodSandBox"}
	pullEvents    = []string{"ErrImagePull", "ImagePullBackOff", "Failed:pull"}
	mountEvents   = []string{"FailedMount", "FailedMapVolume"}
	startEvents   = []string{"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun", "Failed"}
	scheduling    = []string{"FailedScheduling", "Unschedulable"}
)

// Texts returns the table, more specific rows before more general ones.
func Texts() []Text {
	return slices.Concat(admissionTexts(), anywhere(), schedulingTexts(), nodeTexts(), volumeTexts(), sandboxTexts(), imageTexts(), containerTexts())
}

func anywhere() []Text {
	return []Text{
		{"NodeReadOnly", stage.Sandbox, []string{"FailedMount", "FailedCreatePodSandBox", "FailedCreatePodContainer", "FailedKillPod"},
			[]string{"read-only file system"}, []Example{{"errno EROFS, Linux", "FailedCreatePodSandBox", "Failed to create pod sandbox: open /run/containerd/io.containerd.runtime.v2.task/k8s.io/x/config.json: read-only file system"}}},
		{"NodeDiskFull", stage.Sandbox, []string{"FailedMount", "FailedCreatePodSandBox", "FailedCreatePodContainer"},
			[]string{"no space left on device"}, []Example{{"errno ENOSPC, Linux", "FailedCreatePodSandBox", "Failed to create pod sandbox: mkdir /var/lib/containerd/x: no space left on device"}}},
		{"NodeDiskFull", stage.Pull, pullEvents, []string{"no space left on device"},
			[]Example{{"errno ENOSPC, Linux", "ErrImagePull", `failed to pull and unpack image "docker.io/library/a:1": write /var/lib/containerd/x: no space left on device`}}},
	}
}

func schedulingTexts() []Text {
	return []Text{
		{"PVCMissing", stage.Schedule, scheduling, []string{"persistentvolumeclaim \""}, []Example{
			{"kube-scheduler 1.36.3", "FailedScheduling", `0/3 nodes are available: persistentvolumeclaim "data" not found. not found`}}},
		{"VolumeUnbound", stage.Schedule, scheduling, []string{"unbound immediate persistentvolumeclaims", "pvc(s) bound to non-existent pv(s)",
			"didn't find available persistent volumes to bind"}, []Example{
			{plugins + "volumebinding/binder.go", "FailedScheduling", "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."},
			{plugins + "volumebinding", "FailedScheduling", "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
			{plugins + "volumebinding/binder.go", "FailedScheduling", "0/3 nodes are available: 3 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)."}}},
		{"VolumeZoneConflict", stage.Schedule, scheduling, []string{"volume node affinity", "had no available volume zone",
			"didn't match persistentvolume's node affinity"}, []Example{
			{plugins + "volumezone/volume_zone.go", "FailedScheduling", "0/3 nodes are available: 3 node(s) had no available volume zone."}}},
		{"DevicesUnavailable", stage.Schedule, scheduling, []string{"cannot allocate all claims", "resourceclaim"}, []Example{
			{plugins + "dynamicresources", "FailedScheduling", "0/3 nodes are available: 3 cannot allocate all claims."}}},
		{capacityExhausted, stage.Schedule, scheduling, []string{"insufficient ", "too many pods", "exceed max volume count",
			"did not have enough free storage"}, []Example{
			{plugins + "noderesources/fit.go", "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."},
			{plugins + "noderesources/fit.go", "FailedScheduling", "0/1 nodes are available: 1 Too many pods."}}},
		{taintedByFaults, stage.Schedule, scheduling, []string{"untolerated taint {node.kubernetes.io/", "untolerated taint {nodeagent"}, []Example{
			{"kube-scheduler 1.34", "FailedScheduling", "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }."}}},
		{constraints, stage.Schedule, scheduling, []string{"didn't match pod's node affinity", "scheduler-enforced node affinity", "pod affinity", "anti-affinity", "topology spread",
			"free ports", "untolerated taint", "requested node name", "required features"}, []Example{
			{plugins + "nodeaffinity/node_affinity.go", "FailedScheduling", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."},
			{plugins + "nodeports/node_ports.go", "FailedScheduling", "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
			{plugins + "tainttoleration", "FailedScheduling", "0/1 nodes are available: 1 node(s) had untolerated taint(s)."}}},
		{taintedByFaults, stage.Schedule, scheduling, []string{"were unschedulable"}, []Example{ // and for no other cause
			{plugins + "nodeunschedulable", "FailedScheduling", "0/1 nodes are available: 1 node(s) were unschedulable."}}},
		{"SchedulerError", stage.Schedule, append([]string{"SchedulerError"}, scheduling...), []string{"binding rejected", "running ", "error"}, []Example{
			{"kube-scheduler 1.36.3", "FailedScheduling", "binding rejected: running Bind plugin \"DefaultBinder\": Operation cannot be fulfilled"}}},
	}
}

func nodeTexts() []Text {
	return []Text{
		{nodeLost, stage.Notice, []string{"NodeLost"}, nil, []Example{{"node-lifecycle-controller 1.36.3", "NodeLost", "Node a which was running pod b is unresponsive"}}},
		{nodeShutdown, stage.AdmitOnNode, []string{"NodeShutdown", "Terminated"}, []string{"shutting down", "node shutdown"}, []Example{
			{kubelet + "nodeshutdown", "NodeShutdown", "Pod was rejected as the node is shutting down."},
			{kubelet + "nodeshutdown", "Terminated", "Pod was terminated in response to imminent node shutdown."}}},
		{"DevicesUnavailable", stage.AdmitOnNode, []string{"UnexpectedAdmissionError"}, nil, []Example{
			{kubelet + "cm/devicemanager", "UnexpectedAdmissionError", "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"}}},
		{"DevicesUnavailable", stage.Sandbox, []string{"FailedPrepareDynamicResources"}, nil, []Example{
			{kubelet + "kubelet.go", "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: NodePrepareResources failed"}}},
		{rejectedByNode, stage.AdmitOnNode, []string{"OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "NodeAffinity",
			"TopologyAffinityError", "AppArmor", "PodLevelResourcesNotSupported"}, nil, []Example{
			{kubelet + "lifecycle/predicate.go", "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 7000, capacity: 8000"}}},
		{evictedByLimit, stage.BecomeReady, []string{"Evicted"}, []string{"exceeds the limit", "exceeds the total limit"}, []Example{
			{kubelet + "eviction/eviction_manager.go", "Evicted", `Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". `},
			{kubelet + "eviction/eviction_manager.go", "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "}}},
		{evictedByPressure, stage.BecomeReady, []string{"Evicted"}, nil, []Example{
			{kubelet + "eviction/helpers.go", "Evicted", "The node was low on resource: ephemeral-storage. "}}},
	}
}

func volumeTexts() []Text {
	return []Text{
		{volumeInUse, stage.Attach, []string{"FailedAttachVolume"}, []string{"multi-attach error"}, []Example{
			{"kube-controller-manager 1.36.3, pkg/controller/volume/attachdetach", "FailedAttachVolume", `Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node and can't be attached to another`}}},
		{attachFailed, stage.Attach, []string{"FailedAttachVolume"}, nil, []Example{
			{volumes + "util/operationexecutor", "FailedAttachVolume", `AttachVolume.Attach failed for volume "pvc-1" : rpc error: code = Internal desc = backend`}}},
		{"CSIDriverMissing", stage.Sandbox, mountEvents, []string{"not found in the list of registered csi drivers"}, []Example{
			{volumes + "csi/csi_client.go", "FailedMount", `MountVolume.MountDevice failed for volume "pvc-1" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name ebs.csi.aws.com not found in the list of registered CSI drivers`}}},
		{"HostPathInvalid", stage.Sandbox, mountEvents, []string{"hostpath type check failed"}, []Example{
			{volumes + "hostpath", "FailedMount", `MountVolume.SetUp failed for volume "h" : hostPath type check failed: /data is not a directory`}}},
		{"ConfigMissing", stage.Sandbox, mountEvents, []string{"configmap \"", "secret \"", "references non-existent config key", "references non-existent secret key"}, []Example{
			{volumes + "configmap", "FailedMount", `MountVolume.SetUp failed for volume "c" : configmap "settings" not found`},
			{volumes + "secret", "FailedMount", `MountVolume.SetUp failed for volume "s" : secret "key" not found`}}},
		{mountFailed, stage.Sandbox, mountEvents, nil, []Example{
			{volumes + "util/operationexecutor", "FailedMount", `MountVolume.SetUp failed for volume "pvc-1" : rpc error: code = Internal desc = mount failed: exit status 32`}}},
		{"VolumeOwnershipSlow", stage.Sandbox, []string{"VolumePermissionChangeInProgress"}, nil, []Example{
			{volumes + "volume_linux.go", "VolumePermissionChangeInProgress", "Setting volume ownership for uid/volumes/kubernetes.io~csi/pvc-1/mount, processed 51200 files."}}},
	}
}

func sandboxTexts() []Text {
	return []Text{
		{"NetworkNotReady", stage.Sandbox, []string{"NetworkNotReady"}, nil, []Example{
			{kubelet + "kubelet.go", "NetworkNotReady", "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"}}},
		{"IPExhausted", stage.Sandbox, sandboxEvents, []string{"no ip addresses available in range set", "no more ips", "failed to assign an ip address", "no available ip"}, []Example{
			{"CNI plugins 1.9, plugins/ipam/host-local", "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "x": plugin type="host-local" failed (add): failed to allocate for range 0: no IP addresses available in range set: 10.244.1.1-10.244.1.254`}}},
		{"RuntimeClassMissing", stage.Sandbox, sandboxEvents, []string{"runtimeclass", "runtime handler", "no runtime for \""}, []Example{
			{containerd + "internal/cri/config", "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "gvisor" is configured`}}},
		{"NetworkFailed", stage.Sandbox, sandboxEvents, []string{"network for sandbox"}, []Example{
			{containerd + "internal/cri/server/podsandbox", "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "x": plugin type="bridge" failed (add): no bridge`}}},
		{"SandboxTimeout", stage.Sandbox, sandboxEvents, []string{"deadlineexceeded", "deadline exceeded"}, []Example{
			{"gRPC status", "FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded"}}},
		{sandboxFailed, stage.Sandbox, sandboxEvents, nil, []Example{
			{kubelet + "kuberuntime/kuberuntime_manager.go", "FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to start sandbox"}}},
		{"NetworkReleaseFailed", stage.Disappear, []string{"FailedKillPod"}, []string{"network for sandbox", "cni"}, []Example{
			{containerd + "internal/cri/server", "FailedKillPod", `error killing pod: failed to "KillPodSandbox" for "u" with KillPodSandboxError: "rpc error: code = Unknown desc = failed to destroy network for sandbox \"x\""`}}},
		{"SandboxStopFailed", stage.Disappear, []string{"FailedKillPod"}, nil, []Example{
			{kubelet + "kubelet_pods.go", "FailedKillPod", `error killing pod: failed to "KillPodSandbox" for "u" with KillPodSandboxError: "rpc error: code = DeadlineExceeded desc = context deadline exceeded"`}}},
	}
}

func imageTexts() []Text {
	return []Text{
		{"InvalidImageName", stage.Pull, []string{"InvalidImageName"}, nil, []Example{
			{kubelet + "images/image_manager.go", "InvalidImageName", `Failed to apply default image tag "A": couldn't parse image name "A": invalid reference format: repository name (library/A) must be lowercase`}}},
		{"ImageNeverPull", stage.Pull, []string{"ErrImageNeverPull"}, nil, []Example{
			{kubelet + "images/image_manager.go", "ErrImageNeverPull", `Container image "a:1" is not present with pull policy of Never`}}},
		{"ImageInspectError", stage.Pull, []string{"ImageInspectError"}, nil, []Example{
			{kubelet + "images/image_manager.go", "ImageInspectError", `Failed to inspect image "a:1": rpc error: code = Unavailable`}}},
		{"ImagePullDenied", stage.Pull, pullEvents, []string{"401 unauthorized", "403 forbidden", "unauthorized:", "pull access denied", "authorization failed", "no basic auth"}, []Example{
			{containerd + "core/remotes/docker", "ErrImagePull", `failed to pull and unpack image "r.example/a:1": failed to resolve image: pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed`}}},
		{"RegistryUnavailable", stage.Pull, pullEvents, []string{"connection refused", "i/o timeout", "no such host", "x509:", "tls: ", "tls handshake", "429 too many requests", "toomanyrequests",
			"500 internal", "502 bad", "503 service", "504 gateway", "connection reset", "no route to host", "network is unreachable", "server misbehaving", "registryunavailable", "client.timeout exceeded"}, []Example{
			{containerd + "core/remotes/docker", "ErrImagePull", `failed to pull and unpack image "r.example/a:1": failed to resolve image: failed to do request: Head "https://r.example/v2/a/manifests/1": dial tcp 10.0.0.1:443: connect: connection refused`},
			{containerd + "core/remotes/docker", "ErrImagePull", `failed to pull and unpack image "r.example/a:1": failed to copy: httpReadSeeker: failed open: unexpected status code https://r.example/v2/a: 429 Too Many Requests`}}},
		{"ImageNotFound", stage.Pull, pullEvents, []string{": not found", "manifest unknown", "no match for platform", "name unknown", "404 not found"}, []Example{
			{containerd + "core/remotes/docker/resolver.go", "ErrImagePull", `failed to pull and unpack image "docker.io/library/a:9": failed to resolve image: docker.io/library/a:9: not found`},
			{containerd + "core/images", "ImagePullBackOff", `Back-off pulling image "a:1": ErrImagePull: failed to pull and unpack image "a:1": no match for platform in manifest: not found`}}},
		{imagePullFailed, stage.Pull, append([]string{"SignatureValidationFailed"}, pullEvents...), nil, []Example{
			{containerd + "core/unpack", "ErrImagePull", `failed to pull and unpack image "a:1": failed to extract layer sha256:1: unexpected EOF`}}},
	}
}

func containerTexts() []Text {
	return []Text{
		{"ConfigMissing", stage.Start, []string{"CreateContainerConfigError"}, []string{"configmap \"", "secret \"", "couldn't find key"}, []Example{
			{kubelet + "kubelet_pods.go", "CreateContainerConfigError", "couldn't find key user in Secret default/db"},
			{kubelet + "kubelet_pods.go", "CreateContainerConfigError", `configmap "settings" not found`}}},
		{configInvalid, stage.Start, []string{"CreateContainerConfigError"}, nil, []Example{
			{kubelet + "kuberuntime/security_context_others.go", "CreateContainerConfigError", `container has runAsNonRoot and image will run as root (pod: "a_default(u)", container: c)`}}},
		{"CommandFailed", stage.Start, startEvents, []string{"executable file not found", "exec: \"", "exec format error", "permission denied: unknown", "no command specified"}, []Example{
			{"runc 1.3", "StartError", `failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "serve": executable file not found in $PATH`}}},
		{runtimeError, stage.Start, []string{"CreateContainerError", "RunContainerError", "FailedCreatePodContainer"}, nil, []Example{
			{kubelet + "kuberuntime/kuberuntime_container.go", "CreateContainerError", "failed to reserve container name \"c_a_default_u_0\": name is reserved"}}},
		{postStartFailed, stage.PostStart, []string{"FailedPostStartHook", "PostStartHookError"}, nil, []Example{
			{kubelet + "kuberuntime/kuberuntime_container.go", "FailedPostStartHook", "PostStartHook failed"}}},
		{crashLoop, stage.BecomeReady, []string{"CrashLoopBackOff"}, nil, []Example{
			{kubelet + "kuberuntime/kuberuntime_manager.go", "CrashLoopBackOff", "back-off 10s restarting failed container=c pod=a_default(u)"}}},
		{resizeDeferred, stage.ReadyAgain, []string{"ResizeDeferred"}, nil, []Example{{kubelet + "allocation", "ResizeDeferred", "Node didn't have enough resource: cpu"}}},
		{resizeInfeasible, stage.ReadyAgain, []string{"ResizeInfeasible"}, nil, []Example{{kubelet + "allocation", "ResizeInfeasible", "Node didn't have enough capacity: cpu, requested: 100000, capacity: 8000"}}},
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
