package filesystemreadonly

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// use is who needs a filesystem: "" if the node and its pods go on without it. What a pod's specification merely names does
// not count, since its author needs no right but to create pods; a mount that a pod has is the node's own evidence.
type use struct {
	neededBy string
	pods     []string // that have it mounted
}

// severity returns what a failed filesystem means for the node. Errors after which the filesystem continues are no outage
// yet; those of an earlier boot may be years old.
func (u use) severity(what filesystem.Fault) finding.Severity {
	switch {
	case what.Reason == reasonOldErrors:
		return finding.Info
	case what.Reason == reasonErrors || u.neededBy == "":
		return finding.Warning
	}
	return finding.Fatal
}

func (u *usersState) useOf(ctx context.Context, h *host.Host, mounts []mount.Mount, f filesystem.Filesystem, s Settings) use {
	key := mountKey{f.Device, f.Principal.ID}
	users := filesystem.UsingPods(ctx, h, mounts, f, u.before[key])
	u.now[key] = users
	pods := users.Names()
	own := func(m mount.Mount) bool { return !filesystem.BelowKubelet(m.Point, h.Paths) }
	node := f.NeededByNode(h, mounts)
	switch {
	case node != "":
	case slices.ContainsFunc(f.Mounts, func(m mount.Mount) bool { return named(s.Needed, m.Point) }):
		node = "the configuration"
	case h.Doubts.Of(host.KubeletRoot, host.KubeletAPI, host.CgroupRoot) != nil: // which volumes pods use is not known
	case len(pods) > 0 && (s.PodVolumesFatal || slices.ContainsFunc(f.Mounts, own)):
		node = "pods"
	case inFstab(h.Files, f):
		node = "/etc/fstab"
	case onRealDisk(f):
		node = localVolumes(f)
	}
	return use{neededBy: node, pods: pods}
}

// usersState remembers the pods that used a failed filesystem: a container that ends because of the fault has no mount of it
// until kubelet starts it again.
type usersState struct {
	before, now map[mountKey]filesystem.Users
}

// begin begins a run; filesystems without a fault are forgotten.
func (u *usersState) begin() { u.before, u.now = u.now, make(map[mountKey]filesystem.Users) }

// localVolumes returns for which local volumes a filesystem is mounted: on, or below, a provisioner's directory. Which
// PersistentVolumes name it, only the apiserver knows, and the agent has no right to list them.
func localVolumes(f filesystem.Filesystem) string {
	for _, dir := range distro.LocalVolumeDirs() {
		if slices.ContainsFunc(f.Mounts, func(m mount.Mount) bool { return mount.Below(m.Point, dir) }) {
			return "local volumes (" + dir + ")"
		}
	}
	return ""
}

func named(needed []string, point string) bool {
	return slices.ContainsFunc(needed, func(name string) bool { return mount.Below(point, path.Clean(name)) })
}

// inFstab reports whether /etc/fstab has the filesystem, by its mount point or by its device, and it is on a real disk.
func inFstab(files host.Files, f filesystem.Filesystem) bool {
	if !onRealDisk(f) {
		return false
	}
	device := f.DeviceName(files)
	return slices.ContainsFunc(filesystem.Fstab(files), func(e filesystem.FstabEntry) bool {
		return e.IsMounted() && (device != "" && filesystem.DeviceOf(files, e.Spec) == device ||
			slices.ContainsFunc(f.Mounts, func(m mount.Mount) bool { return m.Point == e.Point }))
	})
}

// onRealDisk reports whether a filesystem is on no RAM disk and no loop device.
func onRealDisk(f filesystem.Filesystem) bool {
	const ram, loop = 1, 7 // major numbers: Documentation/admin-guide/devices.txt
	return f.Principal.Major != ram && f.Principal.Major != loop && !strings.HasPrefix(path.Base(f.Principal.Source), "loop")
}
