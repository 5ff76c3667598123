package hosttest

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

// Released waits until the filesystem is mounted nowhere. A process that created a mount namespace while it was mounted
// here, as other tests and container runtimes do, keeps it alive after the last unmount: mounted again it would be the
// same instance as before.
func (l *LoopFS) Released() {
	l.t.Helper()
	deadline, ticks := time.After(30*time.Second), time.NewTicker(20*time.Millisecond)
	defer ticks.Stop()
	for {
		if l.free() {
			return
		}
		select {
		case <-ticks.C:
		case <-deadline:
			l.t.Logf("%s has %s mounted", l.holder(), l.Device)
			need.Has(l.t, false, "a loop device that nobody else has mounted")
		}
	}
}

// free reports whether the kernel has ended the filesystem: a mounted one holds its device exclusively, also in a mount
// namespace that is about to end and has no process any more.
func (l *LoopFS) free() bool {
	fd, err := unix.Open(l.Device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// holder returns the mount table of a process that still has the filesystem.
func (l *LoopFS) holder() string {
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo") // the pattern is well-formed
	for _, table := range tables {
		data, err := os.ReadFile(table) //nolint:gosec // a mount table
		if err == nil && bytes.Contains(data, []byte(" "+l.Device+" ")) {
			return table
		}
	}
	return ""
}
