package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// dieFlags is the end of die()'s line: "[#1] PREEMPT SMP NOPTI". It must end the line, so that no program's name can
// imitate it.
const dieFlags = ` \[#\d+\](?: +[A-Z][A-Z_]*)*\s*$`

func panicRules() []Rule {
	return []Rule{{
		ID: "kernel-panic", Reason: "KernelPanic", Domain: CPU, Severity: finding.Fatal,
		Advice: "Save the whole report: `ls /var/lib/systemd/pstore /var/crash`, or the console's log; with the " +
			"kernel's version, look for it in the distribution's bug tracker. The node must be rebooted.",
		Summary: "the kernel panicked", // kernel/panic.c; seen in saved logs, pstore and serial consoles
		Patterns: []string{`^(?:---\[ end )?Kernel [Pp]anic - not syncing(?:: (?P<why>.*)|$)`,
			`^Kernel panic: (?P<why>[A-Z]\w\w.*)`, // until 2.6.9; longer than the name of a program
			`^sysrq: (?:SysRq : )?Trigger a crash$`},
		Kind: NodeKind, Report: "panic", Expiry: UntilBoot,
	}}
}

// oopsRules match errors in the kernel itself. The texts changed: "unable to handle kernel paging request" became
// "unable to handle page fault for address" in 5.1, "general protection fault" got a reason in 5.5, and since 6.9 the
// line of die() starts with "Oops: ".
//
//	arch/x86/mm/fault.c, arch/x86/kernel/{traps,dumpstack}.c, arch/arm64/{mm/fault,kernel/traps}.c, lib/bug.c,
//	kernel/exit.c
func oopsRules() []Rule {
	return []Rule{{
		ID: "kernel-oops", Reason: "KernelOops", Domain: CPU, Severity: finding.Fatal,
		Advice: "The kernel goes on with broken state: drain the node, save `dmesg`, reboot. The function in " +
			"\"RIP\" or \"pc\" and the modules in the report say whose bug it is.",
		Summary: "the kernel crashed in one of its tasks and killed it; locks may stay held and " +
			"memory may be inconsistent until the next boot",
		Patterns: []string{
			`^BUG: kernel NULL pointer dereference, address: (?P<address>\S+)`,
			`^BUG: unable to handle (?:page fault for address:|kernel (?:NULL pointer dereference|paging request)(?: at| in)) ?(?P<address>\S*)`,
			`^[Kk]ernel BUG at (?P<where>\S+?)!?(?: \[.*)?$`,
			`^(?:Oops: )*general protection fault(?:, [a-zA-Z -]{1,60} 0x[0-9a-f]+)?: [0-9a-f]{4}` + dieFlags,
			`^(?:Oops: )*(?:invalid opcode|divide error|stack segment|double fault|alignment check|bounds|int3|debug|overflow|` +
				`coprocessor segment overrun|invalid TSS|segment not present|stack guard page|Split lock detected|Bad pagetable|` +
				`unexpected #NM exception|iret exception|simd exception|control protection|spurious interrupt|VMM Communication Exception)[^\[]{0,80}: [0-9a-f]{4}` + dieFlags,
			`^(?:Oops: )+[0-9a-f]{4}(?: ilc:\d)?` + dieFlags,
			`^Oops: [A-Z][^\[]{1,100}` + dieFlags,
			// riscv
			`^(?:Oops|Kernel BUG|(?:Oops - )?(?:(?:load|store \(or AMO\)|instruction) (?:access fault|address misaligned)|` +
				`illegal instruction|environment call from [MSU]-mode|unknown exception|hardware error))` + dieFlags,
			`^Internal error: [^\[]{0,80}: [0-9a-f]{1,16}` + dieFlags,
			`^(?:CPU \d+ )?Unable to handle kernel (?:NULL pointer dereference|paging request|read from unreadable memory|write to read-only memory|` +
				`execute from non-executable memory|execution of user memory|access to user memory (?:outside uaccess routines|without uaccess routines|with fs=KERNEL_DS)|` +
				`access to unreadable memory|pointer dereference|unknown \d+) (?:at|in) virtual (?:(?:kernel|user) )?address`,
			`^Unable to handle kernel (?:NULL pointer dereference|paging request) at (?:virtual address )?[0-9a-f]{8,16}(?: RIP|$)`, // until 2.6.24
			`^(?:Oops: 0[0-9a-f]{3}|(?:general protection fault|double fault|invalid opcode|divide error): 0000)(?: \[\d+\](?: +[A-Z]+)*\s*)?$`,
			`^(?:traps: )?PANIC: double fault, error_code: 0x`,
			// powerpc, since 5.2
			`^BUG: (?:Kernel NULL pointer dereference|Unable to handle (?:kernel |unknown )[a-z ]{4,60}) (?:on (?:read|write|exec\w*) )?at 0x[0-9a-f]+`,
			`^BUG: Unable to handle kernel instruction fetch`,
			`^Kernel attempted to (?:read|write|access|execute) user page \([0-9a-f]+\) - exploit attempt\? \(uid: `,
			`^(?:Unrecoverable (?:(?:FP|TM|VMX/Altivec|VSX) Unavailable Exception|exception) [0-9a-f]+ at [0-9a-f]+|Unexpected TM Bad Thing exception at |` +
				`VMX/Altivec assist exception in kernel mode at |Facility '[^']{1,20}' unavailable \(\d+\) exception in kernel mode at |` +
				`Machine check in kernel mode\.$|Bad kernel stack pointer [0-9a-f]+ at )`,
			// powerpc, until 5.1
			`^Unable to handle kernel paging request for (?:data|instruction fetch|unaligned access at address|unknown fault)`,
			// s390
			`^[A-Za-z][A-Za-z -]{3,40}: [0-9a-f]{4} ilc:\d` + dieFlags,
			// stack overflow: arm, arm64, powerpc, riscv, s390
			`^Insufficient stack space to handle exception!`,
			`^Kernel stack (?:overflow\.$|overflow in process |pointer invalid$)`,
			`^Unhandled [\w -]{2,40} exception on CPU\d+, ESR 0x[0-9a-f]+ -- `,
			`^Unexpected kernel (?:BRK|single-step) exception at EL1`,
			// arm64, until 5.12; arm
			`^Bad mode in [\w ]+ handler detected(?: on CPU\d+, code 0x[0-9a-f]+|, code 0x[0-9a-f]+|$)`,
			`^kernel tried to execute (?:NX-protected|exec-protected|user) (?:page|address \S+)(?: \([0-9a-f]+\))? - exploit attempt\? \(uid: `,
			`^SError Interrupt on CPU\d+, code 0x[0-9a-f]+`,
			`^BUG: [\w ]*stack guard page was hit at `,
			`^Fixing recursive fault but reboot is needed!`,
			`^(?P<process>` + Command + `): Corrupted page table at address [0-9a-f]+$`,
		},
		Kind: NodeKind, Report: "oops", Expiry: UntilBoot,
	}, {
		ID: "kernel-memory-corruption", Reason: "KernelMemoryCorruption", Domain: CPU, Severity: finding.Warning,
		Advice: "Drain the node, save `dmesg`, reboot at once: data may be written wrongly. Then test the memory " +
			"(`memtester`, `edac-util -v`) and update the kernel.",
		Summary: "the kernel detected corruption of its own data: bad memory, or an error in a driver",
		Literals: []string{
			"BUG: Bad page ", "BUG: Bad rss-counter state", "BUG: non-zero ", "list_add corruption",
			"list_del corruption", ": bad pmd ", ": bad pud ", ": bad pgd ", ": bad p4d ", ": bad pte ",
			"BUG: KASAN: ", "BUG: KFENCE: ", "BUG: KMSAN: ", "Tainted: ", "Not tainted): ", "usercopy: Kernel memory ",
			"slab error in ", "refcount_t", "page dumped because: ", "Slab corruption (", "\npagealloc: ", "Slab corruption: ",
			"Single bit error detected", "CFI failure at ", "Bad page state in process", "a reboot is needed", "page_mapcount(page) went", "ad swap ", "nused swap ",
			"nternal list corruption", "Wrong slab cache", "CRED: Invalid ", "orrupted low memory at",
		},
		Patterns: []string{
			`^BUG: Bad page (?:state|map|cache) in process (?P<process>` + Command + `)  ?(?:pfn|pte|p[gum4]d):`,
			`^BUG: Bad rss-counter state mm:`, `^[\w/.-]{1,60}\.c:\d+: bad p[gu4mt][de] `, // mm/pgtable-generic.c
			`^BUG: non-zero (?:pgtables_bytes|nr_ptes|nr_pmds) on freeing mm:`,
			`^list_(?:add|del) corruption[.,] `,
			`^BUG: K(?:A|M)SAN: [a-z][a-z -]* (?:in|on|from) `, `^BUG: KASAN: invalid-access$`, `^BUG: KFENCE: [a-z -]+ in `,
			`^BUG [\w:.-]+ \((?:Not tainted|Tainted: [^)]*)\): \S`, // mm/slub.c
			`^slab error in \w+\(\): cache `,
			`^refcount_t:? (?:underflow|overflow|saturated|addition on 0|increment on 0|decrement hit 0)`,
			`^page dumped because: (?:VM_(?:BUG|WARN)_ON|PAGE_FLAGS_CHECK|nonzero |non-NULL mapping|corrupted mapping|bad pte|eb page dump|still (?:charged|mapped))`,
			`^Slab corruption(?: \([^)]{1,40}\))?: \S+ start=`, `^Single bit error detected\. Probably bad RAM\.`,
			`^CFI failure at \S+`,
			`^(?:Bad page state in process '|Trying to fix it up, but a reboot is needed|Eeek! page_mapcount\(page\) went negative!)`, // until 2.6.28
			`^(?:_?swap_\w+|get_swap_device|VM): (?:Bad|Unused) swap (?:file|offset|entry)`,                                           // mm/swapfile.c
			`^CRED: Invalid (?:process )?credentials`, `^(?:check: )?Corrupted low memory at `, `^pagealloc: (?:memory corruption|single bit error)`,
			`^cache_from_obj: Wrong slab cache\. `, `^slab: Internal list corruption detected in cache `,
			`^usercopy: Kernel memory (?:exposure|overwrite) attempt detected`,
		},
		Kind: NodeKind, Report: "oops", Expiry: UntilBoot,
	}, {
		ID: "kernel-bug", Reason: "KernelBug", Domain: CPU, Severity: finding.Warning,
		Advice: "Drain the node, save `dmesg`, reboot: a process that hit it holds its locks for ever. The file " +
			"and line in the report identify the bug.",
		Summary: "the kernel violated its own rules: of locking, of scheduling, or an assertion",
		Patterns: []string{
			`^BUG: scheduling while atomic: .+/\d+/0x[0-9a-f]+`,
			`^BUG: scheduling in a non-blocking section: .+/\d+/`,
			`^BUG: sleeping function called from invalid context at \S+:\d+`,
			`^BUG: (?:spin|rw)lock (?:bad magic|recursion|wrong owner|wrong CPU|lockup suspected|lockup|already unlocked|cpu recursion|trylock failure on UP) on CPU#\d+, `,
			`^BUG: workqueue leaked (?:lock or )?atomic`,
			`^BUG: assuming (?:atomic|non migratable) context at \S+:\d+`,
			// ext4, jbd2; btrfs
			`^Assertion failure in \w+\(\) at \S+:\d+:`, `^(?:BTRFS: )?assertion failed: .{1,200}, in \S+:\d+`,
			`^kobject: .{1,200} something is seriously wrong\.`,
			`^jump_label: Fatal kernel bug, unexpected op at `,
			`^BUG: Dentry .{1,120} still in use \(`, `^do_IRQ: stack overflow: `,
			`^BUG: using \S+ in preemptible \[[0-9a-f]+\] code: `,
		},
		Kind: NodeKind, Report: "oops", Expiry: 24 * time.Hour,
	}, {
		ID: "kernel-warning", Reason: "KernelWarning", Domain: CPU, Severity: finding.Info,
		// kernel/panic.c __warn; new words in 6.19
		Advice: "Read the file and line in the report (`dmesg`): mostly a driver's or the kernel's bug without " +
			"effect. With other faults at the same time, report it to the distribution.",
		Summary: "the kernel met a condition that its authors consider impossible (WARN), and continued",
		Patterns: []string{
			`^WARNING: CPU: \d+ PID: \d+ at (?P<where>\S+)`,
			`^WARNING: (?P<where>[\w./-]+:\d+) at \S+, CPU#\d+: .+/\d+$`,
			`^UBSAN: [\w-]+ in (?P<where>\S+)`,                            // lib/ubsan.c
			`^verifier (?:(?:bug|BUG)[:.] [A-Za-z_]{2}|backtracking bug)`, // kernel/bpf/verifier.c
			// kernel/locking/lockdep.c
			`^WARNING: (?:possible (?:circular locking|recursive locking|irq lock inversion) |suspicious RCU usage|inconsistent lock state|bad unlock balance detected|held lock freed)`,
			`^\[ (?:INFO|BUG): (?:possible (?:circular|recursive|irq lock)|suspicious RCU|inconsistent lock state|bad unlock balance|held lock freed)`, // until 4.9
			`^WARNING: at (?P<where>\S+), CPU#\d+: .+/\d+$`,
			// until 3.10
			`^WARNING: at (?P<where>[\w./-]+:\d+) \S+\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[\w+\])?\(\)`,
		},
		Kind: NodeKind, Escalate: Rate{3, 10 * time.Minute}, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}}
}
