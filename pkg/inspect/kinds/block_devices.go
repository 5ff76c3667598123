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
	objects, err := blockObjects(scan, found)
	return objects, errors.Join(failed, err)
}

func blockObjects(scan *hostscan.Scan, found []volume.Device) ([]object.Object, error) {
	mounts, err := scan.Mounts()
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
	objects := make([]object.Object, 0, len(found))
	for _, d := range found {
		named := strings.ToValidUTF8(d.Volume, "\ufffd")
		o := object.Object{Kind: object.BlockDevice, ID: "/dev/" + d.Name,
			Identity: object.Identity{"device": d.Number,
				"sequence": d.Sequence, "volume": named}, Facts: object.Facts("volume", named)}
		users, elsewhere := blockUsers(scan, d, mounts, used)
		switch {
		case len(d.Holders) > 0:
			elsewhere = "/dev/" + d.Holders[0]
		case strings.Contains(swaps, o.ID+" "):
			elsewhere = "swap"
		}
		attachUsers(&o, users, elsewhere)
		doubtUnused(&o, used)
		objects = append(objects, o)
	}
	return objects, nil
}

// blockUsers returns the pods whose volume a device is, and a mount of it outside pods.
func blockUsers(scan *hostscan.Scan, d volume.Device, mounts []mount.Mount, used volume.Used) (users []string,
	elsewhere string) {
	for _, m := range mounts {
		if m.Device() != d.Number {
			continue
		}
		if uid, ok := scan.Host.Paths.PodOfPath(m.Point); ok {
			users = append(users, uid)
		} else {
			elsewhere = m.Point
		}
	}
	if uid, ok := scan.Host.Paths.PodOfPath(d.Volume); ok {
		users = append(users, uid)
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(d.Volume, " (deleted)"), "/") {
		if users = append(users, used.Volumes[part]...); host.IsPodUID(part) {
			users = append(users, part)
		}
		users = append(users, used.Handles[part]...) // the directory of a staged volume
	}
	return users, elsewhere
}
