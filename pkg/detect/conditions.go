package detect

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The conditions that several checks share: one is enough for who isolates a node, and every condition makes each write of
// the Node larger. A check that has one of its own is looked for under that name in the field.

func StorageProblem() finding.Condition {
	return finding.Condition{
		Type: "StorageProblem", ReadyType: "StorageReady",
		HealthyReason: "StorageIsHealthy", HealthyMessage: "Disks, arrays and mounts work",
	}
}

func KernelProblem() finding.Condition {
	return finding.Condition{
		Type: "KernelProblem", ReadyType: "KernelReady",
		HealthyReason: "KernelIsHealthy", HealthyMessage: "The kernel reports no fault that the node cannot live with",
	}
}

func MemoryProblem() finding.Condition {
	return finding.Condition{
		Type: "MemoryProblem", ReadyType: "MemoryReady",
		HealthyReason: "MemoryIsHealthy", HealthyMessage: "Memory can be had",
	}
}

func NetworkProblem() finding.Condition {
	return finding.Condition{
		Type: "NetworkProblem", ReadyType: "NetworkReady",
		HealthyReason: "NetworkIsHealthy", HealthyMessage: "Links, routes and tables of the node work",
	}
}

func HardwareProblem() finding.Condition {
	return finding.Condition{
		Type: "HardwareProblem", ReadyType: "HardwareReady",
		HealthyReason: "HardwareIsHealthy", HealthyMessage: "The hardware reports no fault",
	}
}
