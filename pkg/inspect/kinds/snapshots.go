package kinds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func snapshotSpec() Spec {
	return Spec{
		Kind: object.Snapshot, List: listSnapshots, FromRuntime: true, GoneFrom: ofSandbox,
		ReportOnly: "containerd's garbage collection removes it, unless a label or a lease of another client keeps it",
		What:       "an active snapshot of containerd in the namespace `k8s.io`: the writable layer of a container",
		Harm:       "disk space",
	}
}

// listSnapshots lists the active snapshots of the snapshotters that containerd's containers use. Their disk usage is
// not requested: that would walk all their files.
func listSnapshots(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	records, err := scan.Records()
	if errors.Is(err, hosterr.ErrNotConfigured) || scan.Host.Containerd.Snapshots == nil {
		return nil, nil // another runtime
	}
	if err != nil {
		return nil, err
	}
	const standard = "overlayfs"                // unless configured otherwise
	users := make(map[string]map[string]string) // containers by snapshotter and key
	for _, record := range records {
		name := cmp.Or(record.Snapshotter, standard)
		if users[name] == nil {
			users[name] = make(map[string]string)
		}
		users[name][record.SnapshotKey] = record.ID
	}
	_, used := users[standard]
	if !used {
		users[standard] = nil // it need not exist
	}
	var objects []object.Object
	var failures []error
	for _, name := range slices.Sorted(maps.Keys(users)) {
		active, err := scan.Host.Containerd.Snapshots(ctx, name)
		if err != nil && (used || name != standard) {
			failures = append(failures, fmt.Errorf("snapshotter %s: %w", name, err))
		}
		for _, info := range active {
			objects = append(objects, snapshotObject(name, info, users[name][info.Name]))
		}
	}
	return objects, errors.Join(failures...)
}

// snapshotObject returns the object of a snapshot used by a container as its own; user is empty if there is none.
func snapshotObject(snapshotter string, info snapshots.Info, user string) object.Object {
	o := object.Object{
		Kind: object.Snapshot, ID: snapshotter + "/" + info.Name, ContainerID: info.Name,
		Identity: object.Identity{Runtime: object.RuntimeID{Created: info.Created.UnixNano()},
			Names: map[string]string{"key": info.Name, "snapshotter": snapshotter}},
		Facts: object.Facts("snapshotter", snapshotter, "parent", info.Parent,
			"created", info.Created.UTC().Format(time.RFC3339)),
	}
	switch {
	case !host.IsContainerID(info.Name):
		o.Foreign = "not a container's: its key has another format"
	case user != "" && user != info.Name:
		o.Foreign = "used by the container " + user
	}
	return o
}
