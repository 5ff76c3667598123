package checks

import (
	"slices"
)

// Coverage names the checks and rules that find one known fault of nodes, or says why none does.
type Coverage struct {
	Fault string   // as it is known in the field
	By    []string // IDs of checks and of kernel log rules
	Not   string   // why it is left out; empty when it is found
}

// Known lists all known faults of nodes, by domain.
func Known() []Coverage {
	return slices.Concat(
		filesystemCoverage(), blockCoverage(), kernelCoverage(), memoryCoverage(), linkCoverage(),
		clusterNetworkCoverage(),
		kubeletCoverage(), serviceCoverage(), daemonCoverage(),
	)
}
