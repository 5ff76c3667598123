package mutate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Mount is the identity of one mount, as inspected.
type Mount = child.Mount

// ErrHarm means that an unmount unexpectedly removed other mounts too. It is also an ErrChanged, which stops the
// release.
var ErrHarm = child.ErrHarm

// Way is how to unmount.
type Way int

// The ways, gentlest first.
const (
	Plain  Way = iota // the kernel refuses if the mount is in use
	Forced            // MNT_FORCE: aborts requests to a dead server, for all mounts of the filesystem
	Lazy              // MNT_DETACH: removes the mount from the tree while in use; network and FUSE only
)

// Unmount unmounts one mount below the directory of the pod uid. ErrBusy: it is in use or covered by another mount.
// ErrChanged: it is another mount now. A Refusal: the unmount would propagate to mounts outside of the pod's directory.
// ErrHarm: it did propagate. It is no error if the mount is gone.
//
// The kernel cannot unmount by ID, so another mount could appear on top between the last check and the unmount: the
// check is the system call right before it. See package child.
func (d *Mutator) Unmount(ctx context.Context, uid string, m Mount, way Way) error {
	r := child.Request{Op: child.OpUnmount, Base: d.podsDir(), UID: uid, Mount: m, Flags: unix.UMOUNT_NOFOLLOW}
	switch way {
	case Forced:
		r.Flags |= unix.MNT_FORCE
	case Lazy:
		r.Flags |= unix.MNT_DETACH
	}
	if way != Plain {
		if !Remote(m.FSType) {
			return refuse("%s is a local filesystem: its unmount is never forced", m.FSType)
		}
		if err := d.Exclusive(uid, m); err != nil {
			return err
		}
	}
	a, err := d.do(ctx, r)
	if err != nil {
		return err
	}
	for _, note := range a.Notes {
		d.log.Info("unmounting", "mount", m.Point, "note", note)
	}
	if err := d.checkUnmounted(m); err != nil {
		return err
	}
	if a.Outcome == child.OutcomeDone && way == Lazy {
		d.log.Warn("unmounted lazily: its users keep it alive unseen", "mount", m.Point, "fstype", m.FSType)
	}
	return nil
}

// checkUnmounted checks that the mount is no longer in the host's mount table. It still is if the agent runs in a mount
// namespace other than the host's.
func (d *Mutator) checkUnmounted(m Mount) error {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	for _, now := range mounts {
		if now.ID == m.ID && child.SameMount(now, m) {
			return fmt.Errorf("mount %d on %s is still in the host's mount table", m.ID, m.Point)
		}
	}
	return nil
}

// Remote reports whether a filesystem depends on a server that may be gone: network filesystems and FUSE.
func Remote(fsType string) bool {
	kind, _, _ := strings.Cut(fsType, ".")
	return slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "glusterfs", "lustre", "afs",
		"beegfs", "gpfs", "fuse"}, kind)
}
