package hostns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Entered is called first after the second start: it restores the process's name (the process was executed from a
// descriptor), and makes its children close the kept descriptors, which they do not need.
func Entered(kept ...string) error {
	// An error does not matter: only the name in the process list differs.
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
