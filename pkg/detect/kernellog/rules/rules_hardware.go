package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// machineCheckRules match errors that processors and memory controllers report. In a bank's status bit 61 means an
// uncorrected error, bit 60 an enabled one: they are in the first of its 16 hexadecimal digits.
//
//	arch/x86/kernel/cpu/mce/core.c print_mce, drivers/edac/mce_amd.c,
//	drivers/edac/edac_mc.c edac_ce_error, edac_ue_error
func machineCheckRules() []Rule {
	// An error that is not enabled (bit 60) did not stop the processor: the firmware left it in the bank before the
	// boot, or the data were not needed. If the processor's context was lost (bit 57) without an exception, the error
	// ended the previous boot: the bank keeps it across the reset, and the kernel reads it at start.
	const machineCheck = `^(?:(?:(?:mce: )?\[Hardware Error\]|EDAC \w+ MC\d+): )?CPU (?P<subject>\d+): Machine Check(?: Exception| Event)?: +[0-9a-f]+ Bank (?P<bank>\d+): `
	// The text of the decoder for AMD processors: the set flags.
	const amdStatus = `^(?:mce: )?\[Hardware Error\]: CPU:(?P<subject>\d+) \([0-9a-f:]+\) MC(?P<bank>\d+)_STATUS\[`
	return []Rule{{
		ID: "machine-check-before", Reason: "MachineCheckUncorrected", Domain: Hardware, Severity: finding.Warning,
		Advice: "`ras-mc-ctl --errors` and `ipmitool sel elist` name processor or module; once may be chance, " +
			"twice is a defect: replace.",
		Summary:  "a processor reported an uncorrected error that ended the previous boot",
		Patterns: []string{`^(?:mce: )?\[Hardware Error\]: CPU (?P<subject>\d+): Machine Check(?: Event)?: [0-9a-f]+ Bank (?P<bank>\d+): (?P<status>[37bfBF][2367abefABEF][0-9a-fA-F]{14})`},
		Kind:     "cpu", Report: "mce", Expiry: 24 * time.Hour,
	}, {
		ID: "machine-check-uncorrected", Reason: "MachineCheckUncorrected", Domain: Hardware, Severity: finding.Fatal,
		Advice: "Drain the node: `ras-mc-ctl --errors` (or `mcelog --client`) and `ipmitool sel elist` name " +
			"processor or module to replace.",
		Summary: "a processor reported an error that it could not correct",
		Literals: []string{"Machine Check", "Hardware Error]: Uncorrected", "Hardware Error]: System Fatal error",
			"Processor context corrupt", "Machine check: ", "_STATUS[", "CPUs not responding to MCE broadcast",
			": machine check (Severe)", " Machine check interrupt [", "\nBank ", "\nHARDWARE ERROR"},
		Patterns: []string{
			machineCheck + `(?P<status>[37bfBF][0-9a-fA-F]{15})`,
			`^(?:mce: )?\[Hardware Error\]: (?:Uncorrected, software (?:restartable|containable) error|Uncorrected error|System Fatal error)`,
			amdStatus + `(?:[^\]|]*\|)?UE\|`,
			`^(?:mce: )?\[Hardware Error\]: Machine check: (?:Processor context corrupt|.*[Uu]ncorrected)`,
			`^mce: CPUs not responding to MCE broadcast`,
			`^MCE: CPU(?P<subject>\d+): machine check \(Severe\)`, // powerpc
			`^CPU (?P<subject2>\d+): Machine Check Exception: [0-9a-f]{16}$`, `^Bank (?P<bank>\d+): (?P<status>[abef][0-9a-f]{15})(?:$|\[| at )`,
			`^HARDWARE ERROR(?:$|\. This is )`,             // 2.6
			`^(?:Severe|Fatal) Machine check interrupt \[`, // powerpc, until 5.1
		},
		Kind: "cpu", Report: "mce", Expiry: UntilBoot,
	}, {
		ID: "machine-check-corrected", Reason: "MachineCheckCorrected", Domain: Hardware, Severity: finding.Info,
		Advice: "Nothing is lost. `ras-mc-ctl --errors` (or `mcelog --client`) shows which part; many in a day " +
			"on one part: replace it at the next maintenance.",
		Summary: "a processor corrected an error; many of them mean that it is about to fail",
		Literals: []string{"Machine Check", "Hardware Error]: Corrected error", "Hardware Error]: Deferred error",
			"achine check events logged", "CMCI storm detected", "_STATUS[", "correctable incident occurred on CPU",
			"\nBank "},
		Patterns: []string{
			machineCheck + `(?P<status>[0-9a-fA-F]{16})`,
			`^(?:mce: )?\[Hardware Error\]: (?:Corrected error|Deferred error|Machine check events logged)`,
			`^Machine check events logged$`, // until 3.7
			// until 2.6.31
			`^MCE: The hardware reports a non fatal, correctable incident occurred on CPU (?P<subject>\d+)`,
			`^Bank (?P<bank>\d+): (?P<status>[89cd][0-9a-f]{15})(?:$|\[| at )`,
			amdStatus,
			`^(?:mce: )?CMCI storm detected: switching to poll mode`, `^(?:mce: )?CPU\d+ BANK\d+ CMCI storm detected`,
		},
		Kind: "cpu", Report: "mce", Escalate: Rate{10, time.Hour}, EscalateSeverity: finding.Warning,
		Expiry: 24 * time.Hour,
	}, {
		ID: "edac-uncorrected", Reason: "MemoryUncorrectedError", Domain: Hardware, Severity: finding.Fatal,
		Advice: "Drain the node; `edac-util -v` and `ipmitool sel elist` name the slot of the memory module: " +
			"replace it.",
		Summary:  "a memory module returned data that could not be corrected: replace it",
		Literals: []string{" UE ", ": UE: "},
		Patterns: []string{
			`^EDAC (?:\w+ )?MC(?P<controller>\d+): (?P<count>\d+ )?UE .*?\bon (?P<subject>[^(]+?) \(`,
			`^EDAC (?:DEVICE|PCI)\d+: UE: (?:\S+ )?instance: \S+ block: (?P<subject2>\S+) `,
		},
		Kind: "memory-module", Expiry: UntilBoot, ConfirmedBy: "edac",
	}, {
		ID: "edac-corrected", Reason: "MemoryReadError", Domain: Hardware, Severity: finding.Info,
		Advice: "Nothing is lost. `edac-util -v` counts by module; a module with hundreds a day: replace it at " +
			"the next maintenance.",
		Summary: "a memory module returned wrong data that was corrected; many such errors mean that it is about " +
			"to fail",
		Literals: []string{" CE ", ": CE: ", "HANDLING MCE MEMORY ERROR"},
		Patterns: []string{
			`^EDAC (?:\w+ )?MC(?P<controller>\d+): (?P<count>\d+ )?CE .*?\bon (?P<subject>[^(]+?) \(`,
			`^EDAC (?:DEVICE|PCI)\d+: CE: (?:\S+ )?instance: \S+ block: (?P<subject2>\S+) `,
			`^EDAC \w+ MC\d+: HANDLING MCE MEMORY ERROR`, // the details follow
		},
		Kind: "memory-module", Escalate: Rate{100, 24 * time.Hour}, EscalateSeverity: finding.Warning,
		Expiry: 24 * time.Hour, ConfirmedBy: "edac",
	}}
}

