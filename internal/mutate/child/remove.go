package child

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// target opens the parent directory of a file to be removed and checks that its name refers to the inspected file.
func target(r Request, types ...uint16) (dir int, name string, err error) {
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
	st, err := StatAt(dir, name)
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
				return Changed("%s is inode %d of device %s instead of %d of %s", name, found.Inode, found.Device,
					id.Inode, id.Device)
			}
			return nil
		}
	}
	return Changed("%s has mode %o", name, st.Mode)
}

func removeDir(r Request) error {
	dir, name, err := target(r, unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return Gone(name, unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
}

func removeFile(r Request) error {
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
	return Gone(name, unix.Unlinkat(dir, name, 0))
}
