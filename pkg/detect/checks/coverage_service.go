package checks

// serviceCoverage: systemd, the container runtime, and the logs.
func serviceCoverage() []Coverage {
	return []Coverage{
		{Fault: "a unit of systemd has failed (a service, a mount, a socket)", By: []string{"systemd-units"}},
		{Fault: "a service crashes and is started again and again", By: []string{"systemd-units", "kubelet-restarts",
			"runtime-restarts"}},
		{Fault: "systemd itself has crashed or hangs", By: []string{"systemd-units"}},
		{Fault: "containerd, CRI-O or docker restarts often", By: []string{"runtime-restarts"}},
		{Fault: "the container runtime is down, stopped, hung or not ready", By: []string{"runtime-health"}},
		{Fault: "the container runtime answers slowly", By: []string{"runtime-latency", "runtime-health"}},
		{Fault: "pod sandboxes cannot be made or are lost", By: []string{"stuck-pods", "kubelet-sync",
			"runtime-latency"}},
		{Fault: "shims that have outlived their pod", By: []string{"shim-leaks"}},
		{Fault: "dead shims that are not reaped", By: []string{"zombies"}},
		{
			Fault: "stopped tasks that containerd cannot delete (device or resource busy)",
			Not: "asking for the state of all tasks makes containerd call each shim, and waits for one that hangs; " +
				"the affected pod does not end, which stuck-pods reports, and nodeagent inspect names who " +
				"holds the mount",
		},
		{Fault: "the image filesystem is full or read-only", By: []string{"disk-space", "filesystem-readonly",
			"evictions"}},
		{Fault: "containerd was asked for deprecated settings or images", By: []string{"runtime-deprecations"}},
		{Fault: "journald is stopped, is killed again and again, or has lost messages",
			By: []string{"journald", "systemd-units"}},
		{Fault: "the disk of the logs is full, read-only or hangs", By: []string{"disk-space", "filesystem-readonly",
			"hung-mounts", "journald"}},
		{
			Fault: "journald drops messages of a service that logs too much (rate limit)",
			Not: "the limit works as it should, and journald says so only in the journal itself, next to the " +
				"service that is concerned",
		},
		{Fault: "records of the kernel's log were lost", By: []string{"kernel-log"}},
		{
			Fault: "the agent is blind: it has no right, or a source does not answer",
			Not: "needs no check: any check with errors for five minutes is a finding " +
				"of the agent about itself, and its condition becomes Unknown",
		},
	}
}
