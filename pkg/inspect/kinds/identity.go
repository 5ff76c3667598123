package kinds

import (
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// fileIdentity identifies a file, a directory or a cgroup by its device number and inode.
func fileIdentity(device, inode uint64) object.Identity {
	return object.Identity{File: object.FileID{Device: hosterr.Device(device), Inode: inode}}
}

func mountIdentity(m mount.Mount) object.Identity {
	return object.Identity{Mount: object.MountID{
		ID: m.ID, Device: m.Device(), Root: m.Root, Point: m.Point, Source: m.Source, Type: m.FSType,
	}}
}

// named identifies an object that no action touches by pairs of name and text.
func named(pairs ...string) object.Identity {
	names := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		names[pairs[i]] = pairs[i+1]
	}
	return object.Identity{Names: names}
}
