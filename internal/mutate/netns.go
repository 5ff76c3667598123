package mutate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Netns is the identity of a mounted network namespace: the file it is mounted on and its inode in nsfs, or the file's
// own inode if nothing is mounted on it any more.
type Netns struct {
	Path  string
	Inode uint64
}

// RemoveNetns removes the mount of a network namespace without processes. It accepts only names that the runtime gives:
// any other belongs to another program (`ip netns add`, routers). The kernel then destroys the namespace, and with it
// the virtual links in it and their other ends. Physical devices would move back to the host.
func (d *Mutator) RemoveNetns(ctx context.Context, n Netns) error {
	dir, name := path.Split(n.Path)
	if !d.host.Paths.IsRuntimeNetns(name) {
		return refuse("%s does not have the name that a runtime uses", n.Path)
	}
	if !d.isNetnsDir(path.Clean(dir)) {
		return refuse("%s is not in a configured directory of network namespaces", n.Path)
	}
	if err := d.mountedElsewhere(n); err != nil {
		return err
	}
	user, err := d.userOfNetns(n.Inode)
	if err != nil {
		return err
	}
	if user != 0 {
		return fmt.Errorf("%s: process %d is in it: %w", n.Path, user, ErrBusy)
	}
	_, err = d.do(ctx, child.Request{Op: child.OpNetns, Base: path.Clean(dir), Path: name, File: FileID{Inode: n.Inode}})
	return err
}

// isNetnsDir compares resolved directories: /var/run is a link to /run on most systems.
func (d *Mutator) isNetnsDir(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for _, configured := range d.host.Paths.NetnsDirs {
		if known, err := filepath.EvalSymlinks(configured); err == nil && known == real {
			return true
		}
	}
	return false
}

// userOfNetns returns a process in a network namespace, or 0.
func (d *Mutator) userOfNetns(inode uint64) (int, error) {
	pids, err := d.host.PIDs()
	if err != nil {
		return 0, err
	}
	wanted := fmt.Sprintf("net:[%d]", inode)
	for _, pid := range pids {
		if pid == 1 || pid == d.host.Paths.InitPID {
			continue // in the host's namespace, and some kernels forbid reading it
		}
		link, _, err := proc.Namespace(d.host.Files, pid, "net")
		switch {
		case proc.Gone(err):
		case err != nil:
			return 0, fmt.Errorf("network namespace of process %d: %w", pid, err)
		case link == wanted:
			return pid, nil
		}
	}
	return 0, nil
}

// mountedElsewhere refuses a namespace with a mount at another point of the host: the kernel would not destroy it.
// While it is mounted, its inode cannot be reused.
func (d *Mutator) mountedElsewhere(n Netns) error {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	dir, name := path.Split(n.Path)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // the mount table shows no symbolic links
	}
	wanted := fmt.Sprintf("net:[%d]", n.Inode)
	for _, m := range mounts {
		if m.FSType == "nsfs" && m.Root == wanted && m.Point != path.Join(dir, name) {
			return refuse("%s is also mounted at %s: its network namespace would stay", n.Path, m.Point)
		}
	}
	return nil
}

// NetnsGone reports whether both the file and the mounts on it, in the host's mount table, are gone.
func (d *Mutator) NetnsGone(n Netns) (bool, error) {
	if _, err := d.host.Files.Stat(n.Path); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	mounts, err := mount.Table(d.host)
	if err != nil {
		return false, err
	}
	for _, m := range mounts {
		if m.Point == n.Path {
			return false, nil
		}
	}
	return true, nil
}
