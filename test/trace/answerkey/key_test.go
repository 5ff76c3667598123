package answerkey

// part is a reason with two texts that prove it.
type part struct {
	reason, class string
	how           how
	from          string // reason of the Event, of the waiting container or of the pod
	texts         [2]string
}

// how a reason shows itself.
type how int

const (
	waiting     how = iota // the container waits
	event                  // an Event of the pod, which has no sandbox
	failed                 // the pod has failed
	unscheduled            // the condition of the scheduler
)

const (
	system, user = "system", "user"
	sandbox      = "Failed to create pod sandbox: rpc error: code = Unknown desc = "
	pullOf       = `failed to pull and unpack image "registry.example/team/app:7": `
	setUp        = `MountVolume.SetUp failed for volume "v" : `
)

// answers returns the answer key: the reasons that statuses and Events alone can show.
func answers() []part {
	return []part{
		{"InvalidImageName", user, waiting, "InvalidImageName", [2]string{`Failed to apply default image tag "Team/App": couldn't parse image name`,
			`Failed to apply default image tag "a::b": couldn't parse image name "a::b": invalid reference format`}},
		{"ImageNeverPull", user, waiting, "ErrImageNeverPull", [2]string{`Container image "app:7" is not present with pull policy of Never`,
			`Container image "registry.example/x" is not present with pull policy of Never`}},
		{"ImageInspectError", system, waiting, "ImageInspectError", [2]string{`Failed to inspect image "app:7": rpc error: code = Unknown desc = database is locked`,
			`Failed to inspect image "": rpc error: code = Internal`}},
		{"ImageNotFound", user, waiting, "ErrImagePull", [2]string{pullOf + "failed to resolve image: registry.example/team/app:7: not found",
			pullOf + "no match for platform in manifest: not found"}},
		{"ImageNotFound", user, waiting, "ImagePullBackOff", [2]string{`Back-off pulling image "app:7": ErrImagePull: manifest unknown: manifest unknown`,
			`Back-off pulling image "app:7": ErrImagePull: ` + pullOf + "app:7: not found"}},
		{"ImagePullDenied", user, waiting, "ErrImagePull", [2]string{pullOf + "failed to resolve image: pull access denied, repository does not exist or may require authorization",
			pullOf + "failed to authorize: failed to fetch anonymous token: unexpected status from GET request: 401 Unauthorized"}},
		{"RegistryUnavailable", system, waiting, "ErrImagePull", [2]string{pullOf + `failed to do request: Head "https://registry.example/v2": dial tcp 192.0.2.1:443: i/o timeout`,
			pullOf + "unexpected status from HEAD request: 503 Service Unavailable"}},
		{"RegistryUnavailable", system, waiting, "ImagePullBackOff", [2]string{`Back-off pulling image "app:7": ErrImagePull: dial tcp: lookup registry.example: no such host`,
			`Back-off pulling image "app:7": ErrImagePull: tls: failed to verify certificate: x509: certificate has expired`}},
		{"ImagePullFailed", system, waiting, "ErrImagePull", [2]string{pullOf + "failed to extract layer sha256:7: unexpected EOF", "short read: expected 3 bytes"}},
		{"NodeDiskFull", system, waiting, "ErrImagePull", [2]string{pullOf + "write /var/lib/containerd/ingest/7: no space left on device",
			"mkdir /var/lib/containerd/snapshots/9: no space left on device"}},
		{"ConfigMissing", user, waiting, "CreateContainerConfigError", [2]string{`configmap "settings" not found`, "couldn't find key password in Secret play/db"}},
		{"ContainerConfigInvalid", user, waiting, "CreateContainerConfigError", [2]string{"container has runAsNonRoot and image will run as root",
			`container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root`}},
		{"CommandFailed", user, waiting, "RunContainerError", [2]string{`failed to create containerd task: runc create failed: exec: "srv": executable file not found in $PATH`,
			`failed to create containerd task: exec: "/app/run": permission denied: unknown`}},
		{"RuntimeError", system, waiting, "CreateContainerError", [2]string{`failed to reserve container name "c_p_0": name is reserved for "7"`, "context deadline exceeded"}},
		{"PostStartFailed", user, waiting, "PostStartHookError", [2]string{"PostStartHook failed", "hook exited with 1"}},
		{"CrashLoopBackOff", user, waiting, "CrashLoopBackOff", [2]string{"back-off 10s restarting failed container=c pod=p_play(7)", "back-off 40s restarting failed container=c"}},

		{"MountFailed", system, event, "FailedMount", [2]string{setUp + "rpc error: code = Internal desc = mount failed: exit status 32", `MountVolume.MountDevice failed for volume "v" : rpc error: code = Aborted`}},
		{"CSIDriverMissing", system, event, "FailedMount", [2]string{setUp + "driver name disk.example not found in the list of registered CSI drivers",
			`MountVolume.MountDevice failed for volume "v" : failed to create newCsiDriverClient: driver name x not found in the list of registered CSI drivers`}},
		{"HostPathInvalid", user, event, "FailedMount", [2]string{setUp + "hostPath type check failed: /data is not a directory", setUp + "hostPath type check failed: /dev/kvm is not a character device"}},
		{"ConfigMissing", user, event, "FailedMount", [2]string{setUp + `configmap "settings" not found`, setUp + `secret "key" not found`}},
		{"VolumeOwnershipSlow", user, event, "VolumePermissionChangeInProgress", [2]string{"Setting volume ownership for v, processed 51200 files.", "Setting volume ownership for w, processed 102400 files."}},
		{"AttachFailed", system, event, "FailedAttachVolume", [2]string{`AttachVolume.Attach failed for volume "v" : rpc error: code = Internal`, `AttachVolume.Attach failed for volume "v" : timed out waiting for external-attacher`}},
		{"VolumeInUse", system, event, "FailedAttachVolume", [2]string{`Multi-Attach error for volume "v" Volume is already used by pod(s) other`, `Multi-Attach error for volume "v" Volume is already exclusively attached to one node`}},
		{"NetworkNotReady", system, event, "NetworkNotReady", [2]string{"network is not ready: cni plugin not initialized", "network is not ready: container runtime network not ready"}},
		{"IPExhausted", system, event, "FailedCreatePodSandBox", [2]string{sandbox + `failed to setup network for sandbox "7": no IP addresses available in range set: 192.0.2.1-192.0.2.254`,
			sandbox + `plugin type="aws-cni" failed (add): add cmd: failed to assign an IP address to container`}},
		{"NetworkFailed", system, event, "FailedCreatePodSandBox", [2]string{sandbox + `failed to setup network for sandbox "7": plugin type="calico" failed (add): connection is unauthorized`,
			sandbox + `failed to set up network for sandbox "7": bridge is down`}},
		{"SandboxFailed", system, event, "FailedCreatePodSandBox", [2]string{sandbox + "failed to start sandbox container: cgroup busy", sandbox + "failed to get sandbox image"}},
		{"SandboxTimeout", system, event, "FailedCreatePodSandBox", [2]string{"Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded", sandbox + "stream terminated: deadline exceeded"}},
		{"RuntimeClassMissing", user, event, "FailedCreatePodSandBox", [2]string{sandbox + `failed to get sandbox runtime: no runtime for "kata" is configured`, `Failed to create pod sandbox: runtimeclass.node.k8s.io "kata" not found`}},
		{"NodeReadOnly", system, event, "FailedCreatePodSandBox", [2]string{sandbox + "mkdir /var/lib/containerd/7: read-only file system", "open /run/x: read-only file system"}},
		{"NodeDiskFull", system, event, "FailedCreatePodSandBox", [2]string{sandbox + "mkdir /var/lib/containerd/7: no space left on device", "write: no space left on device"}},
		{"DevicesUnavailable", system, event, "FailedPrepareDynamicResources", [2]string{"Failed to prepare dynamic resources: NodePrepareResources failed: rpc error", "Failed to prepare dynamic resources: plugin gpu.example not registered"}},

		{"RejectedByNode", system, failed, "OutOfcpu", [2]string{"Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 7000, capacity: 8000", "Pod was rejected"}},
		{"RejectedByNode", system, failed, "NodeAffinity", [2]string{"Pod was rejected: Predicate NodeAffinity failed", "node(s) didn't match"}},
		{"DevicesUnavailable", system, failed, "UnexpectedAdmissionError", [2]string{"Allocate failed due to no healthy devices present", "Pod was rejected: Allocate failed due to requested number of devices unavailable"}},
		{"NodeShutdown", system, failed, "NodeShutdown", [2]string{"Pod was rejected as the node is shutting down.", "Pod was rejected: node shutdown"}},
		{"EvictedByPressure", system, failed, "Evicted", [2]string{"The node was low on resource: memory. Threshold quantity: 100Mi", "The node had condition: [DiskPressure]. "}},
		{"EvictedByOwnLimit", user, failed, "Evicted", [2]string{`Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". `, "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "}},

		{"PVCMissing", user, unscheduled, "Unschedulable", [2]string{`0/3 nodes are available: persistentvolumeclaim "data" not found.`, `persistentvolumeclaim "other" is being deleted`}},
		{"VolumeUnbound", system, unscheduled, "Unschedulable", [2]string{"0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."}},
		{"VolumeZoneConflict", system, unscheduled, "Unschedulable", [2]string{"0/3 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity", "0/1 nodes are available: 1 node(s) had volume node affinity conflict."}},
		{"DevicesUnavailable", system, unscheduled, "Unschedulable", [2]string{"0/3 nodes are available: 3 cannot allocate all claims.", "waiting for resource controller to create ResourceClaim"}},
		{"CapacityExhausted", system, unscheduled, "Unschedulable", [2]string{"0/9 nodes are available: 9 Insufficient memory.", "0/1 nodes are available: 1 Too many pods."}},
		{"UnschedulableConstraints", user, unscheduled, "Unschedulable", [2]string{"0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints.", "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."}},
		{"NodesTaintedByFaults", system, unscheduled, "Unschedulable", [2]string{"0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }.", "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."}},
		{"SchedulerError", system, unscheduled, "SchedulerError", [2]string{`running PreBind plugin "VolumeBinding": timed out`, "binding rejected: Operation cannot be fulfilled"}},
	}
}
