package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestRemoveDir(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	dir := n.Mkdir(n.PodDir(uid, "volumes/empty"))
	id := mutatetest.FileID(t, dir)
	wrong := mutate.FileID{Device: id.Device, Inode: id.Inode + 1}
	if err := n.Mutator.RemoveDir(t.Context(), uid, "volumes/empty", wrong); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("wrong inode: %v", err)
	}
	if err := n.Mutator.RemoveDir(t.Context(), uid, "volumes", mutatetest.FileID(t, filepath.Dir(dir))); !errors.Is(err,
		mutate.ErrBusy) {
		t.Errorf("not empty: %v", err)
	}
	for range 2 { // the second time it is gone
		if err := n.Mutator.RemoveDir(t.Context(), uid, "volumes/empty", id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

// None of these may change anything outside or inside.
func TestRemoveRefuses(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	outside := filepath.Join(n.Dir, "outside")
	n.Write(filepath.Join(outside, "canary"), "alive")
	n.Mkdir(filepath.Join(outside, "empty"))
	pod := n.Mkdir(n.PodDir(uid))
	if err := os.Symlink(outside, filepath.Join(pod, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../outside", filepath.Join(pod, "relative")); err != nil {
		t.Fatal(err)
	}
	bind := n.Mount(outside, filepath.Join(pod, "bind"), "", unix.MS_BIND)
	n.Write(filepath.Join(pod, "placeholder"), "")
	file := n.Mount(filepath.Join(outside, "canary"), filepath.Join(pod, "placeholder"), "", unix.MS_BIND)
	before := mutatetest.Snapshot(t, n.Dir)

	canary, empty := mutatetest.FileID(t, filepath.Join(outside, "canary")),
		mutatetest.FileID(t, filepath.Join(outside, "empty"))
	for name, try := range map[string]func() error{
		"file through a link": func() error {
			return n.Mutator.RemoveFile(t.Context(), uid, "link/canary", canary)
		},
		"directory through a link": func() error { return n.Mutator.RemoveDir(t.Context(), uid, "link/empty", empty) },
		"file through a relative link": func() error {
			return n.Mutator.RemoveFile(t.Context(), uid, "relative/canary", canary)
		},
		"directory through a relative link": func() error {
			return n.Mutator.RemoveDir(t.Context(), uid, "relative/empty", empty)
		},
		"the link itself": func() error {
			return n.Mutator.RemoveFile(t.Context(), uid, "link", mutatetest.FileID(t, filepath.Join(pod, "link")))
		},
		"file behind a bind": func() error {
			return n.Mutator.RemoveFile(t.Context(), uid, "bind/canary", canary)
		},
		"directory behind a bind": func() error { return n.Mutator.RemoveDir(t.Context(), uid, "bind/empty", empty) },
		"quarantine behind a bind": func() error {
			return n.Mutator.Quarantine(t.Context(), uid, "bind/canary", canary, 1<<20)
		},
		"a bind": func() error {
			return n.Mutator.RemoveDir(t.Context(), uid, "bind", mutatetest.FileID(t, outside))
		},
		"a file that is bound": func() error { return n.Mutator.RemoveFile(t.Context(), uid, "placeholder", canary) },
		"upwards": func() error {
			return n.Mutator.RemoveDir(t.Context(), uid, "../../../outside/empty", empty)
		},
		"an absolute path":   func() error { return n.Mutator.RemoveDir(t.Context(), uid, outside+"/empty", empty) },
		"upwards by the UID": func() error { return n.Mutator.RemoveDir(t.Context(), "../../outside", "empty", empty) },
		"no UID":             func() error { return n.Mutator.RemoveDir(t.Context(), "", "empty", empty) },
		"a directory as a file": func() error {
			return n.Mutator.RemoveFile(t.Context(), uid, "bind", mutatetest.FileID(t, outside))
		},
	} {
		if err := try(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if diff := cmp.Diff(before, mutatetest.Snapshot(t, n.Dir)); diff != "" {
		t.Error(diff)
	}
	for _, m := range []mutate.Mount{bind, file} {
		if got := n.Mounts(m.Point); len(got) != 1 || got[0] != m {
			t.Errorf("%s: %+v", m.Point, got)
		}
	}
}

func TestQuarantineKeepsContent(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	for range 2 { // a second file of the same name does not replace the first
		file := n.Write(n.PodDir(uid, "volumes/kubernetes.io~csi/p/vol_data.json"), `{"driverName":"d"}`)
		if err := n.Mutator.Quarantine(t.Context(), uid, "volumes/kubernetes.io~csi/p/vol_data.json",
			mutatetest.FileID(t, file), 1<<20); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(file); !os.IsNotExist(err) {
			t.Errorf("still there: %v", err)
		}
	}
	var kept []string
	for name, content := range mutatetest.Snapshot(t, n.Mutator.QuarantineDir()) {
		if strings.HasSuffix(content, `:{"driverName":"d"}`) {
			kept = append(kept, name)
		}
	}
	if len(kept) != 2 {
		t.Errorf("kept %q", kept)
	}
}

func TestTree(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	if tree, err := n.Mutator.Tree(t.Context(), uid); err != nil || len(tree) > 0 {
		t.Fatalf("no directory: %+v, %v", tree, err)
	}
	n.Write(n.PodDir(uid, "etc-hosts"), "hosts")
	n.Mkdir(n.PodDir(uid, "volumes/a"))
	m := n.Mount("tmpfs", n.PodDir(uid, "volumes/b"), "tmpfs", 0)
	n.Write(filepath.Join(m.Point, "hidden"), "x")
	if err := os.Symlink("/etc", n.PodDir(uid, "link")); err != nil {
		t.Fatal(err)
	}
	tree, err := n.Mutator.Tree(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range tree {
		text := e.Path + " " + string(e.Type)
		if e.Mount {
			text += " mount"
		}
		got = append(got, text)
	}
	want := []string{" directory", "etc-hosts file", "link symlink", "volumes directory", "volumes/a directory",
		"volumes/b directory mount"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
