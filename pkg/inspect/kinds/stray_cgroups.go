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
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// maxStrays limits the cgroups listed of one directory: some nodes have tens of thousands.
const maxStrays = 1024

func strayCgroupSpec() Spec {
	return Spec{
		Kind: object.StrayCgroup, List: listStrayCgroups, GoneFrom: ofSandbox,
		ReportOnly: "it lies outside of the tree in which the agent releases cgroups, and may be another Kubernetes': once " +
			"you know that it is not, `rmdir` removes it, the innermost first",
		Unused: "no process is in it, and nothing shows whether its pod was one of our kubelet's",
		What: "a cgroup of a pod or container where our kubelet does not look: in the tree of the other cgroup driver, or at " +
			"the root (`kubepods-…-pod<UID>.slice:cri-containerd:<ID>`, `system.slice:cri-containerd:<ID>`, `k8s.io/<ID>`)",
		Harm: "costs kernel memory; tens of thousands of them slow down everything that reads cgroups",
	}
}

// listStrayCgroups lists the cgroups of containers that lie at the root of a hierarchy, where no kubelet looks for them:
//
//	/kubepods-burstable-pod<uid, _ for ->.slice:cri-containerd:<container>   the runtime's driver is cgroupfs, kubelet's is systemd
//	/system.slice:cri-containerd:<container>                                 the same, of a pod without a parent
//	/k8s.io/<container>                                                      a container without a path
//
// https://github.com/containerd/containerd/issues/7276. Those in the tree of the other driver are in the list of cgroups, if
// the driver is not configured, and else here.
func listStrayCgroups(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	var objects []object.Object
	for _, hierarchy := range cgroup.CgroupHierarchies(mounts, scan.Host.Paths.CgroupMount) {
		others, err := otherTree(scan.Host, hierarchy)
		if objects = append(objects, others...); err != nil {
			return objects, err
		}
		for _, parent := range []string{"/", "/k8s.io"} {
			entries, device, err := scan.Host.Files.Entries(path.Join(hierarchy.Point, parent))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return objects, err
			}
			found, more := 0, 0
			for _, entry := range entries {
				uid, container, ok := ownerOfStray(scan.Host.Paths, parent, entry.Name)
				if !ok || !entry.IsDir() {
					continue
				}
				if found == maxStrays {
					more++
					continue
				}
				found++
				dir := path.Join(parent, entry.Name)
				o := object.Object{Kind: object.StrayCgroup, ID: path.Join(hierarchy.Point, dir), Pod: object.Pod{UID: uid},
					ContainerID: container,
					Identity:    fileIdentity(device, entry.Inode),
					Facts:       object.Facts("hierarchy", hierarchy.Name, "path", dir)}
				if populated(scan.Host.Files, o.ID, hierarchy.V2) {
					o.Facts["populated"] = "true"
				}
				objects = append(objects, o)
			}
			if more > 0 {
				objects[len(objects)-1].Facts["notListed"] = fmt.Sprintf("%d more in %s", more, path.Join(hierarchy.Point, parent))
			}
		}
	}
	return objects, nil
}

// otherTree lists the cgroups of pods in the tree of the driver that the configuration excludes: foreign, unless their
// UID proves otherwise.
func otherTree(h *host.Host, hierarchy cgroup.CgroupHierarchy) (objects []object.Object, err error) {
	driver := map[string]string{host.CgroupfsDriver: host.SystemdDriver, host.SystemdDriver: host.CgroupfsDriver}[h.Paths.CgroupDriver]
	if driver == "" {
		return nil, nil
	}
	other := *h
	other.Paths.CgroupDriver = driver
	found, err := cgroup.PodCgroups(&other, hierarchy)
	for _, c := range found {
		objects = append(objects, object.Object{Kind: object.StrayCgroup, ID: c.Dir(), Pod: object.Pod{UID: c.UID},
			ContainerID: c.ContainerID,
			Identity:    fileIdentity(c.Device, c.Inode),
			Facts:       object.Facts("hierarchy", hierarchy.Name, "path", c.Path, "driver", driver),
			Foreign: fmt.Sprintf("in the cgroup tree of driver %s, while our kubelet's is %s: as configured", driver,
				h.Paths.CgroupDriver)})
	}
	return objects, err
}

// ownerOfStray returns what a name below the root of a hierarchy was made for.
func ownerOfStray(paths host.Paths, parent, name string) (uid, container string, ok bool) {
	if parent != "/" {
		return "", name, host.ContainerOfCgroup(name) == name
	}
	slice, rest, _ := strings.Cut(name, ":")
	_, container, two := strings.Cut(rest, ":")
	if !two || host.ContainerOfCgroup(container) != container || container == "" {
		return "", "", false
	}
	paths.CgroupDriver = host.SystemdDriver
	for _, root := range paths.PodCgroupRoots() {
		if uid, ok := root.PodUID(slice); ok {
			return uid, container, true
		}
	}
	return "", container, slice == "system.slice"
}

// populated reports whether a process may be in a cgroup or below it. An unreadable cgroup may have one.
func populated(files host.Files, dir string, v2 bool) bool {
	if v2 {
		text, err := files.Text(path.Join(dir, "cgroup.events"))
		return err != nil || !strings.Contains(text, "populated 0")
	}
	text, err := files.Text(path.Join(dir, "cgroup.procs"))
	entries, _, listed := files.Entries(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			return true
		}
	}
	return err != nil || listed != nil || text != ""
}
