package mutate_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// The directory of a lost sandbox is removed with the mounts on its shm, however many. It stays if it is in use, has
// other content, is another one by now, or belongs to a sandbox that the runtime has.
func TestRemoveSandboxDirectory(t *testing.T) {
	g := newGhosts(t)
	state := g.Mkdir(filepath.Join(g.Dir, "state"))
	g.Host.Paths.ContainerdState, g.Host.Paths.ContainerdRoot = state, ""
	sandboxes := filepath.Join(state, "io.containerd.grpc.v1.cri/sandboxes")
	uid := mutatetest.UID(t)
	made := func(id string, mounts int, files ...string) mutate.RuntimeDirectory {
		dir := g.Mkdir(filepath.Join(sandboxes, id))
		g.Mkdir(filepath.Join(dir, "shm"))
		for _, name := range files {
			g.Write(filepath.Join(dir, name), "content of "+name)
		}
		for range mounts {
			g.Mount("shm", filepath.Join(dir, "shm"), "tmpfs", 0)
		}
		return mutate.RuntimeDirectory{Dir: dir, File: mutatetest.FileID(t, dir)}
	}
	lost := made(mutatetest.Hex(t, 64), 2, "hosts", "resolv.conf", "hostname")
	known := made(g.ctd.Ghost(uid, "sandbox", g.podCgroup(uid)), 1, "hosts")
	more := made(mutatetest.Hex(t, 64), 0, "hosts", "data")
	deep := made(mutatetest.Hex(t, 64), 0, "shm/data")
	disk := made(mutatetest.Hex(t, 64), 0)
	g.Mount(g.Mkdir(filepath.Join(g.Dir, "disk")), filepath.Join(disk.Dir, "shm"), "", unix.MS_BIND)
	ram := made(mutatetest.Hex(t, 64), 0)
	g.Mount("ramfs", filepath.Join(ram.Dir, "shm"), "ramfs", 0)
	busy := made(mutatetest.Hex(t, 64), 1)
	held, err := os.Create(filepath.Join(busy.Dir, "shm/canary"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	file := made(mutatetest.Hex(t, 64), 0, "hosts")
	g.Mount(g.Write(filepath.Join(g.Dir, "resolv"), "the host's"), filepath.Join(file.Dir, "hosts"), "", unix.MS_BIND)
	elsewhere := mutate.RuntimeDirectory{Dir: g.Mkdir(filepath.Join(g.Dir, "elsewhere", mutatetest.Hex(t, 64)))}
	elsewhere.File = mutatetest.FileID(t, elsewhere.Dir)
	again := lost
	again.File.Inode++
	remove := func(s mutate.RuntimeDirectory) error {
		if err := g.Mutator.UnmountShm(t.Context(), s); err != nil {
			return err
		}
		return g.Mutator.RemoveSandboxDirectory(t.Context(), s)
	}
	census := func() map[string]string {
		all := mutatetest.Snapshot(t, sandboxes)
		maps.Copy(all, g.mounts())
		return all
	}
	before := census()
	refusal := mutate.Refusal{}
	for name, test := range map[string]struct {
		directory mutate.RuntimeDirectory
		want      error // nil: a refusal
	}{
		"of a sandbox that containerd has": {known, mutate.ErrBusy}, "with a file of another": {more, nil},
		"with a file below the mount": {deep, nil}, "made again": {again, mutate.ErrChanged}, "elsewhere": {elsewhere, nil},
		"ramfs": {ram, nil}, "in use": {busy, mutate.ErrBusy}, "a file is a mount": {file, nil},
		"a directory of the host": {disk, nil},
	} {
		err := remove(test.directory)
		if test.want == nil && !errors.As(err, &refusal) || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, census()); diff != "" {
			t.Fatalf("%s: %s", name, diff)
		}
	}
	if err := g.Mutator.RemoveSandboxDirectory(t.Context(), lost); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("while it is mounted: %v", err)
	}
	for range 2 {
		if err := remove(lost); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(lost.Dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	maps.DeleteFunc(before, func(name, content string) bool {
		return strings.HasPrefix(name, lost.Dir) || strings.Contains(content, lost.Dir)
	})
	if diff := cmp.Diff(before, census()); diff != "" {
		t.Error(diff)
	}
}
