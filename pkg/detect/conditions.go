package detect

// The conditions that several checks share: one is enough for who isolates a node, and every condition makes each write of
// the Node larger. A check that has one of its own is looked for under that name in the field.

func StorageProblem() Condition {
	return Condition{
		Type: "StorageProblem", ReadyType: "StorageReady",
		HealthyReason: "StorageIsHealthy", HealthyMessage: "Disks, arrays and mounts work",
	}
}

func KernelProblem() Condition {
	return Condition{
		Type: "KernelProblem", ReadyType: "KernelReady",
		HealthyReason: "KernelIsHealthy", HealthyMessage: "The kernel reports no fault that the node cannot live with",
	}
}

func MemoryProblem() Condition {
	return Condition{
		Type: "MemoryProblem", ReadyType: "MemoryReady",
		HealthyReason: "MemoryIsHealthy", HealthyMessage: "Memory can be had",
	}
}

func NetworkProblem() Condition {
	return Condition{
		Type: "NetworkProblem", ReadyType: "NetworkReady",
		HealthyReason: "NetworkIsHealthy", HealthyMessage: "Links, routes and tables of the node work",
	}
}

func HardwareProblem() Condition {
	return Condition{
		Type: "HardwareProblem", ReadyType: "HardwareReady",
		HealthyReason: "HardwareIsHealthy", HealthyMessage: "The hardware reports no fault",
	}
}
