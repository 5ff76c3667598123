package detect

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The conditions that several checks share: one is enough for whoever isolates a node, and each makes every write of
// the Node larger. A check has its own condition only where the field knows the fault under that name.

// StorageProblem is the condition of disks, arrays and mounts.
func StorageProblem() finding.Condition {
	return finding.Condition{
		Type: "StorageProblem", ReadyType: "StorageReady",
		HealthyReason: "StorageIsHealthy", HealthyMessage: "Disks, arrays and mounts work",
	}
}

// KernelProblem is the condition of faults of the kernel.
func KernelProblem() finding.Condition {
	return finding.Condition{
		Type: "KernelProblem", ReadyType: "KernelReady",
		HealthyReason: "KernelIsHealthy", HealthyMessage: "The kernel reports no fault that the node cannot live with",
	}
}

// MemoryProblem is the condition of faults of memory.
func MemoryProblem() finding.Condition {
	return finding.Condition{
		Type: "MemoryProblem", ReadyType: "MemoryReady",
		HealthyReason: "MemoryIsHealthy", HealthyMessage: "Memory is available",
	}
}

// NetworkProblem is the condition of the node's links, routes and tables.
func NetworkProblem() finding.Condition {
	return finding.Condition{
		Type: "NetworkProblem", ReadyType: "NetworkReady",
		HealthyReason: "NetworkIsHealthy", HealthyMessage: "Links, routes and tables of the node work",
	}
}

// HardwareProblem is the condition of faults of hardware.
func HardwareProblem() finding.Condition {
	return finding.Condition{
		Type: "HardwareProblem", ReadyType: "HardwareReady",
		HealthyReason: "HardwareIsHealthy", HealthyMessage: "The hardware reports no fault",
	}
}
