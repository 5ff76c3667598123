package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// transientMount is kubelet's description of the scope in which it makes a mount: k8s.io/mount-utils, AddSystemdScope.
const transientMount = "Kubernetes transient mount for "

func systemdUnitSpec() Spec {
	return Spec{
		Kind: object.SystemdUnit, List: listSystemdUnits, GoneFrom: ofSandbox, OptIn: true, LittleHarm: true,
		Unused: "it has ended, and the runtime does not know its container",
		What: "a unit of systemd whose pod, container or mount is gone: a pod's slice without a cgroup, a container's " +
			"scope or a mount that has failed or is not active, the scope of a mount that kubelet made for a pod",
		Harm: "memory and processor time of systemd, and alarms about failed units",
	}
}

// listSystemdUnits lists systemd's units of pods that no other object shows. The slice names the pod, a scope the
// container, the description of a mount its place.
func listSystemdUnits(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	if scan.Host.Systemd.PodUnits == nil {
		return nil, nil
	}
	units, err := scan.Host.Systemd.PodUnits(ctx)
	if err != nil {
		return nil, hosterr.Ignore(err, hosterr.ErrNotConfigured) // another service manager
	}
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool) // points of mounts, and names of the pods' cgroups: they are listed themselves
	for _, m := range mounts {
		seen[m.Point] = true
	}
	for _, hierarchy := range cgroup.CgroupHierarchies(mounts, scan.Host.Paths.CgroupMount) {
		for _, dir := range cgroup.PodCgroupDirs(scan.Host.Paths) {
			names, err := scan.Host.Files.List(path.Join(hierarchy.Point, dir))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("cgroups of pods: %w", err)
			}
			for _, name := range names {
				seen[name] = true
			}
		}
	}
	var objects []object.Object
	for _, unit := range units {
		if pod, container, ok := ownerOfUnit(scan.Host.Paths, unit, seen); ok {
			objects = append(objects, object.Object{Kind: object.SystemdUnit, ID: unit.Name,
				Pod: object.Pod{UID: pod}, ContainerID: container,
				Identity: named("unit", unit.Name),
				Facts:    object.Facts("active", unit.Active, "sub", unit.Sub, "description", unit.Description)})
		}
	}
	return objects, nil
}

// ownerOfUnit returns the pod and container of a unit; not ok: it is not a pod's, or its mount or cgroup exists.
func ownerOfUnit(paths host.Paths, unit systemd.PodUnit, seen map[string]bool) (uid, container string, ok bool) {
	switch path.Ext(unit.Name) {
	case ".slice":
		for _, root := range paths.PodCgroupRoots() {
			if uid, ok := root.PodUID(unit.Name); ok && root.Driver == host.SystemdDriver {
				return uid, "", !seen[unit.Name]
			}
		}
	case ".mount":
		uid, ok := paths.PodOfPath(unit.Description)
		return uid, "", ok && !seen[unit.Description]
	case ".scope":
		if place, ok := strings.CutPrefix(unit.Description, transientMount); ok {
			uid, ok := paths.PodOfPath(place)
			return uid, "", ok
		}
		id := host.ContainerOfCgroup(unit.Name)
		return "", id, id != "" && (unit.Active == "failed" || unit.Active == "inactive")
	}
	return "", "", false
}