// firmwareErrorRules match errors reported by the firmware: drivers/acpi/apei/{ghes,bert}.c,
// drivers/firmware/efi/cper.c. Records of the previous boot follow "BERT:" and are not faults of this boot.
func firmwareErrorRules() []Rule {
	severity := func(word string) []string {
		return []string{`^(?:\{\d+\})?\[Hardware Error\]:\s+event severity: ` + word + `\s*$`}
	}
	return []Rule{{
		ID: "last-boot-hardware-error", Reason: "LastBootHardwareError", Domain: Hardware, Severity: finding.Warning,
		Advice: "`dmesg` after \"BERT:\" and `ipmitool sel elist` tell what ended the last boot: memory, " +
			"processor or a PCIe device.",
		Summary:  "the firmware recorded a hardware error that ended the previous boot",
		Patterns: []string{`^BERT: (?:Error records from previous boot|Total records found)`},
		Kind:     NodeKind, Report: "bert", Expiry: 24 * time.Hour,
	}, {
		ID: "cper-reported", Reason: "CperHardwareErrorReported", Domain: Hardware, Severity: finding.Info,
		Advice: "The next lines in `dmesg` have section and severity; `ras-mc-ctl --errors` and `ipmitool sel " +
			"elist` name the part.",
		Summary:  "the firmware reports a hardware error; the lines that follow contain its severity",
		Patterns: []string{`^(?:\{\d+\})?\[Hardware Error\]: Hardware error from APEI Generic Hardware Error Source: (?P<source>\d+)`},
		Kind:     NodeKind, Expiry: time.Hour,
	}, {
		ID: "cper-fatal", Reason: "CperHardwareErrorFatal", Domain: Hardware, Severity: finding.Fatal,
		Advice:  "Drain the node; `dmesg` after the line and `ipmitool sel elist` name the part to replace.",
		Summary: "the firmware reports a fatal hardware error", Patterns: severity("fatal"),
		Kind: NodeKind, Report: "bert", Continuation: true, Expiry: UntilBoot,
	}, {
		ID: "cper-recoverable", Reason: "CperHardwareErrorRecoverable", Domain: Hardware, Severity: finding.Warning,
		Advice: "`dmesg` after the line names the section (memory, PCIe); `ipmitool sel elist` the part. Again: " +
			"replace it.",
		Summary:  "the firmware reports a recoverable hardware error",
		Patterns: severity("recoverable"),
		Kind:     NodeKind, Report: "bert", Continuation: true, Expiry: 24 * time.Hour,
	}, {
		ID: "cper-corrected", Reason: "CperHardwareErrorCorrected", Domain: Hardware, Severity: finding.Info,
		Advice: "Nothing is lost; `ras-mc-ctl --errors` counts. Many from one part: replace it at the next " +
			"maintenance.",
		Summary:  "the firmware reports a hardware error that was corrected",
		Patterns: severity("corrected"),
		Kind:     NodeKind, Report: "bert", Continuation: true, Escalate: Rate{10, time.Hour},
		EscalateSeverity: finding.Warning, Expiry: 24 * time.Hour,
	}}
}

