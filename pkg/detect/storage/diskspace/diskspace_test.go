package diskspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem/filesystemtest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// fillingNode is a node whose root filesystem a test fills.
type fillingNode struct {
	host    *host.Host
	now     finding.Timestamp
	percent float64 // free
}

func newFillingNode(t *testing.T) *fillingNode {
	t.Helper()
	n := &fillingNode{now: hosttest.Now(), percent: 19}
	n.host = hosttest.Host(t)
	table := filepath.Join(n.host.Files.Root, "proc/1/mountinfo")
	if err := os.MkdirAll(filepath.Dir(table), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(table, []byte("27 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.host.Clock = func() finding.Timestamp { return n.now }
	n.host.Prober = probe.Prober{Do: func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error) {
		free := uint64(n.percent * (1 << 30))
		return probe.ProbeAnswer{FreeBytes: free, RootBytes: free, TotalBytes: 100 << 30}, nil
	}}
	return n
}

// run runs the check after a time in which data were written, and returns the reason.
func (n *fillingNode) run(t *testing.T, c detect.Check, after time.Duration, written float64) string {
	t.Helper()
	n.now.SinceBoot, n.now.Wall, n.percent = n.now.SinceBoot+after, n.now.Wall.Add(after), n.percent-written
	findings, err := c.Run(t.Context(), n.host)
	if err != nil || len(findings) > 1 {
		t.Fatal(findings, err)
	}
	if len(findings) == 0 {
		return ""
	}
	return findings[0].Reason
}

// The history outlives the agent, but not the boot, and does not depend on the wall clock.
func TestSpaceTrendSurvives(t *testing.T) {
	for name, between := range map[string]struct {
		happens func(n *fillingNode, kept checktest.StateStore)
		want    string
	}{
		"restart of the agent": {func(*fillingNode, checktest.StateStore) {}, reasonDiskFilling},
		"wall clock jumps": {func(n *fillingNode, _ checktest.StateStore) {
			n.now.Wall = n.now.Wall.AddDate(-30, 0, 0)
		}, reasonDiskFilling},
		"reboot": {func(n *fillingNode, _ checktest.StateStore) {
			n.now.Boot, n.now.SinceBoot = "another", 2*time.Minute
		}, ""},
		"nothing kept": {func(_ *fillingNode, kept checktest.StateStore) { delete(kept, spaceTrendKey) }, ""},
		"damaged": {func(_ *fillingNode, kept checktest.StateStore) {
			kept[spaceTrendKey] = kept[spaceTrendKey][1:]
		}, ""},
		"from the future": {func(n *fillingNode, _ checktest.StateStore) { n.now.SinceBoot = time.Minute }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n, kept := newFillingNode(t), checktest.StateStore{}
			check := New(DefaultSettings(), kept)
			for range 7 {
				n.run(t, check, 10*time.Minute, 0.25)
			}
			if got := n.run(t, check, time.Minute, 0); got != reasonDiskFilling {
				t.Fatalf("before: %q", got)
			}
			between.happens(n, kept)
			if got := n.run(t, New(DefaultSettings(), kept), time.Minute, 0); got != between.want {
				t.Errorf("after: %q, want %q", got, between.want)
			}
		})
	}
}

// A day of runs, each minute: the history does not grow, and is saved every ten minutes only.
func TestSpaceTrendIsBounded(t *testing.T) {
	n, saves := newFillingNode(t), countingMemory{StateStore: checktest.StateStore{}}
	check := New(DefaultSettings(), &saves)
	for range 24 * 60 {
		if got := n.run(t, check, time.Minute, 0.0001); got != "" {
			t.Fatal(got)
		}
	}
	if size := len(saves.StateStore[spaceTrendKey]); size > 2<<10 || saves.saves > 24*6+1 {
		t.Errorf("%d bytes, saved %d times", size, saves.saves)
	}
}

type countingMemory struct {
	checktest.StateStore
	saves int
}

func (m *countingMemory) Save(key string, value []byte) {
	m.saves++
	m.StateStore.Save(key, value)
}

func FuzzSpaceHistory(f *testing.F) {
	f.Add([]byte(`{"boot":"b","samples":{"ext4 /":[[10,5],[20,4]]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		trend := loadSpaceTrend(detect.Saved[spaceTrend]{Store: checktest.StateStore{spaceTrendKey: data},
			Key: spaceTrendKey},
			finding.Timestamp{Boot: "b", SinceBoot: time.Hour})
		s := space{answer: probe.ProbeAnswer{FreeBytes: 5, TotalBytes: 10}}
		s.Principal = mount.Mount{FSType: "ext4", Point: "/"}
		trend.sample(finding.Timestamp{Boot: "b", SinceBoot: time.Hour}, []space{s})
		if left := trend.fullIn(s, time.Hour+time.Second); left < 0 {
			t.Fatal(left)
		}
	})
}

// spaceNode is the test's machine, with the node's own data below the test's directory.
func spaceNode(t *testing.T) *filesystemtest.RealNode {
	n := filesystemtest.NewRealNode(t, New(DefaultSettings(), nil))
	n.Host.Paths.ContainerdRoot, n.Host.Paths.ContainerdState = n.Path("disk"), n.Path("state")
	return n
}

func TestRealDiskFull(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			disk, n := hosttest.NewLoopFS(t, fstype), spaceNode(t)
			disk.Mount(n.Path("disk"), "rw")
			n.Expect()
			var is syscall.Statfs_t
			if err := syscall.Statfs(n.Path("disk"), &is); err != nil {
				t.Fatal(err)
			}
			fill(t, n.Path("disk/a"), int64(is.Bavail-is.Blocks/100*7)*is.Bsize)
			if fstype != "btrfs" { // on a disk as small as this it reports more than it has
				n.Expect([3]string{"disk", "warning", reasonDiskSpaceLow})
			}
			fillAll(t, n.Path("disk/b"))
			n.Expect([3]string{"disk", "fatal", reasonDiskFull})
			for _, name := range []string{"disk/a", "disk/b"} {
				if err := os.Remove(n.Path(name)); err != nil {
					t.Fatal(err)
				}
			}
			dir, err := os.Open(n.Path("disk"))
			if err != nil {
				t.Fatal(err)
			}
			err = unix.Syncfs(int(dir.Fd())) // btrfs releases space with its next transaction, within half a minute
			if closeErr := dir.Close(); err != nil || closeErr != nil {
				t.Fatal(err, closeErr)
			}
			n.Settles()
		})
	}
}

// A pod's volume without a free byte is full, until space is free again.
func TestRealVolumeFull(t *testing.T) {
	disk, n := hosttest.NewLoopFS(t, "ext4"), spaceNode(t)
	const volume = "kubelet/pods/0d2f1a64-8f1e-4b5e-9b5a-0123456789ab/volumes/v"
	disk.Mount(n.Path(volume), "rw")
	n.Expect()
	fillAll(t, n.Path(volume+"/a"))
	n.Expect([3]string{volume, "warning", reasonDiskFull})
	if err := os.Remove(n.Path(volume + "/a")); err != nil {
		t.Fatal(err)
	}
	n.Settles()
}

func fill(t *testing.T, name string, size int64) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		t.Fatalf("fallocate %s: %v", name, err)
	}
}

// fillAll takes the remaining space, in smaller and smaller pieces.
func fillAll(t *testing.T, name string) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	at := int64(0)
	for size := int64(64 << 20); size >= 64<<10; {
		if err := syscall.Fallocate(int(file.Fd()), 0, at, size); err != nil {
			size /= 2
			continue
		}
		at += size
	}
}

func TestRealInodesExhausted(t *testing.T) {
	need.Root(t, "mounts a tmpfs")
	n := spaceNode(t)
	if err := os.Mkdir(n.Path("state"), 0o755); err != nil {
		t.Fatal(err)
	}
	need.Kernel(t, "tmpfs", syscall.Mount("tmpfs", n.Path("state"), "tmpfs", 0, "size=10m,nr_inodes=2000"))
	t.Cleanup(func() {
		if err := syscall.Unmount(n.Path("state"), 0); err != nil {
			t.Error(err)
		}
	})
	n.Expect()
	file := func(i int) string { return n.Path(fmt.Sprintf("state/%d", i)) }
	for i := range 1990 {
		if err := os.WriteFile(file(i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.Expect([3]string{"state", "fatal", reasonInodesGone})
	for i := range 500 {
		if err := os.Remove(file(i)); err != nil {
			t.Fatal(err)
		}
	}
	n.Expect()
}

func TestBytesText(t *testing.T) {
	got := map[uint64]string{}
	for _, n := range []uint64{0, 1023, 1 << 20, 3 << 29, 1<<64 - 1} {
		got[n] = bytesText(n)
	}
	want := map[uint64]string{0: "0 bytes", 1023: "1023 bytes", 1 << 20: "1.0 MiB", 3 << 29: "1.5 GiB",
		1<<64 - 1: "16.0 EiB"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// If the runtime knows the size of images, it is reported; a runtime that does not answer only costs a second.
func TestSpaceOfImages(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(context.Context) (uint64, error)
		want   string
	}{
		"known":   {hosttest.Answer(uint64(30<<30), nil), "32212254720"},
		"hangs":   {hosttest.Hang[uint64], ""},
		"unknown": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFillingNode(t)
			n.percent, n.host.Runtime.ImageBytes = 5, c.answer
			findings, err := New(DefaultSettings(), nil).Run(t.Context(), n.host)
			if err != nil || len(findings) != 1 || findings[0].Facts["imageBytes"] != c.want {
				t.Errorf("%+v, %v", findings, err)
			}
		})
	}
}
