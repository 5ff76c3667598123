package mutate

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// RemoveDir removes one empty directory in the directory of the pod uid; an empty name means that directory itself. It
// never deletes content: ErrBusy if the directory is not empty or is a mount point.
func (d *Mutator) RemoveDir(ctx context.Context, uid, name string, id FileID) error {
	_, err := d.do(ctx, request{Op: opRemoveDir, Base: d.podsDir(), UID: uid, Path: name, File: id})
	return err
}

// RemoveFile removes one regular file in the directory of the pod uid. The caller must know that it is not user data.
func (d *Mutator) RemoveFile(ctx context.Context, uid, name string, id FileID) error {
	if name == "" {
		return refuse("no name")
	}
	_, err := d.do(ctx, request{Op: opRemoveFile, Base: d.podsDir(), UID: uid, Path: name, File: id})
	return err
}

// target opens the parent directory of a file to be removed and checks that its name refers to the inspected file.
func target(r request, types ...uint16) (dir int, name string, err error) {
	dir, name, err = openPodDir(r, resolveInside)
	if err != nil {
		return -1, "", err
	}
	if err := checkTarget(dir, name, r.File, types); err != nil {
		unix.Close(dir)
		return -1, "", err
	}
	return dir, name, nil
}

func checkTarget(dir int, name string, id FileID, types []uint16) error {
	st, err := statAt(dir, name)
	if err != nil {
		return err
	}
	if mounted, err := isMountPoint(st); err != nil {
		return err
	} else if mounted {
		return fmt.Errorf("%s is a mount point: %w", name, unix.EBUSY)
	}
	for _, t := range types {
		if st.Mode&unix.S_IFMT == t {
			if found := fileID(st); found != id {
				return changed("%s is inode %d of device %s instead of %d of %s", name, found.Inode, found.Device,
					id.Inode, id.Device)
			}
			return nil
		}
	}
	return changed("%s has mode %o", name, st.Mode)
}

func removeDirChild(r request) error {
	dir, name, err := target(r, unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return gone(name, unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
}

func removeFileChild(r request) error {
	mode := uint16(unix.S_IFREG)
	switch r.Type {
	case Symlink:
		mode = unix.S_IFLNK
	case Pipe:
		mode = unix.S_IFIFO
	}
	dir, name, err := target(r, mode)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return gone(name, unix.Unlinkat(dir, name, 0))
}

// gone adds the operand to a system call's error; ENOENT becomes errGone.
func gone(name string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
