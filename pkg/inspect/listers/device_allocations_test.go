package listers

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// An allocation in kubelet's checkpoint for a deleted pod is a leftover of that pod.
func TestDeviceAllocations(t *testing.T) {
	n := newNode(t)
	n.Write(fmt.Sprintf(`{"Data":{"PodDeviceEntries":[
		{"PodUID":%q,"ContainerName":"a","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["0"]},"AllocResp":"Eg=="},
		{"PodUID":%q,"ContainerName":"b","ResourceName":"nvidia.com/gpu","DeviceIDs":["1"]},
		{"PodUID":%q,"ContainerName":"a","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["2"]}},
		{"PodUID":"\ud800","ContainerName":"a","ResourceName":"x"}],
		"RegisteredDevices":{"nvidia.com/gpu":["0","1","2"]}},"Checksum":7,"BootID":"b"}`, dead, dead, living),
		"device-plugins/kubelet_internal_checkpoint")
	n.Write(fmt.Sprintf(`{"policyName":"static","defaultCpuSet":"0-3","entries":{%q:{"app":"4-5"},%q:{"app":"6"}},"checksum":1}`,
		dead, living), "cpu_manager_state")
	n.Write(fmt.Sprintf(`{"policyName":"Static","machineState":{},"entries":{%q:{"app":[{"numaAffinity":[0],"type":"memory",
		"size":1}]}},"checksum":1}`, dead), "memory_manager_state")
	report := n.ripen(t, inspect.History{}, n.inspector())
	noErrors(t, report)
	want := map[string]inspect.Verdict{
		"device-plugins/kubelet_internal_checkpoint#" + dead + "/nvidia.com/gpu":   inspect.Leftover,
		"device-plugins/kubelet_internal_checkpoint#" + living + "/nvidia.com/gpu": inspect.Live,
		"device-plugins/kubelet_internal_checkpoint#\ufffd/x":                      inspect.Foreign,
		"cpu_manager_state#" + dead:                                                inspect.Leftover,
		"cpu_manager_state#" + living:                                              inspect.Live,
		"memory_manager_state#" + dead:                                             inspect.Leftover,
	}
	if diff := cmp.Diff(want, verdictsByName(report, inspect.DeviceAllocation, func(o inspect.Assessment) string {
		return strings.TrimPrefix(o.ID, n.Host.Paths.KubeletRoot+"/")
	})); diff != "" {
		t.Error(diff)
	}
}

// Containers of the oldest format name no pod, and files that are not checkpoints yield no objects.
func TestHostileCheckpoints(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"before 1.18": {`{"policyName":"static","entries":{"` + strings.Repeat("a", 64) + `":"4-5"}}`, 0o600,
			true},
		"no entries":      {`{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`, 0o600, true},
		"null":            {`null`, 0o600, false},
		"not JSON":        {`{"policyName":`, 0o600, false},
		"another type":    {`{"policyName":"static","entries":[1]}`, 0o600, false},
		"huge":            {`{"policyName":"` + strings.Repeat("x", kubelet.MaxCheckpoint) + `"}`, 0o600, false},
		"others can edit": {`{"policyName":"none"}`, 0o666, false},
		"empty":           {``, 0o600, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := inspecttest.NewNode(t)
			if err := os.Chmod(n.Write(test.text, "cpu_manager_state"), test.mode); err != nil {
				t.Fatal(err)
			}
			objects, err := listDeviceAllocations(t.Context(), hostscan.New(t.Context(), n.Host, hostscan.Deadline{}))
			if len(objects) != 0 || (err == nil) != test.ok {
				t.Errorf("%+v, %v", objects, err)
			}
		})
	}
	n := inspecttest.NewNode(t)
	var entries []string
	for i := range kubelet.MaxAllocations + 1 {
		entries = append(entries, fmt.Sprintf(`{"PodUID":"%d"}`, i))
	}
	n.Write(`{"Data":{"PodDeviceEntries":[`+strings.Join(entries, ",")+`]}}`,
		"device-plugins/kubelet_internal_checkpoint")
	if objects, err := listDeviceAllocations(t.Context(), hostscan.New(t.Context(), n.Host,
		hostscan.Deadline{})); len(objects) != kubelet.MaxAllocations ||
		err == nil || !strings.Contains(err.Error(), "kubelet_internal_checkpoint") {
		t.Errorf("%d objects, %v", len(objects), err)
	}
}
