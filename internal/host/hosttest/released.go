package hosttest

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

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
		holder := l.holder()
		if holder == "" {
			return
		}
		select {
		case <-ticks.C:
		case <-deadline:
			l.t.Logf("%s has %s mounted", holder, l.Device)
			need.Has(l.t, false, "a loop device that nobody else has mounted")
		}
	}
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
