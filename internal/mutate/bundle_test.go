package mutate_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// bundles is a node with a real containerd and bundles of containers that containerd does not know.
type bundles struct {
	*ghosts
	dir, work string // of the bundles, and of their working directories
}

func newBundles(t *testing.T) *bundles {
	t.Helper()
	g := newGhosts(t)
	g.Host.Paths.ContainerdState, g.Host.Paths.ContainerdRoot = filepath.Join(g.ctd.Dir, "state"),
		filepath.Join(g.ctd.Dir, "root")
	const tasks = "io.containerd.runtime.v2.task/k8s.io"
	return &bundles{g, g.Mkdir(filepath.Join(g.ctd.Dir, "state", tasks)), g.Mkdir(filepath.Join(g.ctd.Dir, "root", tasks))}
}

// made makes a bundle with a tmpfs that holds data as its root filesystem.
func (b *bundles) made(files ...string) mutate.RuntimeDirectory {
	b.t.Helper()
	id := mutatetest.Hex(b.t, 64)
	bundle := b.Mkdir(filepath.Join(b.dir, id))
	b.Mount("tmpfs", filepath.Join(bundle, "rootfs"), "tmpfs", 0)
	b.Write(filepath.Join(bundle, "rootfs/data"), "of a container")
	for _, name := range append([]string{"config.json", "init.pid"}, files...) {
		b.Write(filepath.Join(bundle, name), "content of "+name)
	}
	b.Mkdir(filepath.Join(b.work, id))
	if err := os.Symlink(filepath.Join(b.work, id), filepath.Join(bundle, "work")); err != nil {
		b.t.Fatal(err)
	}
	return mutate.RuntimeDirectory{Dir: bundle, File: mutatetest.FileID(b.t, bundle)}
}

func (b *bundles) release(r mutate.RuntimeDirectory) error {
	if err := b.Mutator.UnmountRootfs(b.t.Context(), r); err != nil {
		return err
	}
	return b.Mutator.RemoveBundle(b.t.Context(), r)
}

// census returns all files in the directories of containerd's tasks, and all mounts.
func (b *bundles) census() map[string]string {
	b.t.Helper()
	all := mutatetest.Snapshot(b.t, b.dir)
	maps.Copy(all, mutatetest.Snapshot(b.t, b.work))
	maps.Copy(all, b.mounts())
	return all
}

