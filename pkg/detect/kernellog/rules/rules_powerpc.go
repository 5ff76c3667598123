package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// powerRules match lines that only POWER machines log: arch/powerpc/kernel/eeh*.c,
// arch/powerpc/platforms/{powernv,pseries}. EEH isolates a device whose PCI bus had an error, and resets it.
func powerRules() []Rule {
	return []Rule{{
		ID: "eeh-frozen", Reason: "EEHFrozen", Domain: Hardware, Severity: finding.Warning,
		Advice: "`lspci -vv -s ADDRESS` shows the device; once is a transient error, several times a card " +
			"to reseat or replace.",
		Summary: "the PCI bus of a device had an error: the device is isolated and is being reset",
		Literals: []string{"EEH: Frozen ", ": Frozen PHB#", "EEH: Fenced ", "EEH: dead ", "EEH: Recovering PHB", "EEH: PHB#",
			"EEH: Detected ", " reads ignored for rec", "EEH: Might be infinite loop"},
		Patterns: []string{
			`^EEH: (?:eeh_\w+: )?Frozen (?:PE#(?P<element>[0-9a-f]+) on )?(?P<subject>PHB#[0-9a-f]+)(?:-PE#[0-9a-f]+)? detected`,
			`^EEH: (?:Fenced|dead) (?P<subject2>PHB#[0-9a-f]+|IOC) detected`,
			`^EEH: Recovering (?P<subject3>PHB#[0-9a-f]+)`,
			`^EEH: (?P<subject4>PHB#[0-9a-f]+) failure detected, location: `,               // until 5.4
			`^EEH: Detected (?:PCI bus )?error on (?:(?P<subject5>PHB#[0-9a-f]+)|device )`, // until 5.3, "device" until 3.5
			`^EEH: (?:\d+ reads ignored for recovering device at location=|Might be infinite loop in \S+ driver)`,
		},
		Kind: "pci-host-bridge", Report: "eeh", Expiry: time.Hour,
	}, {
		ID: "eeh-failed", Reason: "EEHFailed", Domain: Hardware, Severity: finding.Warning,
		Advice:  "`lspci -vv -s ADDRESS` names the card: reseat or replace it, then restart the node.",
		Summary: "a device did not recover from an error of its PCI bus and was disabled",
		Patterns: []string{
			`^EEH: (?P<subject>PHB#[0-9a-f]+)-PE#[0-9a-f]+ has failed \d+ times in the last hour and has been permanently disabled`,
			`^EEH: (?:Unable to recover from failure from|Unrecoverable slot failure on) (?P<subject2>PHB#[0-9a-f]+)`,
			`^EEH: (?P<subject4>PHB#[0-9a-f]+)-PE#[0-9a-f]+: Slot inactive after reset: `,
			`^EEH: Permanent failure$`, `^EEH: Failure \d+ resetting (?P<subject3>PHB#[0-9a-f]+)`,
		},
		Kind: "pci-host-bridge", Expiry: UntilBoot,
	}, {
		ID: "power-firmware-error", Reason: "PowerFirmwareError", Domain: Hardware, Severity: finding.Warning,
		Advice:  "`opal-elog-parse -l`, or `errpt` of the service processor, names the part to replace.",
		Summary: "the firmware of a POWER machine reports failing hardware, power or cooling",
		Literals: []string{"Check RTAS error log", " Hypervisor Maintenance interrupt [", "\nRTAS: event: ", "Hardware platform error: ",
			"Machine check interrupt ", "\nMCE: CPU"},
		Patterns: []string{
			`^(?:Fatal hardware error|Critical power/cooling issue|High ambient temperature) detected\. Check RTAS error log`,
			`^(?:Loss of system (?:critical functions|power) detected|System about to lose power)\. (?:.*\. )?Check RTAS error log`,
			`^Non-critical (?:cooling|power) issue detected\. Check RTAS error log`,
			`^(?:Severe|Fatal) Hypervisor Maintenance interrupt \[`,
			// arch/powerpc/kernel/rtasd.c: severity error or fatal, and not a planned event (dump, hot-plug, other
			// resources)
			`^RTAS: event: \d+, Type: (?:(?:Platform|TCE) Error|Internal Device Failure|Timeout|(?:Data|Address|Cache) Parity|Address Invalid|ECC Uncorrected|EPOW|Unknown) \(\d+\), Severity: [3-5]`,
			`^(?:opal: )?Hardware platform error: `, `^opal: Machine check interrupt (?:is fatal|unrecoverable)`,
			`^MCE: CPU\d+: Hardware error$`,
		},
		Kind: NodeKind, Expiry: 24 * time.Hour,
	}}
}
