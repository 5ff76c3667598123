package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// interruptRules: kernel/irq/{spurious,matrix,cpuhotplug}.c, arch/x86/kernel/{irq,apic/vector}.c
func interruptRules() []Rule {
	return []Rule{{
		ID: "irq-disabled", Reason: "IRQDisabled", Domain: Hardware, Severity: finding.Warning,
		Advice: "`grep -w N: /proc/interrupts` names the devices that share interrupt N; restart the " +
			"node; update their drivers and the firmware.",
		Summary: "no driver handles an interrupt and the kernel disabled it: the devices that share it become " +
			"slow or stop",
		Patterns: []string{`^irq (?P<subject>\d+): nobody cared \(try booting with`, `^Disabling IRQ #(?P<subject2>\d+)$`},
		Kind:     "irq", Report: "irq", Expiry: UntilBoot,
	}, {
		// Some machines log it for interrupts that arrive while processors start.
		ID: "irq-without-handler", Reason: "IRQWithoutHandler", Domain: Hardware, Severity: finding.Info,
		Advice: "`cat /proc/interrupts` shows whose counts grow; update the firmware of the board and of " +
			"the card that was changed last.",
		Summary:  "interrupts arrive for which there is no handler, or a driver lost track of its own: a device, its driver or the firmware is faulty",
		Literals: []string{"o irq handler for ", "Trying to free alread", "unexpected IRQ trap at vector ", "Spurious APIC interrupt (vector"},
		Patterns: []string{
			`^(?:\w+: )?\d+\.\d+ No irq handler for vector`, `^No irq handler for \d+\.\d+$`,
			`^Trying to free already-free IRQ \d+`, // kernel/irq/manage.c
			`^unexpected IRQ trap at vector [0-9a-f]+$`, `^[Ss]purious APIC interrupt \(vector 0x[0-9A-Fa-f]{2}\) on CPU#\d+`,
		},
		Kind: NodeKind, BootGrace: 2 * time.Minute, Escalate: Rate{10, 10 * time.Minute},
		EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "irq-vectors-exhausted", Reason: "IRQVectorsExhausted", Domain: Hardware, Severity: finding.Warning,
		Advice: "`ethtool -l IFACE` shows the queues of a card, `ethtool -L IFACE combined N` gives it " +
			"fewer.",
		Summary: "a processor has no interrupt vectors left: interrupts move to other processors, and devices may " +
			"not start",
		Patterns: []string{
			`^irq (?P<irq>\d+): Affinity broken due to vector space exhaustion\.`,
			`^CPU \d+ has \d+ vectors, \d+ available\. Cannot disable CPU$`,
			`^Managed startup irq (?P<irq>\d+), no vector available$`,
		},
		Kind: NodeKind, Expiry: time.Hour,
	}, {
		// drivers/irqchip/irq-gic-v3{,-its}.c
		ID: "irq-controller-stuck", Reason: "IRQControllerStuck", Domain: Hardware, Severity: finding.Warning,
		Advice: "`dmesg | grep -E 'ITS|GIC'` at boot names the unit; update the firmware of the board, power-cycle the node; in a " +
			"virtual machine the hypervisor.",
		Summary: "the interrupt controller of an ARM machine does not complete the kernel's commands: devices may get no " +
			"interrupts",
		Literals: []string{"\nITS queue ", "\nITS cmd ", "RWP timeout, gone fishing", "redistributor failed to "},
		Patterns: []string{`^ITS queue (?:timeout \(|not draining)`, `^ITS cmd \S+ failed$`,
			`^(?:GICv3: )?(?:RWP timeout, gone fishing|redistributor failed to (?:wakeup|sleep))`},
		Kind: NodeKind, Expiry: 24 * time.Hour,
	}}
}
