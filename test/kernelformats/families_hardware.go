package main

// hardwareFamilies are the reports of processors, memory, buses and firmware.
func hardwareFamilies() []family {
	return []family{{
		name: "machine-check",
		files: []string{"arch/x86/kernel/cpu/mce/*.[ch]", "drivers/edac/mce_amd.c",
			"drivers/thermal/intel/therm_throt.c"},
		words:    `machine check|hardware error|mce|fatal|uncorrect|corrected|storm|offline|thrott|not recovered|threshold`,
		except:   `inject|disabl|capab|banks|CPUID`,
		printers: map[string]string{"pr_emerg": "{pr}"},
	}, {
		name: "edac",
		files: []string{"drivers/edac/edac_mc.c", "drivers/edac/edac_device.c", "drivers/edac/edac_pci*.c",
			"drivers/edac/ghes_edac.c", "drivers/edac/skx_common.c", "drivers/edac/i10nm_base.c",
			"drivers/edac/amd64_edac.c",
			"drivers/edac/sb_edac.c"},
		words: `\bUE\b|\bCE\b|memory error|parity|system error|hardware error`,
	}, {
		name: "firmware-error", dev: "thermal thermal_zone0",
		files: []string{"drivers/acpi/apei/ghes.c", "drivers/acpi/apei/bert.c", "drivers/firmware/efi/cper*.c",
			"drivers/acpi/thermal.c", "drivers/thermal/thermal_core.c", "kernel/reboot.c"},
		words: `hardware error|fatal|event severity|critical|records|shutdown|protection`,
	}, {
		name: "pci", driver: "pcieport",
		files: []string{"drivers/pci/pcie/aer.c", "drivers/pci/pcie/dpc.c", "drivers/pci/pcie/err.c",
			"drivers/pci/pci.c", "drivers/pci/hotplug/pciehp_*.c", "drivers/pci/pcie/bwctrl.c",
			"drivers/pci/pcie/edr.c"},
		words: givesUp + `|error|recover|fail|link down|link up|not present|power fault|inaccessible|not ready|unable|containment`,
	}, {
		name: "iommu", driver: "pci",
		files: []string{"drivers/iommu/dmar.c", "drivers/iommu/intel/dmar.c", "drivers/iommu/intel/iommu.c",
			"drivers/iommu/intel/prq.c", "drivers/iommu/intel/svm.c", "drivers/iommu/amd/*.[ch]"},
		words: `fault|event logged|time-?d? ?out|invalidation .*error|hardware error`,
	}, {
		name: "iommu-arm", dev: "arm-smmu-v3 arm-smmu-v3.0.auto",
		files: []string{"drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c", "drivers/iommu/arm/arm-smmu/arm-smmu.c",
			"drivers/iommu/arm-smmu*.c"},
		words: `fault|event|error|time-?d? ?out|failure mode|deadlock|blocked`,
	}, {
		name: "amdgpu",
		files: []string{"drivers/gpu/drm/amd/amdgpu/amdgpu_device.c", "drivers/gpu/drm/amd/amdgpu/amdgpu_job.c",
			"drivers/gpu/drm/amd/amdgpu/amdgpu_ib.c", "drivers/gpu/drm/amd/amdgpu/amdgpu_kms.c",
			"drivers/gpu/drm/amd/amdgpu/gmc_v*.c", "drivers/gpu/drm/amd/amdkfd/kfd_device_queue_manager.c"},
		words: `reset (failed|begin|end)|vram is lost|test failed|page fault|fatal error|recovery failed|timeout|unrecoverable|` +
			`fence wait|lost from|gpu reset`,
		driver: "amdgpu",
		dev:    "amdgpu {pci}: amdgpu",
		printers: map[string]string{"pr_err": "amdgpu: ",
			"DRM_ERROR": "[drm:amdgpu_device_gpu_recover [amdgpu]] *ERROR* ",
			"DRM_INFO":  "[drm] ", "DRM_DEV_ERROR": "amdgpu {pci}: [drm:amdgpu_ib_ring_tests [amdgpu]] *ERROR* "},
	}}
}
