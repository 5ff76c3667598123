package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// oomRules match kills of the OOM killer. A report has several lines: since 5.0 "oom-kill:" names the cgroup whose
// limit was reached and that of the victim, and "Killed process" follows; before, "Task in … killed as a result of
// limit of …" named the cgroups, and the two lines "Kill process" and "Killed process" followed. A container that
// reaches its own limit is a matter for its owner, a node that runs out of memory is a fault of the node. The kernel
// also counts each kill, in cgroup v2 per cgroup: the check oom-kills reads these counters, and is the only one to
// report all kills.
//
//	mm/oom_kill.c dump_oom_victim, __oom_kill_process; mm/memcontrol.c
func oomRules() []Rule {
	const victim = `(?P<pid>\d+)(?:, UID \d+,)? \((?P<process>` + Command + `)\)`
	return []Rule{{
		// The named program is the one that asked for memory, not the one that is killed.
		ID: "oom-report", Reason: "OOMReport", Domain: Memory, Severity: finding.Info,
		Advice: "The report in `dmesg` says what used the memory; `kubectl describe node` shows requests and " +
			"limits; reserve memory for the system (system-reserved, kube-reserved).",
		Summary:  "the kernel selects a process to kill because memory ran out; the lines that follow name the limit",
		Patterns: []string{`^` + Command + ` invoked oom-killer: gfp_mask=0x[0-9a-f]+`},
		Kind:     NodeKind, Expiry: 10 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "system-oom", Reason: "OOMKilling", Domain: Memory, Severity: finding.Warning,
		Advice: "The node itself ran out of memory: the table in `dmesg` shows the users. Give pods limits, " +
			"raise kubelet's eviction threshold (`memory.available`) and system-reserved.",
		Summary: "the node ran out of memory and the kernel killed a process",
		Patterns: []string{
			`^oom-kill:constraint=CONSTRAINT_(?P<constraint>NONE|CPUSET|MEMORY_POLICY),.*,task_memcg=(?P<cgroup>/.*),task=(?P<process>` + Command + `),pid=(?P<pid>\d+),uid=\d+$`,
			`^oom-kill:constraint=CONSTRAINT_(?P<constraint>NONE|CPUSET|MEMORY_POLICY),.*,task=(?P<process>` + Command +
				`),pid=(?P<pid>\d+),uid=\d+$`,
		},
		Kind: "process", Report: "oom", Escalate: Rate{3, 10 * time.Minute}, EscalateSeverity: finding.Fatal,
		Aggregate: true, Expiry: 30 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "system-oom-killed", Reason: "OOMKilling", Domain: Memory, Severity: finding.Warning,
		Advice: "The node itself ran out of memory: is a daemon of the node among the killed (`systemctl " +
			"--failed`)? Give pods limits, raise kubelet's eviction threshold and system-reserved.",
		Summary: "the node ran out of memory and the kernel killed a process",
		Patterns: []string{
			`^Out of memory(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process ` + victim,
		},
		Kind: "process", Report: "oom", Continuation: true, Escalate: Rate{3, 10 * time.Minute},
		EscalateSeverity: finding.Fatal, Aggregate: true, Expiry: 30 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "container-oom", Reason: "ContainerOOMKilled", Domain: Memory, Severity: finding.Info,
		Advice: "The container reached its own limit: `kubectl describe pod` shows the limit, `kubectl top pod " +
			"--containers` the use. Raise the limit, or mend the leak.",
		Summary: "a container reached its memory limit and the kernel killed one of its processes",
		Patterns: []string{
			`^oom-kill:constraint=CONSTRAINT_MEMCG,.*oom_memcg=(?P<limit>/.*),task_memcg=(?P<cgroup>/.*),task=(?P<process>` + Command + `),pid=(?P<pid>\d+),uid=\d+$`,
			`^Task in (?P<cgroup>/.*) killed as a result of limit of (?P<limit>/.*)`,
			`^Tasks in (?P<cgroup>/.*) are going to be killed due to memory\.oom\.group set`,
		},
		Kind: "cgroup", Report: "oom", Expiry: 10 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "container-oom-killed", Reason: "ContainerOOMKilled", Domain: Memory, Severity: finding.Info,
		Advice: "The container reached its own limit: `kubectl describe pod` shows OOMKilled and the limit. " +
			"Raise the limit, or mend the leak.",
		Summary: "a container reached its memory limit and the kernel killed one of its processes",
		Patterns: []string{`^Memory cgroup out of memory: Kill(?:ed)? process ` + victim,
			`^Memory cgroup out of memory: OOM victim ` + victim},
		Kind: "process", Report: "oom", Continuation: true, Expiry: 10 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "oom-victim", Reason: "OOMKilling", Domain: Memory, Severity: finding.Warning,
		Advice: "`dmesg` above the line has the report: a container's limit, or the node's memory. `kubectl get " +
			"events --field-selector reason=OOMKilling` shows how often.",
		Summary: "the kernel killed a process because memory ran out; the line does not name the limit (kernels " +
			"before 5.3)",
		Patterns: []string{`^Killed process ` + victim + `,? (?:UID \d+,? )?total-vm:\d+kB`,
			`^VM: killing process (?P<subject>` + Command + `)$`}, // until 2.6.39
		Kind: "process", Report: "oom", Continuation: true, Expiry: 10 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "oom-stuck", Reason: "OOMStuck", Domain: Memory, Severity: finding.Warning,
		// no state shows it
		Advice: "A killed process does not die: `cat /proc/PID/stack` shows where it waits, mostly a hung disk " +
			"or network filesystem; only the end of that, or a reboot, frees its memory.",
		Summary: "the OOM killer makes no progress: no process may be killed, or the killed process does not exit",
		Patterns: []string{`^Out of memory and no killable processes\.\.\.`,
			`^oom_reaper: unable to reap pid:(?P<pid>\d+) \((?P<subject>` + Command + `)\)`},
		Kind: "process", Expiry: 10 * time.Minute,
	}}
}

