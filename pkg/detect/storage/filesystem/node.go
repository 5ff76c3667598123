package filesystem

import (
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// HoldsImages is the name of the runtime's root among the NodePaths.
const HoldsImages = "images and containers"

type nodePath struct{ Name, Path string }

// NodePaths returns the paths to which the node itself must be able to write.
func NodePaths(paths host.Paths) []nodePath {
	all := []nodePath{
		{"the root filesystem", "/"}, {"kubelet's data", paths.KubeletRoot}, {HoldsImages, paths.ContainerdRoot},
		{"the runtime's state", paths.ContainerdState}, {"logs of pods", paths.PodLogs},
	}
	return slices.DeleteFunc(all, func(p nodePath) bool { return p.Path == "" })
}

// systemPaths are directories of the operating system to which its services or its users write.
func systemPaths() []string {
	return []string{
		"/usr", "/var", "/var/lib", "/var/log", "/var/tmp", "/var/cache", "/var/spool", "/etc", "/opt", "/home", "/root", "/tmp",
		"/boot", "/local",
	}
}

// NeededByNode returns the path of the node, with its name, that a filesystem holds; "" if it holds none. Symbolic links
// are followed on the root filesystem only: another one could hang.
func (f Filesystem) NeededByNode(h *host.Host, mounts []mount.Mount) string {
	all := NodeData(mounts, h.Paths)
	for _, name := range systemPaths() {
		all = append(all, nodePath{"the system", name})
	}
	root, _ := MountHolding(mounts, "/")
	for _, p := range all {
		if f.Holds(mounts, mount.Follow(h.Files, mounts, map[int]bool{root.ID: true}, p.Path)) {
			return p.Name + " (" + p.Path + ")"
		}
	}
	return ""
}

// NodeData returns the NodePaths, and the directories of etcd on which, or below which, a filesystem is mounted for it.
// Whether one that lies on another filesystem is in use is not known without a look at it, which could hang.
func NodeData(mounts []mount.Mount, paths host.Paths) []nodePath {
	all := NodePaths(paths)
	for _, dir := range distro.EtcdDirs() {
		for _, m := range mounts {
			if mount.Below(m.Point, dir) {
				all = append(all, nodePath{"etcd's data", m.Point})
			}
		}
	}
	return all
}

// DeviceOf returns the kernel's name of the device in the first field of fstab, or an empty name.
func DeviceOf(files host.Files, spec string) string {
	tag, value, tagged := strings.Cut(spec, "=")
	if tagged && !strings.HasPrefix(spec, "/") {
		// udev escapes characters that a file name cannot have, mostly blanks in labels.
		value = strings.ReplaceAll(strings.Trim(value, `"`), " ", `\x20`)
		spec = "/dev/disk/by-" + strings.ToLower(tag) + "/" + value
	}
	if !strings.HasPrefix(spec, "/dev/") {
		return ""
	}
	if target, err := files.Link(spec); err == nil { // by-uuid and the like, LVM
		return path.Base(target)
	}
	return path.Base(spec)
}
