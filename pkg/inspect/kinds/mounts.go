package kinds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/unmount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func mountSpec() Spec {
	return Spec{
		Kind: object.Mount, List: listMounts,
		What: "a mount below a kubelet pod directory",
		Harm: "the volume cannot be detached or used elsewhere, and the directory cannot be removed",
	}
}

// listMounts lists the mounts below kubelet's pod directories: in the host's mount table, and in kubelet's if it runs
// in its own mount namespace. Several mounts on one point are several objects. No mount is accessed: that would hang if
// its server is gone.
func listMounts(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	view, err := viewOf(scan, mounts)
	if err != nil {
		return nil, err
	}
	objects := mountObjects(scan, view, mounts, "host")
	private, err := scan.KubeletMounts()
	if err != nil {
		return objects, err
	}
	known := make(map[int]bool) // a mount ID is unique among all namespaces
	for _, m := range mounts {
		known[m.ID] = true
	}
	private = slices.DeleteFunc(private, func(m mount.Mount) bool { return known[m.ID] })
	return append(objects, mountObjects(scan, view, private, "kubelet")...), nil
}

// viewOf returns the data needed to determine the owner of a mount, and which mounts its unmount affects.
func viewOf(scan *hostscan.Scan, mounts []mount.Mount) (unmount.View, error) {
	dir := path.Join(scan.Host.Paths.KubeletRoot, "pods")
	pods, err := scan.Host.Files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // kubelet creates it with its first pod
	}
	return unmount.View{Mounts: mounts, PodsDir: dir, Pods: pods}, err
}

func mountObjects(scan *hostscan.Scan, view unmount.View, mounts []mount.Mount, table string) []object.Object {
	var objects []object.Object
	for _, m := range mounts {
		uid, ok := scan.Host.Paths.PodOfPath(m.Point)
		if !ok {
			continue
		}
		volume, plugin := volumeOf(scan, m.Point, uid)
		subpath := ""
		if dir,
			_ := path.Split(path.Dir(path.Dir(m.Point))); path.Base(dir) == "volume-subpaths" { // itself, not below it
			subpath = "subpath of " + volume
		}
		pod, foreign := object.Pod{UID: uid}, ""
		if other := view.OtherPod(uid, m); other != "" {
			pod, foreign = object.Pod{}, fmt.Sprintf("in the directory of pod %s, but it contains the UID of pod %s", uid,
				other)
		}
		objects = append(objects, object.Object{
			Kind: object.Mount,
			ID:   m.Point + "#" + strconv.Itoa(m.ID),
			Pod:  pod, Foreign: foreign,
			Identity: mountIdentity(m),
			Facts: object.Facts("class", mountClass(m), "point", m.Point, "type", m.FSType, "source", m.Source,
				"volume", volume, "plugin", plugin, "table", table, "propagation", m.Optional,
				"subpath", subpath),
		})
	}
	// The mount table is in the order of mounting, so that of two mounts on one point the upper one comes later.
	slices.SortStableFunc(objects, func(a, b object.Object) int { return cmp.Compare(a.Facts["point"], b.Facts["point"]) })
	return objects
}

// maxExplained limits for how many mounts a pass computes the effects of their unmount.
const maxExplained = 128

// explainMounts adds to suspects the effects of their unmount, or why it is refused, according to the host's mount
// table. They are computed again, with all other namespaces, right before an unmount.
func explainMounts(scan *hostscan.Scan, suspects []*object.Object) {
	mounts, err := scan.Mounts()
	if err != nil {
		return // the lister has reported it
	}
	view, err := viewOf(scan, mounts)
	if err != nil {
		return
	}
	for _, o := range suspects[:min(len(suspects), maxExplained)] {
		id := o.Identity.Mount.ID
		at := slices.IndexFunc(mounts, func(m mount.Mount) bool { return m.ID == id })
		if at < 0 {
			continue // kubelet's own
		}
		if peer, ok := view.Peer(o.Pod.UID, mounts[at]); ok {
			o.Facts["peer"] = fmt.Sprintf("%s (mount %d)", peer.Point, peer.ID)
		}
		plan := view.Unmount(o.Pod.UID, id)
		if plan.Refused != "" {
			o.Facts["refused"] = plan.Refused
		}
		if plan.Private != nil {
			o.Facts["private"] = plan.Private.Point
		}
	}
}

// volumeOf returns the volume that a mount point belongs to, as kubelet lays them out:
//
//	<root>/pods/<uid>/volumes/<plugin, / as ~>/<volume>[/mount]
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>
func volumeOf(scan *hostscan.Scan, point, uid string) (volume, plugin string) {
	_, rest, _ := strings.Cut(point, scan.Host.Paths.KubeletRoot+"/pods/"+uid+"/")
	parts := strings.Split(rest, "/")
	switch {
	case len(parts) >= 3 && parts[0] == "volumes":
		return parts[2], strings.ReplaceAll(parts[1], "~", "/")
	case len(parts) >= 2 && parts[0] == "volume-subpaths":
		return parts[1], "subpath"
	}
	return "", ""
}

// mountClass classifies mounts by the needs and risks of their release.
func mountClass(m mount.Mount) string {
	kind, _, _ := strings.Cut(m.FSType, ".")
	switch kind {
	case "tmpfs", "ramfs", "hugetlbfs":
		return "memory"
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "lustre", "afs", "gpfs", "beegfs", "pvfs2", "ocfs2",
		"gfs2":
		return "network"
	case "fuse", "fuseblk", "virtiofs":
		return "fuse"
	}
	if m.Root != "/" {
		return "bind"
	}
	return "block"
}
