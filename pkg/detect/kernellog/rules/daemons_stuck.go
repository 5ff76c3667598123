package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// stuckRules match operations of kubelet or the runtime that fail until somebody intervenes.
func stuckRules() []Rule {
	lasting := Rate{3, 10 * time.Minute}
	return []Rule{{
		// containerd internal/cri/server/container_remove.go, container_start.go
		ID: "container-removal-stuck", Reason: "ContainerRemovalStuck", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime},
		Advice: "`crictl inspect ID`, `ps -ef | grep ID` for a hung shim and `cat /proc/PID/stack`; `systemctl restart containerd` forgets " +
			"the state and keeps running containers.",
		Summary: "the runtime believes that a container is being removed or started, and refuses to remove it again",
		Patterns: []string{`^.*container is (?:already )?in (?:removing|starting) state`,
			`^.*failed to set (?:removing|starting) state for (?:container|sandbox)`,
			// dockerd daemon/delete.go; sandbox_remove.go
			`^.*removal of container \S+ is already in progress`, `^.*failed to remove root filesystem`,
			`^.*sandbox container \S+ is not fully stopped`},
		Kind: NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "stuck-pods",
	}, {
		// pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go
		ID: "kubelet-plugin-registration", Reason: "PluginRegistrationFails", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet},
		Advice: "`ls -l /var/lib/kubelet/plugins_registry`: a socket that no process serves stays behind when its driver dies; does the " +
			"driver's pod run, and what does its node-driver-registrar log?",
		Summary: "a CSI driver or device plugin cannot register: its volumes or devices cannot be used",
		Patterns: []string{`^.*\bRegisterPlugin error -- `, `^"?(?:operationExecutor|OperationExecutor)\.(?:Unr|R)egisterPlugin failed`,
			`^.*kubernetes\.io/csi: registrationHandler\.RegisterPlugin failed`}, // pkg/volume/csi/csi_plugin.go
		// While a driver starts, or for the socket of a driver that ended, the first attempts fail.
		Exclude: `durationBeforeRetry (?:500ms|[1248]s|16s)\).*RegisterPlugin error -- dial failed`,
		Kind:    NodeKind, Raise: lasting, Expiry: hour, ConfirmedBy: "csi-registration",
	}, {
		// pkg/kubelet/checkpointmanager/errors, cm/{cpu,memory}manager/state, cm/devicemanager
		ID: "kubelet-checkpoint-corrupt", Reason: "KubeletCheckpointCorrupt", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime},
		Advice: "The line names the file (cpu_manager_state, memory_manager_state, device-plugins/kubelet_internal_checkpoint in " +
			"/var/lib/kubelet): drain the node, remove that file, start kubelet; a disk with errors: `dmesg`.",
		Summary: "a file in which kubelet keeps its state is corrupt, or not of this machine: it does not start, or forgets which devices pods have",
		Patterns: []string{`^.*(?:checkpoint is (?:not found or )?corrupt|corrupt checkpoint)`,
			`^.*(?:[Cc]ould not|[Uu]nable to) restore state from (?:checkpoint|file)`,
			// cm/cpumanager/policy_static.go: the machine has other processors than the file
			`^.*current set of available CPUs .* doesn't match with CPUs in state`, `^.*policy invalid state, please drain node`},
		Exclude: `^"?Could not initialize checkpoint manager`, // kubelet-start-failed
		Kind:    NodeKind, Expiry: hour, ConfirmedBy: "kubelet-health",
	}, {
		// dbus bus/connection.c, dbus-broker src/bus
		ID: "dbus-connections", Reason: "DBusConnectionsExhausted", Domain: System, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime, Systemd, DBus},
		Advice: "`busctl list --no-legend | awk '{print $3}' | sort | uniq -c | sort -n | tail` shows who holds connections: restart it; " +
			"max_connections_per_user in /etc/dbus-1/system.conf.",
		Summary: "a user has as many connections, replies or matches of D-Bus as it may have: systemd cannot be asked for cgroups, and pods do not start",
		Patterns: []string{`^.*[Mm]aximum number of (?:active connections(?: for UID \d+)?|pending (?:activations|replies (?:per connection|for .{1,200}))) has been reached`,
			`^.*org\.freedesktop\.DBus\.Error\.LimitsExceeded`,
			`^.*Connection \S+ is not allowed to (?:add more match rules|own more services)`,
			// the queue of the socket is full
			`^.*dial unix \S*(?:/dbus/system_bus_socket|/systemd/private): connect: resource temporarily unavailable`,
			`^UID \d+ exceeded its '\w+' quota on UID \d+`, `^Peer \S+ is being disconnected as it does not have the resources`},
		Kind: NodeKind, Expiry: hour,
	}, {
		// dbus bus/activation.c. Desktops ask for Bluetooth on machines without it.
		ID: "dbus-activation", Reason: "DBusServiceNotStarting", Domain: System, Severity: finding.Warning,
		Emitters: []Emitter{DBus, Systemd, Kubelet, Runtime},
		Advice: "`systemctl status dbus` and the service's unit (`busctl status NAME`); if it is systemd1 or login1: `systemctl " +
			"list-jobs` for a job that hangs, `systemctl daemon-reexec`, else a reboot.",
		Summary: "a service of the system bus did not start in time: without systemd's, no pod starts; without logind's, logins hang",
		Patterns: []string{`^(?:\[system\] )?Failed to activate service '(?P<subject>[\w.-]{1,255})': timed out`,
			`^(?:level=|").*Failed to activate service '(?P<subject>[\w.-]{1,255})': timed out`},
		Exclude: `service 'org\.bluez'`,
		Kind:    "bus-name", Expiry: hour,
	}, {
		// pkg/kubelet/stats/cri_stats_provider.go; once at start, until cAdvisor has data
		ID: "kubelet-filesystem-stats", Reason: "FilesystemStatsFail", Domain: Kubernetes, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet},
		Advice: "`df MOUNTPOINT` and `findmnt -T MOUNTPOINT` of the line: a mount that is gone, a device under another name, or a runtime " +
			"whose root directory moved; restart kubelet after it is mended.",
		Summary: "kubelet cannot read how full the images' disk is: it neither evicts pods nor removes images when that fills up",
		Patterns: []string{quoted + `Failed to get the info of the filesystem with mountpoint`,
			`^.*(?:cannot find filesystem info for device|failed to get device for dir|[Ff]ailed to get (?:imageFs|rootfs) (?:info|stats)|could not find device .{1,300} in cached partitions map)`},
		Exclude: `Stats initialization may not have completed yet`,
		Kind:    NodeKind, Raise: Rate{5, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "disk-space",
	}}
}
