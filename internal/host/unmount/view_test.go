package unmount_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/unmount"
)

const (
	deadPod   = "11111111-1111-1111-1111-111111111111"
	livingPod = "22222222-2222-2222-2222-222222222222"
	podsDir   = "/var/lib/kubelet/pods"
)

// view makes a view of tables whose lines contain only the relevant fields: id, parent, device, root, point, tags,
// source.
func view(t *testing.T, tables ...string) unmount.View {
	t.Helper()
	v := unmount.View{PodsDir: podsDir, Pods: []string{deadPod, livingPod}}
	for i, text := range tables {
		text = strings.NewReplacer("PODS", podsDir, "DEAD", deadPod, "LIVE", livingPod).Replace(text)
		var lines strings.Builder
		for line := range strings.Lines(text) {
			if fields := strings.Fields(line); len(fields) > 0 {
				source := fields[len(fields)-1]
				fmt.Fprintf(&lines, "%s rw %s- ext4 %s rw\n", strings.Join(fields[:5], " "),
					strings.Join(append(fields[5:len(fields)-1], ""), " "), source)
			}
		}
		mounts, err := mountinfo.Parse(strings.NewReader(lines.String()))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			v.Mounts = mounts
			continue
		}
		v.Others = append(v.Others, unmount.Namespace{PID: 1000 + i, Mounts: mounts})
	}
	return v
}

