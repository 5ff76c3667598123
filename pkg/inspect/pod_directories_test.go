package inspect

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// The directory of a deleted pod shows which user IDs it blocks for others, if its file is credible.
func TestUserIDsOfPodDirectory(t *testing.T) {
	for text, want := range map[string]string{
		`{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[]}`: "65536 of the node from 131072 on",
		`{"uidMappings":[]}`: "", `{"uidMappings":[{"hostId":-1}]}`: "", `null`: "",
	} {
		n := newNode(t)
		n.Write(text, "pods", dead, "userns")
		report := n.ripen(t, object.History{}, n.inspector())
		for _, o := range report.Objects {
			if o.Kind == object.PodDirectory && o.Pod.UID == dead && (o.Facts["userIDs"] != want ||
				o.Verdict != object.Leftover) {
				t.Errorf("%s: %s %q", text, o.Verdict, o.Facts["userIDs"])
			}
		}
	}
}

// Six pods end while a pass lists objects. Those whose directories kubelet removes before the apiserver answers close
// no gate.
func TestDirectoriesRemovedInAPass(t *testing.T) {
	const root = "var/lib/kubelet/pods"
	for name, test := range map[string]struct {
		stay int // of the six
		bend func(dir string) error
		want object.Verdict
	}{
		"none":    {6, nil, object.Candidate},
		"too few": {3, nil, object.Candidate},
		"enough":  {2, nil, object.Leftover},
		"all":     {0, nil, object.Leftover},
		"the list cannot be read": {0, func(dir string) error { return os.Rename(dir, dir+"-elsewhere") },
			object.Candidate},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.host.Paths.KubeletRoot = "/" + filepath.Dir(root)
			n.write(mountTable, "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
			dir := func(i int) string { return n.host.Files.Path(filepath.Join(root, inspecttest.UIDOf(i))) }
			pass := func() (verdict object.Verdict, why string) {
				report, history := n.inspector.Pass(t.Context(), n.history, object.Sandbox, object.Container,
					object.PodDirectory)
				n.history = history
				for _, o := range report.Objects {
					if o.Pod.UID == inspecttest.UIDOf(9) {
						verdict, why = o.Verdict, o.Why
					}
				}
				n.after(time.Minute)
				return verdict, why
			}
			end := func(i int) {
				n.delete(inspecttest.UIDOf(i))
				delete(n.sandboxes, inspecttest.UIDOf(i))
			}
			for i := range 10 {
				if err := os.MkdirAll(dir(i), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			end(9)
			for range 11 {
				pass()
			}
			if verdict, why := pass(); verdict != object.Leftover {
				t.Fatalf("%s: %s", verdict, why)
			}
			for i := range 6 {
				end(i)
			}
			n.inThePass(func() {
				for i := range 6 - test.stay {
					if err := os.Remove(dir(i)); err != nil {
						t.Fatal(err)
					}
				}
				if test.bend != nil {
					if err := test.bend(n.host.Files.Path(root)); err != nil {
						t.Fatal(err)
					}
				}
			}, nil)
			if verdict, why := pass(); verdict != test.want {
				t.Errorf("%s: %s", verdict, why)
			}
		})
	}
}

// A pod without a directory has been removed only if none of its processes can still run.
func TestRemovedPod(t *testing.T) {
	const stat = "%d (sleep) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n"
	process := object.Object{Kind: object.Process, Identity: object.Identity{Process: object.ProcessID{PID: 77, StartTime: 5}},
		Facts: object.Facts("state", "S")}
	ready := object.Object{Kind: object.Sandbox, Facts: object.Facts("state", "READY")}
	runs := object.Object{Kind: object.Container, Facts: object.Facts("state", "RUNNING")}
	doubtful := process
	doubtful.Doubt = "it could not be read"
	for name, test := range map[string]struct {
		objects []object.Object
		stat    string // /proc/77/stat
		n       int
		stays   bool // its directory
		unseen  bool // the directories of kubelet's own pods
		want    bool
	}{
		"nothing else was there": {want: true},
		"its directory is there": {stays: true},
		"as many as may be":      {n: 4},
		"what it ran had ended": {objects: []object.Object{{Kind: object.Sandbox,
			Facts: object.Facts("state", "NOTREADY")}, {Kind: object.Container, Facts: object.Facts("state", "EXITED")}}, want: true},
		"its process is gone": {objects: []object.Object{process, ready, runs}, want: true},
		"its PID is another's": {objects: []object.Object{process, ready, runs},
			stat: fmt.Sprintf(stat, 77, 6), want: true},
		"its process is there": {objects: []object.Object{process, ready, runs},
			stat: fmt.Sprintf(stat, 77, 5)},
		"only a process is there":                {objects: []object.Object{process}, stat: fmt.Sprintf(stat, 77, 5)},
		"its process is not shown":               {objects: []object.Object{process, ready, runs}, stat: "what?"},
		"no process was listed":                  {objects: []object.Object{ready}},
		"a process was not read":                 {objects: []object.Object{doubtful}},
		"nothing is listed any more":             {unseen: true},
		"no process of its container was listed": {objects: []object.Object{runs}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			pods := filepath.Join(n.host.Paths.KubeletRoot, "pods")
			n.write(filepath.Join(pods, "another", "file"), "")
			if !test.unseen {
				n.write(filepath.Join(pods, living, "file"), "")
			}
			if test.stays {
				n.write(filepath.Join(pods, dead, "file"), "")
			}
			if test.stat != "" {
				n.write("proc/77/stat", test.stat)
			}
			var objects []object.Object
			var suspects []*object.Object
			for i := range 3 {
				suspects = append(suspects, &object.Object{Kind: object.PodDirectory,
					Pod: object.Pod{UID: inspecttest.UIDOf(i)}})
			}
			for _, o := range append(test.objects, object.Object{Kind: object.PodDirectory}) {
				o.Pod.UID = dead
				objects = append(objects, o)
				if o.Doubt == "" {
					suspects = append(suspects, &o)
				}
			}
			inventory := witness.Inventory{Kubelet: witness.KubeletInventory{Pods: map[string]witness.PodFact{living: {}}}}
			kinds.NoteRemoved(t.Context(), hostscan.New(t.Context(), n.host, hostscan.Deadline{}), &inventory, objects,
				suspects, max(test.n, 3))
			if got := inventory.Removed[dead]; got != test.want {
				t.Errorf("%t, %v", got, inventory.Removed)
			}
		})
	}
}
