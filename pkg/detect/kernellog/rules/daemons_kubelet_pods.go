package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubeletPodRules match operations on pods, volumes and images that fail. Kubelet retries them with a backoff of at
// most two minutes: three failures in ten minutes are not transient.
func kubeletPodRules() []Rule {
	lasting := Rate{3, 10 * time.Minute}
	const operation = `^(?:Operation for .+? failed\. .*?(?:Error: )?)?"?`
	return []Rule{{
		ID: "kubelet-image-gc", Reason: "ImageGCFailing", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`df -h /var/lib/containerd`, `crictl images`: `crictl rmi --prune`; what is not images fills " +
			"the disk.",
		Summary: "kubelet's image garbage collection does not free enough space",
		Patterns: []string{quoted + `Image garbage collection failed multiple times in a row`, quoted +
			`.*[Ff]ailed to garbage collect required amount of images`},
		Kind: NodeKind, Report: "image-gc", Expiry: hour, ConfirmedBy: "evictions",
	}, {
		ID: "kubelet-evicts", Reason: "PodsEvicted", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`kubectl describe node` names the resource; which pods use it: `kubectl top pod`, `du -xsh " +
			"/var/lib/kubelet/pods`.",
		Summary: "kubelet evicts pods because the node is short of memory, disk or PIDs",
		Patterns: []string{
			quoted +
				`[Ee]viction manager: (?:must evict pod\(s\) to reclaim"?(?: resourceName=)?"? ?(?P<resource>[\w.-]+)|pod \S+ is evicted successfully|eviction thresholds have been met|unable to evict any pods from the node|pods evicted, waiting for pod|pods ranked for eviction)`,
		},
		Kind: NodeKind, Report: "eviction", Expiry: hour, ConfirmedBy: "evictions",
	}, {
		ID: "kubelet-eviction-threshold", Reason: "EvictionThresholdMet", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`kubectl describe node`; `df -h`, `df -i`, `free -m`: what fills it?",
		Summary: "a resource of the node is so short that kubelet tries to reclaim it",
		Patterns: []string{quoted +
			`[Ee]viction manager: attempting to reclaim"?(?: resourceName=)?"? ?(?P<resource>[\w.-]+)`},
		Kind: NodeKind, Report: "eviction", Expiry: hour, ConfirmedBy: "evictions",
	}, {
		ID: "kubelet-volume-mount", Reason: "VolumeMountsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "The words after the volume have the cause; `kubectl describe pod`, the CSI driver's pod on this " +
			"node, `findmnt`.",
		Summary: "a volume cannot be mounted: the pods that use it cannot start",
		Patterns: []string{
			operation + `(?:MountVolume|MapVolume|AttachVolume)\.\w+ (?:initialization )?failed for volume \\?"(?P<subject>[^"\\]{1,256})`,
			operation +
				`(?:Operation )?VerifyControllerAttachedVolume failed for volume \\?"(?P<subject2>[^"\\]{1,256})`,
			quoted + `Unable to (?:attach or )?mount volumes for pod\b`,
		},
		// After a restart kubelet has not yet read the configuration that a pod uses.
		Exclude: `not registered|failed to sync (?:secret|configmap) cache`,
		Kind:    "volume", Raise: lasting, Expiry: hour, ConfirmedBy: "volume-mounts",
	}, {
		// pkg/kubelet/volumemanager/reconciler, pkg/volume/csi. Kubelet cannot reconstruct local and inline volumes of healthy pods
		// either, and mounts them anew.
		ID: "kubelet-volume-reconstruction", Reason: "VolumeReconstructionFails", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "The words after \"err=\" have the cause; `ls -l /var/lib/kubelet/pods/UID/volumes/*/*` (is vol_data.json there?), `findmnt`; " +
			"`nodeagent inspect` proves what is left behind.",
		Summary: "kubelet started and did not recognise a volume on its disk: it may never unmount it, and its pod stays Terminating",
		Patterns: []string{quoted + `(?:Could not (?:construct volume information|read volume plugin directory|list global volumes)|Cannot get volumes from disk)`,
			quoted + `Could not (?:add|mark) .{1,80} to actual state of world`,
			`^.*kubernetes\.io/csi: plugin\.ConstructVolumeSpec failed `},
		Exclude: `local volume source is nil|unexpected api\.CSIVolumeSource found`,
		Kind:    NodeKind, Expiry: hour, ConfirmedBy: "volume-mounts",
	}, {
		ID: "kubelet-volume-unmount", Reason: "VolumeUnmountsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`findmnt`, `lsof +f -- PATH`: who still uses it? `nodeagent inspect` names the holder.",
		Summary: "a volume cannot be unmounted: the pods that use it cannot terminate",
		Patterns: []string{operation +
			`(?:Unm(?:ount|ap)(?:Volume|Device)\.\w+|GetDeviceMountRefs check) failed for volume \\?"(?P<subject>[^"\\]{1,256})`,
			`^"?operationExecutor\.(?:Unm(?:ount|ap)(?:Volume|Device)) failed\b.{0,80}? for (?:volume|device) \\?"(?P<subject>[^"\\]{1,256})`,
			`^.*kubernetes\.io/csi: (?:unmounter failed to load|failed to (?:open|load|parse|save)) volume data file`, operation +
				`UnmountDevice failed for volume \\?"(?P<subject2>[^"\\]{1,256})`, `^Timed out waiting for unmount of /`},
		Kind: "volume", Raise: lasting, Expiry: hour, ConfirmedBy: "volume-mounts",
	}, {
		ID: "kubelet-csi-missing", Reason: "CSIDriverNotRegistered", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`ls /var/lib/kubelet/plugins_registry`; does the driver's node pod run here? `kubectl get " +
			"csinode NAME -o yaml`.",
		Summary:  "pods use volumes of a CSI driver that is not registered on the node",
		Patterns: []string{`^.*driver name (?P<subject>[\w.-]{1,128}) not found in the list of registered CSI drivers`},
		Kind:     "csi-driver", Raise: lasting, Expiry: hour, ConfirmedBy: "csi-registration",
	}, {
		ID: "kubelet-orphaned-pod", Reason: "OrphanedPodVolumes", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`ls /var/lib/kubelet/pods/UID/volumes`; `nodeagent inspect` proves what is left behind and " +
			"`nodeagent clean` releases it.",
		Summary: "volumes of a deleted pod still exist, and kubelet does not remove them",
		Patterns: []string{
			`^(?:"There were many similar errors\. Turn up verbosity to see them\." err="|Orphan pod: )?[Oo]rphaned pod \\?"(?P<subject>[0-9a-f-]{36}|[0-9a-f]{32})\\?" found, but `,
			`^Failed to remove orphaned pod \\?"(?P<subject>[0-9a-f-]{36}|[0-9a-f]{32})\\?" dir`,
			`^"Failed to remove orphaned pod dir".* podUID="?(?P<subject>[0-9a-f-]{36}|[0-9a-f]{32})`,
		},
		Kind: PodKind, Raise: lasting, Expiry: hour,
	}, {
		ID: "kubelet-sandbox-failed", Reason: "PodSandboxesFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`kubectl describe pod`; the runtime's log has the cause: `journalctl -u containerd -e`.",
		Summary: "the runtime cannot create sandboxes: no pod can start",
		Patterns: []string{quoted +
			`(?:RunPodSandbox from runtime service failed|CreatePodSandbox for pod\b.* failed|[Ff]ailed to (?:create sandbox|generate sandbox config) for pod|Error syncing pod\b.*failed to \\?"CreatePodSandbox\\?")`},
		Kind: NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "stuck-pods",
	}, {
		// pkg/kubelet/kubelet.go SyncPod
		ID: "kubelet-pod-cgroups", Reason: "PodCgroupsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "The words after \"applied\" have the cause; `cat /proc/cgroups` (num_cgroups), `systemctl status kubepods.slice`; do " +
			"kubelet and runtime use one cgroup driver?",
		Summary:  "kubelet cannot create the cgroups of pods: they cannot start",
		Patterns: []string{`^.*failed to ensure that the pod: \S{1,64} cgroups exist and are correctly applied: `},
		Kind:     NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "stuck-pods",
	}, {
		ID: "kubelet-pod-kill-failed", Reason: "PodsStuckTerminating", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`crictl ps -a`, `cat /proc/PID/stack` of its process: a hung disk or mount keeps it; `nodeagent " +
			"inspect pod`.",
		Summary: "containers or sandboxes of terminating pods cannot be stopped",
		Literals: []string{"KillContainer", "KillPodSandbox", "ontainer termination failed", "rror killing pod",
			"ill container failed", "illPodWithSyncResult failed", "KillPod failed", "ailed to kill ",
			"ailed to stop container", "Pod still has one or more containers in the non-exited state"},
		Patterns: []string{quoted +
			`(?:Error syncing pod\b.*|[Ee]rror killing pod: |\[)?(?:failed to|Failed to) \\?"?Kill(?:Container|PodSandbox)\b`, quoted + `(?:Container termination failed with gracePeriod|Kill container failed|killPodWithSyncResult failed|KillPod failed|Pod still has one or more containers in the non-exited state|Failed to (?:kill|stop) container"|Failed to kill process from cgroup|Attempt failed to kill all unwanted process from cgroup)`, quoted + `Error syncing pod\b.*with Kill(?:Container|PodSandbox)Error`},
		// A container that no longer exists need not be stopped.
		Exclude: `No such container|NotFound|not found`,
		Kind:    NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "stuck-pods",
	}, {
		ID: "kubelet-probes-fail", Reason: "ProbeStorm", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`kubectl describe pod`; many pods at once: the node's load (`uptime`) or network, not the " +
			"programs.",
		Summary:  "many probes of pods fail at the same time",
		Patterns: []string{`^"Probe failed" probeType=`, `^(?:Readiness|Liveness|Startup) probe for ".{1,300}" failed`},
		Kind:     NodeKind, Raise: Rate{30, time.Minute}, Expiry: hour, ConfirmedBy: "probe-storms",
	}}
}
