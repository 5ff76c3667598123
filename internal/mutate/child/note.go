package child

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Note is a small file that root wrote into a pod's directory, with its identity.
type Note struct {
	Content []byte `json:"content"`
	File    FileID `json:"file"`
}

// maxNote bounds a note. Kubelet's are below 1 KiB.
const maxNote = 64 << 10

func readNote(r Request) (Note, error) {
	dir, name, err := openPodDir(r, resolveInside)
	if err != nil {
		return Note{}, err
	}
	defer unix.Close(dir)
	// Not opened for reading yet: that would wait for the other end of a pipe, or rewind a tape.
	handle, err := openIfThere(dir, name, unix.O_PATH|unix.O_NOFOLLOW, resolveInside)
	if err != nil {
		return Note{}, err
	}
	defer unix.Close(handle)
	st, err := StatAt(handle, "")
	if err != nil {
		return Note{}, err
	}
	if why := notByRoot(st); why != "" {
		return Note{}, Refuse("%s %s", name, why)
	}
	if st.Size > maxNote {
		return Note{}, Refuse("%s has %d bytes, more than %d", name, st.Size, maxNote)
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
		return Note{}, Refuse("%s has more than %d bytes", name, maxNote)
	}
	return Note{Content: content, File: fileID(st)}, nil
}

// notByRoot returns why users other than root may have written a file; empty for a regular file with one name that only
// root can write.
func notByRoot(st unix.Statx_t) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Sprintf("is not a regular file (mode %o)", st.Mode)
	case st.Uid != 0:
		return fmt.Sprintf("belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("is writable by other users (mode %o)", st.Mode)
	case st.Nlink != 1:
		return fmt.Sprintf("has %d names", st.Nlink)
	}
	return ""
}