func TestViewUnmount(t *testing.T) {
	const root = "1 0 8:1 / / shared:1 /dev/sda\n"
	for name, test := range map[string]struct {
		tables  []string
		id      int
		refused string // part of the text; empty: allowed
		private int    // ID of the mount to make private
		along   []int
	}{
		"tmpfs on a shared root": {tables: []string{root + "2 1 0:9 / PODS/DEAD/volumes/a/b shared:2 tmpfs"}, id: 2},
		"tmpfs on a private root": {
			tables: []string{"1 0 8:1 / / /dev/sda\n 2 1 0:9 / PODS/DEAD/volumes/a/b tmpfs"}, id: 2,
		},
		"disk mounted below the source of a subPath": {tables: []string{root +
			`2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 3 1 8:2 / /data/disk shared:3 /dev/sdb
			 4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:3 /dev/sdb`}, id: 4, private: 2},
		"deeper: the outermost": {tables: []string{root +
			`2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:3 /dev/sdb
			 5 4 8:3 / PODS/DEAD/volume-subpaths/v/c/0/disk/in shared:4 /dev/sdc`}, id: 5, private: 2},
		"the bind is a slave: what is unmounted below it concerns it alone": {tables: []string{root +
			`2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 master:1 /dev/sda
			 3 1 8:2 / /data/disk shared:3 /dev/sdb
			 4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk master:3 /dev/sdb`}, id: 4},
		"a slave that is shared": {tables: []string{root +
			`2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 shared:7 master:1 /dev/sda
			 3 1 8:1 /data /mnt/copy shared:7 master:1 /dev/sda
			 4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:3 /dev/sdb
			 5 3 8:2 / /mnt/copy/disk shared:3 /dev/sdb`}, id: 4, private: 2},
		"mounted right on the source, the bind is covered": {tables: []string{root +
			`2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 3 1 8:2 / /data shared:3 /dev/sdb
			 4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0 shared:3 /dev/sdb`}, id: 4, refused: "on /data"},
		"stacked, and nothing anywhere else": {tables: []string{root +
			`2 1 0:9 / PODS/DEAD/volumes/a/b shared:2 tmpfs
			 3 2 0:10 / PODS/DEAD/volumes/a/b shared:3 tmpfs`}, id: 3},
		"stacked below an outer one that is not": {tables: []string{root +
			`2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 3 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:3 /dev/sdb
			 4 3 8:3 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:4 /dev/sdc`}, id: 4, private: 2},
		"another pod's volume in a bind of kubelet's root": {tables: []string{root +
			`2 1 8:1 /var/lib/kubelet PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 3 1 0:9 / PODS/LIVE/volumes/a/b shared:3 tmpfs
			 4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/pods/LIVE/volumes/a/b shared:3 tmpfs`}, id: 4, refused: "UID of pod " + livingPod},
		"the bind around another pod's volume": {tables: []string{root +
			`2 1 8:1 /var/lib/kubelet PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/pods/LIVE/volumes/a/b shared:3 tmpfs`}, id: 2, refused: "lies below it"},
		"beside another pod's volume, which would stay behind": {tables: []string{root +
			`2 1 8:1 /var/lib PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 3 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:3 /dev/sdb
			 4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/kubelet/pods/LIVE/volumes/a/b shared:4 tmpfs`}, id: 3, refused: "would have to be made private"},
		"a bind of the directory of pods itself": {tables: []string{root +
			`2 1 8:1 /var/lib/kubelet/pods PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/LIVE/volumes/a/b shared:3 tmpfs`}, id: 4, refused: "UID of pod"},
		"a bind of another pod's volumes: its root shows it": {tables: []string{root +
			`2 1 8:1 /var/lib/kubelet/pods/LIVE/volumes PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
			 4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/a/b shared:3 tmpfs`}, id: 4, refused: "UID of pod"},
		"the same, with the directory of pods on a disk of its own": {tables: []string{root +
			`2 1 8:7 / PODS shared:2 /dev/sdd
			 3 2 8:7 /LIVE/volumes PODS/DEAD/volume-subpaths/v/c/0 shared:2 /dev/sdd`}, id: 3, refused: "UID of pod"},
		"the source shows it": {tables: []string{root + "2 1 0:9 / PODS/DEAD/volumes/a/b shared:2 " +
			"srv:/export/pods/LIVE/x"}, id: 2, refused: "UID of pod"},
		"a volume and a disk named by UUIDs": {tables: []string{root +
			"2 1 8:9 / PODS/DEAD/volumes/p/33333333-3333-3333-3333-333333333333/mount shared:2 " +
			"/dev/topolvm/33333333-3333-3333-3333-333333333333"}, id: 2},
		"seen by a living pod": {tables: []string{root +
			`2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs
			 3 1 8:1 /var/lib/kubelet/pods/DEAD/volumes/a PODS/LIVE/volume-subpaths/v/c/0 shared:1 /dev/sda
			 4 3 0:9 / PODS/LIVE/volume-subpaths/v/c/0/t shared:2 tmpfs`}, id: 2, refused: "on " + podsDir + "/" + livingPod},
		"seen by a living backup pod": {tables: []string{root +
			`2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs
			 3 1 8:1 /var/lib/kubelet PODS/LIVE/volume-subpaths/v/c/0 shared:1 /dev/sda
			 4 3 0:9 / PODS/LIVE/volume-subpaths/v/c/0/pods/DEAD/volumes/a/t shared:2 tmpfs`}, id: 2, refused: "on " + podsDir + "/" + livingPod},
		"a part of the pod's directory bound elsewhere": {tables: []string{root +
			`2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs
			 3 1 8:1 /var/lib/kubelet/pods/DEAD/volumes /mnt/copy shared:1 /dev/sda
			 4 3 0:9 / /mnt/copy/a/t shared:2 tmpfs`}, id: 2, refused: "on /mnt/copy/a/t"},
		"kubelet's root is a bind of a data disk": {tables: []string{root +
			`2 1 8:5 / /data shared:2 /dev/sdb
			 3 1 8:5 /kubelet /var/lib/kubelet shared:2 /dev/sdb
			 4 3 0:9 / PODS/DEAD/volumes/a/t shared:3 tmpfs
			 5 2 0:9 / /data/kubelet/pods/DEAD/volumes/a/t shared:3 tmpfs`}, id: 4, along: []int{5}},
		"another mount under the other name": {tables: []string{root +
			`2 1 8:5 / /data shared:2 /dev/sdb
			 3 1 8:5 /kubelet /var/lib/kubelet shared:2 /dev/sdb
			 4 3 0:9 / PODS/DEAD/volumes/a/t shared:3 tmpfs
			 5 2 8:9 / /data/kubelet/pods/DEAD/volumes/a/t shared:4 /dev/sdx`}, id: 4, refused: "mount 5"},
		"a copy in another namespace": {tables: []string{
			root + "2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs",
			"11 0 8:1 / / master:1 /dev/sda\n 12 11 0:9 / PODS/DEAD/volumes/a/t master:2 tmpfs"}, id: 2,
			along: []int{12}},
		"something else in another namespace": {tables: []string{
			root + "2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs",
			"11 0 8:1 / /host master:1 /dev/sda\n 12 11 8:9 / /hostPODS/DEAD/volumes/a/t /dev/sdx"}, id: 2,
			refused: "process 1001"},
		"the slave of a slave, which cannot be seen": {tables: []string{
			root + "2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs",
			"11 0 8:1 / / master:5 propagate_from:1 /dev/sda\n 12 11 8:9 / PODS/DEAD/volumes/a/t /dev/sdx"}, id: 2,
			refused: "process 1001"},
		"the slave of a slave": {tables: []string{
			root + "2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs",
			"11 0 8:1 / / shared:5 master:1 /dev/sda",
			"21 0 8:1 / / master:5 /dev/sda\n 22 21 8:9 / PODS/DEAD/volumes/a/t /dev/sdx"}, id: 2,
			refused: "process 1002"},
		"a chain of slaves, the last first": {tables: []string{
			root + "2 1 0:9 / PODS/DEAD/volumes/a/t shared:2 tmpfs",
			"21 0 8:1 / / shared:6 master:5 /dev/sda",
			"31 0 8:1 / / shared:5 master:1 /dev/sda",
			"41 0 8:1 / / master:6 /dev/sda\n 42 41 8:8 / PODS/DEAD/volumes/a/t /dev/sdy"}, id: 2,
			refused: "process 1003"},
		"the pod's directory itself": {tables: []string{root + "2 1 0:9 / PODS/DEAD shared:2 tmpfs"}, id: 2,
			refused: "not below the directory"},
		"another pod's": {tables: []string{root + "2 1 0:9 / PODS/LIVE/volumes/a/b shared:2 tmpfs"}, id: 2,
			refused: "not below the directory"},
		"its parent is not seen": {tables: []string{"2 1 0:9 / PODS/DEAD/volumes/a/b shared:2 tmpfs"}, id: 2,
			refused: "cannot be seen"},
		"a circle": {tables: []string{"2 3 0:9 / PODS/DEAD/volumes/a/b shared:2 x\n 3 2 0:9 / PODS/DEAD/volumes/a/b shared:2 x"}, id: 2,
			refused: "circle"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := view(t, test.tables...).Unmount(deadPod, test.id)
			private, along := 0, []int(nil)
			if plan.Private != nil {
				private = plan.Private.ID
			}
			for _, effect := range plan.Along {
				along = append(along, effect.ID)
			}
			if (plan.Refused == "") != (test.refused == "") || !strings.Contains(plan.Refused, test.refused) {
				t.Errorf("refused %q, want %q", plan.Refused, test.refused)
			}
			if private != test.private {
				t.Errorf("made private: %d, want %d", private, test.private)
			}
			if diff := cmp.Diff(test.along, along); diff != "" {
				t.Error("along:", diff)
			}
		})
	}
}

