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
