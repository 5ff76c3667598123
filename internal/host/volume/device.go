package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// maxDevices bounds the block devices to check.
const maxDevices = 8192

// Devices lists the loop devices with a file below kubelet's root and the encrypted mappings named after a
// PersistentVolume. If it returns an error, some are missing.
func Devices(h *host.Host) ([]Device, error) {
	names, err := h.Files.List("/sys/block")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(names) > maxDevices {
		err = fmt.Errorf("list /sys/block: more than %d devices", maxDevices)
	}
	if err != nil {
		return nil, err
	}
	var found []Device
	var failures []error
	for _, name := range names {
		if d, err := readDevice(h, name); err != nil {
			failures = append(failures, err)
		} else if d.Volume != "" {
			found = append(found, d)
		}
	}
	return found, errors.Join(failures...)
}

// Device is a device used by a volume.
type Device struct {
	Name, Number string   // loop3, 7:3
	Sequence     string   // the kernel's number of this use of the device (diskseq), since Linux 5.15
	Volume       string   // the file of a loop device, the name of a mapping
	Holders      []string // devices built on it
}

// persistentVolume matches the names that provisioners give to volumes.
var persistentVolume = regexp.MustCompile(`pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// readDevice reads /sys/block/<name>: Documentation/ABI/testing/sysfs-block-loop, sysfs-block-dm. A device without a
// Volume does not belong to kubelet's volumes.
func readDevice(h *host.Host, name string) (Device, error) {
	files, dir := h.Files, path.Join("/sys/block", name)
	d := Device{Name: name}
	switch {
	case strings.HasPrefix(name, "loop"):
		file, err := files.Text(path.Join(dir, "loop/backing_file"))
		if vanished(err) {
			return d, nil // not in use
		}
		if err != nil {
			return d, err
		}
		if !mount.Below(file, h.Paths.KubeletRoot) {
			return d, nil
		}
		d.Volume = file
	case strings.HasPrefix(name, "dm-"):
		uuid, err := files.Text(path.Join(dir, "dm/uuid"))
		if vanished(err) || err == nil && !strings.HasPrefix(uuid, "CRYPT-") {
			return d, nil
		}
		mapping, nameErr := files.Text(path.Join(dir, "dm/name"))
		if err = errors.Join(err, nameErr); err != nil {
			return d, err
		}
		d.Volume = persistentVolume.FindString(mapping)
	default:
		return d, nil
	}
	if d.Volume == "" {
		return d, nil
	}
	var err error
	d.Sequence, _ = files.Text(path.Join(dir, "diskseq"))
	d.Holders, err = files.List(path.Join(dir, "holders"))
	var numberErr error
	d.Number, numberErr = files.Text(path.Join(dir, "dev"))
	return d, errors.Join(hosterr.Ignore(err, fs.ErrNotExist), numberErr)
}

// vanished reports whether a file of sysfs is missing, or its device is being removed.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
}
