package inspect

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// A record left in a pod's directory is found, unless finding it would open a mount or follow a link.
func TestVolumeRecord(t *testing.T) {
	const dir = "/var/lib/kubelet/pods/" + dead
	const volume = dir + "/volumes/kubernetes.io~csi/pvc-1"
	for name, test := range map[string]struct {
		file    string
		link    bool // the volume's directory is a link
		mounted string
		want    string
	}{
		"left": {file: "vol_data.json", want: volume + "/vol_data.json"},
		"left beside a mount": {file: "vol_data.json", mounted: volume + "/mount",
			want: volume + "/vol_data.json"},
		"another file":               {file: "mount"},
		"below a mounted volume":     {file: "vol_data.json", mounted: volume},
		"below a mounted directory":  {file: "vol_data.json", mounted: dir + "/volumes"},
		"below a mounted driver's":   {file: "vol_data.json", mounted: filepath.Dir(volume)},
		"below a mount of the pod's": {file: "vol_data.json", mounted: dir},
		"through a link":             {file: "vol_data.json", link: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			inside := h.Files.Path(volume)
			target := inside
			if test.link {
				target = t.TempDir()
			}
			for _, err := range []error{os.MkdirAll(filepath.Dir(inside), 0o755), os.MkdirAll(target, 0o755),
				os.WriteFile(filepath.Join(target, test.file), nil, 0o600)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if test.link {
				if err := os.Symlink(target, inside); err != nil {
					t.Fatal(err)
				}
			}
			scan := &hostscan.Scan{Host: h, Mounts: func() ([]mount.Mount, error) {
				return []mount.Mount{{Point: test.mounted}}, nil
			}}
			o := Object{Kind: PodDirectory, ID: dir, Pod: Pod{UID: dead}}
			explainPodDirectories(scan, []*Object{&o})
			if got := o.Facts["volumeRecord"]; got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// The directory of a deleted pod shows which user IDs it blocks for others, if its file is credible.
func TestUserIDsOfPodDirectory(t *testing.T) {
	for text, want := range map[string]string{
		`{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[]}`: "65536 of the node from 131072 on",
		`{"uidMappings":[]}`: "", `{"uidMappings":[{"hostId":-1}]}`: "", `null`: "",
	} {
		n := newNode(t)
		n.Write(text, "pods", dead, "userns")
		report := n.ripen(t, History{}, n.inspector())
		for _, o := range report.Objects {
			if o.Kind == PodDirectory && o.Pod.UID == dead && (o.Facts["userIDs"] != want || o.Verdict != Leftover) {
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
		want Verdict
	}{
		"none":                    {6, nil, Candidate},
		"too few":                 {3, nil, Candidate},
		"enough":                  {2, nil, Leftover},
		"all":                     {0, nil, Leftover},
		"the list cannot be read": {0, func(dir string) error { return os.Rename(dir, dir+"-elsewhere") }, Candidate},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.host.Paths.KubeletRoot = "/" + filepath.Dir(root)
			n.write(mountTable, "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
			dir := func(i int) string { return n.host.Files.Path(filepath.Join(root, uidOf(i))) }
			pass := func() (verdict Verdict, why string) {
				report, history := n.inspector.Pass(t.Context(), n.history, Sandbox, Container, PodDirectory)
				n.history = history
				for _, o := range report.Objects {
					if o.Pod.UID == uidOf(9) {
						verdict, why = o.Verdict, o.Why
					}
				}
				n.after(time.Minute)
				return verdict, why
			}
			end := func(i int) {
				n.delete(uidOf(i))
				delete(n.sandboxes, uidOf(i))
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
			if verdict, why := pass(); verdict != Leftover {
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
	process := Object{Kind: Process, Identity: Identity{"pid": "77", "startTime": "5"}, Facts: Facts("state", "S")}
	ready := Object{Kind: Sandbox, Facts: Facts("state", "READY")}
	runs := Object{Kind: Container, Facts: Facts("state", "RUNNING")}
	doubtful := process
	doubtful.Doubt = "it could not be read"
	for name, test := range map[string]struct {
		objects []Object
		stat    string // /proc/77/stat
		n       int
		stays   bool // its directory
		unseen  bool // the directories of kubelet's own pods
		want    bool
	}{
		"nothing else was there":                 {want: true},
		"its directory is there":                 {stays: true},
		"as many as may be":                      {n: 4},
		"what it ran had ended":                  {objects: []Object{{Kind: Sandbox, Facts: Facts("state", "NOTREADY")}, {Kind: Container, Facts: Facts("state", "EXITED")}}, want: true},
		"its process is gone":                    {objects: []Object{process, ready, runs}, want: true},
		"its PID is another's":                   {objects: []Object{process, ready, runs}, stat: fmt.Sprintf(stat, 77, 6), want: true},
		"its process is there":                   {objects: []Object{process, ready, runs}, stat: fmt.Sprintf(stat, 77, 5)},
		"only a process is there":                {objects: []Object{process}, stat: fmt.Sprintf(stat, 77, 5)},
		"its process is not shown":               {objects: []Object{process, ready, runs}, stat: "what?"},
		"no process was listed":                  {objects: []Object{ready}},
		"a process was not read":                 {objects: []Object{doubtful}},
		"nothing is listed any more":             {unseen: true},
		"no process of its container was listed": {objects: []Object{runs}},
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
			var objects []Object
			var suspects []*Object
			for i := range 3 {
				suspects = append(suspects, &Object{Kind: PodDirectory, Pod: Pod{UID: uidOf(i)}})
			}
			for _, o := range append(test.objects, Object{Kind: PodDirectory}) {
				o.Pod.UID = dead
				objects = append(objects, o)
				if o.Doubt == "" {
					suspects = append(suspects, &o)
				}
			}
			inventory := Inventory{Kubelet: KubeletInventory{Pods: map[string]PodFact{living: {}}}}
			noteRemoved(t.Context(), hostscan.New(t.Context(), n.host, hostscan.Deadline{}), &inventory, objects,
				suspects, max(test.n, 3))
			if got := inventory.Removed[dead]; got != test.want {
				t.Errorf("%t, %v", got, inventory.Removed)
			}
		})
	}
}
