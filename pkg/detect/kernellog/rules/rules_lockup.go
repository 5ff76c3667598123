package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// lockupRules match processors and tasks that make no progress.
//
//	kernel/watchdog.c, kernel/hung_task.c, kernel/rcu/tree_stall.h, kernel/rcu/tree_exp.h, kernel/workqueue.c,
//	kernel/smp.c
func lockupRules() []Rule {
	return []Rule{{
		ID: "soft-lockup", Reason: "SoftLockup", Domain: CPU, Severity: finding.Warning,
		Advice: "`dmesg` names the processor, the task and where it hangs; in a virtual machine look at the " +
			"steal time first (`vmstat 1`, column st): the hypervisor may be overloaded. Else update the kernel.",
		Summary: "a processor ran kernel code for more than 20 s without rescheduling",
		Patterns: []string{`^BUG: soft lockup detected on CPU#(?P<subject>\d+)!`, // until 2.6.22
			`^(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(?P<subject>\d+) stuck for (?P<seconds>\d+)s! \[(?P<process>.*):(?P<pid>\d+)\]`},
		Kind: "cpu", Escalate: Rate{3, 10 * time.Minute}, EscalateSeverity: finding.Fatal, Aggregate: true,
		Expiry: 30 * time.Minute,
	}, {
		ID: "hard-lockup", Reason: "HardLockup", Domain: CPU, Severity: finding.Fatal,
		Advice: "The processor no longer takes interrupts: save `dmesg`, drain, reboot; look for machine checks " +
			"(`ras-mc-ctl --errors`) and firmware updates.",
		Summary: "a processor does not respond to interrupts",
		Patterns: []string{
			`^(?:NMI )?(?:watchdog: )?(?:CPU\d+: )?Watchdog detected hard LOCKUP on cpu (?P<subject>\d+)`,
			`^NMI Watchdog detected LOCKUP on CPU ?(?P<subject>\d+)`, // until 2.6.37
			// powerpc
			`^Watchdog CPU:(?P<subject2>\d+) (?:Hard LOCKUP|detected Hard LOCKUP other CPUS:)`, // until 4.17
			`^(?:watchdog: )?CPU (?P<cpu>\d+) (?:detected hard LOCKUP on other CPUs (?P<subject>[\d,-]+)|self-detected hard LOCKUP @|Hard LOCKUP)`,
		},
		Kind: "cpu", Expiry: time.Hour,
	}, {
		// A program can call itself containerd and block on its own FUSE filesystem: the name is no evidence.
		ID: "task-hung", Reason: "TaskHung", Domain: CPU, Severity: finding.Warning,
		Advice: "The stack in `dmesg` says what it waits for: mostly a disk or a network filesystem. `cat " +
			"/proc/PID/stack`, and look at the findings about disks and mounts.",
		Summary: "a task has been blocked in the kernel for minutes and cannot be killed: a dead disk, a dead " +
			"server or a deadlock",
		Patterns: []string{`^INFO: task (?P<subject>` + Command +
			`):(?P<pid>\d+) blocked (?:in I/O wait )?for more than (?P<seconds>\d+) seconds`,
			// since 6.15
			`^INFO: task (?P<subject>` + Command +
				`):(?P<pid>\d+) (?:<[a-z]+> )?(?:is )?blocked on an? [a-z -]{3,24}(?:(?:likely )?(?:last )?(?:owned|held|acquired) by task |, but the (?:owner|last holder) is not found)`,
			`^Future hung task reports are suppressed, see sysctl kernel\.hung_task_warnings`,
		},
		Kind: "process", Expiry: 10 * time.Minute, ConfirmedBy: "hung-tasks",
	}, {
		ID: "rcu-stall", Reason: "RCUStall", Domain: CPU, Severity: finding.Warning,
		Advice: "`dmesg` names the processor and the task that blocks it; in a virtual machine look at the steal " +
			"time (`vmstat 1`, column st). Repeated on hardware: drain, reboot, update the kernel.",
		Summary: "a processor or task blocks RCU grace periods; the kernel cannot free memory meanwhile",
		Literals: []string{"self-detected stall", "detected stall", "detected expedited stall", "kthread starved for",
			"kthread timer wakeup didn't happen", "OOM is now expected behavior", " jiffies old."},
		Patterns: []string{
			`^(?:rcu: )?INFO: (?:rcu_\w+|srcu\w*) (?:self-detected stall on CPU|detected (?:expedited )?stalls? on |detected (?:expedited )?stalls?(?:, but suppressed|\?))`,
			`^(?:rcu: )?\s*Unless rcu_\w+ kthread gets sufficient CPU time, OOM is now expected behavior`,
			// kernel/rcu/tasks.h; the first line, after ten seconds, is not a stall
			`^(?:rcu: )?\w+: rcu_tasks\w* grace period number \d+ \(since boot\) (?:gp_state: \S+ )?is \d{6,} jiffies old\.`,
			`^(?:rcu: )?rcu_\w+ kthread (?:starved for|timer wakeup didn't happen for) \d+ jiffies`,
		},
		Kind: NodeKind, Report: "rcu-stall", Escalate: Rate{3, 10 * time.Minute}, EscalateSeverity: finding.Fatal,
		Aggregate: true, Expiry: 30 * time.Minute,
	}, {
		ID: "workqueue-lockup", Reason: "WorkqueueLockup", Domain: CPU, Severity: finding.Warning,
		Advice: "`dmesg` names the work that hangs and its pool: its driver is to blame, or the processor is " +
			"busy with interrupts (`cat /proc/interrupts`).",
		Summary:  "deferred work of the kernel (a workqueue) makes no progress",
		Patterns: []string{`^BUG: workqueue lockup - pool`},
		Kind:     NodeKind, Expiry: 30 * time.Minute,
	}, {
		ID: "csd-lock-stuck", Reason: "CSDLockStuck", Domain: CPU, Severity: finding.Warning,
		Advice: "A processor does not answer another: `dmesg` names both; with lockups beside it drain and " +
			"reboot the node; in a virtual machine look at the steal time (`vmstat 1`).",
		Summary:  "a processor does not respond to requests of other processors",
		Patterns: []string{`^(?:smp: )?csd: (?:Detected|Continued) non-responsive CSD lock \(#\d+\) on CPU#\d+, waiting \d+ ns for CPU#(?P<subject>\d+)`},
		Kind:     "cpu", Expiry: 30 * time.Minute,
	}, {
		ID: "realtime-throttled", Reason: "RealtimeThrottled", Domain: CPU, Severity: finding.Warning,
		Advice: "`ps -eLo pid,cls,rtprio,pcpu,comm --sort=-rtprio` shows the real-time threads: one of them " +
			"computes without a pause.",
		Summary:  "a real-time task used a whole processor; the kernel logs it once per boot",
		Patterns: []string{`^sched: (?:RT throttling activated|DL replenish lagged too much)`},
		Kind:     NodeKind, Expiry: time.Hour,
	}, {
		ID: "unknown-nmi", Reason: "UnknownNMI", Domain: Hardware, Severity: finding.Warning,
		Advice: "Mostly hardware: `ipmitool sel elist`, `ras-mc-ctl --errors`; also a pressed NMI button, or a " +
			"watchdog of the BMC.",
		Summary: "the hardware raised an NMI of unknown reason", // arch/x86/kernel/nmi.c
		Patterns: []string{
			`^(?:Uhhuh\. )?NMI received for unknown reason (?P<code>[0-9a-f]{2})(?: on CPU (?P<cpu>\d+)|\.?$)`,
			`^NMI: IOCK error \(debug interrupt`, `^NMI: PCI system error \(SERR\) for reason`,
			// until 2.6
			`^Uhhuh\. NMI received\. Dazed and confused`, `^You (?:probably )?have (?:a|some) hardware problem(?: with your RAM chips|, likely on the PCI bus)`,
			`^Dazed and confused, but trying to continue`, `^Do you have a strange power saving mode enabled\?`,
		},
		Kind: NodeKind, Expiry: 24 * time.Hour,
	}}
}

