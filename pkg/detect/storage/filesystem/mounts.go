package filesystem

import (
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

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
