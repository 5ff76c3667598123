package child

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxNetnsMounts bounds the mounts stacked on one file.
const maxNetnsMounts = 16

func removeNetns(r Request) error {
	base, err := OpenBase(r.Base)
	if err != nil {
		return err
	}
	defer unix.Close(base)
	if err := unix.Fchdir(base); err != nil {
		return err
	}
	for range maxNetnsMounts {
		mounted, err := checkNetnsFile(r.Path, r.File.Inode)
		if err != nil {
			return err
		}
		if !mounted {
			return Gone(r.Path, unix.Unlinkat(unix.AT_FDCWD, r.Path, 0))
		}
		if err := unix.Unmount(r.Path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", r.Path, err)
		}
		r.File.Inode = 0 // below it is the plain file, or the same namespace again
	}
	return Refuse("%s is mounted more than %d times", r.Path, maxNetnsMounts)
}

// checkNetnsFile checks that a file is the inspected namespace or a plain empty file. Inode 0 stands for any file.
func checkNetnsFile(name string, inode uint64) (mounted bool, err error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, Gone(name, err)
	}
	defer unix.Close(fd)
	st, err := StatAt(fd, "")
	if err != nil {
		return false, err
	}
	if inode != 0 && st.Ino != inode {
		return false, Changed("%s is inode %d instead of %d", name, st.Ino, inode)
	}
	if isMountRoot(st) {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		if fs.Type != unix.NSFS_MAGIC {
			return false, Refuse("%s is a mount of type %x", name, fs.Type)
		}
		return true, nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return false, Refuse("%s is not an empty file", name)
	}
	return false, nil
}
