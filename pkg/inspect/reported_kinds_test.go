package inspect

import (
	"testing"
	"time"
)

// An object that shows only an ID is no leftover while CRI has the ID as a sandbox or a container, or containerd has it
// at all; a container of containerd's can be one although containerd has it.
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

// Opt-in objects do not keep the agent awake while none can be released; they and objects that are only reported are no
// orphaned pods: they may stay forever. A release may follow their proof.
func TestOptedInIsQuiet(t *testing.T) {
	o := Assessment{Object: Object{Kind: Shim}, FirstSeen: at(time.Minute)}
	next := History{"shim/x": {}}
	for verdict, want := range map[Verdict]bool{Candidate: true, Unowned: true, Leftover: false, Unknown: false} {
		o.Verdict = verdict
		if got := quiet(Report{At: at(2 * time.Hour), Objects: []Assessment{o}}, next, []Kind{Shim}); got != want {
			t.Errorf("%s: %t", verdict, got)
		}
		if verdict == Leftover && !quiet(Report{At: at(2 * time.Hour), Objects: []Assessment{o}}, next, nil) {
			t.Error("awake beside what nobody has opted in")
		}
	}
}

// Report-only and opt-in objects may stay forever: they are no orphans, which would close the gate against mass orphaning.
func TestReportedObjectsAreNoOrphans(t *testing.T) {
	lost := Object{Kind: ContainerdContainer, ID: "x", Pod: Pod{UID: dead}, ContainerID: sandbox,
		Identity: Identity{"inode": "7"}}
	for kind, want := range map[Kind]int{ContainerdContainer: 0, Task: 0, Snapshot: 0, Mount: 1} {
		lost.Kind = kind
		inventory := healthy()
		e := evaluation{specs: map[Kind]KindSpec{kind: *Of(kind)}, inventory: &inventory, now: hour}
		if got := e.orphanAges([]Object{lost}); len(got) != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}

// A report-only candidate does not keep the agent awake forever.
func TestLastingCandidateIsQuiet(t *testing.T) {
	o := Assessment{Object: Object{Kind: Task}, Verdict: Candidate, FirstSeen: at(time.Minute)}
	next := History{"task/x": {}}
	for age, want := range map[time.Duration]bool{30 * time.Minute: false, 2 * time.Hour: true} {
		if got := quiet(Report{At: at(age), Objects: []Assessment{o}}, next, []Kind{Shim}); got != want {
			t.Errorf("after %s: %t", age, got)
		}
	}
	o.Kind = Mount
	if quiet(Report{At: at(2 * time.Hour), Objects: []Assessment{o}}, next, []Kind{Shim}) {
		t.Error("a release waits for the mount")
	}
}
