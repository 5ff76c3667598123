package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
)

func blockDeviceSpec() KindSpec {
	return KindSpec{
		Kind: BlockDevice, List: listBlockDevices, InUse: volumeInUse,
		ReportOnly: "what is detached under queued writes loses them: its driver or an administrator has to decide",
		Unused:     "nothing mounts, maps or swaps on it, and no pod here has a directory of its volume",
		What: "a loop device with a file below kubelet's directory, or an encrypted mapping named after a " +
			"PersistentVolume (`pvc-<UUID>`)",
		Harm: "the file's disk space is not given back, the volume below cannot be detached",
	}
}

// maxBlockDevices bounds how many block devices are looked at.
const maxBlockDevices = 8192

// listBlockDevices lists the block devices that volumes of pods are made of, where the device itself names the volume.
// What an administrator set up is not listed, and neither are LVM, multipath, iSCSI, NVMe and NBD devices: nothing in
// them names a pod or a PersistentVolume for certain, or they stay by design while no pod uses them.
func listBlockDevices(_ context.Context, scan *Scan) ([]Object, error) {
	files := scan.Host.Files
	names, err := files.List("/sys/block")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(names) > maxBlockDevices {
		err = fmt.Errorf("list /sys/block: more than %d devices", maxBlockDevices)
	}
	if err != nil {
		return nil, err
	}
	var found []blockDevice
	var failures []error
	for _, name := range names {
		if d, err := readBlockDevice(scan, name); err != nil {
			failures = append(failures, err)
		} else if d.volume != "" {
			found = append(found, d)
		}
	}
	if len(found) == 0 {
		return nil, errors.Join(failures...)
	}
	objects, err := blockObjects(scan, found)
	return objects, errors.Join(append(failures, err)...)
}

// blockDevice is a device that a volume is made of.
type blockDevice struct {
	name, number string // loop3, 7:3
	sequence     string // the kernel's number of this use of the device (diskseq), since Linux 5.15
	volume       string // the file of a loop device, the name of a mapping
	holders      []string
}

// persistentVolume is the name that provisioners give to volumes.
var persistentVolume = regexp.MustCompile(`pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// readBlockDevice reads /sys/block/<name>: Documentation/ABI/testing/sysfs-block-loop, sysfs-block-dm. Without a volume
// it is none of ours.
func readBlockDevice(scan *Scan, name string) (blockDevice, error) {
	files, dir := scan.Host.Files, path.Join("/sys/block", name)
	d := blockDevice{name: name}
	switch {
	case strings.HasPrefix(name, "loop"):
		file, err := files.Text(path.Join(dir, "loop/backing_file"))
		if vanished(err) {
			return d, nil // not in use
		}
		if err != nil {
			return d, err
		}
		if !mount.Below(file, scan.Host.Paths.KubeletRoot) {
			return d, nil
		}
		d.volume = file
	case strings.HasPrefix(name, "dm-"):
		uuid, err := files.Text(path.Join(dir, "dm/uuid"))
		if vanished(err) || err == nil && !strings.HasPrefix(uuid, "CRYPT-") {
			return d, nil
		}
		mapping, nameErr := files.Text(path.Join(dir, "dm/name"))
		if err = errors.Join(err, nameErr); err != nil {
			return d, err
		}
		d.volume = persistentVolume.FindString(mapping)
	default:
		return d, nil
	}
	if d.volume == "" {
		return d, nil
	}
	var err error
	d.sequence, _ = files.Text(path.Join(dir, "diskseq"))
	d.holders, err = files.List(path.Join(dir, "holders"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	var numberErr error
	d.number, numberErr = files.Text(path.Join(dir, "dev"))
	return d, errors.Join(err, numberErr)
}

// vanished reports whether a file of sysfs is not there, or its device is going away.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO)
}

func blockObjects(scan *Scan, found []blockDevice) ([]Object, error) {
	mounts, err := scan.mounts()
	if err != nil {
		return nil, err
	}
	swaps, err := scan.Host.Files.Text("/proc/swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	used, err := volume.UsedByPods(scan.Host)
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(found))
	for _, d := range found {
		named := strings.ToValidUTF8(d.volume, "\ufffd")
		o := Object{Kind: BlockDevice, ID: "/dev/" + d.name, Identity: Identity{"device": d.number,
			"sequence": d.sequence, "volume": named}, Facts: facts("volume", named)}
		users, elsewhere := blockUsers(scan, d, mounts, used)
		switch {
		case len(d.holders) > 0:
			elsewhere = "/dev/" + d.holders[0]
		case strings.Contains(swaps, o.ID+" "):
			elsewhere = "swap"
		}
		slices.Sort(users)
		switch users = slices.Compact(users); {
		case elsewhere != "":
			o.InUse = "it is used by " + elsewhere
		case len(users) == 1:
			o.Pod.UID = users[0]
		case len(users) > 1:
			o.InUse = fmt.Sprintf("%d pods have a directory or a mount of it", len(users))
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// blockUsers returns the pods whose volume a device is, and a mount of it that is no pod's.
func blockUsers(scan *Scan, d blockDevice, mounts []mount.Mount, used volume.Used) (users []string, elsewhere string) {
	for _, m := range mounts {
		if m.Device() != d.number {
			continue
		}
		if uid, ok := scan.Host.Paths.PodOfPath(m.Point); ok {
			users = append(users, uid)
		} else {
			elsewhere = m.Point
		}
	}
	if uid, ok := scan.Host.Paths.PodOfPath(d.volume); ok {
		users = append(users, uid)
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(d.volume, " (deleted)"), "/") {
		if users = append(users, used.Volumes[part]...); host.IsPodUID(part) {
			users = append(users, part)
		}
		users = append(users, used.Handles[part]...) // the directory of a staged volume
	}
	return users, elsewhere
}
