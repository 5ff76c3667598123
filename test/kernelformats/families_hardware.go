package main

// hardwareFamilies are what processors, memory, buses and firmware report.
func hardwareFamilies() []family {
	return []family{{
		name:     "machine-check",
		files:    []string{"arch/x86/kernel/cpu/mce/*.c", "drivers/edac/mce_amd.c", "drivers/thermal/intel/therm_throt.c"},
		words:    `machine check|hardware error|mce|fatal|uncorrect|corrected|storm|offline|thrott|not recovered|threshold`,
		except:   `inject|disabl|capab|banks|CPUID`,
		printers: map[string]string{"pr_emerg": "{pr}"},
	}, {
		name: "edac",
		files: []string{"drivers/edac/edac_mc.c", "drivers/edac/edac_device.c", "drivers/edac/edac_pci*.c",
			"drivers/edac/ghes_edac.c", "drivers/edac/skx_common.c", "drivers/edac/i10nm_base.c", "drivers/edac/amd64_edac.c",
			"drivers/edac/sb_edac.c"},
		words: `\bUE\b|\bCE\b|memory error|parity|system error|hardware error`,
	}, {
		name: "firmware-error",
		files: []string{"drivers/acpi/apei/ghes.c", "drivers/acpi/apei/bert.c", "drivers/firmware/efi/cper*.c",
			"drivers/acpi/thermal.c", "drivers/thermal/thermal_core.c", "kernel/reboot.c"},
		words: `hardware error|fatal|severity|critical|records|shutdown`,
	}, {
		name: "pci", driver: "pcieport",
		files: []string{"drivers/pci/pcie/aer.c", "drivers/pci/pcie/dpc.c", "drivers/pci/pcie/err.c",
			"drivers/pci/pci.c", "drivers/pci/hotplug/pciehp_*.c", "drivers/pci/pcie/bwctrl.c", "drivers/pci/pcie/edr.c"},
		words: givesUp + `|error|recover|fail|link down|link up|not present|power fault|inaccessible|not ready|unable|containment`,
	}, {
		name: "iommu",
		files: []string{"drivers/iommu/dmar.c", "drivers/iommu/intel/*.c", "drivers/iommu/intel-*.c", "drivers/iommu/amd/*.c",
			"drivers/iommu/arm/arm-smmu*/*.c", "drivers/iommu/iommu.c"},
		words:  givesUp + `|fault|error|event 0x|event:|unexpected|blocked|illegal|invalid|fail`,
		except: `alloc|probe|acpi|ivrs|register|map (reg|mem)|domain id|kmem|setup|BIOS`,
	}}
}
