// Package cgroup lists the cgroups of pods, and the hierarchies.
//
// Of opencontainers/cgroups the agent uses the parser of /proc/PID/cgroup (internal/host, ProcCgroups). The rest of it
// does not fit: it reads /sys/fs/cgroup and nothing else (its files must be cgroupfs below that directory, and
// IsCgroup2UnifiedMode caches what it found there first), while the agent reads below a root that is configured, as for
// the host's files mounted into a pod; its GetStats reads all files of a cgroup, of which a check wants one number; and
// RemovePath removes recursively by path, with retries, where the agent removes what it has compared by its inode.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// CgroupHierarchy is one mounted cgroup hierarchy: cgroup v2 (alone, or "unified" beside v1), a v1 controller or
// several mounted together, or a v1 hierarchy with a name and no controller (systemd's).
type CgroupHierarchy struct {
	Name  string // as in /proc/PID/cgroup: "" for v2, "cpu,cpuacct", "name=systemd"
	Point string // where it is mounted
	V2    bool
}

// Has reports whether h carries a v1 controller.
func (h CgroupHierarchy) Has(controller string) bool {
	return !h.V2 && slices.Contains(strings.Split(h.Name, ","), controller)
}

// v1Option reports whether it is an option of a cgroup v1 superblock that names no controller. See cgroups(7) and
// kernel/cgroup/cgroup-v1.c.
func v1Option(option string) bool {
	switch option {
	case "rw", "ro", "xattr", "clone_children", "none", "all", "noprefix", "cpuset_v2_mode", "favordynmods", "seclabel":
		return true
	}
	return strings.HasPrefix(option, "release_agent=")
}

// CgroupHierarchies finds the mounted hierarchies in a mount table, each once, those below dir (/sys/fs/cgroup) only:
// the mount table of a host also shows those of containers.
func CgroupHierarchies(mounts []mount.Mount, dir string) []CgroupHierarchy {
	var found []CgroupHierarchy
	seen := make(map[string]bool)
	for _, m := range mounts {
		if m.FSType != "cgroup" && m.FSType != "cgroup2" || !mount.Below(m.Point, dir) || seen[m.Device()] {
			continue
		}
		seen[m.Device()] = true // the same hierarchy may be mounted again, as cpu and cpu,cpuacct are on some systems
		h := CgroupHierarchy{Point: m.Point, V2: m.FSType == "cgroup2"}
		if !h.V2 {
			h.Name = v1Name(m.SuperOptions)
		}
		found = append(found, h)
	}
	return found
}

// v1Name returns what /proc/PID/cgroup calls the hierarchy with these mount options.
func v1Name(options []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(options), v1Option), ",")
}

// PodCgroup is one cgroup directory in one hierarchy that belongs to a pod: the pod's own, or one below it.
type PodCgroup struct {
	Hierarchy   CgroupHierarchy
	Path        string // in the hierarchy, as in /proc/PID/cgroup
	UID         string
	Driver      string // whose tree it is in: CgroupfsDriver or SystemdDriver
	ContainerID string // empty for the pod's own
	Depth       int    // 0 for the pod's own
	Device      uint64
	Inode       uint64
	Unlisted    string // of a pod's own: why not all below it are listed; empty where all are
}

// Dir returns where the cgroup is in the file system.
func (c PodCgroup) Dir() string { return path.Join(c.Hierarchy.Point, c.Path) }

// Bounds of what is listed of one pod in one hierarchy. Containers may make cgroups of their own below theirs:
// systemd in a container makes about 100, a node of kind some hundreds. A pod that makes more harms only
// itself: what is above the bounds is not listed, and its own cgroup says so.
const (
	maxCgroupDepth = 32
	maxPodCgroups  = 1024
	maxCgroupPath  = 1024 // bytes; the kernel has no bound but that of a name, 255
	maxCgroupFiles = 1024 // beside the cgroups in one directory; the kernel makes some 80
)