// memoryRules match failed allocations and corrupt pages. mm/page_alloc.c, mm/vmalloc.c, mm/memory-failure.c
//
// No state shows a failed allocation: memory may be short for a moment only, or the allocation has its own limit. Nor
// does any state separate the pages that could not be offlined from those that were. The kernel also logs a failure for
// a page that remains part of a huge page, and for one that is found corrupt again: the process dies, the node
// continues to work.
func memoryRules() []Rule {
	return []Rule{{
		ID: "page-allocation-failure", Reason: "PageAllocationFailure", Domain: Memory, Severity: finding.Warning,
		Advice: "Memory is fragmented or short for an atomic allocation: `cat /proc/buddyinfo`; raise " +
			"`vm.min_free_kbytes`. With order 0 again and again: the node is out of memory.",
		Summary: "the kernel could not allocate memory: too little is free, or free memory is too fragmented",
		Patterns: []string{
			`^(?P<subject>` + Command + `): page allocation failure[:.] order:(?P<order>\d+), mode:`,
			`^(?P<subject>` + Command + `): page allocation stalls? for \d+(?:ms,| secs:) order:(?P<order>\d+), mode:`,
			`^(?P<subject>` + Command + `): vmalloc(?:: allocation failure(?::|, allocated|,)| error: size) ?\d+`,
			// mm/slub.c; mm/slab.c (until 6.7)
			`^SL[AU]B: Unable to allocate memory (?:on|from) (?:node|CPU)`, `^vmap allocation for size \d+ failed`,
			`^percpu: allocation failed, size=\d+`,
			`^Possible memory allocation deadlock: size=\d+ lflags=0x`, // ZFS
			`^(?:vmap )?allocation failed: out of vmalloc space`,       // before 5.12
			`^__alloc_pages: (?P<order>\d+)-order allocation failed `,  // 2.4
		},
		Kind: "process", Expiry: 30 * time.Minute,
	}, {
		ID: "memory-failure-unrecovered", Reason: "MemoryFailureUnrecovered", Domain: Memory, Severity: finding.Fatal,
		Advice: "Drain the node and power it off: `ras-mc-ctl --errors` and `ipmitool sel elist` name the memory " +
			"module to replace.",
		Summary: "a page of memory is corrupt, and the kernel could not take it out of use",
		Literals: []string{"Memory failure: 0x", "Memory error not recovered", "MCE 0x",
			"Uncorrected memory error in page 0x"},
		Patterns: []string{
			`^Memory failure: (?P<page>0x[0-9a-f]+): recovery action for [^:]+: (?:Failed|Ignored)`,
			`^MCE (?P<page>0x[0-9a-f]+): .*: (?:Failed|Ignored)`, // until 4.4
			`^mce: (?:Memory error not recovered|Uncorrected memory error in page 0x[0-9a-f]+ ignored)`,
		},
		Exclude: `recovery action for (?:already poisoned|unsplit thp)`,
		Kind:    NodeKind, Report: "poison", Expiry: UntilBoot,
	}, {
		ID: "memory-failure", Reason: "MemoryFailure", Domain: Memory, Severity: finding.Warning,
		Advice: "`ras-mc-ctl --errors` names the memory module, `grep HardwareCorrupted /proc/meminfo` what is " +
			"lost; plan its replacement, at once if it comes again.",
		Summary: "a page of memory is corrupt; the kernel took it out of use",
		Literals: []string{"Memory failure: 0x", "due to hardware memory corruption",
			"Uncorrected hardware memory error in user-access", "mce: Kernel accessed poison in user space",
			"Soft-offlining pfn: ", "oft offline: 0x", "MCE 0x", "synchronous unrecoverable error (SIGBUS)"},
		Patterns: []string{
			`^(?:Memory failure: |MCE )(?P<page>0x[0-9a-f]+): (?:\S)`,
			`^(?:\[Hardware Error\]: )?GHES: ` + Command + `:\d+: synchronous unrecoverable error \(SIGBUS\)`,
			// pages with many corrected errors
			`^RAS: Soft-offlining pfn: 0x[0-9a-f]+`, `^[Ss]oft offline: 0x[0-9a-f]+: .*(?:failed|isolation)`,
			`^MCE: Killing ` + Command + `:\d+ due to hardware memory corruption fault at [0-9a-f]+`,
			`^mce: (?:Uncorrected hardware memory error in user-access|Kernel accessed poison in user space) at [0-9a-f]+`,
		},
		Kind: NodeKind, Report: "poison", Expiry: UntilBoot, ConfirmedBy: "memory-corrupted",
	}, {
		ID: "swap-io-error", Reason: "SwapIOError", Domain: Memory, Severity: finding.Warning,
		Advice: "`cat /proc/swaps` names the device, `smartctl -a /dev/sdX` its health; `swapoff` it: processes " +
			"whose pages cannot be read are killed.",
		Summary: "reads from the swap device, or writes to it, fail", // mm/page_io.c
		Patterns: []string{`^(?:Read|Write)-error on swap-device(?: \((?P<subject>\d+:\d+):\d+\)|$)`,
			`^Write error (?:-?\d+ )?on dio swapfile \(\d+\)`},
		Kind: "device", Expiry: time.Hour,
	}}
}
