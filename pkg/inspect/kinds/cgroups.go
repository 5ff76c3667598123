package kinds

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func cgroupSpec() Spec {
	return Spec{
		Kind: object.Cgroup, List: listCgroups,
		What: "a pod's cgroup or one below it, one object in each hierarchy",
		Harm: "costs kernel memory, and kubelet's time in every round",
	}
}

// listCgroups lists the cgroups of pods: one object per directory and mounted hierarchy, because each is removed
// separately. Children come after the pod's own cgroup.
func listCgroups(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	hierarchies := cgroup.CgroupHierarchies(mounts, scan.Host.Paths.CgroupMount)
	if len(hierarchies) == 0 {
		return nil, fmt.Errorf("cgroups: none mounted below %s", scan.Host.Paths.CgroupMount)
	}
	table, err := scan.Processes()
	if err != nil {
		return nil, err
	}
	var objects []object.Object
	var failures []error
	for _, hierarchy := range hierarchies {
		cgroups, err := cgroup.PodCgroups(scan.Host, hierarchy)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		unlisted := "" // UID of the current pod, if not all of its cgroups are listed
		for _, c := range cgroups {
			if c.Depth == 0 {
				unlisted = ""
			}
			if unlisted != "" {
				continue // an incomplete list is no proof, and may be very long
			}
			o := cgroupObject(c, len(table.Members[hostscan.MemberKey(hierarchy.Name, c.Path)]))
			if c.Unlisted != "" {
				unlisted, o.Doubt = c.UID, "not all cgroups below it could be read: "+c.Unlisted
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures...)
}

func cgroupObject(c cgroup.PodCgroup, processes int) object.Object {
	hierarchy := c.Hierarchy.Name
	if c.Hierarchy.V2 {
		hierarchy = "v2"
	}
	return object.Object{
		Kind:        object.Cgroup,
		ID:          c.Dir(),
		Pod:         object.Pod{UID: c.UID},
		ContainerID: c.ContainerID,
		Identity:    fileIdentity(c.Device, c.Inode),
		Facts: map[string]string{
			"hierarchy": hierarchy, "path": c.Path, "driver": c.Driver,
			"depth": strconv.Itoa(c.Depth), "processes": strconv.Itoa(processes),
		},
	}
}

// explainCgroup adds facts that are read for suspects only: whether its tasks are frozen and do not react to signals.
func explainCgroup(h *host.Host, o *object.Object) {
	hierarchy := cgroup.CgroupHierarchy{Name: o.Facts["hierarchy"], V2: o.Facts["hierarchy"] == "v2"}
	path := o.Facts["path"]
	if len(path) >= len(o.ID) {
		return
	}
	hierarchy.Point = o.ID[:len(o.ID)-len(path)]
	if frozen, err := cgroup.Frozen(h, cgroup.PodCgroup{Hierarchy: hierarchy, Path: path}); err == nil {
		o.Facts["frozen"] = strconv.FormatBool(frozen)
	}
}
