package detect

import (
	"github.com/nodeagent/nodeagent/internal/host"
)

// filesystemsOf groups the wanted mounts by superblock, in the order of the mount table.
func filesystemsOf(mounts []host.Mount, wanted func(host.Mount) bool) []filesystem {
	var filesystems []filesystem
	place := make(map[string]int) // in filesystems, by device
	for _, m := range mounts {
		if !wanted(m) {
			continue
		}
		at, known := place[m.Device()]
		if !known {
			at = len(filesystems)
			place[m.Device()] = at
			filesystems = append(filesystems, filesystem{device: m.Device()})
		}
		filesystems[at].mounts = append(filesystems[at].mounts, m)
	}
	for i, f := range filesystems {
		filesystems[i].principal = principalOf(f.mounts)
	}
	return filesystems
}

// blockFilesystems returns the filesystems on block devices.
func blockFilesystems(mounts []host.Mount) []filesystem {
	return filesystemsOf(mounts, func(m host.Mount) bool { return onBlockDevice(m) && !readOnlyByDesign(m.FSType) })
}

// mountHolding returns the mount that a path lies on: the deepest one above it decides, and of several at one place the last.
func mountHolding(mounts []host.Mount, name string) (host.Mount, bool) {
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

// holds reports whether a path of the host lies on the filesystem.
func (f filesystem) holds(hostMounts []host.Mount, name string) bool {
	m, found := mountHolding(hostMounts, name)
	return found && m.Device() == f.device
}

func mountsByID(mounts []host.Mount) map[int]host.Mount {
	byID := make(map[int]host.Mount, len(mounts))
	for _, m := range mounts {
		byID[m.ID] = m
	}
	return byID
}
