package mutate

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// RuntimeDirectory is the identity of a directory that containerd made for a sandbox or a container.
type RuntimeDirectory struct {
	Dir  string
	File FileID
}

// layout describes the files that containerd makes in such a directory. Any other content makes the directory stay.
type layout struct {
	bases   []string // the directory must be directly below one of them
	point   string   // the directory in it that may be a mount point
	fsTypes []string // that may be unmounted; empty: any
	entry   func(name string) EntryType
	work    string                                          // parent of its working directory, which must be empty; empty: none
	free    func(ctx context.Context, dir, id string) error // errors if it is in use; nil: not checked
}

// sandboxLayout is the layout of the directories that containerd's CRI plugin keeps for sandboxes below containerd's
// root and state (internal/cri/server/sandbox_run_linux.go: setupSandboxFiles).
func (d *Mutator) sandboxLayout() layout {
	const sandboxes = "io.containerd.grpc.v1.cri/sandboxes"
	bases := append(below(d.host.Paths.ContainerdState, sandboxes), below(d.host.Paths.ContainerdRoot, sandboxes)...)
	return layout{bases: bases, point: "shm", fsTypes: []string{"tmpfs"}, entry: func(name string) EntryType {
		switch name {
		case "shm":
			return Directory
		case "hostname", "hosts", "resolv.conf":
			return Regular
		}
		return ""
	}}
}

// below returns the paths of name below one of containerd's directories: as configured, and with symbolic links
// resolved, as inspections see it. It returns none if dir is not configured.
func below(dir, name string) []string {
	if dir == "" {
		return nil
	}
	names := []string{path.Join("/", dir, name)}
	if real, err := filepath.EvalSymlinks(path.Join("/", dir)); err == nil && real != path.Join("/", dir) {
		names = append(names, path.Join(real, name))
	}
	return names
}

// UnmountShm unmounts the shared memory of a sandbox that the runtime does not know, the uppermost mount first, each
// only if it is unused. It is no error if it is not mounted or the directory is gone.
func (d *Mutator) UnmountShm(ctx context.Context, r RuntimeDirectory) error {
	return d.unmountRuntime(ctx, r, d.sandboxLayout())
}

// RemoveSandboxDirectory removes the directory of a sandbox that the runtime does not know: the plugin's files by name,
// and the directories with rmdir. Any other content, or a mount, makes it stay.
func (d *Mutator) RemoveSandboxDirectory(ctx context.Context, r RuntimeDirectory) error {
	return d.removeRuntime(ctx, r, d.sandboxLayout())
}

// unmountRuntime unmounts the mounts on the layout's point.
func (d *Mutator) unmountRuntime(ctx context.Context, r RuntimeDirectory, l layout) error {
	if tree, err := d.runtimeTree(ctx, r, l); err != nil || len(tree) == 0 {
		return err
	}
	base, err := filepath.EvalSymlinks(path.Dir(r.Dir))
	if err != nil {
		return err
	}
	name := path.Base(r.Dir)
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if m.Point != path.Join(base, name, l.point) {
			continue
		}
		if len(l.fsTypes) > 0 && !slices.Contains(l.fsTypes, m.FSType) {
			return refuse("a filesystem of type %s is mounted on %s", m.FSType, m.Point)
		}
		inspected := Mount{ID: m.ID, Device: m.Device(), Root: m.Root, Point: m.Point, Source: m.Source, FSType: m.FSType}
		if _, err := d.do(ctx, child.Request{Op: child.OpUnmount, Base: path.Dir(r.Dir), UID: name, Mount: inspected,
			Flags: unix.UMOUNT_NOFOLLOW}); err != nil {
			return err
		}
		if err := d.checkUnmounted(inspected); err != nil {
			return err
		}
	}
	return nil
}

// removeRuntime removes a directory with the content listed in the layout. It may contain no mount.
func (d *Mutator) removeRuntime(ctx context.Context, r RuntimeDirectory, l layout) error {
	tree, err := d.runtimeTree(ctx, r, l)
	if err != nil {
		return err
	}
	for _, entry := range tree {
		if entry.Mount {
			return fmt.Errorf("%s is a mount point: %w", path.Join(r.Dir, entry.Path), ErrBusy)
		}
	}
	if work, err := d.workOf(ctx, r, l.work); err != nil {
		return err
	} else if work.Type == Directory {
		empty := child.Request{Op: child.OpRemoveDir, Base: l.work, UID: containerOf(r), File: work.File}
		if _, err := d.do(ctx, empty); err != nil {
			return err
		}
	}
	for _, entry := range slices.Backward(tree) {
		one := child.Request{Op: child.OpRemoveFile, Base: path.Dir(r.Dir), UID: path.Base(r.Dir), Path: entry.Path,
			File: entry.File, Type: entry.Type}
		if entry.Type == Directory {
			one.Op = child.OpRemoveDir
		}
		if _, err := d.do(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// containerOf returns the ID in the name of a directory. Before containerd removes one, it puts a dot in front of its
// name.
func containerOf(r RuntimeDirectory) string { return strings.TrimPrefix(path.Base(r.Dir), ".") }

// workOf returns the working directory of a bundle's shim, which must be empty; the zero Entry if there is none.
func (d *Mutator) workOf(ctx context.Context, r RuntimeDirectory, work string) (Entry, error) {
	if work == "" {
		return Entry{}, nil
	}
	a, err := d.do(ctx, child.Request{Op: child.OpTree, Base: work, UID: containerOf(r)})
	switch {
	case err != nil || len(a.Entries) == 0:
		return Entry{}, err
	case len(a.Entries) > 1:
		return Entry{}, refuse("%s is not the runtime's", path.Join(work, containerOf(r), a.Entries[1].Path))
	}
	return a.Entries[0], nil
}

// runtimeTree lists such a directory, after making sure that it is the evaluated one, contains only containerd's files,
// belongs to a sandbox or container that the runtime does not know, and is unused. The list is empty if the directory
// is gone.
func (d *Mutator) runtimeTree(ctx context.Context, r RuntimeDirectory, l layout) ([]Entry, error) {
	base, name := path.Dir(r.Dir), path.Base(r.Dir)
	id := containerOf(r)
	if !slices.Contains(l.bases, base) || !host.IsContainerID(id) {
		return nil, refuse("%s is not a directory that containerd made", r.Dir)
	}
	a, err := d.do(ctx, child.Request{Op: child.OpTree, Base: base, UID: name})
	if err != nil || len(a.Entries) == 0 {
		return nil, err
	}
	if a.Entries[0].File != r.File {
		return nil, changed("directory %s is inode %d instead of %d", r.Dir, a.Entries[0].File.Inode, r.File.Inode)
	}
	for _, entry := range a.Entries[1:] {
		if entry.Type != l.entry(entry.Path) || entry.Mount && entry.Path != l.point {
			return nil, refuse("%s is not the runtime's", path.Join(r.Dir, entry.Path))
		}
	}
	if _, err := d.workOf(ctx, r, l.work); err != nil {
		return nil, err
	}
	if err := d.unknownToRuntime(ctx, id); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Dir, err)
	}
	if l.free != nil {
		if err := l.free(ctx, r.Dir, id); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Dir, err)
		}
	}
	return a.Entries, nil
}