// pcieRules: drivers/pci/pcie/{aer,dpc,err}.c, drivers/pci/hotplug/pciehp_hpc.c, drivers/iommu. "Uncorrected" became
// "Uncorrectable" in 6.13. Fatal errors are not always counted: behind a dead link the kernel cannot read them. So
// their lines alone are the evidence, until the kernel logs that the link has recovered. First the port above logs an
// error and names the device it comes from, then the device logs the details; the recovery is logged for the port.
func pcieRules() []Rule {
	words := func(severity string) []string {
		const device = `^(?:[\w-]+ )?(?P<subject>` + pciAddress + `): `
		return []string{
			device + `(?:AER: )?(?:Multiple )?` + severity + ` error (?:message )?received(?:(?: from|:) (?P<from>` +
				pciAddress + `))?`,
			device + `(?:AER: )?(?:PCIe|CXL) Bus Error: severity=` + severity + `,`,
		}
	}
	return []Rule{{
		ID: "pcie-fatal", Reason: "PCIeFatalError", Domain: Hardware, Severity: finding.Fatal,
		Advice: "`lspci -vv -s ADDRESS` (LnkSta, AER): the device behind the link is gone or reset. Reseat card, " +
			"riser and cable; again: replace.",
		Summary:  "a PCIe link failed; the device behind it is lost or was reset",
		Patterns: words(`Uncorrect(?:ed|able) \(Fatal\)`),
		Kind:     "device", Report: "aer", Expiry: 24 * time.Hour,
		Recovery: `^(?:[\w-]+ )?(?P<subject>` + pciAddress + `): (?:AER: )?[Dd]evice recovery successful`,
	}, {
		ID: "pcie-uncorrected", Reason: "PCIeUncorrectedError", Domain: Hardware, Severity: finding.Warning,
		Advice: "`lspci -vv -s ADDRESS` shows the kind of error; reseat card, riser and cable, update the " +
			"device's firmware.",
		Summary:  "a PCIe transfer was lost; the device continues to work",
		Patterns: words(`Uncorrect(?:ed|able) \(Non-Fatal\)`),
		Kind:     "device", Report: "aer", Expiry: 24 * time.Hour, ConfirmedBy: "pcie-errors",
	}, {
		ID: "pcie-corrected", Reason: "PCIeCorrectedError", Domain: Hardware, Severity: finding.Info,
		Advice: "Nothing is lost. `cat /sys/bus/pci/devices/ADDRESS/aer_dev_correctable` counts; many in a " +
			"minute: reseat card, riser and cable.",
		Summary:  "a PCIe transfer had to be repeated; many of them point to a bad slot, riser or cable",
		Literals: []string{" Bus Error: severity=", "AER: ", " error received", " error message received"},
		Patterns: words(`Correct(?:ed|able)`),
		Kind:     "device", Report: "aer", Escalate: Rate{60, time.Minute}, EscalateSeverity: finding.Warning,
		Expiry: time.Hour, ConfirmedBy: "pcie-errors",
	}, {
		ID: "pcie-recovery-failed", Reason: "PCIeRecoveryFailed", Domain: Hardware, Severity: finding.Warning,
		Advice: "The device is lost until the node is power-cycled: `lspci -vv -s ADDRESS`. Drain the node; " +
			"reseat or replace the device.",
		Summary: "a PCIe device did not recover from an error",
		Patterns: []string{
			`^(?:[\w-]+ )?(?P<subject>` + pciAddress +
				`): AER: (?:[Dd]evice recovery failed|subordinate device reset failed|can't recover )`,
			`^(?:[\w-]+ )?(?P<subject2>` + pciAddress +
				`): DPC: (?:containment event|unmasked uncorrectable error detected|RP PIO (?:error|log))`,
			`^(?:[\w-]+ )?(?P<subject3>` + pciAddress +
				`): (?:(?:can't|Unable to) change power state from D3\w+ to D0[ ,(]+(?:device inaccessible|config space inaccessible)|` +
				`not ready \d+ms after [\w ]{3,30}; giving up|Device config space inaccessible; unable to )`,
		},
		Kind: "device", Expiry: 24 * time.Hour,
	}, {
		ID: "pcie-surprise-removal", Reason: "PCIeLinkDown", Domain: Hardware, Severity: finding.Warning,
		Advice: "Was it pulled? Else `lspci -vv` of the slot's port (LnkSta, power) and `ipmitool sel elist`: " +
			"reseat the device and its cable.",
		Summary: "a PCIe device disappeared unexpectedly (surprise removal)",
		Patterns: []string{
			// until 4.8; drivers/pci/hotplug/{shpchp_hpc,shpchp_ctrl,cpqphp_ctrl}.c
			`^(?:pciehp|shpchp|pcieport) (?P<subject3>` + pciAddress + `):(?:pcie\d+:)? (?:pciehp: )?Power fault (?:on [sS]lot ?\(?\S|bit \S+ set)`,
			`^(?:cpqphp|shpchp|pciehp): (?:\w+: )?[Pp]ower fault (?:interrupt|on [sS]lot)`, // until 2.6
			`^(?:pcieport (?P<subject>` + pciAddress + `): pciehp|pciehp (?P<subject2>` + pciAddress +
				`):pcie\d+): Slot\([^)]*\): (?:Link Down|Card not present|Power fault)`},
		Kind: "device", BootGrace: time.Minute, Expiry: time.Hour,
		Recovery: `^(?:pcieport (?P<subject>` + pciAddress +
			`): pciehp|pciehp (?P<subject2>` + pciAddress + `):pcie\d+): Slot\([^)]*\): (?:Link Up|Card present)`,
	}, {
		ID: "iommu-fault", Reason: "IOMMUFault", Domain: Hardware, Severity: finding.Warning,
		Advice: "`lspci -s ADDRESS` names the device; update its firmware and driver. With devices in virtual " +
			"machines (VFIO): the guest's driver.",
		Summary: "a device accessed memory that it may not access: the device or its driver is faulty",
		Literals: []string{"DMAR: [", "DMAR:[", "IO_PAGE_FAULT ", "AMD-Vi: Event logged [", "arm-smmu",
			"DMAR: VT-d detected "},
		Patterns: []string{
			`^(?:dmar: )?DMAR: ?\[[^\]]{1,60}\] (?:Request device|PASID \S+ Request device) \[(?P<subject>[0-9a-f:.]+)\] .*fault`,
			`^(?:[\w-]+ (?P<subject2>` + pciAddress + `|ivhd\d+` +
				`): )?AMD-Vi: Event logged \[(?:IO_PAGE_FAULT|RMP_PAGE_FAULT|RMP_HW_ERROR|ILLEGAL_DEV_TABLE_ENTRY|ILLEGAL_COMMAND_ERROR|DEV_TAB_HARDWARE_ERROR|PAGE_TAB_HARDWARE_ERROR|COMMAND_HARDWARE_ERROR|IOTLB_INV_TIMEOUT|UNKNOWN|INVALID_(?:DEVICE|PPR)_REQUEST) `,
			`^DMAR: VT-d detected (?:Invalidation (?:Queue|Time-out|Completion) Error: |invalid descriptor: )`,
			`^(?:arm-smmu(?:-v3)? (?P<subject>\S+)|platform (?P<subject5>arm-smmu\S*)): (?:event 0x[0-9a-f]+ received|event: [FC]_[A-Z_]+ client|Unhandled context fault|Blocked unknown Stream ID|Unexpected global fault)`,
			`^IO_PAGE_FAULT device=(?P<subject3>[0-9a-f:.]+) domain=0x`, // until 4.20 a record of its own
		},
		Kind: "device", BootGrace: time.Minute, Expiry: time.Hour,
	}, {
		ID: "iommu-stuck", Reason: "IOMMUStuck", Domain: Hardware, Severity: finding.Warning,
		Advice: "`dmesg | grep -iE 'dmar|amd-vi|smmu'` names the unit; update the firmware; restart the " +
			"node, and take it out of service if it comes again.",
		Summary: "the IOMMU does not complete the kernel's commands: devices may stop, or read and write memory that " +
			"is no longer theirs",
		Literals: []string{"Completion-Wait loop timed out", "AMD-Vi: Command buffer timeout", "CMDQ ",
			"CMD_SYNC timeout",
			"entered Service Failure Mode", "global error reported", "TLB sync timed out"},
		Patterns: []string{
			`^AMD-Vi: (?:IOMMU (?P<subject>[0-9a-f:.]+): )?(?:Completion-Wait loop timed out|Command buffer timeout)`,
			// "platform": a driver that is not bound (yet)
			`^(?:arm-smmu(?:-v3)?|platform) (?P<subject2>\S+): (?:CMDQ (?:error \(|timeout)|CMD_SYNC timeout at |device has entered Service Failure Mode|unexpected global error reported|TLB sync timed out)`,
		},
		Kind: "device", Report: "iommu", Expiry: 24 * time.Hour,
	}}
}