// PodCgroups lists the cgroups of pods in one hierarchy, each before those below it. Only pods directly in our own
// kubelet's kubepods tree are listed. A hierarchy in which that tree does not exist has none.
func PodCgroups(h *host.Host, hierarchy CgroupHierarchy) ([]PodCgroup, error) {
	return podCgroups(h, hierarchy, false)
}

// PodOnlyCgroups lists the same without those below the pods' own, which is much cheaper.
func PodOnlyCgroups(h *host.Host, hierarchy CgroupHierarchy) ([]PodCgroup, error) {
	return podCgroups(h, hierarchy, true)
}

func podCgroups(h *host.Host, hierarchy CgroupHierarchy, shallow bool) ([]PodCgroup, error) {
	var found []PodCgroup
	for _, root := range h.Paths.PodCgroupRoots() {
		entries, device, err := h.Files.Entries(path.Join(hierarchy.Point, root.Dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			uid, ok := root.PodUID(entry.Name)
			if !ok || !entry.IsDir() {
				continue
			}
			pod := PodCgroup{
				Hierarchy: hierarchy, Path: root.Dir + "/" + entry.Name,
				UID: uid, Driver: root.Driver, Device: device, Inode: entry.Inode,
			}
			if shallow {
				found = append(found, pod)
			} else {
				found = append(found, podTree(h.Files, pod)...)
			}
		}
	}
	return found, nil
}

// podTree lists a pod's cgroup and those below it. What cannot be listed is noted at the pod's own.
func podTree(files host.Files, pod PodCgroup) []PodCgroup {
	w := cgroupWalk{files: files, found: []PodCgroup{pod}}
	if err := w.below(pod); err != nil {
		w.found[0].Unlisted = err.Error()
	}
	return w.found
}

// cgroupWalk collects the cgroups of one pod.
type cgroupWalk struct {
	files host.Files
	found []PodCgroup
}

// below adds the cgroups below one. A cgroup that goes away meanwhile is no error. The number of links shows whether
// there are any below (kernfs counts subdirectories), which spares the listing of most.
func (w *cgroupWalk) below(c PodCgroup) error {
	if c.Depth > 0 {
		stat, err := w.files.Stat(c.Dir())
		if errors.Is(err, fs.ErrNotExist) || err == nil && stat.Links == 2 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	entries, _, err := w.files.ReadEntries(c.Dir(), maxPodCgroups+maxCgroupFiles)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		below := c
		below.Path, below.Inode, below.Depth = c.Path+"/"+entry.Name, entry.Inode, c.Depth+1
		switch {
		case len(w.found) >= maxPodCgroups:
			return fmt.Errorf("pod %s has more than %d cgroups", c.UID, maxPodCgroups)
		case below.Depth > maxCgroupDepth:
			return fmt.Errorf("cgroups of pod %s are nested more than %d deep", c.UID, maxCgroupDepth)
		case len(below.Path) > maxCgroupPath:
			return fmt.Errorf("a cgroup of pod %s has a path of more than %d bytes", c.UID, maxCgroupPath)
		}
		if c.Depth == 0 {
			below.ContainerID = host.ContainerOfCgroup(entry.Name)
		}
		w.found = append(w.found, below)
		if err := w.below(below); err != nil {
			return err
		}
	}
	return nil
}

// Frozen reports whether the tasks of a cgroup are frozen. A hierarchy without a freezer answers ErrNotConfigured.
func Frozen(h *host.Host, c PodCgroup) (bool, error) {
	switch {
	case c.Hierarchy.Has("freezer"):
		state, err := h.Files.Text(path.Join(c.Dir(), "freezer.state"))
		return state == "FROZEN" || state == "FREEZING", err
	case c.Hierarchy.V2:
		state, err := h.Files.Text(path.Join(c.Dir(), "cgroup.freeze"))
		return state == "1", err
	}
	return false, hosterr.ErrNotConfigured
}
