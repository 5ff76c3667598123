package inspect

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// What a checkpoint of kubelet gives to a pod that is gone is a leftover of that pod.
func TestDeviceAllocations(t *testing.T) {
	n := newNode(t)
	n.write(fmt.Sprintf(`{"Data":{"PodDeviceEntries":[
		{"PodUID":%q,"ContainerName":"a","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["0"]},"AllocResp":"Eg=="},
		{"PodUID":%q,"ContainerName":"b","ResourceName":"nvidia.com/gpu","DeviceIDs":["1"]},
		{"PodUID":%q,"ContainerName":"a","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["2"]}},
		{"PodUID":"\ud800","ContainerName":"a","ResourceName":"x"}],
		"RegisteredDevices":{"nvidia.com/gpu":["0","1","2"]}},"Checksum":7,"BootID":"b"}`, dead, dead, living),
		"device-plugins/kubelet_internal_checkpoint")
	n.write(fmt.Sprintf(`{"policyName":"static","defaultCpuSet":"0-3","entries":{%q:{"app":"4-5"},%q:{"app":"6"}},"checksum":1}`,
		dead, living), "cpu_manager_state")
	n.write(fmt.Sprintf(`{"policyName":"Static","machineState":{},"entries":{%q:{"app":[{"numaAffinity":[0],"type":"memory",
		"size":1}]}},"checksum":1}`, dead), "memory_manager_state")
	report := n.ripen(t, History{}, n.inspector())
	noErrors(t, report)
	want := map[string]Verdict{
		"device-plugins/kubelet_internal_checkpoint#" + dead + "/nvidia.com/gpu":   Leftover,
		"device-plugins/kubelet_internal_checkpoint#" + living + "/nvidia.com/gpu": Live,
		"device-plugins/kubelet_internal_checkpoint#\ufffd/x":                      Foreign,
		"cpu_manager_state#" + dead:                                                Leftover, "cpu_manager_state#" + living: Live,
		"memory_manager_state#" + dead: Leftover,
	}
	if diff := cmp.Diff(want, verdictsByName(report, DeviceAllocation, func(o Assessment) string {
		return strings.TrimPrefix(o.ID, n.host.Paths.KubeletRoot+"/")
	})); diff != "" {
		t.Error(diff)
	}
}

// Containers of the oldest format name no pod, and nothing is made of what is not a checkpoint.
func TestHostileCheckpoints(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"before 1.18":     {`{"policyName":"static","entries":{"` + strings.Repeat("a", 64) + `":"4-5"}}`, 0o600, true},
		"no entries":      {`{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`, 0o600, true},
		"null":            {`null`, 0o600, false},
		"not JSON":        {`{"policyName":`, 0o600, false},
		"another type":    {`{"policyName":"static","entries":[1]}`, 0o600, false},
		"huge":            {`{"policyName":"` + strings.Repeat("x", kubelet.MaxCheckpoint) + `"}`, 0o600, false},
		"others can edit": {`{"policyName":"none"}`, 0o666, false},
		"empty":           {``, 0o600, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if err := os.Chmod(n.write(test.text, "cpu_manager_state"), test.mode); err != nil {
				t.Fatal(err)
			}
			objects, err := listDeviceAllocations(t.Context(), NewScan(t.Context(), n.host))
			if len(objects) != 0 || (err == nil) != test.ok {
				t.Errorf("%+v, %v", objects, err)
			}
		})
	}
	n := newNode(t)
	var entries []string
	for i := range kubelet.MaxAllocations + 1 {
		entries = append(entries, fmt.Sprintf(`{"PodUID":"%d"}`, i))
	}
	n.write(`{"Data":{"PodDeviceEntries":[`+strings.Join(entries, ",")+`]}}`, "device-plugins/kubelet_internal_checkpoint")
	if objects, err := listDeviceAllocations(t.Context(), NewScan(t.Context(), n.host)); len(objects) != kubelet.MaxAllocations ||
		err == nil || !strings.Contains(err.Error(), "kubelet_internal_checkpoint") {
		t.Errorf("%d objects, %v", len(objects), err)
	}
}
