package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// FileID distinguishes one file or directory from another that takes its name.
type FileID struct {
	Device string `json:"device"` // major:minor
	Inode  uint64 `json:"inode"`
}

// EntryType is the file type of an entry.
type EntryType string

// The entry types that the agent distinguishes.
const (
	Directory EntryType = "directory"
	Regular   EntryType = "file"
	Socket    EntryType = "socket"
	Symlink   EntryType = "symlink"
	Pipe      EntryType = "pipe"
	Other     EntryType = "other" // device
)

// Entry is one file or directory in a pod's directory.
type Entry struct {
	Path  string    `json:"path"` // relative to the pod's directory; "" is that directory itself
	Type  EntryType `json:"type"`
	File  FileID    `json:"file"`
	Size  uint64    `json:"size"`
	Links uint32    `json:"links"`           // hard links
	Mount bool      `json:"mount,omitempty"` // a mount point; not read any deeper
}

// maxTree bounds the entries of a pod's directory. A larger one holds data that must not be deleted.
const maxTree = 20_000

func tree(r Request) ([]Entry, error) {
	parent, name, err := openPodDir(r, resolveInside)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(parent)
	return treeBelow(parent, name)
}

// treeBelow lists the tree in the directory name of an open directory.
func treeBelow(parent int, name string) ([]Entry, error) {
	top, err := entryAt(parent, name, "")
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if top.Type != Directory || top.Mount {
		return nil, Refuse("the directory %s is a mount point or no directory", name)
	}
	entries := []Entry{top}
	// Breadth first, with one descriptor open at a time, however deep the tree is.
	for at := 0; at < len(entries); at++ {
		if entries[at].Type != Directory || entries[at].Mount {
			continue
		}
		below, err := listDir(parent, path.Join(name, entries[at].Path), entries[at])
		if err != nil {
			return nil, err
		}
		entries = append(entries, below...)
		if len(entries) > maxTree {
			return nil, Refuse("the directory %s holds more than %d entries", name, maxTree)
		}
	}
	return entries, nil
}

// wholeTree lists an entry of a directory with everything in it. It may contain no mount.
func wholeTree(dir int, name string, top Entry) (entries []Entry, err error) {
	entries = []Entry{top}
	if top.Type == Directory && !top.Mount {
		if entries, err = treeBelow(dir, name); err != nil {
			return nil, err
		}
	}
	for _, entry := range entries {
		if entry.Mount {
			return nil, fmt.Errorf("%s is a mount point: %w", path.Join(name, entry.Path), unix.EBUSY)
		}
	}
	return entries, nil
}

// listDir reads the names in one directory and stats each of them, so that it follows no link and never blocks.
func listDir(parent int, name string, dir Entry) ([]Entry, error) {
	fd, err := OpenBelow(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, resolveInside)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	st, err := StatAt(fd, "")
	if err != nil {
		return nil, err
	}
	if fileID(st) != dir.File {
		return nil, Changed("directory %s", name)
	}
	names, err := file.Readdirnames(maxTree + 1) // treeBelow refuses larger ones
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	slices.Sort(names)
	entries := make([]Entry, 0, len(names))
	for _, child := range names {
		entry, err := entryAt(fd, child, path.Join(dir.Path, child))
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// entryAt stats name in an open directory; at is its path in the tree.
func entryAt(dir int, name, at string) (Entry, error) {
	st, err := StatAt(dir, name)
	if err != nil {
		return Entry{}, err
	}
	mounted, err := isMountPoint(st)
	entry := Entry{Path: at, Type: Other, File: fileID(st), Size: st.Size, Links: st.Nlink, Mount: mounted}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		entry.Type = Directory
	case unix.S_IFREG:
		entry.Type = Regular
	case unix.S_IFSOCK:
		entry.Type = Socket
	case unix.S_IFLNK:
		entry.Type = Symlink
	case unix.S_IFIFO:
		entry.Type = Pipe
	}
	return entry, err
}

func fileID(st unix.Statx_t) FileID {
	return FileID{Device: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), Inode: st.Ino}
}
