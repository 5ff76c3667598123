// Package filesystem groups the mount table by filesystem, and finds the node's own data and the pods on each.
package filesystem

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// DeviceName is the kernel's name of the device below a filesystem; "" if unknown.
func (f Filesystem) DeviceName(files host.Files) string {
	if f.Principal.Major == 0 { // btrfs: its device number belongs to no device
		return DeviceOf(files, f.Principal.Source)
	}
	target, err := files.Link("/sys/dev/block/" + f.Device)
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// BelowKubelet reports whether a mount point is one that kubelet creates for volumes of pods.
func BelowKubelet(point string, paths host.Paths) bool {
	if paths.KubeletRoot == "" {
		return false
	}
	return mount.Below(point, path.Join(paths.KubeletRoot, "pods")) ||
		mount.Below(point, path.Join(paths.KubeletRoot, "plugins"))
}

// Filesystem is one superblock and its mounts, including binds.
type Filesystem struct {
	Device    string // major:minor, as all its mounts show it
	Principal mount.Mount
	Mounts    []mount.Mount
}

// ReadOnlyByDesign reports filesystems that were never writable, those whose device number in the mount table is not
// that of a block device, and those whose state only a foreign daemon knows (fuseblk).
func ReadOnlyByDesign(fstype string) bool {
	return slices.Contains([]string{"squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "jffs2", "fuseblk"},
		fstype)
}

// OnBlockDevice distinguishes filesystems on disks from all others by their device number, which is anonymous (major 0)
// for pseudo, network and FUSE filesystems. btrfs spans disks and so has an anonymous number too.
func OnBlockDevice(m mount.Mount) bool {
	return m.Major != 0 || m.FSType == "btrfs" && strings.HasPrefix(m.Source, "/dev/")
}

// PrincipalOf returns the mount under which people know the filesystem: of those that show the whole of it the one with
// the shortest path, and among several of those the first one of the mount table, which is the oldest. Mount IDs do not
// show the age: the kernel assigns the lowest free one.
func PrincipalOf(mounts []mount.Mount) mount.Mount {
	return slices.MinFunc(mounts, func(a, b mount.Mount) int {
		return cmp.Or(
			-cmp.Compare(WholeRank(a), WholeRank(b)),
			cmp.Compare(len(a.Point), len(b.Point)),
		)
	})
}

// WholeRank is 1 for mounts of a whole filesystem, or of a whole subvolume of btrfs, and 0 for binds of a part.
func WholeRank(m mount.Mount) int {
	if m.Root == "/" || m.FSType == "btrfs" && slices.Contains(m.SuperOptions, "subvol="+m.Root) {
		return 1
	}
	return 0
}

// Subject is the filesystem in findings: its principal mount point.
func (f Filesystem) Subject() finding.Subject {
	return finding.Subject{Kind: "filesystem", Name: f.Principal.Point}
}

// Ignored reports whether one of its mount points is in points.
func (f Filesystem) Ignored(points []string) bool {
	return slices.ContainsFunc(f.Mounts, func(m mount.Mount) bool { return slices.Contains(points, m.Point) })
}

// Option reports whether the filesystem itself has an option. All of its mounts show the same ones.
func (f Filesystem) Option(name string) bool { return slices.Contains(f.Principal.SuperOptions, name) }

// VolumePods names the pods whose volume the filesystem is.
func (f Filesystem) VolumePods(ctx context.Context, h *host.Host) []string {
	var uids []string
	for _, m := range f.Mounts {
		if uid, ok := h.Paths.PodOfPath(m.Point); ok && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return checkkit.PodNames(ctx, h, uids)
}

// serves reports whether a mount inside a container is of the filesystem, or is an overlay that writes to it.
func (f Filesystem) serves(hostMounts []mount.Mount, m mount.Mount) bool {
	if m.Device() == f.Device {
		return true
	}
	if m.FSType != "overlay" {
		return false
	}
	for _, option := range m.SuperOptions {
		if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
			return f.Holds(hostMounts, upper)
		}
	}
	return false
}

// Identity distinguishes one mount of a device from the next.
func (f Filesystem) Identity() string { return f.Device + " " + strconv.Itoa(f.Principal.ID) }

// Probe returns the request for a filesystem, through a mount that nothing covers.
func (f Filesystem) Probe(h *host.Host, t *Tree) (probe.ProbeRequest, error) {
	point, ok := t.reachable(f)
	if !ok {
		return probe.ProbeRequest{}, fmt.Errorf("every mount of %s is covered by another one", f.Principal.Source)
	}
	if h.Paths.InitPID > 1 {
		point = path.Join("/proc", strconv.Itoa(h.Paths.InitPID), "root", point)
	}
	return probe.ProbeRequest{Op: probe.ProbeStatfs, Path: point}, nil
}

// IsRemote reports whether the data of a filesystem come from a server, a host or a daemon that may be unreachable.
func IsRemote(fstype string) bool {
	return strings.HasPrefix(fstype, "fuse.") || slices.Contains([]string{
		"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "fuse", "fuseblk", "9p", "virtiofs", "lustre", "glusterfs",
		"afs", "beegfs", "gpfs", "orangefs", "coda", "panfs", "wekafs", "vboxsf", "ncpfs", "daos", "quobyte",
	}, fstype)
}

// Holds reports whether a path of the host is on the filesystem.
func (f Filesystem) Holds(hostMounts []mount.Mount, name string) bool {
	m, found := MountHolding(hostMounts, name)
	return found && m.Device() == f.Device
}

// FilesystemsOf groups the wanted mounts by superblock, in the order of the mount table.
func FilesystemsOf(mounts []mount.Mount, wanted func(mount.Mount) bool) []Filesystem {
	var filesystems []Filesystem
	index := make(map[string]int) // in filesystems, by device
	for _, m := range mounts {
		if !wanted(m) {
			continue
		}
		device := m.Device()
		at, known := index[device]
		if !known {
			at = len(filesystems)
			index[device] = at
			filesystems = append(filesystems, Filesystem{Device: device})
		}
		filesystems[at].Mounts = append(filesystems[at].Mounts, m)
	}
	for i, f := range filesystems {
		filesystems[i].Principal = PrincipalOf(f.Mounts)
	}
	return filesystems
}

// BlockFilesystems returns the filesystems on block devices.
func BlockFilesystems(mounts []mount.Mount) []Filesystem {
	return FilesystemsOf(mounts, Writable)
}

// Writable reports whether a mount is of a filesystem on a block device and writable by design.
func Writable(m mount.Mount) bool { return OnBlockDevice(m) && !ReadOnlyByDesign(m.FSType) }

// MountHolding returns the mount that a path is on: the deepest one above it, and of several at one point the last.
func MountHolding(mounts []mount.Mount, name string) (mount.Mount, bool) {
	name = path.Clean(name)
	if !path.IsAbs(name) {
		return mount.Mount{}, false
	}
	var best *mount.Mount
	for i := range mounts {
		m := &mounts[i]
		// The kernel's paths are clean. This runs for each mount of each pod.
		above := m.Point == "/" || name == m.Point || strings.HasPrefix(name, m.Point) && name[len(m.Point)] == '/'
		if above && (best == nil || len(m.Point) >= len(best.Point)) {
			best = m
		}
	}
	if best == nil {
		return mount.Mount{}, false
	}
	return *best, true
}

// Fault is one way in which a filesystem fails.
type Fault struct {
	Reason, Text, Evidence string
	Certain                bool // one observation proves it
}
