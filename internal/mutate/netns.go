package mutate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Netns is the identity of a pinned network namespace: the file it is pinned to and its number in nsfs, or the file's
// own inode where nothing is mounted on it any more.
type Netns struct {
	Path  string
	Inode uint64
}

// netnsName is the form of the names that containerd gives: cni-<uuid>. Whatever else lies there belongs to somebody else
// (`ip netns add`, routers).
var netnsName = regexp.MustCompile(`^cni-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// nsfsMagic is NSFS_MAGIC of linux/magic.h.
const nsfsMagic = 0x6e736673

// RemoveNetns takes away the pin of a network namespace that no process lives in. The kernel then ends the namespace,
// and with it the virtual links in it and their other ends. Physical devices would fall back to the host.
func (d *Mutator) RemoveNetns(ctx context.Context, n Netns) error {
	dir, name := path.Split(n.Path)
	if !netnsName.MatchString(name) {
		return refuse("%s is not named as a runtime names it", n.Path)
	}
	if !d.isNetnsDir(path.Clean(dir)) {
		return refuse("%s is in no directory for network namespaces", n.Path)
	}
	if err := d.mountedElsewhere(n); err != nil {
		return err
	}
	user, err := d.userOfNetns(n.Inode)
	if err != nil {
		return err
	}
	if user != 0 {
		return fmt.Errorf("%s: process %d lives in it: %w", n.Path, user, ErrBusy)
	}
	_, err = d.do(ctx, request{Op: opNetns, Base: path.Clean(dir), Path: name, File: FileID{Inode: n.Inode}})
	return err
}

// isNetnsDir compares directories by what they really are: /var/run is a link to /run on most systems.
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

// userOfNetns returns a process that lives in a network namespace, or 0.
func (d *Mutator) userOfNetns(inode uint64) (int, error) {
	pids, err := d.host.PIDs()
	if err != nil {
		return 0, err
	}
	wanted := "net:[" + strconv.FormatUint(inode, 10) + "]"
	for _, pid := range pids {
		if pid == 1 || pid == d.host.Paths.InitPID {
			continue // it stands for the host, and some do not let themselves be looked at
		}
		link, err := d.host.Files.Link(fmt.Sprintf("/proc/%d/ns/net", pid))
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH): // it has ended
		case err != nil:
			return 0, fmt.Errorf("where process %d lives: %w", pid, err)
		case link == wanted:
			return pid, nil
		}
	}
	return 0, nil
}

// mountedElsewhere refuses a pin whose namespace is mounted at another point of the host, too: it would not end. While
// the pin is there the number of the namespace is no other's.
func (d *Mutator) mountedElsewhere(n Netns) error {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	dir, name := path.Split(n.Path)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // the mount table shows no symbolic links
	}
	wanted := "net:[" + strconv.FormatUint(n.Inode, 10) + "]"
	for _, m := range mounts {
		if m.FSType == "nsfs" && m.Root == wanted && m.Point != path.Join(dir, name) {
			return refuse("%s is mounted at %s as well: its network namespace would not end", n.Path, m.Point)
		}
	}
	return nil
}

// NetnsGone reports whether a pin is there no more: neither its file nor anything mounted on that, in the host's
// mount table.
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

// maxNetnsMounts bounds how often one name may have been mounted on.
const maxNetnsMounts = 16

func removeNetnsChild(r request) error {
	base, err := openBase(r.Base)
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
			return gone(r.Path, unix.Unlinkat(unix.AT_FDCWD, r.Path, 0))
		}
		if err := unix.Unmount(r.Path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", r.Path, err)
		}
		r.File.Inode = 0 // below it is the plain file, or the same namespace once more
	}
	return refuse("%s is mounted more than %d times", r.Path, maxNetnsMounts)
}

// checkNetnsFile looks at what a name is: a namespace that is the judged one, or a plain empty file. Inode 0 stands for any
// file.
func checkNetnsFile(name string, inode uint64) (mounted bool, err error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, errGone
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	st, err := statAt(fd, "")
	if err != nil {
		return false, err
	}
	if inode != 0 && st.Ino != inode {
		return false, changed("%s is inode %d instead of %d", name, st.Ino, inode)
	}
	if isMountRoot(st) {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		if fs.Type != nsfsMagic {
			return false, refuse("%s is a mount of type %x", name, fs.Type)
		}
		return true, nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return false, refuse("%s is no empty file", name)
	}
	return false, nil
}
