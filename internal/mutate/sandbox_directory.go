package mutate

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// SandboxDirectory is the identity of a directory that containerd's CRI plugin keeps of a sandbox,
// io.containerd.grpc.v1.cri/sandboxes/<ID> below containerd's root or state.
type SandboxDirectory struct {
	Dir  string
	File FileID
}

// sandboxFiles are all that the plugin makes in such a directory, besides the directory shm
// (internal/cri/server/sandbox_run_linux.go: setupSandboxFiles).
var sandboxFiles = []string{"hostname", "hosts", "resolv.conf"}

const shm = "shm"

// UnmountShm unmounts the shared memory of a sandbox that the runtime does not know, the uppermost mount first, each only
// if nothing uses it. It is no error if nothing is mounted or the directory is gone.
func (d *Mutator) UnmountShm(ctx context.Context, s SandboxDirectory) error {
	if tree, err := d.sandboxTree(ctx, s); err != nil || len(tree) == 0 {
		return err
	}
	base, err := filepath.EvalSymlinks(path.Dir(s.Dir))
	if err != nil {
		return err
	}
	id := path.Base(s.Dir)
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if m.Point != path.Join(base, id, shm) {
			continue
		}
		if m.FSType != "tmpfs" {
			return refuse("a filesystem of type %s is mounted on %s", m.FSType, m.Point)
		}
		inspected := Mount{ID: m.ID, Device: m.Device(), Root: m.Root, Point: m.Point, Source: m.Source, FSType: m.FSType}
		if _, err := d.do(ctx, request{Op: opUnmount, Base: path.Dir(s.Dir), UID: id, Mount: inspected,
			Flags: unix.UMOUNT_NOFOLLOW}); err != nil {
			return err
		}
		if err := d.checkUnmounted(inspected); err != nil {
			return err
		}
	}
	return nil
}

// RemoveSandboxDirectory removes the directory of a sandbox that the runtime does not know: the files that the plugin
// makes, by their names, and the directories by rmdir. Whatever else is in it, or is mounted there, makes it stay.
func (d *Mutator) RemoveSandboxDirectory(ctx context.Context, s SandboxDirectory) error {
	tree, err := d.sandboxTree(ctx, s)
	if err != nil {
		return err
	}
	for _, entry := range tree {
		if entry.Mount {
			return fmt.Errorf("%s is a mount point: %w", path.Join(s.Dir, entry.Path), ErrBusy)
		}
	}
	for _, entry := range slices.Backward(tree) {
		r := request{Op: opRemoveDir, Base: path.Dir(s.Dir), UID: path.Base(s.Dir), Path: entry.Path, File: entry.File}
		if entry.Type == Regular {
			r.Op = opRemoveFile
		}
		if _, err := d.do(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// sandboxTree lists a sandbox's directory, once it is made sure that it is the evaluated one, has nothing in it but what
// the plugin makes, and is of a sandbox that the runtime does not know. It is empty when the directory is gone.
func (d *Mutator) sandboxTree(ctx context.Context, s SandboxDirectory) ([]Entry, error) {
	base, id := path.Dir(s.Dir), path.Base(s.Dir)
	ours := func(of string) bool {
		return of != "" && base == path.Join("/", of, "io.containerd.grpc.v1.cri/sandboxes")
	}
	if !ours(d.host.Paths.ContainerdState) && !ours(d.host.Paths.ContainerdRoot) || !host.IsContainerID(id) {
		return nil, refuse("%s is not the directory of a sandbox of containerd", s.Dir)
	}
	a, err := d.do(ctx, request{Op: opTree, Base: base, UID: id})
	if err != nil || len(a.Entries) == 0 {
		return nil, err
	}
	if a.Entries[0].File != s.File {
		return nil, changed("directory %s is inode %d instead of %d", s.Dir, a.Entries[0].File.Inode, s.File.Inode)
	}
	for _, entry := range a.Entries[1:] {
		isShm := entry.Path == shm && entry.Type == Directory
		isFile := slices.Contains(sandboxFiles, entry.Path) && entry.Type == Regular && !entry.Mount
		if !isShm && !isFile {
			return nil, refuse("%s is not the runtime's", path.Join(s.Dir, entry.Path))
		}
	}
	if err := d.unknownToRuntime(ctx, id); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Dir, err)
	}
	return a.Entries, nil
}
