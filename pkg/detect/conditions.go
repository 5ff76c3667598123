package detect

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The conditions that several checks share: to isolate a node one is enough, and each makes every write of the Node
// larger. A check has its own condition only if that name is established for the fault.

// problem is the condition of a faulty part of the node.
func problem(part, healthy string) finding.Condition {
	return finding.Condition{
		Type: part + "Problem", ReadyType: part + "Ready", HealthyReason: part + "IsHealthy", HealthyMessage: healthy,
	}
}

// StorageProblem is the condition of disks, arrays and mounts.
func StorageProblem() finding.Condition { return problem("Storage", "Disks, arrays and mounts work") }

// KernelProblem is the condition of faults of the kernel.
func KernelProblem() finding.Condition {
	return problem("Kernel", "The kernel reports no fault that the node cannot live with")
}

// MemoryProblem is the condition of faults of memory.
func MemoryProblem() finding.Condition { return problem("Memory", "Memory is available") }

// NetworkProblem is the condition of the node's links, routes and tables.
func NetworkProblem() finding.Condition {
	return problem("Network", "Links, routes and tables of the node work")
}

// HardwareProblem is the condition of faults of hardware.
func HardwareProblem() finding.Condition { return problem("Hardware", "The hardware reports no fault") }
