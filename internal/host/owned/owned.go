// Package owned decides which files and programs the agent trusts: those that only root can change. A file is root's if
// root owns it, each directory in its path and each symbolic link followed, and neither group nor others can write to
// any of them. An access control list that lets another user write shows in the mode of the group. A directory that all
// users can write to is refused even with the sticky bit (/tmp): any user may take the name first.
//
// If the agent does not run as root, its own user counts like root: the agent has no more rights than that user.
//
// It opens no file before it has found it to be root's: it waits for no FIFO, and touches no device.
package owned

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrOthers means that users other than root can change a file, or replace it.
var ErrOthers = errors.New("others than root can change it")

// Tree is the root of absolute names. The zero value is the machine's; Root replaces it with a fixture tree, which is
// itself not checked.
type Tree struct{ Root string }

// File is the file found at a name.
type File struct {
	Path          string // without symbolic links
	Device, Inode uint64
	Mode          uint16 // with the type
}

// maxLinks bounds the symbolic links to follow, as in the kernel.
const maxLinks = 40

// UID reports whether a user counts as root.
func UID(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// Check walks to a file or directory and returns it if it is root's. An error that wraps ErrOthers names the part that
// is not; any other error, like fs.ErrNotExist, leaves that unknown. The mode of a socket does not count: it only
// controls who may connect.
func (t Tree) Check(name string) (File, error) {
	fd, file, err := t.open(name)
	if err != nil {
		return File{}, err
	}
	return file, unix.Close(fd)
}

// Read returns the content of a regular file that is root's. A file above limit is an error.
func (t Tree) Read(name string, limit int64) ([]byte, error) {
	fd, file, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if file.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("read %s: not a regular file", name)
	}
	// Through the checked descriptor, whatever the name refers to now.
	opened, err := os.OpenFile(descriptor(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.Unwrap(err)}
	}
	defer opened.Close()
	data, err := io.ReadAll(io.LimitReader(opened, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: larger than %d bytes", name, limit)
	}
	return data, nil
}

func descriptor(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// open returns an O_PATH descriptor of the file at a name.
func (t Tree) open(name string) (int, File, error) {
	if !filepath.IsAbs(name) {
		return -1, File{}, fmt.Errorf("%q: not an absolute path", name)
	}
	w := &walk{name: name, root: filepath.Join("/", t.Root), fd: -1}
	if err := w.begin(t.Root != ""); err != nil {
		return -1, File{}, err
	}
	for todo := parts(name); len(todo) > 0; {
		target, err := w.step(todo[0])
		if err != nil {
			w.close()
			return -1, File{}, err
		}
		todo = append(parts(target), todo[1:]...)
	}
	return w.fd, w.at, nil
}

func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// walk goes to a file component by component, opening each in the directory before it, which was checked.
type walk struct {
	name, root string // as requested; where absolute names begin
	fd         int
	at         File
	device     device // of the directory, to notice a change of filesystem
	links      int
}

type device struct{ major, minor uint32 }

// begin puts the walk at the root.
func (w *walk) begin(fixture bool) error {
	w.close()
	fd, err := unix.Open(w.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: w.root, Err: err}
	}
	stat, err := status(fd)
	if err != nil {
		unix.Close(fd)
		return &fs.PathError{Op: "stat", Path: w.root, Err: err}
	}
	w.device = device{stat.Dev_major, stat.Dev_minor}
	if fixture {
		w.fd, w.at = fd, File{Path: "/", Mode: stat.Mode}
		return nil
	}
	return w.enter(fd, "/", stat)
}

func (w *walk) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}

// step goes one component further. For a symbolic link it returns the target, which comes next.
func (w *walk) step(part string) (target string, err error) {
	path := filepath.Join(w.at.Path, part)
	if part == "." || part == ".." && w.at.Path == "/" {
		return "", nil
	}
	fd, err := unix.Openat(w.fd, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	stat, err := status(fd)
	if err != nil {
		unix.Close(fd)
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", w.enter(fd, path, stat)
	}
	defer unix.Close(fd)
	if err := w.checkOwner(path, stat); err != nil {
		return "", err
	}
	return w.follow(fd, path)
}

// enter makes a directory or file the current one.
func (w *walk) enter(fd int, path string, stat unix.Statx_t) error {
	if err := w.checkOwner(path, stat); err != nil {
		unix.Close(fd)
		return err
	}
	w.close()
	w.fd, w.device = fd, device{stat.Dev_major, stat.Dev_minor}
	w.at = File{Path: path, Device: unix.Mkdev(stat.Dev_major, stat.Dev_minor), Inode: stat.Ino, Mode: stat.Mode}
	return nil
}

func (w *walk) follow(fd int, path string) (string, error) {
	if w.links++; w.links > maxLinks {
		return "", &fs.PathError{Op: "open", Path: w.name, Err: unix.ELOOP}
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", target)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	if n > 0 && target[0] == '/' {
		if err := w.begin(w.root != "/"); err != nil {
			return "", err
		}
	}
	return string(target[:n]), nil
}

// status returns owner, mode and device without a request to a remote server.
func status(fd int) (unix.Statx_t, error) {
	var stat unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &stat)
	return stat, err
}

// checkOwner returns an error if users other than root can change a file, directory or link.
func (w *walk) checkOwner(path string, stat unix.Statx_t) error {
	shown := path
	if path != w.name {
		shown = w.name + ": " + path
	}
	kind := stat.Mode & unix.S_IFMT
	switch at := (device{stat.Dev_major, stat.Dev_minor}); {
	case !UID(stat.Uid), kind != unix.S_IFLNK && kind != unix.S_IFSOCK && stat.Mode&0o022 != 0:
		return fmt.Errorf("%s belongs to user %d, mode %04o: %w", shown, stat.Uid, stat.Mode&0o7777, ErrOthers)
	case at != w.device && at.major == 0:
		return checkFilesystem(shown, at)
	}
	return nil
}

// checkFilesystem refuses filesystems whose owner and mode are no proof: a user's own mount (FUSE) shows anything that
// the user wants, and the links in /proc lead elsewhere than their text. Both have no block device.
func checkFilesystem(shown string, at device) error {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("%s: which filesystem: %w", shown, err)
	}
	defer file.Close()
	number := fmt.Sprintf("%d:%d", at.major, at.minor)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 3 || len(kind) < 3 || fields[2] != number {
			continue
		}
		if users := strings.HasPrefix(kind[0], "fuse"); users && !mountedByRoot(kind[2]) || kind[0] == "proc" {
			return fmt.Errorf("%s is on a filesystem (%s) whose owners and modes prove nothing: %w", shown, kind[0],
				ErrOthers)
		}
		return nil
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: which filesystem: %w", shown, err)
	}
	return nil // a subvolume of btrfs has its own number, which is in no table; a FUSE mount's is in it
}

// mountedByRoot reads the options of a FUSE mount.
func mountedByRoot(options string) bool {
	for option := range strings.SplitSeq(options, ",") {
		if user, ok := strings.CutPrefix(option, "user_id="); ok {
			uid, err := strconv.ParseUint(user, 10, 32)
			return err == nil && UID(uint32(uid))
		}
	}
	return false
}
