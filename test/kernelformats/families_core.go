package main

// coreFamilies are the errors of the kernel itself, on each architecture that servers have.
func coreFamilies() []family {
	const die = ` \[#\d+\]|oops|unable to handle|panic|bug:|bug at|internal error|fault|exception|corrupt|stack|fatal|bad mode|` +
		`serror|recursive|exploit|page table|machine check|lockup|illegal|invalid opcode|error`
	return []family{{
		name: "die-x86",
		files: []string{"arch/x86/kernel/dumpstack.c", "arch/x86/kernel/traps.c", "arch/x86/mm/fault.c",
			"arch/x86/kernel/nmi.c", "arch/x86/kernel/cet.c", "arch/x86/kernel/irq*.c",
			"arch/x86/kernel/doublefault_32.c"},
		words:  die + `|nmi|stuck`,
		except: `split lock`, // its text contains the end of the line
		printers: map[string]string{
			"printk_default": "", "die": "Oops: {}: 0000 [#1] SMP NOPTI",
			"do_error_trap": "Oops: {}: 0000 [#1] SMP NOPTI",
			"do_trap":       "{}", "DEFINE_IDTENTRY_ERRORCODE_TEXT": "",
		},
	}, {
		name: "die-arm64",
		files: []string{"arch/arm64/kernel/traps.c", "arch/arm64/mm/fault.c", "arch/arm64/kernel/debug-monitors.c",
			"arch/arm64/kernel/process.c", "arch/arm64/kernel/sdei.c", "arch/arm64/kernel/entry-common.c"},
		words: die,
		printers: map[string]string{"die": "Internal error: {}: 0000000096000004 [#1] SMP",
			"die_kernel_fault":  "Unable to handle kernel {} at virtual address 0000000000000028",
			"__panic_unhandled": "Unhandled {} exception on CPU3, ESR 0x00000000bf000002 -- SError"},
	}, {
		name:  "die-arm",
		files: []string{"arch/arm/kernel/traps.c", "arch/arm/mm/fault.c"},
		words: die,
		printers: map[string]string{"die": "Internal error: {}: 817 [#1] SMP ARM",
			"die_kernel_fault": "8<--- cut here ---"},
	}, {
		name: "die-powerpc",
		files: []string{"arch/powerpc/kernel/traps.c", "arch/powerpc/mm/fault.c", "arch/powerpc/kernel/mce.c",
			"arch/powerpc/kernel/watchdog.c", "arch/powerpc/kernel/eeh*.c",
			"arch/powerpc/platforms/powernv/opal-hmi.c",
			"arch/powerpc/platforms/pseries/ras.c", "arch/powerpc/platforms/powernv/eeh-powernv.c"},
		words:    die + `|frozen|fenced|dead|unable to recover|permanently|recovery successful|maintenance|severe|detected`,
		except:   `capab|inject|break|register|no eeh_dev|sysfs|daemon|out of memory`,
		printers: map[string]string{"die": "Oops: {}, sig: 6 [#1]"},
	}, {
		name: "die-s390",
		files: []string{"arch/s390/kernel/dumpstack.c", "arch/s390/kernel/traps.c", "arch/s390/mm/fault.c",
			"arch/s390/kernel/nmi.c", "arch/s390/kernel/machine_kexec.c", "arch/s390/mm/extable.c"},
		words: die,
		printers: map[string]string{"die": "{}: 0001 ilc:1 [#1] SMP", "DO_ERROR_INFO": "{}: 0001 ilc:1 [#1] SMP",
			"do_trap": "{}: 0001 ilc:1 [#1] SMP"},
	}, {
		name: "die-riscv",
		files: []string{"arch/riscv/kernel/traps.c", "arch/riscv/mm/fault.c",
			"arch/riscv/kernel/traps_misaligned.c"},
		words: die,
		printers: map[string]string{"die": "{} [#1]",
			"die_kernel_fault": "Unable to handle kernel {} at virtual address 0000000000000028",
			"DO_ERROR_INFO":    "{} [#1]"},
	}, {
		name: "panic",
		files: []string{"kernel/panic.c", "kernel/exit.c", "lib/bug.c", "kernel/sched/core.c", "kernel/fork.c",
			"init/main.c",
			"lib/list_debug.c", "lib/refcount.c", "mm/usercopy.c", "mm/page_alloc.c", "mm/memory.c", "mm/slub.c",
			"mm/kasan/report.c", "mm/kfence/report.c", "kernel/locking/spinlock_debug.c", "kernel/workqueue.c",
			"drivers/tty/sysrq.c"},
		words: `panic|bug\b|bad (page|rss|state|map)|corruption|warning: cpu|warning: at|warning: %s|lockup|leaked|stuck|` +
			`non-zero|underflow|saturated|exposure|double[- ]free|recursive|trigger a crash|allocation failure|` +
			`allocation stall|unable to allocate|attempted to kill|oops`,
		except: `panic_on|stat_panic|debug on lockup`,
		printers: map[string]string{"slab_bug": "BUG kmalloc-64 (Not tainted): ",
			"slab_err":      "BUG kmalloc-64 (Not tainted): ",
			"warn_alloc":    "kworker/1:1: {}, mode:0x40dc0(GFP_KERNEL|__GFP_ZERO), nodemask=(null)",
			"REFCOUNT_WARN": "refcount_t: {}.", "spin_bug": "BUG: spinlock {} on CPU#1, sh/12"},
	}, {
		name: "lockup",
		files: []string{"kernel/watchdog*.c", "kernel/hung_task.c", "kernel/rcu/tree*.[ch]", "kernel/rcu/tasks.h",
			"kernel/smp.c",
			"kernel/locking/lockdep.c", "kernel/softirq.c", "kernel/sched/rt.c", "kernel/sched/deadline.c",
			"kernel/time/clocksource.c", "arch/x86/kernel/tsc*.c", "kernel/time/tick-sched.c"},
		words: `lockup|stall|starved|blocked|hung|non-responsive|stuck|watchdog|unstable|skew|warp|throttling activated|` +
			`lagged|suspicious rcu|possible .*(lock|deadlock|unsafe)|inconsistent lock|unlock balance|held lock|expected behavior`,
		except: `torture|scale:|self.?test|multiplier|overrid|timeout set|compensate`,
	}, {
		name: "memory",
		files: []string{"mm/oom_kill.c", "mm/memory-failure.c", "mm/page_io.c", "mm/vmalloc.c", "mm/percpu.c",
			"mm/swapfile.c", "mm/memcontrol.c"},
		words:  `kill|oom|memory failure|recovery|poison|error|fail|unable to reap|out of memory`,
		except: `swapon|unpoison|header|priorit|bad swap|duplicate`,
	}, {
		name: "interrupt",
		files: []string{"kernel/irq/*.c", "arch/x86/kernel/irq.c", "arch/x86/kernel/apic/vector.c",
			"arch/x86/kernel/apic/apic.c",
			"arch/x86/kernel/apic/io_apic.c", "arch/powerpc/kernel/irq.c", "kernel/softirq.c"},
		words: `nobody cared|spurious|disabling irq|no irq handler|vector|exhaust|not respond|flags mismatch|stuck|` +
			`unexpected irq|unexpected interrupt|lost|fail|apic error|affinity.*broken|huh`,
	}}
}
