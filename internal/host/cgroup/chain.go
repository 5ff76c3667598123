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
)

// CgroupOf returns the hierarchy that has a controller for a process, and the process's path in it: that of cgroup v1
// if it is mounted with this controller, else v2. ErrNotConfigured means that there is neither.
func CgroupOf(h *host.Host, pid int, controller string) (CgroupHierarchy, string, error) {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return CgroupHierarchy{}, "", err
	}
	if below, ok := cgroups[controller]; ok {
		v1 := CgroupHierarchy{Name: controller, Point: path.Join(h.Paths.CgroupMount, controller)}
		return v1, path.Clean(below), nil
	}
	below, ok := cgroups[""]
	if !ok {
		return CgroupHierarchy{}, "", fmt.Errorf("cgroup controller %s: %w", controller, hosterr.ErrNotConfigured)
	}
	v2, err := unified(h)
	return v2, path.Clean(below), err
}

// CgroupWith returns the hierarchy with a controller on this host, like CgroupOf.
func CgroupWith(h *host.Host, controller string) (CgroupHierarchy, error) {
	point := path.Join(h.Paths.CgroupMount, controller)
	if _, err := h.Files.Stat(point + "/cgroup.procs"); err == nil {
		return CgroupHierarchy{Name: controller, Point: point}, nil
	}
	return unified(h)
}

// unified finds cgroup v2: alone, or next to v1, where systemd mounts it one level deeper.
func unified(h *host.Host) (CgroupHierarchy, error) {
	for _, point := range []string{h.Paths.CgroupMount, path.Join(h.Paths.CgroupMount, "unified")} {
		_, err := h.Files.Stat(point + "/cgroup.controllers")
		if err == nil {
			return CgroupHierarchy{Point: point, V2: true}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return CgroupHierarchy{}, err
		}
	}
	return CgroupHierarchy{}, fmt.Errorf("cgroups below %s: %w", h.Paths.CgroupMount, hosterr.ErrNotConfigured)
}

// CgroupChain returns a cgroup and those above it, at most 32, without the root, which has no limits.
func CgroupChain(name string) []string {
	var chain []string
	for name = path.Clean("/" + name); name != "/" && len(chain) < maxCgroupDepth; name = path.Dir(name) {
		chain = append(chain, name)
	}
	return chain
}

// PodCgroupDirs returns the cgroups whose direct children are pods of our own kubelet, as paths in a hierarchy: one
// for each QoS class and driver, whether they exist or not.
func PodCgroupDirs(p host.Paths) []string {
	var dirs []string
	for _, root := range p.PodCgroupRoots() {
		dirs = append(dirs, root.Dir)
	}
	return dirs
}

// KubepodsCgroups returns the possible paths of the cgroup above all pods, one for each driver.
func KubepodsCgroups(p host.Paths) []string {
	return slices.DeleteFunc(PodCgroupDirs(p), func(dir string) bool {
		return path.Base(dir) != "kubepods" && !strings.HasSuffix(dir, "kubepods.slice")
	})
}
