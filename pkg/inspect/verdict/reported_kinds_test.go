package verdict

import (
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// An object that shows only an ID is no leftover while CRI has the ID as a sandbox or a container, or containerd has it
// at all; a container of containerd's can be one although containerd has it.
func TestIDsThatTheRuntimeKnows(t *testing.T) {
	for name, know := range map[string]func(*witness.Inventory){
		"nobody": func(*witness.Inventory) {},
		"CRI, as a sandbox": func(t *witness.Inventory) {
			t.Runtime.Sandboxes[sandbox] = witness.SandboxFact{ID: sandbox, State: "READY"}
		},
		"CRI, as a container": func(t *witness.Inventory) { t.Runtime.Containers[sandbox] = newSandbox },
		"containerd":          func(t *witness.Inventory) { t.Containerd.Known[sandbox] = "container" },
	} {
		for _, kind := range []object.Kind{object.ContainerdContainer, object.Task, object.Shim, object.Rootfs,
			object.Snapshot} {
			o := object.Object{Kind: kind, ID: "x", Pod: object.Pod{UID: dead}, ContainerID: sandbox,
				Identity: object.Identity{File: object.FileID{Inode: 7}}}
			inventory := inspecttest.Healthy()
			know(&inventory)
			report, _ := Evaluate([]object.Object{o}, inventory, seenLong(o), inspecttest.Settings(),
				inspecttest.Hour)
			want := object.Candidate
			if name == "nobody" || name == "containerd" && kind == object.ContainerdContainer {
				want = object.Leftover
			}
			if got := report.Objects[0]; got.Verdict != want {
				t.Errorf("%s, known to %s: %s: %s", kind, name, got.Verdict, got.Why)
			}
		}
	}
}

// Report-only and opt-in objects may stay forever: they are no orphans, which would close the gate against mass orphaning.
func TestReportedObjectsAreNoOrphans(t *testing.T) {
	lost := object.Object{Kind: object.ContainerdContainer, ID: "x", Pod: object.Pod{UID: dead}, ContainerID: sandbox,
		Identity: object.Identity{File: object.FileID{Inode: 7}}}
	for kind, want := range map[object.Kind]int{object.ContainerdContainer: 0, object.Task: 0, object.Snapshot: 0,
		object.Mount: 1} {
		lost.Kind = kind
		inventory := inspecttest.Healthy()
		e := evaluation{specs: map[object.Kind]kinds.Spec{kind: *kinds.Of(kind)}, inventory: &inventory,
			now: inspecttest.Hour}
		if got := e.orphanAges([]object.Object{lost}); len(got) != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}
