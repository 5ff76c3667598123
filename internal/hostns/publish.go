package hostns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// programName is the name of the program, both of the copy and of the link.
const programName = "nodeagent"

// Publish makes the program available on the host while it runs, as dir/nodeagent, although it is not installed there:
// a link to a copy in keep. A link to the process would refer to another program as soon as the process is killed and
// its PID reused; a killed agent leaves a copy of itself, which the next one takes over. The copy is not in dir itself:
// on many hosts programs in /run cannot be executed (noexec), and it would take memory.
//
// The returned function removes both, unless the link is another agent's by now.
func Publish(dir, keep string) (remove func() error, err error) {
	link, program := filepath.Join(dir, programName), filepath.Join(keep, programName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := copySelf(keep, program); err != nil {
		// A link of an earlier agent may lead anywhere by now.
		return nil, errors.Join(fmt.Errorf("copy of the program: %w", err), unlink(link))
	}
	// Each link has its own time, which identifies it.
	created, err := replaceLink(link, program)
	if err != nil {
		return nil, errors.Join(err, unlink(link))
	}
	return func() error {
		if current, err := os.Lstat(link); err != nil || !os.SameFile(current, created) {
			return nil //nolint:nilerr // it is gone, or is the link of another agent, which uses the copy too
		}
		return errors.Join(unlink(link), unlink(program))
	}, nil
}

func unlink(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// replaceLink creates a symbolic link in one step, in place of whatever has the name.
func replaceLink(link, target string) (os.FileInfo, error) {
	next := link + ".new"
	if err := unlink(next); err != nil {
		return nil, err
	}
	if err := os.Symlink(target, next); err != nil {
		return nil, err
	}
	created, err := os.Lstat(next)
	if err != nil {
		return nil, err
	}
	return created, os.Rename(next, link)
}

// copySelf makes a file a copy of the running program that root owns and that only root may write. It keeps an
// identical one, so a restart does not write.
func copySelf(keep, name string) error {
	if _, err := (owned.Tree{}).Check(keep); err != nil {
		return err // other users could put another program there
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	if isCopy(self, name) {
		return nil
	}
	if _, err := self.Seek(0, io.SeekStart); err != nil {
		return err
	}
	next := name + ".new"
	if err := unlink(next); err != nil {
		return err
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o700) //nolint:gosec // a program of root
	if err != nil {
		return err
	}
	_, err = io.Copy(file, self)
	err = errors.Join(err, file.Chmod(0o755), file.Close())
	if err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, unlink(next)) // a full disk gets its space back
	}
	return nil
}

// isCopy reports whether a file is identical to the copy that copySelf would make.
func isCopy(self *os.File, name string) bool {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	current, err := file.Stat()
	if err != nil {
		return false
	}
	own, err := self.Stat()
	if err != nil {
		return false
	}
	stat, ok := current.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() || current.Mode() != 0o755 || current.Size() != own.Size() {
		return false
	}
	var a, b [64 << 10]byte
	for {
		n, errA := io.ReadFull(self, a[:])
		m, errB := io.ReadFull(file, b[:])
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			end := func(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
			return end(errA) && end(errB)
		}
	}
}
