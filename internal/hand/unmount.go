package hand

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Mount is the identity of one mount, as it was judged.
type Mount struct {
	ID     int    `json:"id"`
	Device string `json:"device"` // major:minor
	Root   string `json:"root"`   // what of the filesystem is mounted
	Point  string `json:"point"`  // as in the mount table
	Source string `json:"source"`
	FSType string `json:"fsType"`
}

// Way is how to unmount.
type Way int

// The ways, gentlest first.
const (
	Plain  Way = iota // the kernel refuses when anything uses the mount
	Forced            // MNT_FORCE: gives up requests to a server that is gone, for all mounts of that filesystem
	Lazy              // MNT_DETACH: takes the mount out of the tree while it is in use; network and FUSE only
)

// Unmount takes one mount below the directory of the pod uid out of the mount table. ErrBusy when something uses it or it
// is covered by another mount; ErrChanged when the mount is another one now. A mount that is gone is no error.
//
// The kernel has no way to unmount by ID, so that between the last look and the call somebody could mount on top: the
// last look is the system call right before. See unmountChild.
func (d *Hand) Unmount(ctx context.Context, uid string, m Mount, way Way) error {
	r := request{Op: opUnmount, Base: d.podsDir(), UID: uid, Mount: m, Flags: unix.UMOUNT_NOFOLLOW}
	switch way {
	case Forced:
		r.Flags |= unix.MNT_FORCE
	case Lazy:
		r.Flags |= unix.MNT_DETACH
	}
	if way != Plain && !Remote(m.FSType) {
		return refuse("%s is a local filesystem: its unmount is never forced", m.FSType)
	}
	a, err := d.do(ctx, r)
	if err != nil {
		return err
	}
	if err := d.unmounted(m); err != nil {
		return err
	}
	if a.Outcome == outcomeDone && way == Lazy {
		d.log.Warn("unmounted lazily: what still uses it keeps it alive unseen", "mount", m.Point, "fstype", m.FSType)
	}
	return nil
}

// unmounted checks that the host's mount table no longer holds the mount. It does when the agent lives in another mount
// namespace than the host.
func (d *Hand) unmounted(m Mount) error {
	mounts, err := d.host.Mounts()
	if err != nil {
		return err
	}
	for _, now := range mounts {
		if now.ID == m.ID && sameMount(now, m) {
			return fmt.Errorf("mount %d on %s is still in the host's mount table", m.ID, m.Point)
		}
	}
	return nil
}

// Remote reports whether a filesystem lives from a server that may be gone: network filesystems and FUSE.
func Remote(fsType string) bool {
	kind, _, _ := strings.Cut(fsType, ".")
	return slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "glusterfs", "lustre", "afs",
		"beegfs", "gpfs", "fuse"}, kind)
}

func sameMount(now host.Mount, judged Mount) bool {
	return now.Device() == judged.Device && now.Root == judged.Root &&
		now.Source == judged.Source && now.FSType == judged.FSType && now.Point == judged.Point
}

// unmountChild looks the mount up by its ID, walks to the directory that holds its mount point without following any link
// and makes sure that the walk ended on the mount that ought to carry it, enters that directory, makes sure that the name
// in it is the very mount, and unmounts it by that name.
func unmountChild(r request) error {
	own := host.Host{}
	mounts, err := own.MountsOf(unix.Getpid())
	if err != nil {
		return err
	}
	m, err := pickMount(mounts, r.Mount)
	if err != nil {
		return err
	}
	carrier, err := carrierOf(mounts, m)
	if err != nil {
		return err
	}
	dir, name, err := openMountParent(r, m)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := onMount(dir, "", carrier, false); err != nil {
		return err
	}
	if err := unix.Fchdir(dir); err != nil {
		return fmt.Errorf("enter directory of %s: %w", m.Point, err)
	}
	if err := onMount(unix.AT_FDCWD, name, m.ID, true); err != nil {
		return err
	}
	if err := unix.Unmount(name, r.Flags); err != nil {
		return fmt.Errorf("%s: %w", m.Point, err)
	}
	return nil
}

// pickMount finds the judged mount in a mount table.
func pickMount(mounts []host.Mount, judged Mount) (host.Mount, error) {
	at := slices.IndexFunc(mounts, func(m host.Mount) bool { return m.ID == judged.ID })
	if at < 0 {
		return host.Mount{}, errGone
	}
	m := mounts[at]
	if !sameMount(m, judged) {
		return m, changed("mount %d is %s of device %s on %s", m.ID, m.FSType, m.Device(), m.Point)
	}
	for _, other := range mounts {
		if other.Parent == m.ID && other.Point == m.Point && other.ID != m.ID {
			return m, fmt.Errorf("%s: mount %d lies on top of it: %w", m.Point, other.ID, unix.EBUSY)
		}
	}
	return m, nil
}

// carrierOf returns the mount that the directory around a mount point lies on. A mount that is stacked on others at the
// same point has one of those for its parent.
func carrierOf(mounts []host.Mount, m host.Mount) (int, error) {
	byID := make(map[int]host.Mount, len(mounts))
	for _, other := range mounts {
		byID[other.ID] = other
	}
	for below := m; ; {
		parent, ok := byID[below.Parent]
		if !ok || parent.ID == below.ID {
			return 0, refuse("%s: its parent mount %d cannot be seen", m.Point, below.Parent)
		}
		if parent.Point != m.Point {
			return parent.ID, nil
		}
		below = parent
	}
}

// openMountParent opens the directory around a mount point, which must lie below the pod's own directory.
func openMountParent(r request, m host.Mount) (dir int, name string, err error) {
	base, err := openBase(r.Base)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(base)
	real, err := realPath(base)
	if err != nil {
		return -1, "", err
	}
	rest, ok := strings.CutPrefix(m.Point, path.Join(real, r.UID)+"/")
	if !ok || !local(r.UID) || strings.Contains(r.UID, "/") || !local(rest) {
		return -1, "", refuse("%s is not below the directory of pod %s", m.Point, r.UID)
	}
	parent, name := path.Split(path.Join(r.UID, rest))
	// Mounts are nested below each other, so the walk may cross some: where it ends is checked by the caller.
	dir, err = openBelow(base, path.Clean(parent), unix.O_PATH|unix.O_DIRECTORY, resolveBeneath)
	return dir, name, err
}

// onMount makes sure that name lies on the mount with the given ID, or is its root.
func onMount(dir int, name string, id int, root bool) error {
	st, err := look(dir, name)
	if err != nil {
		return err
	}
	found, err := mountID(st)
	if err != nil {
		return err
	}
	if found != id {
		return changed("path %q leads to mount %d instead of %d", name, found, id)
	}
	if root && !isMountRoot(st) {
		return changed("path %q is no mount point", name)
	}
	return nil
}
