package hand

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock takes the one lock of this node for releasing, so that a daemon, its successor in a rolling update and a person at
// the command line never release at once. ErrBusy when somebody has it. The kernel lets go of it when the process ends.
func Lock(name string) (unlock func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: another release is running: %w", name, ErrBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return file.Close, nil
}
