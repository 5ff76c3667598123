package watch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// InotifyRoom says whether the user of this process, normally root, can still watch files.
type InotifyRoom struct {
	Instances bool `json:"instances"` // below fs.inotify.max_user_instances
	// below fs.inotify.max_user_watches; true if there is no instance to test it with
	Watches bool `json:"watches"`
}

// ProbeInotify takes an inotify instance and a watch, and releases them at once. The kernel counts them for each user
// but does not expose the counts, so trying is the only cheap way to find out.
func ProbeInotify() (InotifyRoom, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		// The same errno also means that this process itself has too many descriptors.
		fd, openErr := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if openErr != nil {
			return InotifyRoom{}, fmt.Errorf("inotify: %w", openErr)
		}
		unix.Close(fd)
		return InotifyRoom{Watches: true}, nil
	}
	if err != nil {
		return InotifyRoom{}, fmt.Errorf("inotify: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.InotifyAddWatch(fd, "/", unix.IN_DELETE_SELF)
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		return InotifyRoom{}, fmt.Errorf("inotify watch: %w", err)
	}
	return InotifyRoom{Instances: true, Watches: err == nil}, nil
}
