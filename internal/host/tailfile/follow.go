// Package tailfile follows growing and rotated files, and reads the ends of large ones. It refuses files that could
// block it: a file on a mount served by another machine or process, a pipe, a device.
package tailfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// FilePosition is how far a growing file has been read. It survives restarts, and is valid while the file is the same.
type FilePosition struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Offset int64  `json:"offset"`
}

const (
	// followEvery is how often a file is checked for new lines.
	followEvery = time.Second
	// maxBehind is how far before its end a new file is read from.
	maxBehind = 16 << 20
	// maxLogLine bounds a line; the rest of a longer one is left out.
	maxLogLine = 64 << 10
)

// FollowFile calls each for every line of a log file from a position on, and for new ones, until ctx ends; then it
// returns nil. The line has no newline, is truncated to 64 KiB, and is valid until each returns; at is the position
// after it. A position in another file, or the zero position, means the last 16 MiB. If the file is replaced,
// FollowFile reads the old one to its end first, then the new one from its beginning; a truncated file is read from its
// beginning. It calls caughtUp at the first end of the file. It refuses all but regular files, and a file on a foreign
// mount, which could hang the agent.
func FollowFile(ctx context.Context, h *host.Host, name string, from FilePosition,
	each func(line []byte, at FilePosition),
	caughtUp func()) error {
	f := &follower{name: name, path: h.Files.Path(name), each: each}
	if err := refuseForeign(h, f.path); err != nil {
		return err
	}
	if err := f.open(from, false); err != nil {
		return err
	}
	defer func() { f.file.Close() }()
	timer := time.NewTimer(followEvery)
	defer timer.Stop()
	for first := true; ; first = false {
		if err := f.drain(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		if again, err := f.renew(); err != nil {
			return err
		} else if again {
			continue
		}
		if first {
			caughtUp()
		}
		timer.Reset(followEvery)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}

// foreignKind reports whether another machine or process serves a type of filesystem: reading it may hang.
func foreignKind(kind string) bool {
	return strings.HasPrefix(kind, "fuse") || slices.Contains([]string{
		"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "lustre", "afs", "gpfs", "beegfs", "ocfs2", "gfs2",
		"autofs",
	}, kind)
}

func refuseForeign(h *host.Host, path string) error {
	mounts, err := mount.Visible(mount.Recent(h))
	if err != nil {
		return err
	}
	if under, _ := mount.Around(mounts, path); foreignKind(under.FSType) {
		return fmt.Errorf("follow %s: it lies on a %s mount, which could hang the agent", path, under.FSType)
	}
	return nil
}

// follower reads one file.
type follower struct {
	name, path string
	each       func(line []byte, at FilePosition)
	file       *os.File
	position   FilePosition
	partial    []byte // start of a line without its end
	skip       bool   // skip the rest of the line
	buffer     []byte
}

// open starts with the file that currently has the name: at from if from belongs to it, else near its end, or at its
// beginning if whole is set.
func (f *follower) open(from FilePosition, whole bool) error {
	// Opening a pipe or a device could block or have effects: open it non-blocking, and check it before a read.
	file, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(file.Fd()), &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("not a regular file")
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("follow %s: %w", f.name, err)
	}
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.partial, f.skip = file, nil, false
	f.position = FilePosition{Device: stat.Dev, Inode: stat.Ino}
	switch {
	case from.Device == stat.Dev && from.Inode == stat.Ino && from.Offset <= stat.Size:
		f.position.Offset = from.Offset
	case stat.Size > maxBehind && !whole:
		f.position.Offset, f.skip = stat.Size-maxBehind, true
	}
	return nil
}

// drain reads to the end.
func (f *follower) drain(ctx context.Context) error {
	if f.buffer == nil {
		f.buffer = make([]byte, 32<<10)
	}
	for ctx.Err() == nil {
		n, err := f.file.ReadAt(f.buffer, f.position.Offset+int64(len(f.partial)))
		f.addData(f.buffer[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", f.name, err)
		}
	}
	return nil
}

// addData splits the data into lines.
func (f *follower) addData(data []byte) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			if f.partial = append(f.partial, data...); len(f.partial) > maxLogLine {
				f.cutLine()
			}
			return
		}
		line := data[:end]
		if len(f.partial) > 0 {
			line = append(f.partial, line...)
		}
		f.position.Offset += int64(len(line)) + 1
		if !f.skip {
			f.each(line[:min(len(line), maxLogLine)], f.position)
		}
		f.partial, f.skip, data = nil, false, data[end+1:]
	}
}

// cutLine reports the beginning of a line longer than maxLogLine and skips the rest.
func (f *follower) cutLine() {
	f.position.Offset += int64(len(f.partial))
	if !f.skip {
		f.each(f.partial[:maxLogLine], f.position)
	}
	f.partial, f.skip = nil, true
}

// renew continues with the file that currently has the name, and reports whether it is another one, or was truncated.
func (f *follower) renew() (bool, error) {
	info, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", f.name, err)
	}
	if info.Size() < f.position.Offset+int64(len(f.partial)) {
		f.position.Offset, f.partial, f.skip = 0, nil, false
		return true, nil
	}
	var stat unix.Stat_t
	err = unix.Stat(f.path, &stat)
	switch {
	case errors.Is(err, fs.ErrNotExist): // being replaced, or deleted: the old one may still be written to
		return false, nil
	case err != nil:
		return false, fmt.Errorf("follow %s: %w", filepath.Clean(f.name), err)
	case stat.Dev == f.position.Device && stat.Ino == f.position.Inode:
		return false, nil
	}
	return true, f.open(FilePosition{}, true)
}

// Tail returns the last bytes of a regular file, at most limit, and the file's size: for logs that only grow.
func Tail(f host.Files, name string, limit int64) (data []byte, size int64, err error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	size = info.Size()
	section := io.NewSectionReader(file, max(size-limit, 0), min(size, limit)) // without data added meanwhile
	if data, err = io.ReadAll(section); err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", name, err)
	}
	return data, size, nil
}

// Head returns the first bytes of a file, at most limit.
func Head(f host.Files, name string, limit int64) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
