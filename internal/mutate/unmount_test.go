package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestUnmountTmpfs(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
	n.Write(filepath.Join(m.Point, "key"), "secret")
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Plain); err != nil {
		t.Fatal(err)
	}
	if left := n.Mounts(m.Point); len(left) > 0 {
		t.Fatalf("still mounted: %+v", left)
	}
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Plain); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// A bind of a directory on the same filesystem looks like a plain directory to any comparison of device numbers.
func TestUnmountBindKeepsData(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	data := filepath.Join(n.Dir, "data")
	n.Write(filepath.Join(data, "canary"), "alive")
	before := mutatetest.Snapshot(t, data)
	m := n.Mount(data, n.PodDir(uid, "volume-subpaths/v/c/0"), "", unix.MS_BIND)
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Plain); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, mutatetest.Snapshot(t, data)); diff != "" {
		t.Error(diff)
	}
}

func TestUnmountStackedAndNested(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	point := n.PodDir(uid, "volumes/kubernetes.io~csi/pvc/mount")
	lower := n.Mount("lower", point, "tmpfs", 0)
	upper := n.Mount("upper", point, "tmpfs", 0)
	inner := n.Mount("inner", filepath.Join(point, "a/b"), "tmpfs", 0)
	for _, step := range []struct {
		name string
		m    mutate.Mount
		want error
	}{
		{"covered", lower, mutate.ErrBusy},
		{"holds another mount", upper, mutate.ErrBusy},
		{"innermost", inner, nil},
		{"upper", upper, nil},
		{"lower", lower, nil},
	} {
		if err := n.Mutator.Unmount(t.Context(), uid, step.m, mutate.Plain); !errors.Is(err, step.want) {
			t.Fatalf("%s: %v, want %v", step.name, err, step.want)
		}
	}
	if left := n.Mounts(point); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestUnmountBusy(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/kubernetes.io~empty-dir/cache"), "tmpfs", 0)
	file, err := os.Create(filepath.Join(m.Point, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Plain); !errors.Is(err, mutate.ErrBusy) {
		t.Fatalf("got %v, want busy", err)
	}
	if got := n.Mounts(m.Point); len(got) != 1 || got[0] != m {
		t.Errorf("the mount changed: %+v", got)
	}
	var refusal mutate.Refusal
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Lazy); !errors.As(err, &refusal) {
		t.Errorf("lazy unmount of a local filesystem: %v, want a refusal", err)
	}
}

// Each of these is another owner's mount or a trick; none may be unmounted.
func TestUnmountRefuses(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	other := mutatetest.UID(t)
	foreign := n.Mount("foreign", filepath.Join(n.Dir, "elsewhere"), "tmpfs", 0)
	neighbour := n.Mount("neighbour", n.PodDir(other, "volumes/x/y"), "tmpfs", 0)
	mine := n.Mount("mine", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	root := n.Mount("whole", n.PodDir(mutatetest.UID(t)), "tmpfs", 0)
	changedSource, changedID := mine, mine
	changedSource.Source = "another"
	changedID.ID = neighbour.ID
	var refusal mutate.Refusal
	for name, try := range map[string]struct {
		uid     string
		m       mutate.Mount
		changed bool
	}{
		"outside of all pods":       {uid, foreign, false},
		"another pod's":             {uid, neighbour, false},
		"the pod's directory":       {filepath.Base(root.Point), root, false},
		"the pod's by a longer way": {"../pods/" + other, neighbour, false},
		"no pod":                    {"", neighbour, false},
		"other source":              {uid, changedSource, true},
		"ID was given again":        {uid, changedID, true},
	} {
		err := n.Mutator.Unmount(t.Context(), try.uid, try.m, mutate.Plain)
		if try.changed && !errors.Is(err, mutate.ErrChanged) || !try.changed && !errors.As(err, &refusal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, m := range []mutate.Mount{foreign, neighbour, mine, root} {
		if got := n.Mounts(m.Point); len(got) != 1 || got[0] != m {
			t.Errorf("%s: %+v, want %+v", m.Point, got, m)
		}
	}
}

// A pod that can write to a directory above its mount point may replace it with a link elsewhere: the mount point in
// the mount table then no longer leads to the mount.
func TestUnmountFollowsNoLink(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	victim := n.Mount("victim", filepath.Join(n.Dir, "victim/vol"), "tmpfs", 0)
	volume := n.PodDir(uid, "volumes/kubernetes.io~empty-dir/v")
	mine := n.Mount("mine", filepath.Join(volume, "sub/vol"), "tmpfs", 0)
	if err := os.Rename(filepath.Join(volume, "sub"), filepath.Join(volume, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(n.Dir, "victim"), filepath.Join(volume, "sub")); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.Unmount(t.Context(), uid, mine, mutate.Plain); err == nil {
		t.Error("unmounted something through a link")
	}
	if got := n.Mounts(victim.Point); len(got) != 1 || got[0] != victim {
		t.Errorf("the victim changed: %+v", got)
	}
	// The kernel moved the mount with its directory, so its real path finds it.
	mine.Point = filepath.Join(volume, "moved/vol")
	if err := n.Mutator.Unmount(t.Context(), uid, mine, mutate.Plain); err != nil {
		t.Errorf("at its true place: %v", err)
	}
}

// Another directory was mounted over the one that contains the mount: the path in the mount table now leads to another
// owner's mount.
func TestUnmountComparesID(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	mine := n.Mount("mine", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	n.Mount("cover", n.PodDir(uid, "volumes"), "tmpfs", 0)
	other := n.Mount("mine", mine.Point, "tmpfs", 0)
	if err := n.Mutator.Unmount(t.Context(), uid, mine, mutate.Plain); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("got %v, want it changed", err)
	}
	for _, m := range []mutate.Mount{mine, other} {
		if !slices.Contains(n.Mounts(m.Point), m) {
			t.Errorf("mount %d is gone", m.ID)
		}
	}
}

// The host's mount table differs from ours: a mount still in it is not unmounted.
func TestUnmountChecksHostMountTable(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	point := n.Mount("mine", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0).Point
	n.Host.Paths.InitPID = n.Namespace("private", "")
	mounts, err := mount.Table(n.Host)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.Point != point {
			continue
		}
		evaluated := mutate.Mount{ID: m.ID, Device: m.Device(), Root: m.Root, Point: m.Point, Source: m.Source,
			FSType: m.FSType}
		if err := n.Mutator.Unmount(t.Context(), uid, evaluated, mutate.Plain); err == nil ||
			!strings.Contains(err.Error(), "still in the host's") {
			t.Errorf("got %v", err)
		}
		return
	}
	t.Fatal("the host does not have the mount")
}

// A detached mount takes all mounts below it along, so a mount with others below it is not detached.
func TestLazyNotWithMountsBelow(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("outer", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	n.Mount("inner", filepath.Join(m.Point, "in"), "tmpfs", 0)
	if err := mutate.UnmountDetached(t.Context(), n.Mutator, uid, m); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("got %v, want busy", err)
	}
	if got := n.Mounts(m.Point); len(got) != 1 {
		t.Errorf("left: %+v", got)
	}
}

// Harm that a child reports stops the release of the pod.
func TestHarmOfAChild(t *testing.T) {
	if err := mutate.HarmOver(); !errors.Is(err, mutate.ErrHarm) || !errors.Is(err, mutate.ErrChanged) {
		t.Error(err)
	}
}

// Kubelet's root is a link to another disk on many nodes.
func TestUnmountBelowLinkedRoot(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	link := filepath.Join(n.Dir, "link")
	if err := os.Symlink(n.Host.Paths.KubeletRoot, link); err != nil {
		t.Fatal(err)
	}
	n.Host.Paths.KubeletRoot = link
	if err := n.Mutator.Unmount(t.Context(), uid, m, mutate.Plain); err != nil {
		t.Error(err)
	}
}
