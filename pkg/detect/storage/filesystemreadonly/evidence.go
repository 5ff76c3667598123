package filesystemreadonly

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
)

// gatherEvidence reads the state files of each filesystem.
func gatherEvidence(h *host.Host, filesystems []examined, results *checkkit.Results) error {
	devices, err := h.Files.List("/sys/dev/block")
	if err != nil {
		return fmt.Errorf("list /sys/dev/block: %w", err) // without it every device would seem gone
	}
	table := slices.DeleteFunc(filesystem.Fstab(h.Files), func(e filesystem.FstabEntry) bool { return !e.ReadOnly() })
	bootedAt := checkkit.BootTime(h.Clock())
	for i := range filesystems {
		f := &filesystems[i]
		results.Doubt(f.Subject(), f.gather(h.Files, devices, table, bootedAt))
	}
	return nil
}

func (f *examined) gather(files host.Files, devices []string, table []filesystem.FstabEntry, bootedAt time.Time) error {
	if f.Principal.Major == 0 { // btrfs: its device number belongs to no device
		f.fstabRO = wantedReadOnly(files, table, f.Filesystem, path.Base(f.Principal.Source))
		return nil
	}
	if !slices.Contains(devices, f.Device) {
		f.gone = "no block device " + f.Device
		return nil
	}
	link := "/sys/dev/block/" + f.Device
	target, err := files.Link(link)
	if errors.Is(err, fs.ErrNotExist) {
		f.gone = "no block device " + f.Device
		return nil
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	device := path.Join(path.Dir(link), target) // /sys/devices/…/block/sda/sda1
	if f.gone, err = deviceGone(files, device); err != nil {
		return err
	}
	name := path.Base(device)
	f.fstabRO = wantedReadOnly(files, table, f.Filesystem, name)
	f.ext4, err = readExt4Errors(files, "/sys/fs/ext4/"+name, bootedAt)
	return err
}

// deviceGone returns why a block device is gone: a size of 0 means a loop device without its file, a removed card, or a
// detached network disk; for a SCSI disk the state counts, which for a partition is one level up.
func deviceGone(files host.Files, device string) (string, error) {
	size, err := files.Text(device + "/size")
	if err != nil {
		return "", err
	}
	if size == "0" {
		return fmt.Sprintf("block device %s has size 0", path.Base(device)), nil
	}
	for _, disk := range []string{device, path.Dir(device)} {
		switch state, err := files.Text(disk + "/device/state"); {
		case err != nil: // some kinds of disk have none
		case slices.Contains([]string{"offline", "transport-offline", "cancel", "deleted", "dead"}, state):
			return fmt.Sprintf("disk %s is %s", path.Base(disk), state), nil
		}
	}
	return "", nil
}

// readExt4Errors reads the error counters of ext4, which also drives ext2 and ext3. Other filesystems have no such
// folder.
func readExt4Errors(files host.Files, dir string, bootedAt time.Time) (*ext4Errors, error) {
	count, err := checkkit.ReadNumber(files, dir+"/errors_count")
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	last, err := checkkit.ReadNumber(files, dir+"/last_error_time")
	if err != nil {
		return nil, err
	}
	function, err := files.Text(dir + "/last_error_func")
	if err != nil {
		function = "unknown function" // before Linux 4.20
	}
	at := time.Unix(int64(last), 0)
	return &ext4Errors{count: count, last: at, function: function, sinceBoot: count > 0 && at.After(bootedAt)}, nil
}

// wantedReadOnly reports whether fstab wants the filesystem read-only, by its mount point or by its device.
func wantedReadOnly(files host.Files, table []filesystem.FstabEntry, f filesystem.Filesystem, device string) bool {
	return slices.ContainsFunc(table, func(e filesystem.FstabEntry) bool {
		mountedAt := func(m mount.Mount) bool { return filesystem.WholeRank(m) == 1 && m.Point == e.Point }
		return slices.ContainsFunc(f.Mounts, mountedAt) || filesystem.DeviceOf(files, e.Spec) == device
	})
}
