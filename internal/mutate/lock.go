package mutate

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseLock is the lock of this node for releases, so that a daemon, its successor in a rolling update and the
// command line never release at the same time.
type ReleaseLock struct {
	files []*os.File
}

// Lock locks every one of names: a directory is locked itself; anything else is a file, created if missing. ErrBusy if
// one of them is already locked. The kernel releases the locks when the process ends.
//
// A file that is removed while locked can be created and locked again by another process. That is why there may be
// several names, in locations that are not removed together, why the name is checked after the file was locked, and why
// Held checks it again.
func Lock(names ...string) (*ReleaseLock, error) {
	if len(names) == 0 {
		return nil, errors.New("lock: no name")
	}
	l := &ReleaseLock{}
	for _, name := range names {
		file, err := lockOne(name, openLock)
		if err != nil {
			return nil, errors.Join(err, l.Unlock())
		}
		l.files = append(l.files, file)
	}
	return l, nil
}

// Locked reports whether a process has the lock of a directory or a file; it does not create the file. It may make a
// release that begins at this very moment fail to lock: that release is tried again.
func Locked(name string) (bool, error) {
	file, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer file.Close()
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// Held returns an error if a name no longer refers to the locked file: another process may then hold the lock too.
func (l *ReleaseLock) Held() error {
	for _, file := range l.files {
		if err := checkName(file); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
	}
	return nil
}

// Unlock releases the lock.
func (l *ReleaseLock) Unlock() error {
	var problems []error
	for _, file := range slices.Backward(l.files) {
		problems = append(problems, file.Close())
	}
	l.files = nil
	return errors.Join(problems...)
}

// lockTries bounds how often a file removed between opening and locking is reopened.
const lockTries = 8

func lockOne(name string, open func(string) (*os.File, error)) (*os.File, error) {
	var err error
	for range lockTries {
		var file *os.File
		if file, err = open(name); err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("lock %s: another release is running%s: %w", name, holderOf(file), ErrBusy)
			file.Close()
			return nil, err
		}
		if err == nil {
			err = checkName(file)
		}
		if err == nil {
			return file, nil
		}
		file.Close()
		if !errors.Is(err, ErrChanged) {
			break
		}
	}
	return nil, fmt.Errorf("lock %s: %w", name, err)
}

func openLock(name string) (*os.File, error) {
	if stat, err := os.Lstat(name); err == nil && stat.IsDir() {
		return os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
}

// checkName returns an error unless the name of an open file still refers to that file.
func checkName(file *os.File) error {
	mine, err := file.Stat()
	if err != nil {
		return err
	}
	now, err := os.Lstat(file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return changed("%s was removed", file.Name())
	}
	if err != nil {
		return err
	}
	if !os.SameFile(mine, now) {
		return changed("%s is another file now", file.Name())
	}
	return nil
}

// holderOf describes the process that has a file locked; empty if unknown. It reads /proc/locks, with lines like
//
//	3: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF
//
// with the process, and the device (hexadecimal) and inode of the file: see proc_locks(5).
func holderOf(file *os.File) string {
	var stat unix.Stat_t
	if unix.Fstat(int(file.Fd()), &stat) != nil {
		return ""
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer locks.Close()
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 8 || fields[1] != "FLOCK" || fields[5] != id {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			return fmt.Sprintf(", by process %d%s", pid, commandOf(pid))
		}
	}
	return ""
}

func commandOf(pid int) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (%q)", strings.TrimSpace(string(comm)))
}
