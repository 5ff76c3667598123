package actions

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestCgroupNeeds(t *testing.T) {
	mount := func(kind string) object.Assessment {
		return object.Assessment{Object: object.Object{Kind: object.Mount, Identity: object.Identity{
			Mount: object.MountID{Type: kind, Point: "/p"}}}}
	}
	container := func(state string) object.Assessment {
		return object.Assessment{Object: object.Object{Kind: object.Container, ID: "c",
			Facts: map[string]string{"state": state}}}
	}
	for name, test := range map[string]struct {
		rest []object.Assessment
		want string
	}{
		"nothing": {nil, ""},
		"a volume in memory": {[]object.Assessment{mount("ext4"), mount("tmpfs")},
			"a volume in memory is still mounted on /p"},
		"other volumes":       {[]object.Assessment{mount("ext4"), mount("nfs4")}, ""},
		"a running container": {[]object.Assessment{container("RUNNING")}, "container c still exists"},
		"one that may run":    {[]object.Assessment{container("UNKNOWN")}, "container c still exists"},
		"one that has ended":  {[]object.Assessment{container("EXITED")}, ""},
	} {
		if got := cgroupAction().Needs(object.Assessment{}, test.rest, Settings{}); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Leaves first; at equal depth systemd's first, since systemd removes the others with it.
func TestCgroupOrder(t *testing.T) {
	var all []object.Assessment
	for _, id := range []string{"memory/pod", "memory/pod/c", "pids/pod/c", "systemd/pod", "systemd/pod/c", "pids/pod",
		"pids/pod/c/d"} {
		hierarchy, _, _ := strings.Cut(id, "/")
		if hierarchy == "systemd" {
			hierarchy = "name=systemd"
		}
		all = append(all, object.Assessment{Object: object.Object{ID: id,
			Facts: map[string]string{"hierarchy": hierarchy}}})
	}
	slices.SortStableFunc(all, cgroupAction().Less)
	var got []string
	for _, o := range all {
		got = append(got, o.ID)
	}
	want := []string{"pids/pod/c/d", "systemd/pod/c", "memory/pod/c", "pids/pod/c", "systemd/pod", "memory/pod",
		"pids/pod"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
