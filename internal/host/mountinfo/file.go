package mountinfo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/files"
)

// File is an open mount table. The kernel counts changes of the table for each open file, and resets the count once
// poll(2) has reported it. So the file is opened without Go's poller, which would hide them from changed.
type File struct {
	name string
	fd   int
}

// Open opens a mount table, by its path in /proc.
func Open(name string) (*File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return &File{name, fd}, nil
}

// FD returns the file's descriptor.
func (f *File) FD() int { return f.fd }

// Read reads the next bytes.
func (f *File) Read(data []byte) (int, error) {
	n, err := unix.Read(f.fd, data)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(f.fd, data)
	}
	switch {
	case err != nil:
		return 0, &os.PathError{Op: "read", Path: f.name, Err: err}
	case n == 0 && len(data) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Close closes the file.
func (f *File) Close() error { return unix.Close(f.fd) }

// counts reports whether the kernel counts changes of this file: a file outside /proc is a test's.
func (f *File) counts() bool {
	var stat unix.Statfs_t
	return unix.Fstatfs(f.fd, &stat) == nil && stat.Type == unix.PROC_SUPER_MAGIC
}

// changed reports whether any mount was added, removed, moved or remounted with other options since the file was
// opened, or since the last call. In doubt it returns true.
func (f *File) changed() bool {
	poll := []unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLPRI}}
	n, err := unix.Poll(poll, 0)
	return err != nil || n != 0
}

// kept is the last table, and the file that shows whether it has changed since.
type kept struct {
	file  *File // nil: there is none
	table []Mount
	lines lines     // of the table
	at    time.Time // when it was opened
	cost  time.Duration
}

// ReadFile reads a whole table of at most limit bytes, and closes the file, or keeps it for Recent. The table is shared:
// it must not be modified. One that costs too much is a CutError: see Known.
func (r *Reader) ReadFile(file *File, limit int64) ([]Mount, error) {
	if r == nil {
		return r.ReadOther(file, limit)
	}
	if r.budget.slow() {
		return nil, errors.Join(fmt.Errorf("read %s: %w", file.name, &CutError{}), file.Close())
	}
	from := whole{r.metered(file, free)}
	limited := &io.LimitedReader{R: from, N: limit + 1}
	if !r.mu.TryLock() { // another one reads, and may hang in the kernel
		table, err := Parse(limited)
		return withinLimit(table, errors.Join(err, file.Close()), file, limited, limit)
	}
	defer r.mu.Unlock()
	at := time.Now()
	table, err := r.read(limited)
	r.budget.found(from.metered)
	table, err = withinLimit(table, err, file, limited, limit)
	if err != nil || !file.counts() {
		return table, errors.Join(err, file.Close())
	}
	closed := r.forget()
	r.kept = kept{file, table, r.last, at, from.cost}
	return table, closed
}

// ReadOther reads the table of another process, and closes the file. What it costs counts for r, which may be nil.
func (r *Reader) ReadOther(file *File, limit int64) ([]Mount, error) {
	if r == nil {
		r = &Reader{}
	}
	limited := &io.LimitedReader{R: whole{r.metered(file, freeOther)}, N: limit + 1}
	table, err := Parse(limited)
	return withinLimit(table, errors.Join(err, file.Close()), file, limited, limit)
}

func withinLimit(table []Mount, err error, file *File, read *io.LimitedReader, limit int64) ([]Mount, error) {
	switch {
	case read.N == 0:
		return nil, fmt.Errorf("read %s: larger than %d bytes", file.name, limit)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", file.name, err)
	}
	return table, nil
}

// Recent returns the last table read from the file of this name, unless it is older than maxAge or the kernel has
// counted a change since. If ok is false it must be read again.
//
// The kernel counts what is mounted, unmounted, moved and mounted with other options in this namespace. It does not count
// options of a filesystem that change by themselves (errors=remount-ro) or by way of another namespace, what is made
// shared or private, nor directories above or below a mount that are renamed or removed: those may be as old as maxAge,
// or, where the table costs much, as a hundred times what it costs.
//
// Of filesystems with a wanted mount the options are those of now: all lines are compared with the kernel's up to where the
// last such filesystem first stands: few where these are the node's own disks, which are mounted first. Where that costs too
// much the table comes with a CutError.
func (r *Reader) Recent(name string, maxAge time.Duration, wanted func(Mount) bool) (table []Mount, ok bool, err error) {
	if r == nil || !r.mu.TryLock() {
		return nil, false, nil
	}
	defer r.mu.Unlock()
	if r.kept.cost > free {
		maxAge = max(maxAge, 2*share*r.kept.cost)
	}
	if r.kept.file == nil || r.kept.file.name != name || time.Since(r.kept.at) > maxAge {
		return nil, false, nil
	}
	n := 0
	if wanted != nil {
		n = firstLines(r.kept.table, wanted)
	}
	compared, same := r.compare(n)
	if !same || r.kept.file.changed() {
		_ = r.forget() // the word of the change is taken: nothing may be believed to be without one
		return nil, false, nil
	}
	if compared < n {
		err = &CutError{Lines: compared, Stack: HighestStack(r.kept.table)}
	}
	return r.kept.table, true, err
}

// firstLines returns the number of lines by which each filesystem with a wanted mount has occurred.
func firstLines(table []Mount, wanted func(Mount) bool) (lines int) {
	seen := make(map[[2]int]bool)
	for i, m := range table {
		if device := [2]int{m.Major, m.Minor}; wanted(m) && !seen[device] {
			seen[device], lines = true, i+1
		}
	}
	return lines
}

// compare compares the first n lines of the table that is kept with the kernel's, or as many as may be read.
func (r *Reader) compare(n int) (compared int, same bool) {
	if n == 0 {
		return 0, true
	}
	if _, err := unix.Seek(r.kept.file.fd, 0, io.SeekStart); err != nil {
		return 0, false
	}
	from := r.metered(r.kept.file, free)
	if r.kept.cost > free {
		from.free = 0
	}
	if r.input == nil {
		r.input = bufio.NewReader(nil)
	}
	r.input.Reset(from)
	defer r.input.Reset(nil)
	for i := range n {
		if !from.more() {
			return i, true
		}
		line, err := r.line(r.input)
		if err != nil {
			return i, false
		}
		if at, known := r.kept.lines.at[string(line)]; !known || at != i {
			return i, false
		}
	}
	return n, true
}

// Close closes the stored file.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.drop(), r.forget())
}

func (r *Reader) forget() error {
	file := r.kept.file
	r.kept = kept{}
	if file == nil {
		return nil
	}
	return file.Close()
}

// ErrNoMounts is the error for a process that changed its root to a plain directory.
var ErrNoMounts = errors.New("empty mount table")

// NameOf is the file with the mount table that a process sees.
func NameOf(pid int) string { return fmt.Sprintf("/proc/%d/mountinfo", pid) }

// OfProcess returns the mount table that a process sees, as read by ReadFile or ReadOther of a Reader. It works without
// touching any of the mounts.
func OfProcess(tree files.Tree, pid int, read func(*File, int64) ([]Mount, error)) ([]Mount, error) {
	name := NameOf(pid)
	file, err := Open(tree.Path(name))
	if err != nil {
		return nil, err
	}
	mounts, err := read(file, files.Max)
	if err != nil {
		return nil, err
	}
	if len(mounts) == 0 {
		// Even an empty container has a root: a table without any mount proves nothing.
		return nil, fmt.Errorf("read %s: %w", name, ErrNoMounts)
	}
	return mounts, nil
}
