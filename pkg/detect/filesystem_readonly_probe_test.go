package detect

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Many XFS volumes are asked in turn on the timer, all of them when the check is woken, and sick ones always; what was
// learnt of the others is kept meanwhile.
func TestXFSIsAskedSparingly(t *testing.T) {
	var mounts []host.Mount
	for i := range 12 {
		mounts = append(mounts, host.Mount{ID: i, Parent: i, Major: 8, Minor: i, Root: "/", Point: fmt.Sprintf("/%d", i), FSType: "xfs"})
	}
	filesystems := blockFilesystems(mounts)
	up := time.Minute
	var asked int
	sick := ""
	h := &host.Host{
		Clock: func() finding.Stamp { return finding.Stamp{Up: up} },
		Prober: host.Prober{Do: func(_ context.Context, r host.ProbeRequest) (host.ProbeAnswer, error) {
			asked++
			if r.Path == sick {
				return host.ProbeAnswer{Errno: int(syscall.EIO)}, nil
			}
			return host.ProbeAnswer{Type: xfsMagic}, nil
		}},
	}
	memory := &probeMemory{answers: map[string]probeResult{}}
	for _, step := range []struct {
		name  string
		after time.Duration
		sick  string
		asked int
		found int
	}{
		{"first look", 0, "", 12, 0},
		{"timer", 30 * time.Second, "", 4, 0},
		{"timer", 30 * time.Second, "", 4, 0},
		{"woken", 10 * time.Second, "/7", 12, 1},
		{"storm", 200 * time.Millisecond, "/7", 0, 1},
		{"timer", 30 * time.Second, "/7", 5, 1},
		{"recovered", 30 * time.Second, "", 5, 0},
	} {
		up, sick, asked = up+step.after, step.sick, 0
		if doubts := memory.probeAll(t.Context(), h, time.Second, mounts, filesystems); len(doubts) > 0 {
			t.Fatal(doubts)
		}
		found := 0
		for i := range filesystems {
			if filesystems[i].probeErrno != "" {
				found++
			}
			filesystems[i].probeErrno = ""
		}
		if asked != step.asked || found != step.found {
			t.Errorf("%s: asked %d, found %d; want %d, %d", step.name, asked, found, step.asked, step.found)
		}
	}
}

func TestCovered(t *testing.T) {
	mounts := []host.Mount{
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
	byID := make(map[int]host.Mount)
	for _, m := range mounts {
		byID[m.ID] = m
	}
	got := make(map[int]bool)
	for _, m := range mounts[:7] {
		got[m.ID] = covered(mounts, byID, m)
	}
	covered(mounts, byID, mounts[7]) // ends
	want := map[int]bool{1: false, 2: true, 3: false, 4: true, 5: false, 6: false, 7: false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A node with thousands of container mounts: only filesystems on disks cost anything beyond the table itself.
func BenchmarkBlockFilesystems(b *testing.B) {
	var mounts []host.Mount
	for i := range 5000 {
		mounts = append(mounts, host.Mount{ID: i, Minor: i, Root: "/", Point: fmt.Sprintf("/run/%d", i), FSType: "overlay"})
	}
	mounts = append(mounts, host.Mount{ID: 9000, Major: 8, Minor: 1, Root: "/", Point: "/", FSType: "ext4"})
	for b.Loop() {
		if len(blockFilesystems(mounts)) != 1 {
			b.Fatal("want one")
		}
	}
}

func FuzzFstab(f *testing.F) {
	f.Add([]byte("# x\nUUID=1 /a\\040b ext4 defaults,ro 0 2\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _ = parseFstab(data) })
}
