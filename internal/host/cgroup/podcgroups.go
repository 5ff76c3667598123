package cgroup

import (
	"github.com/nodeagent/nodeagent/internal/host"
)

// PodCgroupDirs returns the cgroups whose direct children are pods of our own kubelet, as paths in a hierarchy: one
// for each QoS class and driver, whether they exist or not.
func PodCgroupDirs(p host.Paths) []string {
	var dirs []string
	for _, root := range p.PodCgroupRoots() {
		dirs = append(dirs, root.Dir)
	}
	return dirs
}
