package inspect

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Answers are shared between objects: each must have those that it would have alone.
func TestSharedAnswers(t *testing.T) {
	now := at(time.Hour)
	asked := Response{Asked: true, At: now}
	inventory := Inventory{
		Kubelet: KubeletInventory{Response: asked, Pods: map[string]PodFact{"a": {Pod: Pod{UID: "a"}}}},
		Cluster: ClusterInventory{Response: asked, Pods: map[string]PodFact{"b": {Pod: Pod{UID: "b"}}}},
		Runtime: RuntimeInventory{Response: asked, Sandboxes: map[string]SandboxFact{"s": {ID: "s"}},
			Containers: map[string]string{"c": "s"}, Pods: map[string]SandboxFact{"a": {ID: "s"}}},
		Containerd: ContainerdInventory{Response: asked, Known: map[string]string{"s": leaseName, "c": "container"},
			Pods: map[string]bool{"b": true}},
	}
	e := evaluation{inventory: &inventory, answers: make(map[question]map[string]Answer)}
	later := now
	later.SinceBoot += time.Hour
	for _, kind := range Kinds() {
		for _, uid := range []string{"", "a", "b", "x"} {
			for _, sandbox := range []string{"", "s", "x"} {
				for _, container := range []string{"", "c", "x"} {
					for _, first := range []finding.Timestamp{now, later} {
						o := Object{Kind: kind, Pod: Pod{UID: uid}, SandboxID: sandbox, ContainerID: container}
						if diff := cmp.Diff(inventory.answers(&o, first), e.ask(&o, first)); diff != "" {
							t.Errorf("%+v:\n%s", o, diff)
						}
					}
				}
			}
		}
	}
	if all := len(Kinds()) * 4 * 3 * 3 * 2; len(e.answers) >= all {
		t.Errorf("%d answers for %d objects: nothing is shared", len(e.answers), all)
	}
}
