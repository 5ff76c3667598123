package kinds

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

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
