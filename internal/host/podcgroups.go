package host

// PodCgroupDirs returns the cgroups whose direct children are pods of our own kubelet, as paths in a hierarchy: one for each
// QoS class and driver, whether they exist or not.
func (p Paths) PodCgroupDirs() []string {
	var dirs []string
	for _, root := range p.podCgroupRoots() {
		dirs = append(dirs, root.Dir)
	}
	return dirs
}
