package host

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Now returns the present moment. The boot ID is empty only if /proc is not mounted.
func Now() finding.Timestamp { return moment(bootID()) }

// NewClock returns Now for frequent callers: it reads the boot ID once, since no process outlives its boot.
func NewClock() func() finding.Timestamp {
	boot := bootID()
	if boot == "" {
		return Now
	}
	return func() finding.Timestamp { return moment(boot) }
}

func moment(boot string) finding.Timestamp {
	return finding.Timestamp{Wall: time.Now().Round(0), Boot: boot, SinceBoot: uptime()}
}

// bootID is empty if it cannot be read: without it, moments are still comparable within this run.
func bootID() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(boot))
}

// uptime is the time since boot, sleep included.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // impossible since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
