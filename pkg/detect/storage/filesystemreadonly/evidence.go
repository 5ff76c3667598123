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

// ext4 records errors with the time of the wall clock, so only that clock shows whether one happened in this boot, and
// it may have been set by years since. The decision about a mounted filesystem is kept, and an error recorded while
// the agent was running is of this boot whatever the clock shows.

// ext4State has the decisions about the errors of each mounted ext4 filesystem.
type ext4State struct {
	known map[mountKey]ext4Errors
}

// mountKey is one mounted filesystem. Both numbers are reused after an unmount, but rarely together.
type mountKey struct {
	device string
	mount  int
}

// settle keeps earlier decisions about errors, and drops filesystems that are gone.
func (m *ext4State) settle(filesystems []examined) {
	known := make(map[mountKey]ext4Errors)
	for _, f := range filesystems {
		if f.ext4 == nil {
			continue
		}
		key := mountKey{f.Device, f.Principal.ID}
		if old, ok := m.known[key]; ok {
			switch {
			case f.ext4.count == old.count && f.ext4.last.Equal(old.last):
				f.ext4.sinceBoot, f.ext4.observed, f.ext4.shown = old.sinceBoot, old.observed, old.shown
			case f.ext4.count > old.count:
				f.ext4.sinceBoot, f.ext4.observed, f.ext4.shown = true, true, old.shown
			}
			f.ext4.shown = f.ext4.shown || f.ext4.observed && (f.Option("ro") || f.Option("emergency_ro"))
		}
		known[key] = *f.ext4
	}
	m.known = known
}