// A mount that went for other reasons is no harm; one that went because of the unmount is.
func TestViewVanished(t *testing.T) {
	v := view(t, `1 0 8:1 / / shared:1 /dev/sda
		2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 shared:1 /dev/sda
		3 1 8:2 / /data/disk shared:3 /dev/sdb
		4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk shared:3 /dev/sdb
		5 1 0:9 / PODS/LIVE/volumes/a/b shared:4 tmpfs
		6 1 8:2 / /slave master:3 /dev/sdb
		7 1 8:9 / /given-again /dev/sdx`)
	at := func(id int) unmount.Mount { return v.Mounts[id-1] }
	reused := at(7)
	reused.Source = "/dev/sdy"
	later := []unmount.Mount{at(1), at(2), reused}
	lost, unrelated := v.Vanished(later, at(4), nil)
	if diff := cmp.Diff([]unmount.Mount{at(3), at(6)}, lost); diff != "" {
		t.Error("lost:", diff)
	}
	if diff := cmp.Diff([]unmount.Mount{at(5), at(7)}, unrelated); diff != "" {
		t.Error("unrelated:", diff)
	}
	lost, _ = v.Vanished(later, at(4), []unmount.Effect{{Mount: at(3)}, {Mount: at(6)}})
	if len(lost) > 0 {
		t.Errorf("planned, yet lost: %+v", lost)
	}
	// Private itself, at a directory where its parent had a peer.
	private := at(4)
	private.Shared = 0
	if lost, _ := v.Vanished(later, private, nil); len(lost) != 1 || lost[0].ID != 3 {
		t.Errorf("lost: %+v", lost)
	}
	if lost, unrelated := v.Vanished(v.Mounts, at(4), nil); len(lost)+len(unrelated) > 0 {
		t.Errorf("nothing changed: %+v, %+v", lost, unrelated)
	}
}
