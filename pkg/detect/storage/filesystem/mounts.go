package filesystem

import (
	"github.com/nodeagent/nodeagent/internal/host"
)

// FilesystemsOf groups the wanted mounts by superblock, in the order of the mount table.
func FilesystemsOf(mounts []host.Mount, wanted func(host.Mount) bool) []Filesystem {
	var filesystems []Filesystem
	place := make(map[string]int) // in filesystems, by device
	for _, m := range mounts {
		if !wanted(m) {
			continue
		}
		at, known := place[m.Device()]
		if !known {
			at = len(filesystems)
			place[m.Device()] = at
			filesystems = append(filesystems, Filesystem{Device: m.Device()})
		}
		filesystems[at].Mounts = append(filesystems[at].Mounts, m)
	}
	for i, f := range filesystems {
		filesystems[i].Principal = PrincipalOf(f.Mounts)
	}
	return filesystems
}

// BlockFilesystems returns the filesystems on block devices.
func BlockFilesystems(mounts []host.Mount) []Filesystem {
	return FilesystemsOf(mounts, func(m host.Mount) bool { return OnBlockDevice(m) && !ReadOnlyByDesign(m.FSType) })
}

// MountHolding returns the mount that a path lies on: the deepest one above it decides, and of several at one place the last.
func MountHolding(mounts []host.Mount, name string) (host.Mount, bool) {
	best := -1
	for i, m := range mounts {
		if (best < 0 || len(m.Point) >= len(mounts[best].Point)) && host.Below(name, m.Point) {
			best = i
		}
	}
	if best < 0 {
		return host.Mount{}, false
	}
	return mounts[best], true
}

func MountsByID(mounts []host.Mount) map[int]host.Mount {
	byID := make(map[int]host.Mount, len(mounts))
	for _, m := range mounts {
		byID[m.ID] = m
	}
	return byID
}
