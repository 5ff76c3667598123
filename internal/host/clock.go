package host

import (
	"fmt"
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

// ClockState is the kernel's view of the quality of the wall clock: see adjtimex(2).
type ClockState struct {
	// Unsynchronised is STA_UNSYNC: set at boot, and again if the clock was not set for nine hours. chronyd without
	// rtcsync leaves it set forever.
	Unsynchronised bool `json:"unsynchronised"`
	// MaxError is the possible error of the clock. It grows by 500 µs a second until a time daemon resets it; it stops
	// at 16 s, which is also its value at boot.
	MaxError time.Duration `json:"maxError"`
	// Offset is the kernel's remaining correction. Only ntpd and systemd-timesyncd leave the correction to the kernel.
	Offset time.Duration `json:"offset"`
}

// Right reports whether a program keeps the clock right. STA_UNSYNC alone is no proof: see there.
func (c ClockState) Right() bool { return !c.Unsynchronised || c.MaxError < MaxClockError }

// MaxClockError is where the kernel's estimate of the clock's error stops growing, and its value at boot: no program
// keeps the time (NTP_PHASE_LIMIT in include/linux/timex.h).
const MaxClockError = 16 * time.Second

// ReadClock reads the kernel's clock state. It does not set the clock.
func ReadClock() (ClockState, error) {
	var tx unix.Timex // Modes 0: read only
	if _, err := unix.Adjtimex(&tx); err != nil {
		return ClockState{}, fmt.Errorf("adjtimex: %w", err)
	}
	unit := time.Microsecond
	if tx.Status&unix.STA_NANO != 0 {
		unit = time.Nanosecond
	}
	return ClockState{
		Unsynchronised: tx.Status&unix.STA_UNSYNC != 0,
		MaxError:       time.Duration(tx.Maxerror) * time.Microsecond,
		Offset:         time.Duration(tx.Offset) * unit,
	}, nil
}
