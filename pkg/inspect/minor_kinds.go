package inspect

import "time"

// minorSpecs are the kinds of little harm. Their listers are in pkg/inspect/listers.
func minorSpecs() []KindSpec {
	return []KindSpec{
		{
			Kind: SystemdUnit, GoneFrom: ofSandbox, OptIn: true, LittleHarm: true,
			Unused: "it has ended, and the runtime does not know its container",
			What: "a unit of systemd whose pod, container or mount is gone: a pod's slice without a cgroup, a container's " +
				"scope or a mount that has failed or is not active, the scope of a mount that kubelet made for a pod",
			Harm: "memory and processor time of systemd, and alarms about failed units",
		},
		{
			Kind: PodLogs, OptIn: true, LittleHarm: true,
			MinAge: 24 * time.Hour, // collectors of logs may be behind
			What:   "a directory of container logs, `/var/log/pods/<namespace>_<name>_<uid>`",
			Harm:   "disk space",
		},
	}
}
