// Package cgroup lists the cgroups of pods, and the hierarchies.
//
// The agent uses only the parser of /proc/PID/cgroup from opencontainers/cgroups v0.1.0 (internal/host, ProcCgroups). The
// rest of it does not fit:
//
//   - Safe files: OpenFile takes a path below /sys/fs/cgroup. The agent reads below a configured root, such as the host's
//     files mounted into a pod, and opens the files of a pod through the directory that it has compared by inode.
//   - Mode: IsCgroup2UnifiedMode reads /sys/fs/cgroup only, and caches its first result.
//   - Statistics: GetStats reads all files of a cgroup, of which a check needs one number.
//   - Freezing: a manager freezes and thaws one cgroup by its path. The agent thaws those from a process up to its pod's.
//   - Killing: the agent kills processes that it has compared by start time, through a pidfd, and no cgroup as a whole.
//   - Removing: RemovePath removes recursively by path, with retries. The agent compares inodes, and its children, which
//     change cgroups, link no library (internal/archtest).
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

// CgroupHierarchy is one mounted cgroup hierarchy: cgroup v2 (alone, or "unified" next to v1), one v1 controller or
// several mounted together, or a named v1 hierarchy without a controller (systemd's).
type CgroupHierarchy struct {
	Name  string // as in /proc/PID/cgroup: "" for v2, "cpu,cpuacct", "name=systemd"
	Point string // mount point
	V2    bool
}

// Has reports whether h has a v1 controller.
func (h CgroupHierarchy) Has(controller string) bool {
	return !h.V2 && slices.Contains(strings.Split(h.Name, ","), controller)
}

// v1Option reports whether option is a superblock option of cgroup v1 and not a controller. See cgroups(7) and
// kernel/cgroup/cgroup-v1.c.
func v1Option(option string) bool {
	switch option {
	case "rw", "ro", "xattr", "clone_children", "none", "all", "noprefix", "cpuset_v2_mode", "favordynmods", "seclabel":
		return true
	}
	return strings.HasPrefix(option, "release_agent=")
}

// CgroupHierarchies finds the mounted hierarchies in a mount table, each once, and only those below dir
// (/sys/fs/cgroup): the mount table of a host also shows those of containers.
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
			h.Name = strings.Join(slices.DeleteFunc(slices.Clone(m.SuperOptions), v1Option), ",")
		}
		found = append(found, h)
	}
	return found
}

// PodCgroup is one cgroup directory in one hierarchy that belongs to a pod: the pod's own, or one below it.
type PodCgroup struct {
	Hierarchy   CgroupHierarchy
	Path        string // in the hierarchy, as in /proc/PID/cgroup
	UID         string
	Driver      string // CgroupfsDriver or SystemdDriver, by its tree
	ContainerID string // empty for the pod's own
	Depth       int    // 0 for the pod's own
	Device      uint64
	Inode       uint64
	Unlisted    string // of a pod's own: why not all below it are listed; empty if all are
}

// Dir returns the path of the cgroup in the file system.
func (c PodCgroup) Dir() string { return path.Join(c.Hierarchy.Point, c.Path) }

// Bounds of the list for one pod in one hierarchy. Containers may make cgroups below their own: systemd in a container
// makes about 100, a node of kind some hundreds. A pod that makes more harms only itself: cgroups beyond the bounds are
// not listed, and the pod's own cgroup says so.
const (
	maxCgroupDepth = 32
	maxPodCgroups  = 1024
	maxCgroupPath  = 1024 // bytes; the kernel bounds only a name, to 255
	maxCgroupFiles = 1024 // besides the cgroups in one directory; the kernel makes some 80
)

// PodCgroups lists the cgroups of pods in one hierarchy, each before those below it. It lists only pods directly in our
// own kubelet's kubepods tree. A hierarchy without that tree has none.
func PodCgroups(h *host.Host, hierarchy CgroupHierarchy) ([]PodCgroup, error) {
	return podCgroups(h, hierarchy, false)
}

// PodOnlyCgroups lists only the pods' own cgroups, which is much cheaper.
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

// podTree lists a pod's cgroup and those below it. An error is noted at the pod's own.
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

// below adds the cgroups below one. It is no error if a cgroup disappears meanwhile. The link count shows whether there
// are any below (kernfs counts subdirectories), which avoids listing most of them.
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
	if err != nil {
		return hosterr.Ignore(err, fs.ErrNotExist)
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

// Frozen reports whether the tasks of a cgroup are frozen. Without a freezer in the hierarchy it returns
// ErrNotConfigured.
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
