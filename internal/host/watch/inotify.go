package watch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// InotifyRoom is whether the user of this process, root as a rule, can watch files still.
type InotifyRoom struct {
	Instances bool `json:"instances"` // below fs.inotify.max_user_instances
	Watches   bool `json:"watches"`   // below fs.inotify.max_user_watches; true where there is no instance to try with
}

// ProbeInotify takes an inotify instance and a watch, and gives them back at once. The kernel counts them for each user
// and shows the counts nowhere, so that to try is the only cheap way to know.
func ProbeInotify() (InotifyRoom, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		// The same number says that this process itself has too many descriptors.
		own, openErr := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if openErr != nil {
			return InotifyRoom{}, fmt.Errorf("inotify: %w", openErr)
		}
		unix.Close(own)
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
