package kernellog

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// loopDevice is a loop device or one of its partitions.
var loopDevice = regexp.MustCompile(`^(loop\d{1,7})(p\d{1,3})?$`)

// loopUnused reports whether a loop device is certainly unused: it has no backing file any more (/sys/block/loopN/loop
// exists only while it has one), or it and its partitions are neither in the mount table nor in the device mapper
// (/sys/block/loopN/holders). A device that cannot be read counts as used.
func loopUnused(h *host.Host, name string) bool {
	parts := loopDevice.FindStringSubmatch(name)
	if parts == nil {
		return false
	}
	dir := "/sys/block/" + parts[1]
	if _, err := h.Files.Text(dir + "/loop/backing_file"); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	mounts, err := mount.Table(h)
	if err != nil {
		return false
	}
	entries, err := h.Files.List(dir)
	if err != nil {
		return false
	}
	devices := map[string]string{parts[1]: dir}
	for _, entry := range entries {
		if loopDevice.MatchString(entry) {
			devices[entry] = dir + "/" + entry
		}
	}
	for device, dir := range devices {
		number, err := h.Files.Text(dir + "/dev")
		if err != nil {
			return false
		}
		holders, err := h.Files.List(dir + "/holders")
		if err != nil || len(holders) > 0 || slices.ContainsFunc(mounts, func(m mount.Mount) bool {
			return m.Device() == number || m.Source == "/dev/"+device // btrfs has an anonymous device number
		}) {
			return false
		}
	}
	return true
}
