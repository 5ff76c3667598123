package inspect

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/containers"

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
	listed, err := listedByCRI(scan)
	if err != nil {
		return nil, err
	}
	var objects []Object
	for _, record := range records {
		if !listed[record.ID] {
			objects = append(objects, containerdContainer(record))
		}
	}
	return objects, nil
}

func containerdContainer(record containers.Container) Object {
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
	return o
}

// listedByCRI returns the IDs of all sandboxes and containers that CRI lists.
func listedByCRI(scan *Scan) (map[string]bool, error) {
	sandboxes, err := scan.sandboxes()
	if err != nil {
		return nil, err
	}
	containers, err := scan.containers()
	if err != nil {
		return nil, err
	}
	listed := make(map[string]bool, len(sandboxes)+len(containers))
	for _, s := range sandboxes {
		listed[s.GetId()] = true
	}
	for _, c := range containers {
		listed[c.GetId()] = true
	}
	return listed, nil
}
