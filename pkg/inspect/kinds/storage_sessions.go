package kinds

import (
	"context"
	"errors"
	"io/fs"
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
	for i := range found {
		s := &found[i]
		target := strings.ToValidUTF8(s.Target, "\ufffd")
		o := object.Object{
			Kind: object.StorageSession, ID: s.Path,
			Identity: object.Identity{"target": target},
			Facts: object.Facts("target", target, "volume", s.Volume, "state", s.State,
				"devices", strings.Join(s.Disks, " ")),
		}
		users, elsewhere := sessionUsers(scan, s, mounts)
		for _, disk := range s.Disks {
			if strings.Contains(swaps, "/dev/"+disk+" ") {
				elsewhere = "swap"
			}
		}
		if s.Other != "" {
			elsewhere = s.Other
		}
		attachUsers(&o, append(users, used.Volumes[s.Volume]...), elsewhere)
		doubtUnused(&o, used)
		objects = append(objects, o)
	}
	return objects, failed
}

// sessionUsers returns the pods that mount a device of a session, or its device file, and another mount point of one.
func sessionUsers(scan *hostscan.Scan, s *volume.Session, mounts []mount.Mount) (users []string, elsewhere string) {
	for _, m := range mounts {
		file := m.FSType == "devtmpfs" && slices.Contains(s.Disks, path.Base(m.Root))
		if !file && !slices.Contains(s.Numbers, m.Device()) {
			continue
		}
		if uid, ok := scan.Host.Paths.PodOfPath(m.Point); ok {
			users = append(users, uid)
		} else {
			elsewhere = m.Point
		}
	}
	return users, elsewhere
}
