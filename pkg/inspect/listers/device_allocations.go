package listers

import (
	"context"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// listDeviceAllocations lists the pods in kubelet's checkpoints, one object for each checkpoint, pod and resource.
func listDeviceAllocations(_ context.Context, scan *hostscan.Scan) ([]inspect.Object, error) {
	root := scan.Host.Paths.KubeletRoot
	allocations, err := kubelet.Allocations(scan.Host.Files.Path(root))
	objects := make([]inspect.Object, 0, len(allocations))
	for _, a := range allocations {
		o := inspect.Object{Kind: inspect.DeviceAllocation,
			ID:  path.Join(root, a.Checkpoint) + "#" + strings.TrimSuffix(a.UID+"/"+a.Resource, "/"),
			Pod: inspect.Pod{UID: a.UID}, Identity: inspect.Identity{"uid": a.UID, "resource": a.Resource},
			Facts: inspect.Facts("checkpoint", a.Checkpoint, "resource", a.Resource)}
		if !host.IsPodUID(a.UID) {
			o.Pod.UID, o.Foreign = "", "its owner has no UID of a pod"
		}
		objects = append(objects, o)
	}
	return objects, err
}
