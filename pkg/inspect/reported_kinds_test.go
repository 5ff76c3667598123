package inspect

import (
	"testing"
	"time"
)

// What shows only an ID is no leftover while CRI has it as a sandbox or a container, or containerd has it at all; a
// container of containerd's is one although containerd has it.
func TestIDsThatTheRuntimeKnows(t *testing.T) {
	for name, know := range map[string]func(*Inventory){
		"nobody": func(*Inventory) {},
		"CRI, as a sandbox": func(t *Inventory) {
			t.Runtime.Sandboxes[sandbox] = SandboxFact{ID: sandbox, State: "READY"}
		},
		"CRI, as a container": func(t *Inventory) { t.Runtime.Containers[sandbox] = newSandbox },
		"containerd":          func(t *Inventory) { t.Containerd.Known[sandbox] = "container" },
	} {
		for _, kind := range []Kind{ContainerdContainer, Task, Shim, Rootfs, Snapshot} {
			o := Object{Kind: kind, ID: "x", Pod: Pod{UID: dead}, ContainerID: sandbox, Identity: Identity{"inode": "7"}}
			inventory := healthy()
			know(&inventory)
			report, _ := Evaluate([]Object{o}, inventory, seenLong(o), settings(), hour)
			want := Candidate
			if name == "nobody" || name == "containerd" && kind == ContainerdContainer {
				want = Leftover
			}
			if got := report.Objects[0]; got.Verdict != want {
				t.Errorf("%s, known to %s: %s: %s", kind, name, got.Verdict, got.Why)
			}
		}
	}
}

// A candidate that is only reported does not keep the agent awake for ever.
func TestLastingCandidateIsQuiet(t *testing.T) {
	o := Assessment{Object: Object{Kind: Task}, Verdict: Candidate, FirstSeen: at(time.Minute)}
	next := History{"task/x": {}}
	for age, want := range map[time.Duration]bool{30 * time.Minute: false, 2 * time.Hour: true} {
		if got := quiet(Report{At: at(age), Objects: []Assessment{o}}, next); got != want {
			t.Errorf("after %s: %t", age, got)
		}
	}
	o.Kind = Mount
	if quiet(Report{At: at(2 * time.Hour), Objects: []Assessment{o}}, next) {
		t.Error("a release waits for the mount")
	}
}
