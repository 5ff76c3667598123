package inspect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// kindLabel is on everything that containerd's CRI plugin creates in its namespace; the value is sandbox or container.
const kindLabel = "io.cri-containerd.kind"

func containerdContainerSpec() KindSpec {
	return KindSpec{
		Kind: ContainerdContainer, List: listContainerdContainers, FromRuntime: true, GoneFrom: []string{Runtime},
		ReportOnly: "what it still holds (a process, a mount, a snapshot) has to be looked at first",
		What:       "a container of containerd in the namespace `k8s.io` that CRI made and does not list",
		Harm: "kubelet cannot see, stop or remove it: its process may run beside the new copy of its pod, and its " +
			"name and snapshot stay taken",
	}
}

// listContainerdContainers lists the containers in containerd's namespace k8s.io that CRI does not list. The CRI plugin
// loads its containers when containerd starts, and leaves out for ever one that fails to load
// (internal/cri/server/restart.go). One that is being created is here before CRI lists it: kubelet knows its pod. One
// without the plugin's label was created by hand, and is foreign.
func listContainerdContainers(_ context.Context, scan *Scan) ([]Object, error) {
	records, err := scan.records()
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil, nil // another runtime
	}
	if err != nil {
		return nil, err
	}
	listed, err := scan.listedByCRI()
	if err != nil {
		return nil, err
	}
	var objects []Object
	for _, record := range records {
		if listed[record.ID] {
			continue
		}
		o := Object{
			Kind: ContainerdContainer, ID: record.ID, ContainerID: record.ID, Pod: podOfLabels(record.Labels),
			Identity: Identity{"id": record.ID, "created": strconv.FormatInt(record.CreatedAt.UnixNano(), 10)},
			Facts: facts("kind", record.Labels[kindLabel], "name", record.Labels["io.kubernetes.container.name"],
				"image", record.Image, "created", record.CreatedAt.UTC().Format(time.RFC3339)),
		}
		switch {
		case record.Labels[kindLabel] == "":
			o.Foreign = "created by hand in containerd's namespace k8s.io: it has no label " + kindLabel
		case o.Pod.UID != "":
			o.Foreign = foreignUID(o.Pod.UID)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// listedByCRI returns the IDs of all sandboxes and containers that CRI lists.
func (s *Scan) listedByCRI() (map[string]bool, error) {
	sandboxes, err := s.sandboxes()
	if err != nil {
		return nil, err
	}
	containers, err := s.containers()
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

func taskSpec() KindSpec {
	return KindSpec{
		Kind: Task, List: listTasks, FromRuntime: true, GoneFrom: ofSandbox,
		ReportOnly: "what keeps it from ending (a holder of its root filesystem, a process in state D) goes first",
		What:       "a task of containerd in the namespace `k8s.io`, running or stopped",
		Harm:       "keeps the shim, the bundle and the root filesystem; a running one keeps the whole container",
	}
}

// listTasks lists containerd's tasks, if there may be one of which nothing else is left.
func listTasks(_ context.Context, scan *Scan) ([]Object, error) {
	all, err := scan.tasks()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(all))
	for id, task := range all {
		o := Object{Kind: Task, ID: id, ContainerID: id,
			Identity: Identity{"id": id, "pid": strconv.FormatUint(uint64(task.GetPid()), 10)},
			Facts:    facts("state", task.GetStatus().String(), "pid", strconv.FormatUint(uint64(task.GetPid()), 10)),
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

// readTasks reads containerd's tasks, by ID. For a list of them containerd asks every shim: it is read only where there
// is a bundle, which every task has, of a container that CRI does not list.
func (s *Scan) readTasks(ctx context.Context) (map[string]*tasks.Process, error) {
	records, err := s.records()
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil, nil // another runtime
	}
	if err != nil {
		return nil, err
	}
	listed, err := s.listedByCRI()
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		listed[record.ID] = listed[record.ID] || record.Labels[kindLabel] == ""
	}
	bundles, err := s.bundles()
	if err != nil {
		return nil, fmt.Errorf("bundles: %w", err)
	}
	for _, b := range bundles {
		if !listed[b.id] {
			return s.askTasks(ctx)
		}
	}
	return nil, nil
}

func (s *Scan) askTasks(ctx context.Context) (map[string]*tasks.Process, error) {
	all, err := ask(ctx, "containerd", s.Host.Containerd.Tasks)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*tasks.Process, len(all))
	for _, task := range all {
		byID[task.GetID()] = task
	}
	return byID, nil
}
