package kinds

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func blockDeviceSpec() Spec {
	return Spec{
		Kind: object.BlockDevice, List: listBlockDevices, InUse: (*witness.Inventory).VolumeInUse,
		ReportOnly: "detaching a device loses its queued writes: its driver or an administrator has to decide",
		Unused:     "nothing mounts, maps or swaps on it, and no pod here has a directory of its volume",
		What: "a loop device with a file below kubelet's directory, or an encrypted mapping named after a " +
			"PersistentVolume (`pvc-<UUID>`)",
		Harm: "the file's disk space is not given back, the volume below cannot be detached",
	}
}

// listBlockDevices lists the block devices under volumes of pods if the device itself names the volume. An
// administrator's devices are not listed, and neither are LVM, multipath, iSCSI, NVMe and NBD devices: they do not name
// a pod or a PersistentVolume for certain, or they stay by design while no pod uses them.
func listBlockDevices(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	found, failed := volume.Devices(scan.Host)
	if len(found) == 0 {
		return nil, failed
	}
	use, err := readDeviceUse(scan)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	objects := make([]object.Object, 0, len(found))
	for _, d := range found {
		name := strings.ToValidUTF8(d.Volume, "\ufffd")
		o := object.Object{Kind: object.BlockDevice, ID: "/dev/" + d.Name,
			Identity: named("device", d.Number, "sequence", d.Sequence, "volume", name), Facts: object.Facts("volume", name)}
		users, elsewhere := use.ofDevice(scan, d)
		switch {
		case len(d.Holders) > 0:
			elsewhere = "/dev/" + d.Holders[0]
		case use.swaps(o.ID):
			elsewhere = "swap"
		}
		attachUsers(&o, users, elsewhere)
		doubtUnused(&o, use.volumes)
		objects = append(objects, o)
	}
	return objects, failed
}

// deviceUse has the users of block devices on the node.
type deviceUse struct {
	mounts   []mount.Mount
	swapFile string // /proc/swaps; empty without swap
	volumes  volume.Used
}

func readDeviceUse(scan *hostscan.Scan) (use deviceUse, err error) {
	if use.mounts, err = scan.Mounts(); err != nil {
		return use, err
	}
	use.swapFile, err = scan.Host.Files.Text("/proc/swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return use, err
	}
	use.volumes, err = volume.UsedByPods(scan.Host)
	return use, err
}

// swaps reports whether the node swaps on a device.
func (u deviceUse) swaps(device string) bool { return strings.Contains(u.swapFile, device+" ") }

// ofDevice returns the pods whose volume a device is, and a mount of it outside pods.
func (u deviceUse) ofDevice(scan *hostscan.Scan, d volume.Device) (users []string, elsewhere string) {
	users, elsewhere = mountedBy(scan, u.mounts, func(m mount.Mount) bool { return m.Device() == d.Number })
	if uid, ok := scan.Host.Paths.PodOfPath(d.Volume); ok {
		users = append(users, uid)
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(d.Volume, " (deleted)"), "/") {
		if users = append(users, u.volumes.Volumes[part]...); host.IsPodUID(part) {
			users = append(users, part)
		}
		users = append(users, u.volumes.Handles[part]...) // the directory of a staged volume
	}
	return users, elsewhere
}