// clockRules: kernel/time/clocksource.c, arch/x86/kernel/tsc.c, arch/x86/kernel/tsc_sync.c
func clockRules() []Rule {
	return []Rule{{
		ID: "clocksource-unstable", Reason: "ClocksourceUnstable", Domain: CPU, Severity: finding.Warning,
		Advice: "`cat /sys/devices/system/clocksource/clocksource0/current_clocksource`: with hpet or acpi_pm " +
			"every read of the time is slow; on hardware update the firmware, in a virtual machine the hypervisor.",
		Summary: "the kernel marked a clock source as unstable; reading the time becomes slow",
		Patterns: []string{
			`^(?:clocksource: )?timekeeping watchdog(?: on CPU\d+)?: Marking clocksource '(?P<subject>[^']+)' as unstable because`,
			`^(?:clocksource: )?timekeeping watchdog on CPU\d+: wd-(?P<subject>[\w-]+)-wd excessive read-back delay of .* marking \S+ unstable`,
			// 5.13, 5.14
			`^(?:clocksource: )?timekeeping watchdog on CPU\d+: (?P<subject>[\w-]+) read-back delay of \d+ns, attempt \d+, marking unstable`,
			`^clocksource: +Clocksource '?(?P<subject>[\w-]+)'? skewed -?\d+ ns`,
			`^(?:tsc: )?Marking TSC unstable due to (?P<why>clocksource watchdog|check_tsc_sync_source failed|TSCs unsynchronized)`,
			`^Measured \d+ cycles TSC warp between CPUs, turning off TSC clock`,
			`^TSC found unstable after boot, most likely due to broken BIOS`,
			`^clocksource: Marking clocksource (?P<subject>\S+) unstable due to (?:frequency|inter CPU) skew`, // since 7.1
			`^TSC warped randomly between CPUs`,
			`^(?:clocksource: )?Clocksource (?P<subject>[\w-]+) unstable \(delta = -?\d+ ns`, // until 4.0
			`^warning: many lost ticks\.`, // until 2.6.20
		},
		Kind: "clocksource", Report: "clocksource", Expiry: 24 * time.Hour, ConfirmedBy: "clock-source",
	}}
}
