package hostns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Entered is the first thing to do after the second start: the process gets its name back (it was executed as a
// descriptor), and the kept descriptors stay with it alone: none of its children has a use for them.
func Entered(kept ...string) error {
	// Not worth ending for: people see another name in the process list.
	_ = os.WriteFile("/proc/self/comm", []byte("nodeagent"), 0)
	var errs []error
	for _, path := range kept {
		if path == "" {
			continue
		}
		dir, name := filepath.Split(path)
		fd, err := strconv.Atoi(name)
		if filepath.Clean(dir) != descriptors || err != nil {
			errs = append(errs, fmt.Errorf("%s is not a descriptor of this process", path))
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			errs = append(errs, fmt.Errorf("kept directory %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// Publish makes the program findable on the host while it runs, as dir/nodeagent: nothing of it is installed there. The
// function that it returns takes the link away, unless it has become another agent's.
func Publish(dir string) (remove func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	link, target := filepath.Join(dir, "nodeagent"), fmt.Sprintf("/proc/%d/exe", os.Getpid())
	temporary := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return nil, err
	}
	if err := os.Rename(temporary, link); err != nil {
		return nil, errors.Join(err, os.Remove(temporary))
	}
	return func() error {
		if is, err := os.Readlink(link); err != nil || is != target {
			return nil //nolint:nilerr // it is gone, or another agent's
		}
		return os.Remove(link)
	}, nil
}
