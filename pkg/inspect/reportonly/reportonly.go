// Package reportonly lists the kinds of objects that pods leave behind and that the agent only reports: a release of them
// would destroy data, or is their owner's alone. What is said about each is in inspect.Specs. The containers,
// shims, addresses, units and logs here are released once that is opted in: they are found by the same reads as the rest.
package reportonly

import (
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Listers returns the lister of each kind, for one inspector: some remember what an earlier pass has seen.
func Listers() map[inspect.Kind]inspect.Lister {
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
	}
}
