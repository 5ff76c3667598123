package filesystem

import (
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
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

// DeviceOf returns the kernel's name of the device that the first field of fstab means, or an empty name.
func DeviceOf(files host.Files, spec string) string {
	tag, value, tagged := strings.Cut(spec, "=")
	if tagged && !strings.HasPrefix(spec, "/") {
		// udev escapes what cannot be in a file name, most of all blanks in labels.
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
