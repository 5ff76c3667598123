package detect

// serviceCoverage: systemd, the container runtime, and the logs.
func serviceCoverage() []Coverage {
	return []Coverage{
		{Fault: "a unit of systemd has failed (a service, a mount, a socket)", By: []string{systemdUnitsID}},
		{Fault: "a service crashes and is started again and again", By: []string{systemdUnitsID, restartsID, runtimeRestartsID}},
		{Fault: "systemd itself has crashed or hangs", By: []string{systemdUnitsID}},
		{Fault: "containerd, CRI-O or docker restarts often", By: []string{runtimeRestartsID}},
		{Fault: "the container runtime is down, stopped, hung or not ready", By: []string{"runtime-health"}},
		{Fault: "the container runtime answers slowly", By: []string{runtimeLatencyID, "runtime-health"}},
		{Fault: "pod sandboxes cannot be made or are lost", By: []string{stuckPodsID, syncID, runtimeLatencyID}},
		{Fault: "shims that have outlived their pod", By: []string{shimLeaksID}},
		{Fault: "dead shims that nobody reaps", By: []string{"zombies"}},
		{
			Fault: "stopped tasks that containerd cannot delete (device or resource busy)",
			Not: "asking for the state of all tasks makes containerd call each shim, and waits for one that hangs; the pod that is concerned does not end, which " +
				"stuck-pods tells, and nodeagent inspect names who holds the mount",
		},
		{Fault: "the image filesystem is full or read-only", By: []string{"disk-space", "filesystem-readonly", evictionsID}},
		{Fault: "containerd was asked for deprecated settings or images", By: []string{runtimeDeprecationsID}},
		{Fault: "journald is stopped, is killed again and again, or has lost messages", By: []string{journaldID, systemdUnitsID}},
		{Fault: "the disk of the logs is full, read-only or hangs", By: []string{"disk-space", "filesystem-readonly", "hung-mounts", journaldID}},
		{
			Fault: "journald drops messages of a service that logs too much (rate limit)",
			Not:   "the limit works as it should, and journald says so only in the journal itself, next to the service that is concerned",
		},
		{Fault: "records of the kernel's log were lost", By: []string{kernelLogID}},
		{
			Fault: "the agent is blind: it has no right, or a source does not answer",
			Not:   "told without a check of its own: any check that has learnt nothing for five minutes is a finding of the agent about itself, and its condition becomes Unknown",
		},
	}
}
