package kinds

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func storageSessionSpec() Spec {
	return Spec{
		Kind: object.StorageSession, List: listStorageSessions, InUse: (*witness.Inventory).VolumeInUse,
		ReportOnly: "a session that ends under queued writes loses them: its driver or an administrator has to decide",
		Unused:     "nothing mounts, maps or swaps on its disks, and no pod here has a directory of its volume",
		What: "an iSCSI session or an NVMe over TCP controller whose target is named after a PersistentVolume " +
			"(`pvc-<UUID>`)",
		Harm: "the volume stays connected and may be refused on another node; a server that is gone for good is tried " +
			"again and again, and each reader of the disk hangs",
	}
}

// listStorageSessions lists the connections to storage servers made for volumes of pods if the target's name contains a
// PersistentVolume's. Others are not listed: they do not name a volume for certain.
func listStorageSessions(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	found, failed := volume.Sessions(scan.Host)
	if len(found) == 0 {
		return nil, failed
	}
	use, err := readDeviceUse(scan)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	objects := make([]object.Object, 0, len(found))
	for i := range found {
		s := &found[i]
		target := strings.ToValidUTF8(s.Target, "\ufffd")
		o := object.Object{
			Kind: object.StorageSession, ID: s.Path,
			Identity: named("target", target),
			Facts: object.Facts("target", target, "volume", s.Volume, "state", s.State,
				"devices", strings.Join(s.Disks, " ")),
		}
		users, elsewhere := use.ofSession(scan, s)
		for _, disk := range s.Disks {
			if use.swaps("/dev/" + disk) {
				elsewhere = "swap"
			}
		}
		if s.Other != "" {
			elsewhere = s.Other
		}
		attachUsers(&o, append(users, use.volumes.Volumes[s.Volume]...), elsewhere)
		doubtUnused(&o, use.volumes)
		objects = append(objects, o)
	}
	return objects, failed
}

// ofSession returns the pods that mount a device of a session, or its device file, and another mount point of one.
func (u deviceUse) ofSession(scan *hostscan.Scan, s *volume.Session) (users []string, elsewhere string) {
	return mountedBy(scan, u.mounts, func(m mount.Mount) bool {
		file := m.FSType == "devtmpfs" && slices.Contains(s.Disks, path.Base(m.Root))
		return file || slices.Contains(s.Numbers, m.Device())
	})
}
