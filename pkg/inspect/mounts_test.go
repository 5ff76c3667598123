package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

const (
	mountsDead   = inspecttest.MountsDead
	mountsLiving = inspecttest.MountsLiving
)

// A mount in a pod's directory that contains another pod's UID is not a leftover.
func TestMountOfAnotherPod(t *testing.T) {
	scan := inspecttest.MountScan(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
2 1 8:1 /var/lib/kubelet PODS/DEAD/volume-subpaths/v/c/0 rw shared:1 - ext4 /dev/sda rw
3 1 0:9 / PODS/LIVE/volumes/kubernetes.io~secret/s rw shared:3 - tmpfs tmpfs rw
4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/pods/LIVE/volumes/kubernetes.io~secret/s rw shared:3 - tmpfs tmpfs rw
5 1 8:1 /var/lib/kubelet/pods/LIVE/volumes PODS/DEAD/volume-subpaths/w/c/0 rw shared:1 - ext4 /dev/sda rw
6 1 0:10 / PODS/DEAD/volumes/kubernetes.io~csi/33333333-3333-3333-3333-333333333333/mount rw shared:4 - tmpfs tmpfs rw
`)
	objects, err := Of(Mount).List(t.Context(), scan)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range objects {
		got[o.Identity["id"]] = o.Pod.UID + " " + o.Foreign
		subpaths := map[string]string{"2": "subpath of v", "5": "subpath of w"}
		if subpath := o.Facts["subpath"]; subpath != subpaths[o.Identity["id"]] {
			t.Errorf("mount %s: %q", o.Identity["id"], subpath)
		}
	}
	foreign := " in the directory of pod " + inspecttest.MountsDead + ", but it contains the UID of pod " + inspecttest.MountsLiving
	want := map[string]string{"2": inspecttest.MountsDead + " ", "3": inspecttest.MountsLiving + " ", "4": foreign, "5": foreign,
		"6": inspecttest.MountsDead + " "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	report, _ := Evaluate(objects, Inventory{}, History{}, DefaultSettings(), host.Now())
	for _, o := range report.Objects {
		if (o.Verdict == Foreign) != (got[o.Identity["id"]] == foreign) {
			t.Errorf("%s is %s: %s", o.ID, o.Verdict, o.Why)
		}
	}
}

// For suspects the report shows the effects of their unmount, and why it is refused.
func TestExplainMounts(t *testing.T) {
	scan := inspecttest.MountScan(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
2 1 8:1 /data PODS/DEAD/volume-subpaths/v/c/0 rw shared:1 - ext4 /dev/sda rw
3 1 8:2 / /data/disk rw shared:3 - ext4 /dev/sdb rw
4 2 8:2 / PODS/DEAD/volume-subpaths/v/c/0/disk rw shared:3 - ext4 /dev/sdb rw
5 1 8:3 / /mnt rw shared:5 - ext4 /dev/sdc rw
6 1 8:3 / PODS/DEAD/volumes/a/v rw shared:5 - ext4 /dev/sdc rw
7 5 8:4 / /mnt rw shared:6 - ext4 /dev/sdd rw
8 6 8:4 / PODS/DEAD/volumes/a/v rw shared:6 - ext4 /dev/sdd rw
9 1 0:9 / PODS/DEAD/volumes/a/t rw shared:7 - tmpfs tmpfs rw
`)
	objects, err := listMounts(t.Context(), scan)
	if err != nil {
		t.Fatal(err)
	}
	var suspects []*Object
	for i := range objects {
		suspects = append(suspects, &objects[i])
	}
	explain(scan, suspects)
	bind := "/var/lib/kubelet/pods/" + mountsDead + "/volume-subpaths/v/c/0"
	want := map[string][4]string{
		"2": {"shared:1", "/ (mount 1)", "", ""},
		"4": {"shared:3", "/data/disk (mount 3)", bind, ""},
		"6": {"shared:5", "/mnt (mount 5)", "", ""},
		"8": {"shared:6", "/mnt (mount 7)", "", "its unmount would also take away mount 7 (ext4 /dev/sdd) on /mnt"},
		"9": {"shared:7", "", "", ""},
	}
	got := map[string][4]string{}
	for _, o := range objects {
		got[o.Identity["id"]] = [4]string{o.Facts["propagation"], o.Facts["peer"], o.Facts["private"],
			o.Facts["refused"]}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Kubelet may run in its own mount namespace: mounts that only kubelet has are listed as kubelet's, and none twice.
func TestMountsOfKubelet(t *testing.T) {
	const table = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n2 1 0:9 / PODS/DEAD/volumes/a/v rw shared:2 - tmpfs tmpfs rw\n"
	list := func(scan *hostscan.Scan) map[string]string {
		objects, err := listMounts(t.Context(), scan)
		if err != nil {
			t.Fatal(err)
		}
		tables := map[string]string{}
		for _, o := range objects {
			tables[o.Identity["id"]] = o.Facts["table"]
		}
		return tables
	}
	own := "11 0 8:1 / / rw - ext4 /dev/sda rw\n12 11 0:9 / PODS/DEAD/volumes/a/v rw - tmpfs tmpfs rw\n"
	if diff := cmp.Diff(map[string]string{"2": "host", "12": "kubelet"}, list(inspecttest.MountScan(t, table,
		own))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"2": "host"}, list(inspecttest.MountScan(t, table, table))); diff != "" {
		t.Error("the same mounts:", diff)
	}
	// Mounts in an unreadable table are unknown.
	if objects, err := listMounts(t.Context(), inspecttest.MountScan(t, table, "")); err == nil || len(objects) != 1 {
		t.Errorf("%v, %v", objects, err)
	}
}
