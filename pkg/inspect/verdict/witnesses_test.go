package verdict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Answers are shared between objects: each must have those that it would have alone.
func TestSharedAnswers(t *testing.T) {
	now := inspecttest.At(time.Hour)
	asked := witness.Response{Asked: true, At: now}
	inventory := witness.Inventory{
		Kubelet: witness.KubeletInventory{Response: asked,
			Pods: map[string]witness.PodFact{"a": {Pod: object.Pod{UID: "a"}}}},
		Cluster: witness.ClusterInventory{Response: asked,
			Pods: map[string]witness.PodFact{"b": {Pod: object.Pod{UID: "b"}}}},
		Runtime: witness.RuntimeInventory{Response: asked, Sandboxes: map[string]witness.SandboxFact{"s": {ID: "s"}},
			Containers: map[string]string{"c": "s"}, Pods: map[string]witness.SandboxFact{"a": {ID: "s"}}},
		Containerd: witness.ContainerdInventory{Response: asked, Known: map[string]string{"s": witness.LeaseName,
			"c": "container"},
			Pods: map[string]bool{"b": true}},
	}
	e := evaluation{inventory: &inventory, answers: make(map[question]map[string]object.Answer)}
	later := now
	later.SinceBoot += time.Hour
	for _, kind := range kinds.Kinds() {
		for _, uid := range []string{"", "a", "b", "x"} {
			for _, sandbox := range []string{"", "s", "x"} {
				for _, container := range []string{"", "c", "x"} {
					for _, first := range []finding.Timestamp{now, later} {
						o := object.Object{Kind: kind, Pod: object.Pod{UID: uid}, SandboxID: sandbox,
							ContainerID: container}
						if diff := cmp.Diff(inventory.Answers(&o, first), e.ask(&o, first)); diff != "" {
							t.Errorf("%+v:\n%s", o, diff)
						}
					}
				}
			}
		}
	}
	if all := len(kinds.Kinds()) * 4 * 3 * 3 * 2; len(e.answers) >= all {
		t.Errorf("%d answers for %d objects: nothing is shared", len(e.answers), all)
	}
}
