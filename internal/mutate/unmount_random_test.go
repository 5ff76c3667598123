package mutate_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// forest is a random tree of mounts of all propagations in and around the directories of a dead and of a living pod.
type forest struct {
	*mutatetest.Node
	t            *testing.T
	random       *rand.Rand
	dead, living string
	dirs         []string // possible mount points and sources of binds
}

func newForest(t *testing.T, seed uint64) *forest {
	f := &forest{Node: mutatetest.New(t), t: t, random: rand.New(rand.NewPCG(seed, 0)), dead: mutatetest.UID(t),
		living: mutatetest.UID(t)}
	f.add(f.Dir, "data", "data/a", "data/b", "elsewhere", "kubelet", "kubelet/pods")
	for _, uid := range []string{f.dead, f.living} {
		f.add(f.PodDir(uid), "volumes/x/v", "volumes/x/v/a", "volumes/y/w", "volume-subpaths/v/c/0",
			"volume-subpaths/v/c/1")
	}
	return f
}

// add makes directories below one.
func (f *forest) add(top string, names ...string) {
	for _, name := range names {
		f.dirs = append(f.dirs, f.Mkdir(filepath.Join(top, name)))
	}
}

func (f *forest) pick() string { return f.dirs[f.random.IntN(len(f.dirs))] }

// target returns mostly directories of a pod, as for kubelet's mounts.
func (f *forest) target() string {
	for range 3 {
		if dir := f.pick(); strings.Contains(dir, f.dead+"/") {
			return dir
		}
	}
	return f.pick()
}

// grow makes one random change. Refusals by the kernel do not matter.
func (f *forest) grow() {
	if mounts, err := mount.TableOf(f.Host, os.Getpid()); err != nil || len(mounts) > 300 {
		return // copies of copies grow fast
	}
	switch f.random.IntN(6) {
	case 0, 1:
		dir := f.target()
		if unix.Mount("random", dir, "tmpfs", 0, "") == nil {
			f.add(dir, "a", "a/b")
		}
	case 2, 3:
		_ = unix.Mount(f.pick(), f.target(), "", unix.MS_BIND, "")
	case 4:
		_ = unix.Mount(f.pick(), f.target(), "", unix.MS_BIND|unix.MS_REC, "")
	default:
		flags := []uintptr{unix.MS_SHARED, unix.MS_SLAVE, unix.MS_PRIVATE, unix.MS_UNBINDABLE,
			unix.MS_REC | unix.MS_SLAVE}
		_ = unix.Mount("", f.pick(), "", flags[f.random.IntN(len(flags))], "")
	}
}

// mounts returns the mounts in the node's own directory by ID.
func (f *forest) mounts() map[int]mount.Mount {
	f.t.Helper()
	mounts, err := mount.TableOf(f.Host, os.Getpid())
	if err != nil {
		f.t.Fatal(err)
	}
	all := map[int]mount.Mount{}
	for _, m := range mounts {
		if mount.Below(m.Point, f.Dir) {
			all[m.ID] = m
		}
	}
	return all
}

// ours reports whether a mount point is in the dead pod's directory, under any name, and not in the living pod's.
func (f *forest) ours(point string) bool {
	return strings.Contains(point, "/"+f.dead+"/") && !strings.Contains(point, f.living)
}

// Whatever is mounted in the directory of a dead pod, and however: every mount that an unmount removes is in that
// directory, and was predicted.
func TestUnmountRandomTrees(t *testing.T) {
	seeds := uint64(24)
	const most = 16 // attempts for each
	counts := map[string]int{}
	for seed := range seeds {
		f := newForest(t, seed)
		for range 14 {
			f.grow()
		}
		tried := 0
		for progress := true; progress && tried < most; {
			progress = false
			for _, m := range f.mounts() {
				before := f.mounts()
				if _, there := before[m.ID]; !there || !mount.Below(m.Point, f.PodDir(f.dead)) || tried >= most {
					continue
				}
				tried++
				evaluated := mutate.Mount{ID: m.ID, Device: m.Device(), Root: m.Root, Point: m.Point, Source: m.Source,
					FSType: m.FSType}
				err := f.Mutator.Unmount(t.Context(), f.dead, evaluated, mutate.Plain)
				var refusal mutate.Refusal
				switch {
				case err == nil:
					counts["unmounted"]++
					progress = true
				case errors.As(err, &refusal):
					counts["refused"]++
				case errors.Is(err, mutate.ErrHarm):
					t.Errorf("seed %d: %v", seed, err)
				default:
					counts["failed"]++
				}
				after := f.mounts()
				for id, gone := range before {
					if _, still := after[id]; !still && (err != nil || !f.ours(gone.Point)) {
						t.Errorf("seed %d: the unmount of %s (%v) took %s away", seed, m.Point, err, gone.Point)
					}
				}
			}
		}
		if t.Failed() {
			return
		}
		f.clear()
	}
	t.Log(counts)
	if counts["unmounted"] == 0 || counts["refused"] == 0 {
		t.Errorf("nothing was shown: %v", counts)
	}
}

// clear unmounts everything before the next forest is made.
func (f *forest) clear() {
	for id := range f.mounts() {
		if m, ok := f.mounts()[id]; ok {
			_ = unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}