// RemoveBundle removes the rest of a removal that containerd lost halfway: the mount over a missing snapshot, the
// shim's files, the working directory. The snapshot's name can be used again; a living container next to it is not
// touched.
func TestReleaseOfALostBundle(t *testing.T) {
	b := newBundles(t)
	living, dead := mutatetest.UID(t), mutatetest.UID(t)
	kept := b.ctd.Ghost(living, "container", b.podCgroup(living))
	id := b.ctd.Ghost(dead, "container", b.podCgroup(dead))
	before := b.census()
	bundle := b.ctd.Lose(id)
	lost := mutate.RuntimeDirectory{Dir: bundle, File: mutatetest.FileID(t, bundle)}
	if mounts := b.Mounts(filepath.Join(bundle, "rootfs")); len(mounts) != 1 || mounts[0].FSType != "overlay" {
		t.Fatalf("containerd left %+v: this test proves nothing", mounts)
	}
	files, err := os.ReadDir(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Mutator.RemoveBundle(t.Context(), lost); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("while it is mounted: %v", err)
	}
	if now, err := os.ReadDir(bundle); err != nil || len(now) != len(files) {
		t.Errorf("while it is mounted: %v, %v of %v are left", err, now, files)
	}
	for range 2 { // the second time it is gone
		if err := b.release(lost); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range before { // of that container
		if strings.Contains(name, id) || strings.Contains(content, id) {
			delete(before, name)
		}
	}
	if diff := cmp.Diff(before, b.census()); diff != "" {
		t.Error(diff)
	}
	if pid := b.pid(kept); pid == 0 || unix.Kill(pid, 0) != nil {
		t.Error("the living container has ended")
	}
	ctx := namespaces.WithNamespace(t.Context(), cri.Namespace)
	snapshots := b.client.SnapshotService("overlayfs")
	if _, err := snapshots.Prepare(ctx, id, ""); err != nil {
		t.Errorf("its snapshot: %v", err)
	}
	if err := snapshots.Remove(ctx, id); err != nil {
		t.Error(err)
	}
}

// Bundles that are in use, or that contain more than containerd's own files, stay as they are.
func TestBundlesThatStay(t *testing.T) {
	b := newBundles(t)
	uid := mutatetest.UID(t)
	ghost := b.ctd.Bundle(b.ctd.Ghost(uid, "container", b.podCgroup(uid)))
	known := mutate.RuntimeDirectory{Dir: ghost, File: mutatetest.FileID(t, ghost)}
	again := b.made()
	again.File.Inode++
	elsewhere := mutate.RuntimeDirectory{Dir: b.Mkdir(filepath.Join(b.Dir, "elsewhere", mutatetest.Hex(t, 64)))}
	elsewhere.File = mutatetest.FileID(t, elsewhere.Dir)
	named := mutate.RuntimeDirectory{Dir: b.Mkdir(filepath.Join(b.dir, "by-hand"))}
	named.File = mutatetest.FileID(t, named.Dir)
	more, deep, covered := b.made("data"), b.made(), b.made()
	b.Mkdir(filepath.Join(deep.Dir, "volumes"))
	file := b.made()
	b.Mount(b.Write(filepath.Join(b.Dir, "file"), "the host's"), filepath.Join(file.Dir, "config.json"), "", unix.MS_BIND)
	b.Mount("tmpfs", filepath.Join(covered.Dir, "rootfs/volume"), "tmpfs", 0)
	linked := b.made()
	if err := os.Rename(filepath.Join(linked.Dir, "config.json"), filepath.Join(linked.Dir, "init.pid")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(linked.Dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	opened, works, bound, root, shim, inCgroup := b.made(), b.made(), b.made(), b.made(), b.made(), b.made()
	held, err := os.Open(filepath.Join(opened.Dir, "rootfs/data"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	b.start(works.Dir, "/bin/busybox", "sleep", "100000")
	b.Mount(filepath.Join(bound.Dir, "rootfs"), filepath.Join(b.Dir, "bound", filepath.Base(bound.Dir), "rootfs"), "",
		unix.MS_BIND) // as Kata does
	part, copied, recorded, ofSandbox := b.made(), b.made(), b.made(), b.made()
	b.Mount(b.Mkdir(filepath.Join(part.Dir, "rootfs/dir")), filepath.Join(b.Dir, "part"), "", unix.MS_BIND)
	b.Namespace("private", "")
	for _, m := range b.Mounts(filepath.Join(copied.Dir, "rootfs")) {
		if err := unix.Unmount(m.Point, 0); err != nil {
			t.Fatal(err)
		}
	}
	b.ctd.Ctr("k8s.io", "container", "create", mutatetest.Image, filepath.Base(recorded.Dir))
	sandbox := mutatetest.Hex(t, 64)
	b.Write(filepath.Join(ofSandbox.Dir, "config.json"), `{"annotations": {"io.kubernetes.cri.sandbox-id": "`+sandbox+`"}}`)
	b.shim(sandbox)
	b.Namespace("private", "mount --bind "+filepath.Join(root.Dir, "rootfs")+" "+b.Mkdir(filepath.Join(b.Dir, "root")))
	b.shim(filepath.Base(shim.Dir))
	other := mutatetest.UID(t)
	b.Shell(other, b.Cgroups(other, filepath.Base(inCgroup.Dir)), "echo ready; exec sleep 100000")

	before := b.census()
	var refusal mutate.Refusal
	for name, test := range map[string]struct {
		bundle mutate.RuntimeDirectory
		want   error // nil: a refusal
	}{
		"of a container that containerd has": {known, mutate.ErrBusy}, "made again": {again, mutate.ErrChanged},
		"elsewhere": {elsewhere, nil}, "of another name": {named, nil}, "with a file of another": {more, nil},
		"with a directory of another": {deep, nil}, "a file is a mount": {file, nil}, "a file is a link": {linked, nil},
		"a volume is mounted below": {covered, mutate.ErrBusy}, "a file is open": {opened, mutate.ErrBusy},
		"a process works in it": {works, mutate.ErrBusy}, "mounted elsewhere": {bound, mutate.ErrBusy},
		"a root elsewhere": {root, mutate.ErrBusy}, "with its shim": {shim, mutate.ErrBusy},
		"with a process in its cgroup": {inCgroup, mutate.ErrBusy}, "a part is mounted elsewhere": {part, mutate.ErrBusy},
		"another namespace has kept a copy": {copied, mutate.ErrBusy}, "with a record": {recorded, mutate.ErrBusy},
		"with the shim of its sandbox": {ofSandbox, mutate.ErrBusy},
	} {
		err := b.release(test.bundle)
		if test.want == nil && !errors.As(err, &refusal) || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, b.census()); diff != "" {
			t.Fatalf("%s: %s", name, diff)
		}
	}
}

// shim starts a lookalike of the shim of a container or a sandbox: a shell that waits.
func (b *bundles) shim(id string) {
	b.t.Helper()
	program := filepath.Join(b.Mkdir(filepath.Join(b.Dir, "shim-"+id[:8])), "containerd-shim-runc-v2")
	if err := os.Symlink("/bin/bash", program); err != nil {
		b.t.Fatal(err)
	}
	b.start("/", program, "-c", "read -r _", "shim", "-namespace", "k8s.io", "-id", id, "-address", b.ctd.Socket)
}

// start starts a process in a directory.
func (b *bundles) start(dir, program string, args ...string) {
	b.t.Helper()
	process := exec.Command(program, args...)
	process.Dir = dir
	in, err := process.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { in.Close(); _ = process.Process.Kill(); _ = process.Wait() })
}

// Files below the mount, in the working directory or behind a link are not removed. Mount namespaces that got a copy of
// the mount lose it too.
func TestBundleRemovesOnlyItsOwn(t *testing.T) {
	b := newBundles(t)
	under, busy, free := b.made(), b.made(), b.made(mutatetest.Hex(t, 64)+".pid")
	canary := b.Write(filepath.Join(b.Mkdir(filepath.Join(b.Dir, "outside")), "canary"), "stays")
	for _, r := range []mutate.RuntimeDirectory{under, free} {
		link := filepath.Join(r.Dir, "work")
		if err := errors.Join(os.Remove(link), os.Symlink(filepath.Dir(canary), link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range b.Mounts(filepath.Join(under.Dir, "rootfs")) {
		if err := unix.Unmount(m.Point, 0); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(filepath.Join(under.Dir, "rootfs/data"), "below the mount")
	b.Write(filepath.Join(b.work, filepath.Base(busy.Dir), "data"), "of the shim")
	if err := unix.Mkfifo(filepath.Join(free.Dir, "log"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Mount("tmpfs", filepath.Join(free.Dir, "rootfs"), "tmpfs", 0) // stacked
	var refusal mutate.Refusal
	before := b.census()
	if err := b.release(under); !errors.As(err, &refusal) {
		t.Errorf("with data below the mount: %v", err)
	}
	if diff := cmp.Diff(before, b.census()); diff != "" {
		t.Error(diff)
	}
	if err := b.release(busy); !errors.As(err, &refusal) {
		t.Errorf("with data in the working directory: %v", err)
	}
	if diff := cmp.Diff(before, b.census()); diff != "" {
		t.Error(diff)
	}
	bound := b.made()
	elsewhere := b.Mount(filepath.Join(bound.Dir, "rootfs"), filepath.Join(b.Dir, "bound"), "", unix.MS_BIND)
	if err := b.release(bound); !errors.Is(err, mutate.ErrBusy) || len(b.Mounts(filepath.Join(bound.Dir, "rootfs"))) != 1 {
		t.Errorf("mounted on %s, too: %v", elsewhere.Point, err)
	}
	slave := b.Namespace("slave", "")
	if err := b.release(free); err != nil {
		t.Error(err)
	}
	for _, name := range []string{free.Dir, filepath.Join(b.work, filepath.Base(free.Dir))} {
		if _, err := os.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if table, err := mount.TableOf(b.Host, slave); err != nil || slices.ContainsFunc(table, func(m mount.Mount) bool {
		return strings.HasPrefix(m.Point, free.Dir)
	}) {
		t.Errorf("its mounts have stayed in the other namespace: %v", err)
	}
	if content, err := os.ReadFile(canary); string(content) != "stays" {
		t.Errorf("%q, %v", content, err)
	}
}

// mounts returns the mounts below the directories of this node and of its containerd.
func (g *ghosts) mounts() map[string]string {
	g.t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		g.t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " "+g.ctd.Dir+"/") || strings.Contains(line, " "+g.Dir+"/") {
			found["mount "+strings.Fields(line)[0]] = line
		}
	}
	return found
}
