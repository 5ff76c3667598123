package filesystem

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

func TestCovered(t *testing.T) {
	mounts := []mount.Mount{
		{ID: 1, Parent: 1, Point: "/"},
		{ID: 2, Parent: 1, Point: "/a"},
		{ID: 3, Parent: 2, Point: "/a"}, // over it
		{ID: 4, Parent: 1, Point: "/b/c"},
		{ID: 5, Parent: 1, Point: "/b"}, // over a directory on the way
		{ID: 6, Parent: 5, Point: "/b/c"},
		{ID: 7, Parent: 1, Point: "/bb"},
		{ID: 8, Parent: 9, Point: "/x"}, // in a circle
		{ID: 9, Parent: 8, Point: "/x"},
	}
	tree := NewTree(mounts)
	got := make(map[int]bool)
	for _, m := range mounts[:7] {
		got[m.ID] = tree.Covered(m)
	}
	tree.Covered(mounts[7]) // ends
	want := map[int]bool{1: false, 2: true, 3: false, 4: true, 5: false, 6: false, 7: false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A stack as nodes have had it: one directory mounted upon itself again and again, or as many filesystems on one
// directory. To find which mounts a path leads to costs in proportion to the table, and each filesystem is probed once.
func TestProbeOfStackedMounts(t *testing.T) {
	const n = 8192
	for name, minor := range map[string]func(i int) int{
		"a directory upon itself":        func(int) int { return 7 },
		"filesystems upon one directory": func(i int) int { return 10 + i },
	} {
		t.Run(name, func(t *testing.T) {
			mounts := []mount.Mount{{ID: 1, Parent: 0, Major: 8, Point: "/", Root: "/", FSType: "ext4"}}
			for i := range n {
				mounts = append(mounts, mount.Mount{ID: 2 + i, Parent: 1 + i, Minor: minor(i), Point: "/stack", Root: "/",
					FSType: "nfs4", Source: fmt.Sprint("server:/", i)})
			}
			mounts = append(mounts, mount.Mount{ID: n + 2, Parent: 1, Minor: 5, Point: "/other", Root: "/", FSType: "nfs4"})
			tree := NewTree(mounts)
			var probed []string
			for _, f := range FilesystemsOf(mounts, func(m mount.Mount) bool { return m.FSType == "nfs4" }) {
				if request, err := f.Probe(&host.Host{}, tree); err == nil {
					probed = append(probed, request.Path)
				}
			}
			if diff := cmp.Diff([]string{"/stack", "/other"}, probed); diff != "" {
				t.Error(diff)
			}
			if tree.visits > 20*n {
				t.Errorf("%d places were looked at for %d mounts", tree.visits, n)
			}
		})
	}
}
