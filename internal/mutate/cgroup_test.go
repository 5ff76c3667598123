package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func podCgroup(t *testing.T, uid, dir string) mutate.Cgroup {
	t.Helper()
	return mutate.Cgroup{Dir: dir, UID: uid, File: mutatetest.FileID(t, dir)}
}

func TestRemoveCgroupInEveryHierarchy(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	for _, leaf := range n.Cgroups(uid, "container/nested") {
		pod := filepath.Dir(filepath.Dir(leaf))
		cgroup := podCgroup(t, uid, pod)
		for range 2 {
			if err := n.Mutator.RemoveCgroup(t.Context(), cgroup); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Lstat(pod); !os.IsNotExist(err) {
			t.Errorf("%s is still there", pod)
		}
		if _, err := os.Lstat(filepath.Dir(pod)); err != nil {
			t.Errorf("the class around it: %v", err)
		}
	}
}

// A process deep in the tree keeps all of it, also the empty siblings.
func TestRemoveCgroupWithProcess(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	leaves := n.Cgroups(uid, "container/nested")
	p := n.Shell(uid, leaves, "echo ready; while :; do sleep 0.1; done")
	for _, leaf := range leaves {
		container := filepath.Dir(leaf)
		var empty []string
		for i := range 26 { // the kernel lists in its own order: some before the process's cgroup, some after
			empty = append(empty, n.Mkdir(filepath.Join(container, string(rune('a'+i)))))
		}
		if err := n.Mutator.RemoveCgroup(t.Context(), podCgroup(t, uid, filepath.Dir(container))); !errors.Is(err,
			mutate.ErrBusy) {
			t.Errorf("%s: %v", leaf, err)
		}
		for _, dir := range append(empty, leaf) {
			if _, err := os.Lstat(dir); err != nil {
				t.Error(err)
			}
		}
	}
	if ended(t, n, p, 0) {
		t.Error("the process ended")
	}
}

func TestRemoveCgroupRefuses(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	var refusal mutate.Refusal
	for _, dir := range n.Cgroups(uid, "") {
		for name, try := range map[string]mutate.Cgroup{
			"the class":      podCgroup(t, uid, filepath.Dir(dir)),
			"kubepods":       podCgroup(t, uid, filepath.Dir(filepath.Dir(dir))),
			"another pod's":  podCgroup(t, mutatetest.UID(t), dir),
			"no hierarchy":   {Dir: n.Dir, UID: uid, File: mutatetest.FileID(t, n.Dir)},
			"a crooked path": {Dir: dir + "/../pod" + uid, UID: uid, File: mutatetest.FileID(t, dir)},
		} {
			if err := n.Mutator.RemoveCgroup(t.Context(), try); !errors.As(err, &refusal) {
				t.Errorf("%s: %v", name, err)
			}
		}
		below := filepath.Join(dir, "below")
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(below)
		again := podCgroup(t, uid, dir)
		again.File.Inode++
		if err := n.Mutator.RemoveCgroup(t.Context(), again); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("made again: %v", err)
		}
		if _, err := os.Lstat(below); err != nil {
			t.Error(err)
		}
	}
}
