// Package watch reports that the mount table or a directory has changed, but not how: the kernel's events may be lost,
// and callers read the state.
package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
)

const (
	// WatchGap is the minimum time between two calls of a watcher: a thousand mounts in a second are reported twenty
	// times.
	WatchGap = 50 * time.Millisecond
	// RecheckEvery is how often a watcher checks that the watched object is still the same. The checks that it wakes run
	// as often or more often by themselves.
	RecheckEvery = time.Minute
	// absentEvery is how often a watcher checks whether an absent directory exists again.
	absentEvery = time.Second
)

// WatchMounts calls changed after every change of the mount table of process pid, until ctx ends; then it returns nil.
// It is an error if the process ends. Go's poller does not request POLLPRI, and its own poll of the file would consume
// the kernel's report of a change, so this occupies one thread, in poll(2).
func WatchMounts(ctx context.Context, pid int, changed func()) error {
	name := fmt.Sprintf("/proc/%d/mountinfo", pid)
	table, err := mountinfo.Open(name)
	if err != nil {
		return err
	}
	defer table.Close()
	end, release, err := CancelDescriptor(ctx)
	if err != nil {
		return err
	}
	defer release()
	// The kernel counts changes since open, and resets the count once it has reported them.
	both := []unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}, {Fd: int32(table.FD()), Events: unix.POLLPRI}}
	for {
		n, err := Poll(both, RecheckEvery)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("poll %s: %w", name, err)
		case n == 0:
			// The descriptor keeps the namespace alive beyond the process, but the host may continue in another one.
			if _, err := os.Lstat(filepath.Dir(name)); err != nil {
				return fmt.Errorf("watch %s: %w", name, err)
			}
		case both[1].Revents&unix.POLLNVAL != 0:
			return fmt.Errorf("poll %s: %w", name, unix.EBADF)
		case both[1].Revents&(unix.POLLPRI|unix.POLLERR) != 0:
			changed()
			if _, err := Poll(both[:1], WatchGap); err != nil {
				return fmt.Errorf("poll: %w", err)
			}
		}
	}
}

// Poll waits for a descriptor; an interruption by a signal counts as a timeout.
func Poll(descriptors []unix.PollFd, timeout time.Duration) (int, error) {
	n, err := unix.Poll(descriptors, int(timeout.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		for i := range descriptors {
			descriptors[i].Revents = 0
		}
		return 0, nil
	}
	return n, err
}

// CancelDescriptor returns a descriptor that becomes readable when ctx ends, and a function to release it.
func CancelDescriptor(ctx context.Context) (fd int, release func(), err error) {
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, nil, fmt.Errorf("eventfd: %w", err)
	}
	written := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(written)
		// non-zero in either byte order; fails only when readable already
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 1})
	})
	return fd, func() {
		if !stop() {
			<-written // the descriptor must not be closed, and so reused, during the write
		}
		unix.Close(fd)
	}, nil
}

// WatchDir calls changed after entries of a directory were added, removed or changed their attributes, until ctx ends;
// then it returns nil. The directory may be absent, be removed and come back: each of these is a change too.
func WatchDir(ctx context.Context, dir string, changed func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	w := dirWatch{fd: fd, dir: dir, watched: -1}
	if _, err := w.renew(); err != nil {
		return err
	}
	buffer := make([]byte, 16<<10)
	for {
		wait := RecheckEvery
		if w.watched < 0 {
			wait = absentEvery
		}
		if err := events.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		if ctx.Err() != nil { // checked after the deadline is set, so that it cannot override the one set at the end
			return nil
		}
		// The events are not parsed: they may be lost (IN_Q_OVERFLOW), and the caller reads the directory anyway.
		_, err := events.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		replaced, renewErr := w.renew()
		if renewErr != nil {
			return renewErr
		}
		if (err == nil || replaced) && ctx.Err() == nil {
			changed()
			select {
			case <-ctx.Done():
			case <-time.After(WatchGap):
			}
		}
	}
}

// dirWatch is an inotify watch on the directory that currently has a name.
type dirWatch struct {
	fd      int
	dir     string
	watched int // watch descriptor; -1 while there is no such directory
}

// renew watches the directory that currently has the name and reports whether it is a different one. For an already
// watched directory the kernel returns the same number, and it never reuses a number.
func (w *dirWatch) renew() (replaced bool, err error) {
	const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	current, err := unix.InotifyAddWatch(w.fd, w.dir, events)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		current, err = -1, nil
	}
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", w.dir, err)
	}
	if current == w.watched {
		return false, nil
	}
	if w.watched >= 0 {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(w.watched)) // EINVAL: removed with its directory
	}
	w.watched = current
	return true, nil
}
