// Package listers lists the kinds of objects that pods leave behind beside those that every inspection needs, which are
// in pkg/inspect: most are only reported, since a release would destroy data or is their owner's alone; containers,
// shims, bundles, directories of sandboxes, addresses, units and logs are released once that is opted in. What is said about each is in inspect.Specs.
package listers

import (
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// All returns the lister of each kind, for one inspector: some remember what an earlier pass has seen.
func All() map[inspect.Kind]inspect.Lister {
	var (
		segments creators
		volumes  attached
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
		inspect.StorageSession:      listStorageSessions,
		inspect.SharedMemory:        segments.list,
		inspect.StrayCgroup:         listStrayCgroups,
	}
}
