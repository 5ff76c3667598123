package kinds_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
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
	report := n.ripen(t, object.History{}, n.inspector())
	inspecttest.NoErrors(t, report)
	want := map[string]object.Verdict{
		"device-plugins/kubelet_internal_checkpoint#" + dead + "/nvidia.com/gpu":   object.Leftover,
		"device-plugins/kubelet_internal_checkpoint#" + living + "/nvidia.com/gpu": object.Live,
		"device-plugins/kubelet_internal_checkpoint#\ufffd/x":                      object.Foreign,
		"cpu_manager_state#" + dead:                                                object.Leftover,
		"cpu_manager_state#" + living:                                              object.Live,
		"memory_manager_state#" + dead:                                             object.Leftover,
	}
	if diff := cmp.Diff(want, verdictsByName(report, object.DeviceAllocation, func(o object.Assessment) string {
		return strings.TrimPrefix(o.ID, n.Host.Paths.KubeletRoot+"/")
	})); diff != "" {
		t.Error(diff)
	}
}
