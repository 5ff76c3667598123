package checks

func memoryCoverage() []Coverage {
	return []Coverage{
		{Fault: "the node runs out of memory and the kernel kills processes", By: []string{"oom-kills", "oom-report",
			"system-oom", "system-oom-killed", "oom-victim"}},
		{Fault: "a container reaches its memory limit and is killed", By: []string{"oom-kills", "container-oom",
			"container-oom-killed"}},
		{Fault: "what is to be killed for want of memory cannot be", By: []string{"oom-stuck"}},
		{Fault: "available memory is low", By: []string{"memory-available"}},
		{Fault: "major page faults, thrashing", By: []string{"load"}},
		{Fault: "page allocation failure", By: []string{"page-allocation-failure"}},
		{Fault: "memory fragmentation", By: []string{"memory-fragmentation"}},
		{Fault: "slab leak", By: []string{"slab-leak"}},
		{Fault: "growth of the BPF JIT buffer, of page tables and of per-CPU memory", By: []string{"slab-leak"}},
		{Fault: "removed cgroups pile up", By: []string{"dying-cgroups"}},
		{Fault: "unexpected swap, swap used up, zram filling", By: []string{"swap"}},
		{Fault: "the swap device fails", By: []string{"swap-io-error"}},
		{Fault: "huge pages lost", By: []string{"hugepages"}},
		{Fault: "memory limits of system slices, kubelet's slice and kubepods near", By: []string{"system-cgroups"}},
		{Fault: "limit of processes and threads (pids.max) of a container or service reached",
			By: []string{"pids-limits", "pids-limit"}},
		{Fault: "storm of corrected memory errors (ECC)", By: []string{"edac", "edac-corrected"}},
		{Fault: "uncorrected memory error (ECC)", By: []string{"edac", "edac-uncorrected"}},
		{Fault: "machine check", By: []string{"machine-check-uncorrected", "machine-check-corrected",
			"machine-check-before"}},
		{Fault: "hardware error reported by the firmware (CPER, GHES, BERT)",
			By: []string{"cper-fatal", "cper-recoverable", "cper-corrected", "cper-reported",
				"last-boot-hardware-error"}},
		{Fault: "damaged page of memory, page offline failed", By: []string{"memory-corrupted", "memory-failure",
			"memory-failure-unrecovered"}},
		{Fault: "PCIe errors (AER, DPC)", By: []string{"pcie-errors", "pcie-fatal", "pcie-uncorrected",
			"pcie-corrected", "pcie-recovery-failed"}},
		{Fault: "PCIe device removed without being asked to", By: []string{"pcie-surprise-removal"}},
		{Fault: "IOMMU fault", By: []string{"iommu-fault"}},
		{Fault: "processor throttled by heat", By: []string{"thermal", "cpu-throttled"}},
		{Fault: "critical temperature, failed fan or sensor", By: []string{"thermal", "sensors",
			"critical-temperature"}},
		{Fault: "power supply or UPS failed", By: []string{"sensors"}},
		{Fault: "PCIe link slower or narrower than it could be", Not: "many devices run so by design: to save power, " +
			"or in a smaller slot; and the kernel wakes a sleeping device to answer. A link that fails shows in " +
			"pcie-errors"},
		{Fault: "PCIe access control services on where GPUs talk to each other", Not: "concerns accelerators only"},
		{Fault: "power limits (RAPL, powercap)", Not: "consumption and limits are metrics, no fault; throttling for " +
			"heat is found"},
		{Fault: "firmware, microcode or BIOS other than on the rest of the fleet",
			Not: "one node cannot know what the fleet has; node-feature-discovery or an inventory can compare"},
		{Fault: "new critical entries in the BMC's event log (IPMI SEL)",
			Not: "reading it takes seconds through a slow bus, at the cost of a busy kernel thread, and hangs " +
				"where the BMC does; the BMC's own alarms (Redfish) tell, also of machines that are down"},
	}
}
