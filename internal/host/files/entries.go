package files

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one name in a directory as the directory itself lists it (getdents64), without access to anything below: for
// a mount point it shows the directory under the mount.
type Entry struct {
	Name  string
	Inode uint64
	Type  uint8 // unix.DT_*; DT_UNKNOWN on filesystems that do not report it
}

// IsDir reports whether e is a directory, or may be one on a filesystem that does not report it.
func (e Entry) IsDir() bool { return e.Type == unix.DT_DIR || e.Type == unix.DT_UNKNOWN }

// IsFile reports whether e is a regular file, or may be one on a filesystem that does not report it.
func (e Entry) IsFile() bool { return e.Type == unix.DT_REG || e.Type == unix.DT_UNKNOWN }

// direntHeader is the length of struct linux_dirent64 before the name: d_ino, d_off, d_reclen, d_type.
const direntHeader = 8 + 8 + 2 + 1

// Entries lists a directory with inode numbers and types, without a stat of any entry, and returns the device number
// of the directory. Entries are in the directory's own order.
func (f Tree) Entries(dir string) (entries []Entry, device uint64, err error) {
	return f.ReadEntries(dir, maxEntries)
}

// ReadEntries is Entries, but fails if the directory has more than most entries.
func (f Tree) ReadEntries(dir string, most int) (entries []Entry, device uint64, err error) {
	fd, err := unix.Open(f.Path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	buffer := make([]byte, 8<<10)
	for {
		n, err := unix.ReadDirent(fd, buffer)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, 0, &os.PathError{Op: "list", Path: dir, Err: err}
		case n == 0:
			return entries, stat.Dev, nil
		case len(entries) > most:
			return nil, 0, fmt.Errorf("list %s: more than %d entries", dir, most)
		}
		entries = appendEntries(entries, buffer[:n])
	}
}

// appendEntries parses the data that getdents64 returned.
func appendEntries(entries []Entry, data []byte) []Entry {
	for len(data) > direntHeader {
		length := int(binary.NativeEndian.Uint16(data[16:]))
		if length <= direntHeader || length > len(data) {
			return entries // impossible; the kernel writes complete records
		}
		name, _, _ := strings.Cut(string(data[direntHeader:length]), "\x00")
		if name != "." && name != ".." {
			entries = append(entries, Entry{Name: name, Inode: binary.NativeEndian.Uint64(data), Type: data[18]})
		}
		data = data[length:]
	}
	return entries
}

// FileStat contains the attributes that the kernel knows without asking the filesystem's server.
type FileStat struct {
	Device   uint64 // as in stat.st_dev
	Inode    uint64
	Mode     uint16
	Links    uint32
	Size     uint64
	Modified time.Time
	Born     time.Time // zero: the filesystem does not know it
}

// IsDir reports whether the file is a directory.
func (s FileStat) IsDir() bool { return s.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsFile reports whether the file is a regular one.
func (s FileStat) IsFile() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }

// Stat reads the attributes of one file without following a symbolic link, triggering an automount or asking a server
// (AT_STATX_DONT_SYNC). It must not be used on a path below a mount other than the node's own.
func (f Tree) Stat(name string) (FileStat, error) {
	var st unix.Statx_t
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_MTIME |
		unix.STATX_BTIME
	if err := unix.Statx(unix.AT_FDCWD, f.Path(name), flags, mask, &st); err != nil {
		return FileStat{}, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	var born time.Time
	if st.Mask&unix.STATX_BTIME != 0 {
		born = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return FileStat{
		Device:   unix.Mkdev(st.Dev_major, st.Dev_minor),
		Inode:    st.Ino,
		Mode:     st.Mode,
		Links:    st.Nlink,
		Size:     st.Size,
		Modified: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)),
		Born:     born,
	}, nil
}
