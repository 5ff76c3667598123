package host

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ClockState is what the kernel knows of the quality of the wall clock: see adjtimex(2).
type ClockState struct {
	// Unsynchronised is STA_UNSYNC: set at boot, and again when the clock was not set for nine hours. chronyd
	// without rtcsync leaves it set for ever.
	Unsynchronised bool `json:"unsynchronised"`
	// MaxError is how wrong the clock may be. It grows by 500 µs a second until who keeps the time sets it back; at
	// 16 s, which is its value at boot too, it stops.
	MaxError time.Duration `json:"maxError"`
	// Offset is what the kernel still has to correct. Only ntpd and systemd-timesyncd leave the correction to it.
	Offset time.Duration `json:"offset"`
}

// Right reports whether something keeps the clock right. STA_UNSYNC alone is no proof: see there.
func (c ClockState) Right() bool { return !c.Unsynchronised || c.MaxError < MaxClockError }

// MaxClockError is where the kernel's estimate of the clock's error stops growing, and begins at boot: no program keeps
// the time (NTP_PHASE_LIMIT in include/linux/timex.h).
const MaxClockError = 16 * time.Second

// ReadClock asks the kernel. It changes nothing.
func ReadClock() (ClockState, error) {
	var tx unix.Timex // Modes 0: only asked
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