// temperatureRules: drivers/thermal/intel/therm_throt.c, drivers/thermal/thermal_core.c, kernel/reboot.c. A critical
// temperature cannot be read as state: the machine shuts down first.
func temperatureRules() []Rule {
	return []Rule{{
		ID: "cpu-throttled", Reason: "CPUThrottled", Domain: Hardware, Severity: finding.Warning,
		Advice: "`sensors`, `ipmitool sdr type Temperature` and `ipmitool sdr type Fan`: fans, dust, air flow, " +
			"the room's temperature.",
		Summary:  "a processor is too hot and is throttled",
		Literals: []string{"cpu clock throttled", "cpu clock is throttled", "CPU clock throttled", "modulated clock mode"},
		Patterns: []string{`^(?:mce: |thermal: )?CPU(?P<subject>\d+): (?:(?:Core |Package )?[Tt]emperature (?:is )?above threshold, (?:cpu|CPU) clock (?:is )?throttled|Running in modulated clock mode)`},
		Kind:     "cpu", Expiry: 10 * time.Minute, ConfirmedBy: "thermal",
		Recovery: `^(?:mce: |thermal: )?CPU(?P<subject>\d+): (?:Core |Package )?[Tt]emperature/speed normal`,
	}, {
		ID: "critical-temperature", Reason: "CriticalTemperature", Domain: Hardware, Severity: finding.Fatal,
		Advice: "The machine switches itself off: `ipmitool sdr type Temperature`, fans and cooling, before it " +
			"is started again.",
		Summary: "the machine reached its critical temperature and shuts down",
		Patterns: []string{
			`^thermal (?P<subject>thermal_zone\d+): (?:[\w.-]+: )?critical temperature reached`,
			`^(?:ACPI: )?Critical temperature reached \(\d+ C\), shutting down`,
			`^(?:mce: )?CPU#\d+: Possible thermal failure`,
			`^(?:reboot: )?HARDWARE PROTECTION (?:shutdown|reboot) \((?P<why>[^)]*)\)`,
		},
		Kind: "thermal-zone", Report: "temperature", Expiry: UntilBoot,
	}, {
		// drivers/hwmon/raspberrypi-hwmon.c; drivers/firmware/raspberrypi.c of the Raspberry Pi's own kernels
		ID: "under-voltage", Reason: "UnderVoltage", Domain: Hardware, Severity: finding.Warning,
		Advice: "`vcgencmd get_throttled` shows whether it still is (bit 0), `sensors` the voltage: a stronger power supply, a " +
			"shorter cable, less on the USB ports; until then the processor is slowed, and disks may fail.",
		Summary:  "the power supply of a single-board computer does not hold its voltage",
		Patterns: []string{`^(?:(?:hwmon|rpi_volt|raspberrypi-\w+) \S+: )?Under-?voltage detected!`},
		Kind:     NodeKind, Expiry: time.Hour,
		Recovery: `^(?:(?:hwmon|rpi_volt|raspberrypi-\w+) \S+: )?Voltage normalised`,
	}}
}
