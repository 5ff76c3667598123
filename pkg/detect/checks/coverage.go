package checks

import (
	"slices"
)

// Coverage tells of one fault that nodes are known to have by which check or kernel log rule it is found, or why it
// is not looked for.
type Coverage struct {
	Fault string   // as people of the field call it
	By    []string // IDs of checks and of kernel log rules
	Not   string   // why it is left out; empty when it is found
}

// Known lists all faults that nodes are known to have, by domain.
func Known() []Coverage {
	return slices.Concat(
		filesystemCoverage(), blockCoverage(), kernelCoverage(), memoryCoverage(), linkCoverage(),
		clusterNetworkCoverage(),
		kubeletCoverage(), serviceCoverage(), spokenCoverage(),
	)
}
