package filesystemreadonly

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// One child probes many XFS volumes, rarely in a storm of wakes, and not again while one hangs.
func TestXFSIsAskedSparingly(t *testing.T) {
	var mounts []mount.Mount
	for i := range 12 {
		mounts = append(mounts, mount.Mount{ID: i, Parent: i, Major: 8, Minor: i, Root: "/",
			Point: fmt.Sprintf("/%d", i), FSType: "xfs"})
	}
	var filesystems []examined
	for _, f := range filesystem.BlockFilesystems(mounts) {
		filesystems = append(filesystems, examined{Filesystem: f})
	}
	up, children, asked := time.Minute, 0, 0
	sick, hung := "", ""
	ended := make(chan struct{})
	h := &host.Host{
		Clock: func() finding.Timestamp { return finding.Timestamp{SinceBoot: up} },
		Prober: probe.Prober{Batch: func(_ context.Context, _ time.Duration,
			requests []probe.ProbeRequest) []probe.ProbeResult {
			var results []probe.ProbeResult
			for _, r := range requests {
				result := probe.ProbeResult{Answer: probe.ProbeAnswer{Type: xfsMagic}}
				switch r.Path {
				case sick:
					result.Answer = probe.ProbeAnswer{Errno: int(syscall.EIO)}
				case hung:
					result = probe.ProbeResult{Err: probe.ErrHung, Ended: ended}
				}
				results = append(results, result)
			}
			children, asked = children+1, asked+len(requests)
			return results
		}},
	}
	state := &probeState{hung: checkkit.HungProbes{}}
	for _, step := range []struct {
		name       string
		after      time.Duration
		sick, hung string
		ends       bool // before the step: the hung one
		asked      int
		found      int
		doubts     int
	}{
		{"first run", 0, "", "", false, 12, 0, 0},
		{"timer", 30 * time.Second, "", "", false, 12, 0, 0},
		{"woken", 10 * time.Second, "/7", "", false, 12, 1, 0},
		{"storm", 200 * time.Millisecond, "/7", "", false, 0, 1, 0},
		{"recovered", 30 * time.Second, "", "", false, 12, 0, 0},
		{"hangs", 30 * time.Second, "", "/3", false, 12, 0, 1},
		{"hangs still", 30 * time.Second, "", "/3", false, 11, 0, 1},
		{"goes on", 30 * time.Second, "", "", true, 12, 0, 0},
	} {
		up, sick, hung, asked = up+step.after, step.sick, step.hung, 0
		if step.ends {
			close(ended)
		}
		doubts := state.probeAll(t.Context(), h, time.Second, mounts, filesystems)
		found := 0
		for i := range filesystems {
			if filesystems[i].probeErrno != "" {
				found++
			}
			filesystems[i].probeErrno = ""
		}
		if asked != step.asked || found != step.found || len(doubts) != step.doubts {
			t.Errorf("%s: asked %d, found %d, doubts %v; want %d, %d, %d", step.name, asked, found, doubts, step.asked,
				step.found, step.doubts)
		}
	}
	if children != 7 {
		t.Errorf("%d children, want one for each run that probes", children)
	}
}

// A node with thousands of container mounts: only filesystems on disks cost anything beyond the table itself.
func BenchmarkBlockFilesystems(b *testing.B) {
	var mounts []mount.Mount
	for i := range 5000 {
		mounts = append(mounts, mount.Mount{ID: i, Minor: i, Root: "/", Point: fmt.Sprintf("/run/%d", i),
			FSType: "overlay"})
	}
	mounts = append(mounts, mount.Mount{ID: 9000, Major: 8, Minor: 1, Root: "/", Point: "/", FSType: "ext4"})
	for b.Loop() {
		if len(filesystem.BlockFilesystems(mounts)) != 1 {
			b.Fatal("want one")
		}
	}
}

func FuzzFstab(f *testing.F) {
	f.Add([]byte("# x\nUUID=1 /a\\040b ext4 defaults,ro 0 2\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _ = filesystem.ParseFstab(data) })
}
