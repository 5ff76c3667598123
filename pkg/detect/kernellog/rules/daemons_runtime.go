package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// runtimeRules match lines of containerd, CRI-O and dockerd. "shim disconnected" is the normal end of a container.
func runtimeRules() []Rule {
	lasting := Rate{3, 10 * time.Minute}
	return []Rule{{
		ID: "image-store-corrupt", Reason: "ImageStoreCorrupt", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Runtime, Kubelet},
		Advice: "`crictl rmi IMAGE` and pull again; many images: drain the node, stop the runtime, empty its " +
			"store; `smartctl -a` for its disk.",
		Summary: "files of the image store are corrupt",
		Patterns: []string{
			`^.*failed to register layer: rename \S+ \S+: (?:directory not empty|file exists)`,
			`^.*readlink /var/lib/docker/overlay2\S*: invalid argument`,
			`^.*/(?:containerd|docker|containers/storage|buildkit)/\S+: [Ss]tructure needs cleaning`,
			logrus +
				`.*(?:failed to extract layer .*: .*(?:input/output error|unexpected EOF|invalid checksum)|unexpected commit digest)`,
			`^.*failed to extract layer .*: .*(?:input/output error|unexpected EOF|invalid checksum|content digest \S+: not found)`,
		},
		Kind: NodeKind, Expiry: hour,
	}, {
		ID: "runtime-name-reserved", Reason: "SandboxNameReserved", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Runtime, Kubelet},
		Advice: "An earlier attempt still runs or hangs: `crictl pods`, `iostat -x 1`; a disk that is too slow, " +
			"or a hung shim (`ps -ef`).",
		Summary: "the runtime is still busy with a sandbox or container and refuses to create it again: disk or " +
			"runtime " +
			"are too slow, or hang",
		Patterns: []string{
			logrus + `.*failed to reserve (?:sandbox|container) name`,
			logrus + `.*error reserving (?:ctr|pod) name \S+ for id \S+: name is reserved`, // CRI-O
			quoted +
				`[\w ]{1,80}(?: failed"?|skipping"?).*(?:failed to reserve (?:sandbox|container) name|name is reserved)`,
		},
		Kind: NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "runtime-network-setup", Reason: "PodNetworkSetupFails", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Runtime, Kubelet},
		Advice: "`crictl pods` and the network plugin's own log; `ls /etc/cni/net.d /opt/cni/bin`; does its pod " +
			"run on this node?",
		Summary: "the network plugin cannot connect pods to the network",
		Patterns: []string{
			logrus +
				`.*(?:[Ff]ailed to (?:setup|destroy) network for sandbox|rror adding pod to CNI network|rror (?:adding|deleting) network: )`,
			quoted +
				`(?:RunPodSandbox|StopPodSandbox|CreatePodSandbox|[Ff]ailed to create sandbox|Error syncing pod).*(?:failed to (?:setup|destroy) network for sandbox|ailed to set up sandbox container)`,
			quoted + `Error (?:adding|deleting) (?:pod |\S+ )?(?:to network|from network|network: )`,
		},
		Kind: NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "stuck-pods",
	}, {
		ID: "runtime-sandbox-failed", Reason: "PodSandboxesFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "The words after \"failed\" have the cause: network plugin, image of the pause container, or " +
			"cgroup; `crictl pods`, `crictl info`.",
		Summary:  "the runtime cannot create sandboxes: no pod can start",
		Patterns: []string{`^level=error msg="RunPodSandbox for .* failed, error"`},
		Kind:     NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "stuck-pods",
	}, {
		ID: "runtime-shim-failed", Reason: "RuntimeShimFailed", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`ps -ef` for shims whose container is gone, `nodeagent inspect` for what they leave behind; " +
			"`systemctl restart containerd` keeps running containers.",
		Summary: "a shim (the process between runtime and container) failed, or could not be cleaned up",
		Patterns: []string{logrus +
			`(?:failed to (?:clean up (?:after shim disconnected|shim)|delete (?:dead )?shim|load shim|shutdown shim)|[Ff]ailed to cleanup rootfs mount"|.*failed to start shim|failed to handle (?:(?:container|sandbox) TaskExit|sandbox exit) event|[Ff]ailed to handle (?:event|backOff event) .*TaskExit|(?:Stop|Remove)(?:PodSandbox|Container) for .* failed"?.*device or resource busy)`},
		Kind: NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		// core/metadata/db.go, plugins/gc/scheduler.go
		ID: "runtime-gc-failed", Reason: "RuntimeGCFailing", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "The words after \"error=\" have the cause; `du -xsh /var/lib/containerd/*`, `findmnt` for mounts that keep a snapshot; a " +
			"disk with errors: `dmesg`.",
		Summary:  "containerd cannot remove images and snapshots that nothing uses: its disk fills up",
		Patterns: []string{logrus + `(?:snapshot |content )?garbage collection failed"`},
		Kind:     NodeKind, Raise: lasting, Expiry: hour,
	}, {
		ID: "runtime-slow", Reason: "RuntimeOperationsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`crictl --timeout 10s ps` and `iostat -x 1`: is the disk too slow? A hung shim: `cat " +
			"/proc/PID/stack`.",
		Summary: "calls to the container runtime time out",
		Patterns: []string{
			`^level=error msg="(?:Stop|Run|Remove|List|Create|Start|Kill|Update)\w*(?:Sandbox|Container|Image)s?\b.* failed"? ?.*(?:context deadline exceeded|DeadlineExceeded)`,
			`^level=error msg="StopContainer for .* failed"? ?.*context canceled`,
			// its disk is slow, or another containerd is running
			`^level=warning msg="waiting for response from boltdb open"`,
			`^level=error msg="(?:Status|get state|collecting metrics|failed to (?:stop|kill|delete) \w+)\b.*(?:context deadline exceeded|DeadlineExceeded)`,
		},
		Exclude: `msg="(?:Pull|Exec)`,
		Kind:    NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		// containerd logs this once at each start, and until the network's own pod has written its configuration.
		ID: "runtime-cni-missing", Reason: "NetworkNotReady", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`ls /etc/cni/net.d`: the network plugin's pod writes it; `crictl logs` of that pod.",
		Summary: "the runtime finds no usable CNI configuration",
		Literals: []string{"reload cni configuration", "cni plugin not initialized", "o network config found in",
			"No networks found in"},
		Patterns: []string{logrus +
			`(?:failed to reload cni configuration|.*cni plugin not initialized|.*no network config found in|.*[Nn]o networks found in)`},
		Exclude: `^level=\w+ msg="failed to load cni during init`,
		Kind:    NodeKind, Raise: Rate{10, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "cni-config",
	}, {
		ID: "runtime-failed", Reason: "RuntimeNotRunning", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u containerd -e`; `containerd config dump` checks the configuration; is its disk " +
			"full?",
		Summary: "the container runtime failed to start, or exited",
		Patterns: []string{`^level=fatal msg=".`, `^containerd: .*(?:failed|permission denied|error|timeout)`,
			`^(?:failed to start (?:daemon|containerd)|Error starting daemon): `, `^(?:level=error msg=")?containerd did not exit successfully`},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "runtime-health",
	}}
}

