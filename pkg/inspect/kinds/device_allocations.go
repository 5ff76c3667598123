package kinds

import (
	"context"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func deviceAllocationSpec() Spec {
	return Spec{
		Kind: object.DeviceAllocation, List: listDeviceAllocations,
		ReportOnly: "kubelet gives it back with its next allocation, or when it is restarted; its checkpoints must not be " +
			"changed while it runs",
		What: "devices, CPUs or memory that kubelet's checkpoint gives to a pod (`kubelet_internal_checkpoint`, " +
			"`cpu_manager_state`, `memory_manager_state`)",
		Harm: "kubelet may refuse pods that ask for them (UnexpectedAdmissionError)",
	}
}

// listDeviceAllocations lists the pods in kubelet's checkpoints, one object for each checkpoint, pod and resource.
func listDeviceAllocations(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	root := scan.Host.Paths.KubeletRoot
	allocations, err := kubelet.Allocations(scan.Host.Files.Path(root))
	objects := make([]object.Object, 0, len(allocations))
	for _, a := range allocations {
		o := object.Object{Kind: object.DeviceAllocation,
			ID:       path.Join(root, a.Checkpoint) + "#" + strings.TrimSuffix(a.UID+"/"+a.Resource, "/"),
			Pod:      object.Pod{UID: a.UID},
			Identity: named("uid", a.UID, "resource", a.Resource),
			Facts:    object.Facts("checkpoint", a.Checkpoint, "resource", a.Resource)}
		if !host.IsPodUID(a.UID) {
			o.Pod.UID, o.Foreign = "", "its owner has no UID of a pod"
		}
		objects = append(objects, o)
	}
	return objects, err
}
