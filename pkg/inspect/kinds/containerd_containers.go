package kinds

import (
	"context"
	"fmt"
	"strconv"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func containerdContainerSpec() Spec {
	return Spec{
		Kind: object.ContainerdContainer, List: listContainerdContainers, FromRuntime: true,
		GoneFrom: []string{object.Runtime}, OptIn: true,
		What: "a container of containerd in the namespace `k8s.io` that CRI made and does not list, with its task",
		Harm: "kubelet cannot see, stop or remove it: its process may run beside the new copy of its pod, and its " +
			"name and snapshot stay taken",
	}
}

// listContainerdContainers lists the containers in containerd's namespace k8s.io that CRI does not list. The CRI plugin
// loads its containers when containerd starts, and permanently leaves out one that fails to load
// (internal/cri/server/restart.go). A container being created is here before CRI lists it: kubelet knows its pod. One
// without the plugin's label was created by hand, and is foreign.
func listContainerdContainers(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	records, err := scan.Records()
	if err != nil {
		return nil, hosterr.Ignore(err, hosterr.ErrNotConfigured) // another runtime
	}
	listed, err := listedByCRI(scan)
	if err != nil {
		return nil, err
	}
	var objects []object.Object
	for _, record := range records {
		if listed[record.ID] {
			continue
		}
		o := object.Object{
			Kind: object.ContainerdContainer, ID: record.ID, ContainerID: record.ID,
			Pod:      witness.PodOfLabels(record.Labels),
			Identity: object.Identity{Runtime: object.RuntimeID{ID: record.ID, Created: record.CreatedAt.UnixNano()}},
			Facts: object.Facts("kind", record.Labels[witness.KindLabel], "name",
				record.Labels["io.kubernetes.container.name"],
				"image", record.Image, "created", record.CreatedAt.UTC().Format(time.RFC3339)),
		}
		switch {
		case record.Labels[witness.KindLabel] == "":
			o.Foreign = "created by hand in containerd's namespace k8s.io: it has no label " + witness.KindLabel
		case o.Pod.UID != "":
			o.Foreign = object.ForeignUID(o.Pod.UID)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// listedByCRI returns the IDs of all sandboxes and containers that CRI lists.
func listedByCRI(s *hostscan.Scan) (map[string]bool, error) {
	sandboxes, err := s.Sandboxes()
	if err != nil {
		return nil, err
	}
	containers, err := s.Containers()
	if err != nil {
		return nil, err
	}
	listed := make(map[string]bool, len(sandboxes)+len(containers))
	for _, sandbox := range sandboxes {
		listed[sandbox.GetId()] = true
	}
	for _, c := range containers {
		listed[c.GetId()] = true
	}
	return listed, nil
}

func taskSpec() Spec {
	return Spec{
		Kind: object.Task, List: listTasks, FromRuntime: true, GoneFrom: ofSandbox,
		ReportOnly: "containerd deletes it with its container (containerd-container) or, where it has lost that, after its shim",
		What:       "a task of containerd in the namespace `k8s.io`, running or stopped",
		Harm:       "keeps the shim, the bundle and the root filesystem; a running one keeps the whole container",
	}
}

// listTasks lists containerd's tasks, if there may be one without a container.
func listTasks(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	all, err := readTasks(ctx, scan)
	if err != nil {
		return nil, err
	}
	objects := make([]object.Object, 0, len(all))
	for id, task := range all {
		o := object.Object{Kind: object.Task, ID: id, ContainerID: id,
			Identity: named("id", id, "pid", strconv.FormatUint(uint64(task.GetPid()), 10)),
			Facts: object.Facts("state", task.GetStatus().String(), "pid",
				strconv.FormatUint(uint64(task.GetPid()), 10)),
		}
		if exited := task.GetExitedAt(); exited.IsValid() && exited.AsTime().Unix() > 0 {
			o.Facts["exited"] = exited.AsTime().UTC().Format(time.RFC3339)
			o.Facts["exitStatus"] = strconv.FormatUint(uint64(task.GetExitStatus()), 10)
		}
		if !host.IsContainerID(id) {
			o.Foreign = "not created by a CRI runtime: its ID has another format"
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// readTasks reads containerd's tasks, by ID. To list them containerd asks every shim, so they are read only if there is
// a bundle, which every task has, of a container that CRI does not list.
func readTasks(ctx context.Context, s *hostscan.Scan) (map[string]*tasks.Process, error) {
	records, err := s.Records()
	if err != nil {
		return nil, hosterr.Ignore(err, hosterr.ErrNotConfigured) // another runtime
	}
	listed, err := listedByCRI(s)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		listed[record.ID] = listed[record.ID] || record.Labels[witness.KindLabel] == ""
	}
	bundles, err := readBundles(s)
	if err != nil {
		return nil, fmt.Errorf("bundles: %w", err)
	}
	for _, b := range bundles {
		if !listed[b.id] {
			return askTasks(ctx, s)
		}
	}
	return nil, nil
}

func askTasks(ctx context.Context, s *hostscan.Scan) (map[string]*tasks.Process, error) {
	all, err := host.Ask(ctx, "containerd", s.Host.Containerd.Tasks)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*tasks.Process, len(all))
	for _, task := range all {
		byID[task.GetID()] = task
	}
	return byID, nil
}
