package checks

// kernelCoverage: processors, the scheduler, the kernel itself, and the time.
func kernelCoverage() []Coverage {
	return []Coverage{
		{Fault: "Soft lockup", By: []string{"soft-lockup", "kernel-taint"}},
		{Fault: "Hard lockup", By: []string{"hard-lockup"}},
		{Fault: "Processor that does not answer others (CSD lock)", By: []string{"csd-lock-stuck"}},
		{Fault: "Hung task", By: []string{"hung-tasks", "task-hung"}},
		{Fault: "RCU stall", By: []string{"rcu-stall"}},
		{Fault: "Workqueue lockup", By: []string{"workqueue-lockup"}},
		{Fault: "Real-time tasks throttled", By: []string{"realtime-throttled"}},
		{Fault: "Oops, general protection fault, BUG_ON", By: []string{"kernel-oops", "kernel-taint"}},
		{Fault: "Broken rule of locking or scheduling in the kernel", By: []string{"kernel-bug"}},
		{Fault: "Corruption of the kernel's own memory", By: []string{"kernel-memory-corruption", "kernel-taint"}},
		{Fault: "Kernel warning", By: []string{"kernel-warning"}},
		{Fault: "Machine check, by the taint of the kernel", By: []string{"kernel-taint", "machine-check-uncorrected"}},
		{Fault: "Panic of the last boot", By: []string{"last-panic", "kernel-panic"}},
		{Fault: "Unexpected reboot", By: []string{"unexpected-reboot", "hardware-watchdog"}},
		{Fault: "Clock source unstable", By: []string{"clock-source", "clocksource-unstable"}},
		{Fault: "Processor throttled by heat", By: []string{"cpu-throttled"}},
		{Fault: "Critical temperature", By: []string{"critical-temperature"}},
		{Fault: "Processor frequency stuck low, wrong governor", By: []string{"cpu-frequency"}},
		{Fault: "Processors offline", By: []string{"cpus-offline"}},
		{Fault: "Steal time", By: []string{"cpu-steal"}},
		{Fault: "System daemons throttled by their own limit", By: []string{"cpu-throttling"}},
		{Fault: "High load, saturated run queue", By: []string{"load"}},
		{Fault: "Pressure stalls of processors, memory and I/O", By: []string{"load"}},
		{Fault: "Processes in state D", By: []string{"hung-tasks", "load"}},
		{Fault: "Zombie processes", By: []string{"zombies"}},
		{Fault: "PIDs and threads near their limit", By: []string{"task-limits"}},
		{Fault: "Fork fails", By: []string{"task-limits", "pids-limit"}},
		{Fault: "Container at its pids.max", By: []string{"pids-limit", "task-limits"}},
		{Fault: "File handles exhausted", By: []string{"file-handles", "file-max-reached"}},
		{Fault: "Descriptors of kubelet or the runtime exhausted", By: []string{"file-handles"}},
		{Fault: "Inotify instances or watches exhausted", By: []string{"inotify"}},
		{Fault: "Audit records lost, programs held up by them", By: []string{"audit-backlog"}},
		{
			Fault: "Entropy low",
			Not: "since Linux 5.18, and in the stable kernels since May 2022, the pool cannot run empty: " +
				"entropy_avail is always 256, and nothing waits for it once the generator has started",
		},
		{Fault: "Programs that crash in series", By: []string{"app-crash", "program-dumped-core"}},
		{
			Fault: "Huge process environment (service links)",
			Not: "to find it all environments would have to be read, each under the lock of its process, every few " +
				"minutes; the pods concerned fail to start with a clear error (argument list too long), and " +
				"enableServiceLinks: false is the remedy for all",
		},
		{
			Fault: "Cron job that runs too often",
			Not:   "not a fault of the node: what such a job costs shows as load, and most systems keep no log of cron",
		},
		{
			Fault: "Processor vulnerabilities and their mitigations",
			Not: "a property of the kernel and its command line, the same on all nodes of an image: a matter for " +
				"an inventory, not for a fault detector",
		},
		{Fault: "Kernel modules missing", By: []string{"kernel-modules"}},
		{Fault: "Kernel settings (sysctl) drifted", By: []string{"sysctls"}},
		{
			Fault: "Kernel command line, LSM and SELinux state",
			Not: "what is right differs from cluster to cluster, and nothing fails by it on its own: a matter for " +
				"an inventory",
		},
		{Fault: "Hardware watchdog reset the node", By: []string{"hardware-watchdog"}},
		{
			Fault: "Hardware watchdog not armed",
			Not: "off is the default of every distribution, and right unless it is configured " +
				"(RuntimeWatchdogSec of systemd)",
		},
		{Fault: "Unknown NMI, IOCK", By: []string{"unknown-nmi"}},

		{Fault: "Clock not synchronised", By: []string{"time-sync"}},
		{Fault: "Clock off, by the time daemon's own measure", By: []string{"time-sync"}},
		{
			Fault: "Clock off, by comparison with other machines",
			Not: "would take a request to a time server or the apiserver from every node; a daemon that reaches " +
				"its servers measures it better, and that it does is looked at",
		},
		{Fault: "Time daemon down", By: []string{"time-sync"}},
	}
}
