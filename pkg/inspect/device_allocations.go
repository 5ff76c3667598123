package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

func deviceAllocationSpec() KindSpec {
	return KindSpec{
		Kind: DeviceAllocation, List: listDeviceAllocations,
		ReportOnly: "kubelet gives it back with its next allocation, or when it is restarted; its checkpoints must not be " +
			"changed while it runs",
		What: "devices, CPUs or memory that kubelet's checkpoint gives to a pod (`kubelet_internal_checkpoint`, " +
			"`cpu_manager_state`, `memory_manager_state`)",
		Harm: "kubelet may refuse pods that ask for them (UnexpectedAdmissionError)",
	}
}

// allocationFiles are the checkpoints of kubelet's managers, below its root: pkg/kubelet/cm of Kubernetes, devicemanager/checkpoint,
// cpumanager/state and memorymanager/state. Kubelet verifies their checksums; here only the UIDs count, which the
// witnesses are asked about.
func allocationFiles() []allocationFile {
	return []allocationFile{
		{"device-plugins/kubelet_internal_checkpoint", parseDevices},
		{"cpu_manager_state", parseAssignments[string]},
		{"memory_manager_state", parseAssignments[json.RawMessage]},
	}
}

type allocationFile struct {
	name  string
	parse func([]byte) ([]allocation, error)
}

// maxCheckpoint bounds a checkpoint, and maxAllocations what is listed of it. A GPU node has a few hundred.
const (
	maxCheckpoint  = 4 << 20
	maxAllocations = 4096
)

// allocation is what one pod has.
type allocation struct{ uid, resource string }

// listDeviceAllocations lists the pods in kubelet's checkpoints, one object for each file, pod and resource.
func listDeviceAllocations(_ context.Context, scan *Scan) ([]Object, error) {
	var objects []Object
	var failures []error
	root := scan.Host.Paths.KubeletRoot
	for _, file := range allocationFiles() {
		name := path.Join(root, file.name)
		found, err := readAllocations(scan.Host.Files, root, file.name, file.parse)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the manager is off
			failures = append(failures, err)
		}
		for _, a := range found {
			o := Object{Kind: DeviceAllocation, ID: name + "#" + strings.TrimSuffix(a.uid+"/"+a.resource, "/"),
				Pod: Pod{UID: a.uid}, Identity: Identity{"uid": a.uid, "resource": a.resource},
				Facts: facts("checkpoint", file.name, "resource", a.resource)}
			if !host.IsPodUID(a.uid) {
				o.Pod.UID, o.Foreign = "", "its owner has no UID of a pod"
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures...)
}

func readAllocations(files host.Files, root, name string, parse func([]byte) ([]allocation, error)) ([]allocation,
	error) {
	data, err := kubelet.ReadBeneath(files.Path(root), name, maxCheckpoint)
	if err != nil {
		return nil, err
	}
	found, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	slices.SortFunc(found, func(a, b allocation) int {
		return strings.Compare(a.uid+"/"+a.resource, b.uid+"/"+b.resource)
	})
	if found = slices.Compact(found); len(found) > maxAllocations {
		return found[:maxAllocations], fmt.Errorf("parse %s: more than %d allocations", name, maxAllocations)
	}
	return found, nil
}

// parseDevices parses the checkpoint of devices. Both versions, 1 before Kubernetes 1.20, agree in what counts:
//
//	{"Data":{"PodDeviceEntries":[{"PodUID":"…","ContainerName":"app","ResourceName":"nvidia.com/gpu",…}],…},"Checksum":1}
func parseDevices(data []byte) ([]allocation, error) {
	var checkpoint struct {
		Data *struct {
			PodDeviceEntries []struct{ PodUID, ResourceName string }
		}
	}
	if err := json.Unmarshal(data, &checkpoint); err != nil {
		return nil, err
	}
	if checkpoint.Data == nil {
		return nil, errors.New("it has no Data")
	}
	var found []allocation
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		found = append(found, allocation{entry.PodUID, hosterr.Clip(entry.ResourceName)})
	}
	return found, nil
}

// parseAssignments parses the checkpoints of CPUs and of memory. Version 1 of CPUs, before Kubernetes 1.18, names
// containers and no pods:
//
//	{"policyName":"static","defaultCpuSet":"0-3","entries":{"<pod UID>":{"app":"4-5"}},"checksum":1}
//	{"policyName":"Static","entries":{"<pod UID>":{"app":[{"numaAffinity":[0],"type":"memory","size":1}]}},"checksum":1}
//	{"policyName":"static","defaultCpuSet":"0-3","entries":{"<container ID>":"4-5"},"checksum":1}
func parseAssignments[T any](data []byte) ([]allocation, error) {
	var checkpoint struct {
		PolicyName *string                    `json:"policyName"`
		Entries    map[string]json.RawMessage `json:"entries"`
	}
	if err := json.Unmarshal(data, &checkpoint); err != nil {
		return nil, err
	}
	if checkpoint.PolicyName == nil {
		return nil, errors.New("it has no policyName")
	}
	var found []allocation
	for uid, entry := range checkpoint.Entries {
		var containers map[string]T
		if json.Unmarshal(entry, &containers) == nil && len(containers) > 0 {
			found = append(found, allocation{uid: uid})
		}
	}
	return found, nil
}
