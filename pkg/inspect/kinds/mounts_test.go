package kinds_test

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A mount in a pod's directory that contains another pod's UID is not a leftover.
func TestMountOfAnotherPod(t *testing.T) {
	scan := kinds.MountScan(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
2 1 8:1 /var/lib/kubelet PODS/DEAD/volume-subpaths/v/c/0 rw shared:1 - ext4 /dev/sda rw
3 1 0:9 / PODS/LIVE/volumes/kubernetes.io~secret/s rw shared:3 - tmpfs tmpfs rw
4 2 0:9 / PODS/DEAD/volume-subpaths/v/c/0/pods/LIVE/volumes/kubernetes.io~secret/s rw shared:3 - tmpfs tmpfs rw
5 1 8:1 /var/lib/kubelet/pods/LIVE/volumes PODS/DEAD/volume-subpaths/w/c/0 rw shared:1 - ext4 /dev/sda rw
6 1 0:10 / PODS/DEAD/volumes/kubernetes.io~csi/33333333-3333-3333-3333-333333333333/mount rw shared:4 - tmpfs tmpfs rw
`)
	objects, err := kinds.Of(object.Mount).List(t.Context(), scan)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range objects {
		got[strconv.Itoa(o.Identity.Mount.ID)] = o.Pod.UID + " " + o.Foreign
		subpaths := map[string]string{"2": "subpath of v", "5": "subpath of w"}
		if subpath := o.Facts["subpath"]; subpath != subpaths[strconv.Itoa(o.Identity.Mount.ID)] {
			t.Errorf("mount %s: %q", strconv.Itoa(o.Identity.Mount.ID), subpath)
		}
	}
	foreign := " in the directory of pod " + kinds.MountsDead + ", but it contains the UID of pod " + kinds.MountsLiving
	want := map[string]string{"2": kinds.MountsDead + " ", "3": kinds.MountsLiving + " ", "4": foreign,
		"5": foreign,
		"6": kinds.MountsDead + " "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	report, _ := verdict.Evaluate(objects, witness.Inventory{}, object.History{}, object.DefaultSettings(), host.Now())
	for _, o := range report.Objects {
		if (o.Verdict == object.Foreign) != (got[strconv.Itoa(o.Identity.Mount.ID)] == foreign) {
			t.Errorf("%s is %s: %s", o.ID, o.Verdict, o.Why)
		}
	}
}
