package kinds

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// For suspects the report shows the effects of their unmount, and why it is refused.
func TestExplainMounts(t *testing.T) {
	scan := MountScan(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
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
	var suspects []*object.Object
	for i := range objects {
		suspects = append(suspects, &objects[i])
	}
	Explain(scan, suspects)
	bind := "/var/lib/kubelet/pods/" + MountsDead + "/volume-subpaths/v/c/0"
	want := map[string][4]string{
		"2": {"shared:1", "/ (mount 1)", "", ""},
		"4": {"shared:3", "/data/disk (mount 3)", bind, ""},
		"6": {"shared:5", "/mnt (mount 5)", "", ""},
		"8": {"shared:6", "/mnt (mount 7)", "", "its unmount would also take away mount 7 (ext4 /dev/sdd) on /mnt"},
		"9": {"shared:7", "", "", ""},
	}
	got := map[string][4]string{}
	for _, o := range objects {
		got[strconv.Itoa(o.Identity.Mount.ID)] = [4]string{o.Facts["propagation"], o.Facts["peer"], o.Facts["private"],
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
			tables[strconv.Itoa(o.Identity.Mount.ID)] = o.Facts["table"]
		}
		return tables
	}
	own := "11 0 8:1 / / rw - ext4 /dev/sda rw\n12 11 0:9 / PODS/DEAD/volumes/a/v rw - tmpfs tmpfs rw\n"
	if diff := cmp.Diff(map[string]string{"2": "host", "12": "kubelet"}, list(MountScan(t, table,
		own))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"2": "host"}, list(MountScan(t, table, table))); diff != "" {
		t.Error("the same mounts:", diff)
	}
	// Mounts in an unreadable table are unknown.
	if objects, err := listMounts(t.Context(), MountScan(t, table, "")); err == nil || len(objects) != 1 {
		t.Errorf("%v, %v", objects, err)
	}
}