// sharedRules match system errors that several daemons log.
func sharedRules() []Rule {
	return []Rule{{
		ID: "daemon-no-addresses", Reason: "PodAddressesExhausted", Domain: Network, Severity: finding.Warning,
		Advice: "`ls /var/lib/cni/networks` counts addresses in use; addresses of pods that are gone: `nodeagent " +
			"inspect`; else a larger range for the node.",
		Summary:  "no address is left to assign to pods",
		Patterns: []string{`^.*(?:no IP addresses available in range set|failed to assign an IP address to container|failed to allocate for range \d+: no)`},
		Kind:     NodeKind, Expiry: hour,
	}, {
		ID: "daemon-readonly", Reason: "FilesystemIsReadOnly", Domain: Storage, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime, Systemd, Journald},
		Advice:   "`findmnt -T PATH` (options ro); `dmesg` has the cause; `mount -o remount,rw` only after `fsck`.",
		Summary:  "a daemon could not write because a filesystem is read-only",
		Patterns: []string{
			`^.*\b(?:mkdir|open|write|create|remove|unlinkat|rename|chmod|link) /(?:var/(?:lib|log)|run/containerd|etc)/\S*: read-only file system`,
			`^(?:\S+: )?Failed to (?:write entry|create|open|rotate|sync|set up)\b.*: Read-only file system`,
		},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "daemon-io-error", Reason: "BlockIOError", Domain: Storage, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime, Systemd, Journald},
		Advice:   "`findmnt -T PATH` names the disk, `smartctl -a /dev/sdX` its health; then `fsck`.",
		Summary:  "a daemon could not read or write a file",
		Patterns: []string{`^.*/(?:var/(?:lib|log)|run/containerd|etc|usr)/\S*: input/output error`,
			`^(?:\S+: )?Failed to (?:write entry|create|open|rotate|sync|read|load|execute)\b.*: Input/output error`},
		Kind: NodeKind, Expiry: hour,
	}, {
		ID: "daemon-panic", Reason: "DaemonPanicked", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u UNIT` has the stack: its version and the first lines identify the bug; " +
			"`systemctl status UNIT` shows whether it is back.",
		Summary: "kubelet or the runtime, or a part of it, crashed",
		Patterns: []string{`^(?:panic|fatal error): .`, quoted + `Observed a panic`,
			`^\[signal SIGSEGV: segmentation violation`, `^SIGABRT: abort$`, `^level=panic msg=".`},
		Exclude: `^fatal error: newosproc`,
		Kind:    NodeKind, Report: "daemon-panic", Expiry: hour,
	}, {
		// the last line of systemd's daemons after a failed assertion
		ID: "daemon-assertion", Reason: "DaemonPanicked", Domain: System, Severity: finding.Warning,
		Emitters: []Emitter{Systemd, Journald, Udev, Resolved, NetworkManager, TimeDaemon, Oomd},
		Advice: "`journalctl -u UNIT` has what came before, `coredumpctl info` the stack; is the machine's libc " +
			"or kernel newer than the package?",
		Summary:  "a daemon of systemd found itself in a wrong state, and ended",
		Patterns: []string{`^Assertion '.{1,400}' failed at \S+:\d+, function \w+(?:\(\))?\. Aborting\.`},
		Kind:     NodeKind, Report: "daemon-panic", Expiry: hour,
	}, {
		ID: "etc-hosts-mount", Reason: "EtcHostsMountFailed", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`ls -l /var/lib/kubelet/pods/UID/etc-hosts`: is it there, is its disk read-only or its label " +
			"(SELinux) wrong? `ausearch -m avc`.",
		Summary:  "the file /etc/hosts of a pod cannot be mounted into its containers",
		Patterns: []string{`^.*error mounting \\*"/\S+/etc-hosts\\*" to rootfs at \\*"/etc/hosts`},
		Kind:     NodeKind, Expiry: hour,
	}, {
		// A command that does not exist in the container is its author's mistake.
		ID: "oci-create-failed", Reason: "OCICreateFailed", Domain: Kubernetes, Severity: finding.Info,
		Advice: "The words after it have the cause; `crictl inspect ID`; on many pods: runc's version, cgroups, " +
			"SELinux or seccomp of the node.",
		Summary:  "the runtime could not start a container",
		Patterns: []string{`^.*(?:OCI runtime (?:create|start) failed|runc create failed)`},
		Exclude:  `executable file not found|exec: \\*"[^"]*": (?:stat|permission denied)|no such file or directory: unknown$`,
		Kind:     NodeKind, Escalate: Rate{5, 10 * time.Minute}, EscalateSeverity: finding.Warning, Expiry: hour,
		ConfirmedBy: "stuck-pods",
	}}
}
