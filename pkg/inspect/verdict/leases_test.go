package verdict

import (
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A leftover lease no longer protects the network; a container of that ID does. (No lease is a leftover
// beside one: this holds even if that were wrong.)
func TestDeadLeaseDoesNotHideContainers(t *testing.T) {
	inventory := inspecttest.Healthy()
	j := evaluation{inventory: &inventory, deadLeases: map[string]bool{deadSandbox: true}}
	o := object.Object{Kind: object.Netns, SandboxID: deadSandbox}
	for known, want := range map[string]bool{witness.LeaseName: true, "container": false} {
		inventory.Containerd.Known[deadSandbox] = known
		if got := j.onlyDeadLease(&o); got != want {
			t.Errorf("%s: %v", known, got)
		}
	}
	o.Kind = object.Cgroup
	inventory.Containerd.Known[deadSandbox] = witness.LeaseName
	if j.onlyDeadLease(&o) {
		t.Error("a cgroup is no matter of leases")
	}
}
