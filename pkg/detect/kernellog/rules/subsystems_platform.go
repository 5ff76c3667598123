package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// platformRules: drivers/{iommu,pci,acpi,char/ipmi,char/tpm,hv,virtio,xen,vhost,vfio,gpu,accel,firmware,base,watchdog,dma,
// crypto,cxl,i2c,hwmon,thermal,cpufreq,usb}, arch/*/kernel, kernel, mm, security.
func platformRules() []Rule {
	iommus := []string{"DMAR", "DMAR-IR", "AMD-Vi", "iommu", "arm-smmu", "arm-smmu-v3", "virtio_iommu", "swiotlb",
		"software IO TLB"}
	buses := []string{"pci", "pcieport", "pciehp", "vfio-pci", "vfio_pci", "shpchp", "pci_bus", "pcie_bwctrl"}
	guests := []string{"hv_", "hyperv", "vmbus", "virtio", "xen", "vbd", "vif", "XENBUS", "vmw_", "VMware", "vmware",
		"vhost", "vfio", "VFIO", "kvm", "KVM", "SEV", "SVM", "tdx",
		"virt/tdx", "ccp", "sev-guest", "pvpanic", "SEAMCALL"}
	managers := []string{"ipmi_", "IPMI", "tpm", "i2c", "i801_smbus", "ipmb", "power_meter", "acpi_power_meter",
		"watchdog", "softdog", "hpwdt", "hpilo", "coretemp", "k10temp", "ipmi_si", "sp5100"}
	services := []string{"HugeTLB", "hugetlb", "zswap", "zsmalloc", "swap", "cma", "memory_hotplug", "vmalloc",
		"SLUB", "kfence", "kmemleak", "cgroup", "cpuset", "workqueue", "sched",
		"rcu", "audit", "SELinux", "AppArmor", "ima", "integrity", "evm", "kexec", "crash", "kdump", "livepatch",
		"ftrace", "BPF", "bpf", "PM", "crypto", "alg",
		"efi", "Modules", "module", "Initramfs unpacking failed", "clocksource", "NMI", "genirq", "dma", "DMA",
		"mempolicy", "fork", "KHO", "luo", "opal", "rtas", "papr", "mobility", "dlpar", "pseries-hotplug",
		"papr_scm", "vas", "xive", "cio",
		"sclp"}
	engines := []string{"idxd", "ioatdma", "intel_qat", "4xxx", "c6xx", "c62x", "dh895xcc", "cxl_", "hisi_", "caam",
		"intel_vsec", "ptp", "QAT", "octeontx_cpt", "octeontx-cpt", "rvu_cpt", "ccree", "dpaa2_caam", "nx_compress",
		"genwqe",
		"ocxl", "cxl", "funcore", "ptdma", "ae4dma", "zcrypt", "crypto-safexcel", "octep_vdpa", "mlx5_vdpa", "nitro_enclaves"}
	// failed are words that drivers use only for faults.
	const failed = `(?:[Tt]imed?[ -]?out|TIMEOUT|didn't respond|[Uu]ncorrectable|[Oo]verflow|[Cc]orrupt|[Ss]tuck|[Hh]alted|HALTED|[Ff]ailed to \w+|[Ff]ailed with |failed(?:[:,]| due to| for| after| at) |[Uu]nable to \w+|[Cc]ould(?: not|n't) \w+|(?:reset|probe) failed|[Rr]efused to change power state|not respond|no response|[Ff]atal|FATAL|hung|\bdead\b|died|[Uu]nrecoverable|[Ii]nternal error|[Hh]ardware error|giving up|crash|parity)`
	return []Rule{{
		ID: "iommu-error", Reason: "IOMMUError", Domain: Hardware, Severity: finding.Info,
		Summary: "the IOMMU, which keeps devices out of memory that is not theirs, reports an error",
		Advice: "The address in the line is a device: `lspci -s ADDRESS`; its driver or firmware accesses memory " +
			"that it must not. " +
			"At boot: `dmesg | grep -e DMAR -e IOMMU -e AMD-Vi`, and update the BIOS.",
		Literals: append(atStart(iommus), "AMD-Vi: ", "swiotlb buffer is full", "DMAR: ", "DMA-API: ", "DMA: Out of ", " overflow (mask "),
		Words:    append(trouble(), "Event logged", "is full", "ault", "DMA: Out of "),
		Patterns: []string{`^` + oneOf(iommus) + `(?: (?P<subject>[\w.:-]{3,40}))?: `,
			`^(?P<driver>[\w-]+) (?P<subject2>` + pciAddress + `): (?:AMD-Vi: |swiotlb buffer is full|DMAR: |DMA-API: )`,
			`^(?P<driver>[\w-]+) (?P<subject3>` + pciAddress + `): DMA addr 0x[0-9a-f]+\+\d+ overflow \(mask `,
			`^(?:PCI-)?DMA: Out of (?:SW-)?IOMMU space for \d+`},
		Unless: append(harmless(), "irmware Bug", "IOMMU perf counter", "No ATSR", "quirk", "BIOS has allocated n",
			"isabling",
			"already", "Event logging", "Event log enabled", "efault", "fault reporting",
			"interrupt remapping", "inconsistent"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "pci-device-error", Reason: "PCIDeviceError", Domain: Hardware, Severity: finding.Info,
		Summary: "a PCI device does not respond, cannot be powered or reset, or lost its link",
		Advice: "`lspci -vv -s ADDRESS` (LnkSta, and \"rev ff\" means gone), `dmesg` around the line; reseat the " +
			"card or its riser, " +
			"power-cycle the machine, replace.",
		Literals: atStart(buses), Words: append(trouble(), "naccessible", "urprise", "Refused to change", "Link Down",
			"ransition", "not set in ", "HW not ready"),
		Patterns: []string{`^` + oneOf(buses) + ` (?P<subject>[0-9a-f]{4,8}:[0-9a-f:.]{2,8}\S*?): `},
		Unless: append(harmless(), "Link Up", "reported first", "RP PIO", "Link up", "Agent is", "error status/mask",
			"BAR ", "BAR:", "failed to assign", "can't claim", "VPD", "ROM ", "bridge window",
			"bridge configuration", "quirk", "ASPM", "_OSC", "_HPP", "containment capab", "apping",
			"AER: enabled", "not capable", "MSI", "no compatible", "address conflict", "resource", "refetch",
			"Max Payload", "disabling", "LTR", "PME", "invalid short", "bus number", "busn_res",
			"Video device", "D3cold", "can't derive", "no ACPI", "hotplug", "efault", "Hot-Plug", "HotPlug",
			"IO APIC", "IRQ", "ecovery", "recovered", "hardware defect"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "gpu-driver-error", Reason: "GPUDriverError", Domain: Hardware, Severity: finding.Info,
		Summary: "the driver of a GPU or an accelerator reports an error",
		Advice: "`nvidia-smi -q`, `rocm-smi` or `hl-smi` for the device's state; driver, libraries and firmware " +
			"must be of one version; " +
			"after a failed reset: drain and restart the node.",
		Literals: atStart(gpus, []string{"[drm", "NVRM: ", "nvidia", "gim error libgv: ", "[nvidia-vgpu-vfio] ", "[gim]["}), Words: append(trouble(), "*ERROR*",
			"API mismatch", "off the bus", "response:0x", "wedged", "GPU HANG", "not done with", "Assert", "ault",
			"is lost", " tripped", "TRAP", "egrade", "timeout"),
		Patterns: []string{
			`^nvidia-peermem \w+:\d+ ERROR `,
			`^\[nvidia-vgpu-vfio\] (?P<subject3>[0-9a-f-]{36}): `, `^\[gim\]\[\w+:\d+\] `,
			`^gim error libgv: \[(?P<subject2>[0-9a-f:]{6,16})\]`, // AMD's driver of virtual functions
			`^\[drm(?::[^\]]{1,64}(?: \[\w+\])?)?\] (?:\[[^\]]{1,40}\] )?\*ERROR\* \S`,
			`^\[drm\] .*(?:[Ff]ailed\b|[Ff]ailure|timed out|VRAM is lost|hung|[Uu]nable to |due to RAS ERREVENT)`,
			`^` + oneOf(gpus) + ` (?P<subject>[\w.:-]{3,40}?)(?: [^:]{1,40})?: `,
			`^` + oneOf(gpus) + `\d*: `, `^NVRM: `, `^nvidia-(?:nvlink|nvswitch\d*|uvm|modeset|peermem|fs): `,
		},
		Unless: append(harmless(), "soft recovered", "no hardware hang", "will fallback", "lockup_timeout",
			"lockup timeout",
			"VF exclusive", "IFO underrun", "EDID", "DDC", " DP ", "dp_aux", "HDMI", "connector", "backlight",
			"VBIOS", "display", "CRTC", "flip_done", "hotplug", "PSR", "audio", " fan", "ACPI", "VGA", " fb0",
			"vblank", "cursor", "efault", "driver if version", "crtc",
			"vmw_host_log", "bad vermagic", "unsupported hyperv",
			"NV_ERR_NO_MEMORY"), // of a program
		Kind: "gpu", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "virtual-device-error", Reason: "VirtualDeviceError", Domain: Hardware, Severity: finding.Info,
		Summary: "a part of the hypervisor's interface (Hyper-V, virtio, Xen, VMware, KVM, vhost, VFIO) reports " +
			"that an operation failed",
		Advice: "On a guest: `systemd-detect-virt` names the hypervisor, whose log of the same time has the cause " +
			"(`xl dmesg`, QEMU's log); " +
			"on a host of guests: `dmesg` around the line, and the guest's own log.",
		Literals: atStart(guests), Words: append(trouble(), "must provide", "still in use", "leaking", "attempted VM-entry",
			"starting transaction", " completing transact", " allocating event ch", " granting access to"),
		Patterns: []string{`^(?P<part>` + oneOf(guests) + `(?::?[\w-]+)?)(?: \[[^\]]{1,20}\]| (?P<subject>[^\s\[]\S{0,59}?))?: `, `^SEAMCALL ?[\[(]?\w+`},
		Unless: append(harmless(), "unhandled rdmsr", "unhandled wrmsr", "ignored rdmsr", "ignored wrmsr",
			"disabled by bios",
			"disabled by BIOS", "disabled in BIOS", "Invalid PCI ROM", "nknown ioctl", "nknown symbol",
			"nknown option", "nknown param",
			"ROM ", " msr", "MSR",
			"no version for", "tainting", "an't use", "vfb", "vkbd", "sev command id", "CPU bug present", "register PTP clock", "amd_sev"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		// A few come during an update of its firmware, and when it restarts.
		ID: "bmc-wrong-responses", Reason: "BMCWrongResponses", Domain: Hardware, Severity: finding.Warning,
		// drivers/char/ipmi/ipmi_msghandler.c
		Summary: "the management controller (BMC) answers again and again what it was not asked",
		Advice: "Is its firmware being updated? Else `ipmitool mc info`, `ipmitool mc reset cold`, and update its " +
			"firmware; what polls it (`ps -ef | grep -i ipmi`) gets wrong values until then.",
		Patterns:  []string{`^(?:ipmi_\w+ [\w.:-]{1,40}: )?(?:IPMI message handler: )?BMC returned incorrect response, expected netfn `},
		BootGrace: 2 * time.Minute,
		Kind:      NodeKind, Raise: Rate{5, 10 * time.Minute}, Expiry: time.Hour,
	}, {
		ID: "management-controller-error", Reason: "ManagementControllerError", Domain: Hardware,
		Severity: finding.Info,
		Summary: "the management controller (BMC), the security chip (TPM), a watchdog or a bus to the sensors " +
			"does not respond as it should",
		Advice: "`ipmitool mc info` (does it answer?), `ipmitool mc reset cold` when it does not; `tpm2_getcap " +
			"properties-variable` for the " +
			"TPM; sensors and power limits are not known until then.",
		Literals: atStart(managers), Words: append(trouble(), "peration Canceled", "invalid state", "Initiating "),
		Patterns: []string{`^(?P<part>` + oneOf(managers) + `[\w -]*?)(?: (?P<subject>[\w.:-]{1,40}))?: `},
		Unless: append(harmless(), "probe with driver", "lockup detector", "did not stop", "reset NO_REBOOT",
			"annot find device", "annot register misc", "nexpected close",
			"SMBus is busy", "in use", "ACPI region", "not found", "not present", "hbm", "TPM event log",
			"nterface", "lookup failed", "already registered", "initialized", "BUG:", "efault", ": duplicate",
			"irmware Bug", "delete_device", "new_device", "TPM error (6)", "TPM error (7)"), // an inactive TPM
		BootGrace: 2 * time.Minute,
		Kind:      NodeKind, Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		// Missing or wrong entries in a firmware's tables are logged at each start, and are mostly harmless; later they
		// concern reading sensors, switching power or hot-plug.
		ID: "acpi-error", Reason: "ACPIError", Domain: Hardware, Severity: finding.Info,
		Summary: "a method of the firmware (ACPI) failed: a sensor, a power switch or a hot-plug does not work",
		Advice: "The path in the line names the device: of `PMI0._PMM` the power meter (`modprobe -r " +
			"acpi_power_meter`); of others " +
			"update the BIOS; many a minute use a processor.",
		Literals: []string{"\nACPI Error: ", "\nACPI BIOS Error (bug", "\nACPI Exception: ", "\nACPI: EC: ",
			"\nACPI Error (bug)", "\nACPI BIOS Error: ", "\nACPI BIOS Exception", "\nACPI Exception (bug"},
		Patterns: []string{`^ACPI (?:BIOS )?(?:Error|Exception)(?: \(bug\))?: \S`,
			`^ACPI: EC: .*(?:timeout|timed out|stuck|error)`},
		Unless:    []string{"._OSC"}, // the kernel negotiates which features it may control at boot and when it finds a bus
		BootGrace: 2 * time.Minute,
		Kind:      NodeKind, Report: "acpi", Raise: Rate{3, time.Hour}, Expiry: time.Hour,
	}, {
		ID: "processor-error", Reason: "ProcessorError", Domain: CPU, Severity: finding.Warning,
		Summary: "a processor could not be started, stopped or updated",
		Advice: "`lscpu -e` shows which processors are online, `grep microcode /proc/cpuinfo | sort | uniq -c` " +
			"whether all have one " +
			"microcode; update the BIOS, power-cycle the machine.",
		Literals: []string{"\nsmpboot: ", "\nmicrocode: ", "\npsci: ", "\nCPU", "\nMTRR: CPU ",
			"\n[Firmware Bug]: CPU", "\nError taking CPU", "\nFailed to offline CPU", "\nFailed to broadcast"},
		Words: append(trouble(), "didn't die", "not die", "not responding", "APIC ID mismatch", "missing HWCAP",
			"died"),
		Patterns: []string{
			`^(?:smpboot|microcode|psci): `,
			`^CPU ?(?P<subject>\d+):? (?:failed to (?:come online|start|boot|report (?:alive|dead) state|report alive)|is not responding|not responding|is stuck|did not die|(?:cpu )?didn't die|died (?:unexpectedly|during early boot)|failed in unknown state)`,
			`^(?:Error taking CPU(?P<subject3>\d+) (?:down|up): |Failed to offline CPU(?P<subject4>\d+)|Failed to broadcast timer tick\.)`,
			`^MTRR: CPU \d+: Writing MSR `, `^CPU features: CPU\d+: missing HWCAP`,
			`^\[Firmware Bug\]: CPU ?(?P<subject2>\d+): APIC ID mismatch`,
		},
		Unless: append(harmless(), "updated early", "is now offline", "revision", "max ", "Estimated", "APERF",
			"irmware loading",
			"efault"),
		Kind: "cpu", Expiry: 24 * time.Hour,
	}, {
		ID: "module-refused", Reason: "KernelModuleRefused", Domain: System, Severity: finding.Warning,
		Summary: "the kernel refused a module: it was built for another kernel, is damaged, or is not signed",
		Advice: "`modinfo MODULE` (vermagic, signer) beside `uname -r`: build or install it for this kernel " +
			"(`dkms status`), or enrol its key " +
			"(`mokutil --list-enrolled`).",
		Patterns: []string{
			`^(?P<subject>[\w-]{1,56}): (?:disagrees about version of symbol |Unknown symbol \S+ \(err -?\d+\)|version magic '[^']*' should be |exports duplicate symbol |Symbol \S+ has an invalid section index)`,
			`^failed to validate module \[(?P<subject2>[^\]]{1,56})\] BTF: -\d+`, // kernel/bpf/btf.c
			`^Lockdown: [^:]{1,32}: unsigned module loading is restricted`,
			`^(?:Loading of (?:module with unavailable key|unsigned module) is rejected|(?:module: )?x86/modules: Skipping invalid relocation target|Invalid ELF section in module|Module has invalid ELF)`,
		},
		Kind: "kernel-module", Expiry: time.Hour,
	}, {
		ID: "firmware-missing", Reason: "DeviceFirmwareMissing", Domain: Hardware, Severity: finding.Warning,
		Summary: "the driver of a disk controller, network card or GPU did not find its firmware file",
		Advice: "Install the package with the file (`dpkg -S`, `dnf provides`, linux-firmware of this kernel's " +
			"age), also in the initramfs " +
			"(`update-initramfs -u`, `dracut -f`), and load the driver anew.",
		Patterns: []string{
			`^(?P<driver>` + oneOf(nics, hbas,
				gpus) + `) (?P<subject>[\w.:-]{3,40}?)(?: [^:]{1,40})?: (?:Direct firmware load for|firmware: failed to load) \S+`,
			`^(?P<driver>` + oneOf(nics, hbas, gpus) + `): Direct firmware load for \S+ failed`,
		},
		Exclude: `rtl_nic/|regdb|-debug|\.pnvm|ice/ddp/ice-[0-9a-f]{16}|i915/|radeon/|nvidia/`,
		Kind:    "device", Expiry: UntilBoot,
	}, {
		ID: "kernel-service-error", Reason: "KernelServiceError", Domain: System, Severity: finding.Info,
		Summary: "a service of the kernel (memory, cgroups, swap, audit, security module, suspend, crash kernel, a platform's firmware, " +
			"an offload engine) reports that an operation failed",
		Advice: "`dmesg` around the line names who asked; `free -m`, `cat /proc/cgroups` and `auditctl -s` for " +
			"what ran out; the crash " +
			"kernel: `kdumpctl status` or `kdump-config test`.",
		Literals: atStart(services, engines, []string{"irq event ", "Freezing ", "icp_qa_al err: ", "[error] QatCtrl_", "xdma:", "qdma:", "eqdma_"}), Words: append(trouble(),
			"bogus return", "boxed state", "not oper", "is inactive", "s to be restarted", "Global Err Reg"),
		Patterns: []string{
			`^(?P<part>` + oneOf(services) + `[\w-]*)(?: [^:]{1,30})?: `,
			`^irq event \d+: bogus return value `, `^Freezing [\w ]{3,40} (?:failed|aborted) after`,
			`^(?P<driver>` + oneOf(engines) + `\w*) (?P<subject>[\w.:-]{2,40}): `, `^QAT: `, `^icp_qa_al err: `, `^\[error\] QatCtrl_\w+\(\)`,
			`^(?:xdma|qdma):\w+: `, `^eqdma_\w+: `, // FPGA cards
		},
		Unless: append(harmless(), "wait time", "Watchdog", "watchdog", "wd-", "failcnt", "Flags mismatch", "comm=",
			"exe=", "audit: type=", "RIP", "_OSC", "nknown", "nrecognized", "option", "parameter", "policy",
			"mage not found", "mage mismatch", "no version", "signature", "certificate", "X.509", "MODSIGN",
			"ima: No", "clamping between", "created nested cgrou", "left unmapped", "inconsistent", "MokListRT", "Firmware Bug", "isabl", "resume", "RTC",
			"hibernat", "too long", "crng",
			"alibration", "deferred", "efault", "errors: 0", "/etc/keys/", "memory descriptor", "an not allocate sha", "user SVA"),
		BootGrace: time.Minute,
		Kind:      NodeKind, Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "device-error", Reason: "DeviceError", Domain: Hardware, Severity: finding.Info,
		Summary: "the driver of a PCI device reports that the device failed, hangs or could not be started",
		Advice: "`lspci -vv -s ADDRESS` names the device, `dmesg` around the line the cause; nothing on a server " +
			"but a sound or wireless card is " +
			"without use: firmware, driver, then replacement.",
		Literals: []string{"imed out", "imeout", "ime-out", "ime out", "imedout", "imed-out", "TIMEOUT", "didn't respond", "ncorrectable", "verflow",
			"orrupt", "tuck", "alted", "HALTED", "ailed to ", "ailed with ", "failed: ", "failed, ",
			"failed due ", "failed for ", "failed after ", "failed at ",
			"nable to ", "ould not ", "ouldn't ", "probe failed", "reset failed", "efused to change power", "not respond", "no response",
			"atal", "FATAL", "hung", "dead",
			"died", "nrecoverable", "nternal error", "ardware error", "iving up", "crash", "parity"},
		Patterns: []string{
			`^(?P<driver>[a-z][\w-]{1,30}) (?P<subject>` + pciAddress + `)(?: [^:]{1,40})?: .*` + failed,
			`^(?P<driver>[a-z][\w-]{1,30}) (?P<subject2>[a-z_-]{0,12}\d[\w.:-]{0,20}?)(?: [^:]{1,40})?: .*` + failed,
		},
		Unless: append(append(harmless(), "reset tx rate", "I40E_ERR_NOT_READY", "resume", "Link up", "Heartbeat Counter", "parity init",
			"loopback", "lockup_timeout",
			"soft recovered", "allback", "try with current", "disabled on Tx", "Direct-Access", "ANSI: ",
			"timeout  ", "max timeout of", "not be reserved", "ACCESS_REG(0x805) op", "ASPM", "VPD", "ROM ",
			"BAR ", "ACPI", "debugfs", "hwmon", "optional", "deferr",
			"have any ports", "no hardware hang", " endpoint command", " context command", "reset device comma",
			"counter overflow", "sync_state", "user SVA", "sev command id", "halted e", "ndpoint halted", "dying or halted",
			"not halted, abort", "firmware: failed to", // Debian's message for each tried file
			"Set TR Deq Ptr"), // of a detached USB device
			atStart([]string{"snd", "iwl",
				"ath", "rtw", "rtl", "brcm", "b43", "mt7", "wl", "thunderbolt", "mei",
				"intel-lpss", "i915", "nouveau", "uvc", "bt", "pci", "parport", "sdhci", "rtsx", "tpm",
				"intel_ish", "ish", "sof", "proc_", "i801_", "pata", "uhci", "ohci", "firewire", "hda", "usb",
				"thermal", "hid", "scsi", "ses ", "psmouse", "atkbd", "i8042", "serio",
				"nvme", "sd ", "acpi", "regmap", "regcache", "platform", "auxiliary", "bridge", "efifb", "vgaarb",
				"bar", "skl_", "intel_pmc", "resource", "ehci", "input", "simple-", "ipu"})...),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}}
}
