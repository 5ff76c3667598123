package host

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Now returns the present moment. The boot ID is empty only where /proc is not mounted.
func Now() finding.Timestamp {
	// without it, a moment is still comparable within this run
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return finding.Timestamp{Wall: time.Now().Round(0), Boot: strings.TrimSpace(string(boot)), SinceBoot: uptime()}
}

// uptime is the time since boot, sleep included.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // impossible since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
