// Package files reads /proc, /sys, /etc and the like.
package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Tree is the files of the host. Use it only for files that answer at once; files on a foreign mount are for the
// Prober. The zero value reads the host; Root replaces it with a fixture tree.
type Tree struct{ Root string }

// Max bounds a single read. The mount table of a node with 20,000 mounts is about 5 MB.
const Max = 16 << 20

// maxEntries bounds a directory listing.
const maxEntries = 1 << 18

// Path returns the real location of name.
func (f Tree) Path(name string) string { return filepath.Join("/", f.Root, name) }

// Read returns the content of a file. A file above 16 MiB is an error, never truncated. It makes system calls directly,
// without Go's poller: checks read a hundred files a second.
func (f Tree) Read(name string) ([]byte, error) {
	fd, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data := make([]byte, 0, 512) // most files in /sys and /proc are shorter
	for {
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data)) // doubles it
		}
		n, err := unix.Read(fd, data[len(data):min(cap(data), Max+1)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", name, &os.PathError{Op: "read", Path: f.Path(name), Err: err})
		case n == 0:
			return data, nil
		}
		if data = data[:len(data)+n]; len(data) > Max {
			return nil, fmt.Errorf("read %s: larger than %d bytes", name, Max)
		}
	}
}

// open is Open for Read.
func (f Tree) open(name string) (int, error) {
	fd, err := unix.Open(f.Path(name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(f.Path(name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: f.Path(name), Err: err}
	}
	var stat unix.Stat_t
	err = unix.Fstat(fd, &stat)
	switch kind := stat.Mode & unix.S_IFMT; {
	case err != nil:
		err = &os.PathError{Op: "stat", Path: f.Path(name), Err: err}
	case kind == unix.S_IFDIR:
		err = fmt.Errorf("read %s: %w", name, unix.EISDIR)
	case kind != unix.S_IFREG:
		err = fmt.Errorf("read %s: no regular file but one of type %#o", name, kind)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ReadOwned is Read for files that the agent acts on: a regular file that only root can change, see package owned.
func (f Tree) ReadOwned(name string) ([]byte, error) {
	return owned.Tree{Root: f.Root}.Read(name, Max)
}

// CheckOwned returns an error if users other than root can change a file or folder.
func (f Tree) CheckOwned(name string) (owned.File, error) {
	return owned.Tree{Root: f.Root}.Check(name)
}

// Open opens a regular file for reading; those of /proc and /sys count as regular. If a pipe or a device has replaced
// the file, it fails at once and never waits.
func (f Tree) Open(name string) (*os.File, error) {
	file, err := os.OpenFile(f.Path(name), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	stat, err := file.Stat()
	switch {
	case err == nil && stat.IsDir():
		err = fmt.Errorf("read %s: %w", name, unix.EISDIR)
	case err == nil && !stat.Mode().IsRegular():
		err = fmt.Errorf("read %s: no regular file but %s", name, stat.Mode())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Text returns the content of a one-line file, such as most files in /sys, without surrounding white space.
func (f Tree) Text(name string) (string, error) {
	data, err := f.Read(name)
	return strings.TrimSpace(string(data)), err
}

// List returns the names in a directory without a stat of any entry, so that it cannot hang on a mount below it.
func (f Tree) List(dir string) ([]string, error) {
	file, err := os.OpenFile(f.Path(dir), os.O_RDONLY|unix.O_DIRECTORY, 0) // for a pipe, too, an error at once
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names, err := file.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	if len(names) == maxEntries {
		return nil, fmt.Errorf("list %s: %d entries or more", dir, maxEntries)
	}
	return names, nil
}

// Link returns the target of a symbolic link.
func (f Tree) Link(name string) (string, error) { return os.Readlink(f.Path(name)) }

// Inode returns the device number and inode of the file that a path leads to. For a directory in sysfs, or a cgroup,
// they are its identity: another one of the same name has another inode.
func (f Tree) Inode(name string) (string, error) {
	var stat unix.Stat_t
	if err := unix.Stat(f.Path(name), &stat); err != nil {
		return "", &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), nil
}

// Resolve follows all symbolic links of a path.
func (f Tree) Resolve(name string) (string, error) {
	real, err := filepath.EvalSymlinks(f.Path(name))
	if err != nil {
		return "", err
	}
	if f.Root == "" {
		return real, nil
	}
	inside, err := filepath.Rel(f.Root, real)
	return filepath.Join("/", inside), err
}
