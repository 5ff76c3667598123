package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Allocation is a resource that one of kubelet's managers has allocated to a pod.
type Allocation struct {
	Checkpoint string // its file, below kubelet's root
	UID        string // of the pod; any text
	Resource   string // of devices; empty for CPUs and memory
}

// Bounds of a checkpoint: its bytes, and the allocations taken from it. A GPU node has a few hundred allocations.
const (
	MaxCheckpoint  = 4 << 20
	MaxAllocations = 4096
)

// Allocations reads the checkpoints of kubelet's managers of devices, CPUs and memory, if they exist below its root:
// pkg/kubelet/cm of Kubernetes, devicemanager/checkpoint, cpumanager/state and memorymanager/state. It does not verify
// their checksums, as kubelet does. If it returns an error, some are missing.
func Allocations(root string) ([]Allocation, error) {
	var all []Allocation
	var failures []error
	for name, parse := range map[string]func([]byte) ([]Allocation, error){
		"device-plugins/kubelet_internal_checkpoint": parseDevices,
		"cpu_manager_state":                          parseAssignments[string],
		"memory_manager_state":                       parseAssignments[json.RawMessage],
	} {
		data, err := ReadBeneath(root, name, MaxCheckpoint)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the manager is off
		}
		var found []Allocation
		if err == nil {
			if found, err = parse(data); err != nil {
				err = fmt.Errorf("parse %s: %w", filepath.Join(root, name), err)
			}
		}
		for i := range found {
			found[i].Checkpoint = name
		}
		slices.SortFunc(found, func(a, b Allocation) int { return strings.Compare(a.key(), b.key()) })
		if found = slices.Compact(found); len(found) > MaxAllocations {
			found = found[:MaxAllocations]
			err = fmt.Errorf("parse %s: more than %d allocations", filepath.Join(root, name), MaxAllocations)
		}
		if err != nil {
			failures = append(failures, err)
		}
		all = append(all, found...)
	}
	return all, errors.Join(failures...)
}

func (a Allocation) key() string { return a.UID + "/" + a.Resource }

// parseDevices parses the checkpoint of devices. The relevant part is the same in both versions (1 before Kubernetes
// 1.20):
//
//	{"Data":{"PodDeviceEntries":[{"PodUID":"…","ContainerName":"app","ResourceName":"nvidia.com/gpu",…}],…},"Checksum":1}
func parseDevices(data []byte) ([]Allocation, error) {
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
	var found []Allocation
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		found = append(found, Allocation{UID: entry.PodUID, Resource: hosterr.Clip(entry.ResourceName)})
	}
	return found, nil
}

// parseAssignments parses the checkpoints of CPUs and of memory. Version 1 for CPUs, before Kubernetes 1.18, names
// containers and no pods:
//
//	{"policyName":"static","defaultCpuSet":"0-3","entries":{"<pod UID>":{"app":"4-5"}},"checksum":1}
//	{"policyName":"Static","entries":{"<pod UID>":{"app":[{"numaAffinity":[0],"type":"memory","size":1}]}},"checksum":1}
//	{"policyName":"static","defaultCpuSet":"0-3","entries":{"<container ID>":"4-5"},"checksum":1}
func parseAssignments[T any](data []byte) ([]Allocation, error) {
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
	var found []Allocation
	for uid, entry := range checkpoint.Entries {
		var containers map[string]T
		if json.Unmarshal(entry, &containers) == nil && len(containers) > 0 {
			found = append(found, Allocation{UID: uid})
		}
	}
	return found, nil
}
