package mutate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Note is a small file that root wrote into a pod's directory, and which file it was.
type Note struct {
	Content []byte `json:"content"`
	File    FileID `json:"file"`
}

// maxNote bounds a note. Kubelet's are below 1 KiB.
const maxNote = 64 << 10

// ReadNote reads a file in the directory of the pod uid. The pod may have put anything in its place: a pipe, a
// device, a link, something mounted, a file without an end. So it is opened in a child, beneath the directory, only
// when it is a regular file that root alone can have written, and only so much of it is read. An error that wraps
// fs.ErrNotExist means that there is none.
func (d *Mutator) ReadNote(ctx context.Context, uid, name string) (Note, error) {
	if name == "" {
		return Note{}, refuse("no name")
	}
	a, err := d.do(ctx, request{Op: opReadNote, Base: d.podsDir(), UID: uid, Path: name})
	if err == nil && a.Outcome == outcomeGone {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return a.Note, err
}

func readNoteChild(r request) (Note, error) {
	dir, name, err := openPodDir(r, resolveInside)
	if err != nil {
		return Note{}, err
	}
	defer unix.Close(dir)
	// Without opening it for reading: that would wait for the other end of a pipe, or wind a tape.
	handle, err := openBelow(dir, name, unix.O_PATH|unix.O_NOFOLLOW, resolveInside)
	if errors.Is(err, unix.ENOENT) {
		return Note{}, errGone
	}
	if err != nil {
		return Note{}, err
	}
	defer unix.Close(handle)
	st, err := statAt(handle, "")
	if err != nil {
		return Note{}, err
	}
	if why := notByRoot(st); why != "" {
		return Note{}, refuse("%s %s", name, why)
	}
	if st.Size > maxNote {
		return Note{}, refuse("%s has %d bytes, more than %d", name, st.Size, maxNote)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(handle), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return Note{}, fmt.Errorf("open %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxNote+1))
	if err != nil {
		return Note{}, fmt.Errorf("read %s: %w", name, err)
	}
	if len(content) > maxNote { // it grew
		return Note{}, refuse("%s has more than %d bytes", name, maxNote)
	}
	return Note{Content: content, File: fileID(st)}, nil
}

// notByRoot returns why something may have been written by others than root; empty when it is a regular file that only
// root can write, under one name.
func notByRoot(st unix.Statx_t) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Sprintf("is no regular file (mode %o)", st.Mode)
	case st.Uid != 0:
		return fmt.Sprintf("belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("can be written by others (mode %o)", st.Mode)
	case st.Nlink != 1:
		return fmt.Sprintf("has %d names", st.Nlink)
	}
	return ""
}
