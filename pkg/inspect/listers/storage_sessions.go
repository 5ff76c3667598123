package listers

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// listStorageSessions lists the connections to storage servers made for volumes of pods if the target's name contains a
// PersistentVolume's. Others are not listed: they do not name a volume for certain.
func listStorageSessions(_ context.Context, scan *hostscan.Scan) ([]inspect.Object, error) {
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
	objects := make([]inspect.Object, 0, len(found))
	for i := range found {
		s := &found[i]
		target := strings.ToValidUTF8(s.Target, "\ufffd")
		o := inspect.Object{
			Kind: inspect.StorageSession, ID: s.Path,
			Identity: inspect.Identity{"target": target},
			Facts: inspect.Facts("target", target, "volume", s.Volume, "state", s.State,
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
