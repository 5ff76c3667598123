package child

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Rules for resolving a path below a trusted directory. Both need Linux 5.6; older kernels return ENOSYS, and the
// change is not made there.
const (
	ResolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	// and on the same mount: a bind of the same filesystem counts as another
	resolveInside = ResolveBeneath | unix.RESOLVE_NO_XDEV
)

// OpenBase opens a trusted directory by its configured name.
func OpenBase(dir string) (int, error) {
	if !path.IsAbs(dir) {
		return -1, Refuse("%q is not absolute", dir)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", dir, err)
	}
	return fd, nil
}

// OpenBelow opens name below a directory.
func OpenBelow(dir int, name string, flags int, resolve uint64) (int, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve})
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return fd, nil
}

// openIfThere is OpenBelow, but returns ErrGone if name does not exist.
func openIfThere(dir int, name string, flags int, resolve uint64) (int, error) {
	fd, err := OpenBelow(dir, name, flags, resolve)
	if errors.Is(err, unix.ENOENT) {
		err = ErrGone
	}
	return fd, err
}

// realPath returns the path of an open directory without symbolic links.
func realPath(fd int) (string, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buffer)
	if err != nil {
		return "", fmt.Errorf("name of an open directory: %w", err)
	}
	return string(buffer[:n]), nil
}

// openPodDir opens the directory that holds name, a path relative to the pod's directory, and returns it with the last
// component of name. Name "" is the pod's directory itself.
func openPodDir(r Request, resolve uint64) (fd int, last string, err error) {
	if !IsLocal(r.UID) || strings.Contains(r.UID, "/") || r.Path != "" && !IsLocal(r.Path) {
		return -1, "", Refuse("%q below pod %q is no plain relative path", r.Path, r.UID)
	}
	base, err := OpenBase(r.Base)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(base)
	dir, last := path.Split(path.Join(r.UID, r.Path))
	fd, err = openIfThere(base, path.Join(".", dir), unix.O_PATH|unix.O_DIRECTORY, resolve)
	return fd, last, err
}

// IsLocal reports whether name is a clean relative path that does not leave its base.
func IsLocal(name string) bool {
	return filepath.IsLocal(name) && name != "." && path.Clean(name) == name && !strings.ContainsRune(name, 0)
}

// StatAt stats name in an open directory without following it, without triggering an automount and without asking a
// filesystem's server. An empty name means the directory itself.
func StatAt(dir int, name string) (unix.Statx_t, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	return st, Gone("stat "+name, err)
}

// mountID returns the ID of the mount that a file is on.
func mountID(st unix.Statx_t) (int, error) {
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, Refuse("the kernel does not report mount IDs (Linux 5.8 or newer is needed)")
	}
	return int(st.Mnt_id), nil
}

// isMountRoot reports whether a file is the root of a mount.
func isMountRoot(st unix.Statx_t) bool {
	return st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// isMountPoint is isMountRoot for callers that need a certain no.
func isMountPoint(st unix.Statx_t) (bool, error) {
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, Refuse("the kernel does not report mount points (Linux 5.8 or newer is needed)")
	}
	return isMountRoot(st), nil
}
