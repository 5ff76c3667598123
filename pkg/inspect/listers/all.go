// Package listers lists further kinds of leftovers of pods; the kinds that every inspection needs are in pkg/inspect.
// Most are report-only, since a release would destroy data or is the owner's task alone; containers, shims, bundles,
// directories of sandboxes, addresses, units and logs are released once opted in. inspect.Specs describes each kind.
package listers

import (
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// All returns the lister of each kind, for one inspector: some remember earlier passes.
func All() map[inspect.Kind]inspect.Lister {
	var (
		segments creators
		volumes  attached
		fuse     servers
	)
	return map[inspect.Kind]inspect.Lister{
		inspect.PodLogs:             listPodLogs,
		inspect.LogLink:             listLogLinks,
		inspect.StagedVolume:        listStagedVolumes,
		inspect.PluginSocket:        listPluginSockets,
		inspect.DeviceAllocation:    listDeviceAllocations,
		inspect.BlockDevice:         listBlockDevices,
		inspect.SystemdUnit:         listSystemdUnits,
		inspect.ContainerdContainer: listContainerdContainers,
		inspect.Task:                listTasks,
		inspect.Shim:                listShims,
		inspect.Rootfs:              listRootfs,
		inspect.SandboxDirectory:    listSandboxDirectories,
		inspect.Snapshot:            listSnapshots,
		inspect.IPAMLease:           listIPAMLeases,
		inspect.PortMapping:         listPortMappings,
		inspect.VolumeAttachment:    volumes.list,
		inspect.DetachedVolume:      volumes.lacking,
		inspect.StorageSession:      listStorageSessions,
		inspect.SharedMemory:        segments.list,
		inspect.RunFile:             listRunFiles,
		inspect.HostMount:           fuse.list,
		inspect.StrayCgroup:         listStrayCgroups,
	}
}
