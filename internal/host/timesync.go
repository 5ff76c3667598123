package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// TimeSynchronised reports whether something keeps the wall clock right, by the kernel's own word: adjtimex(2) without
// STA_UNSYNC. Setting the clock by hand, or by a jump, makes it unsynchronised until a daemon has taken hold of it again.
func TimeSynchronised() (bool, error) {
	var timex unix.Timex // Modes 0: nothing is changed
	if _, err := unix.Adjtimex(&timex); err != nil {
		return false, fmt.Errorf("adjtimex: %w", err)
	}
	return timex.Status&unix.STA_UNSYNC == 0, nil
}
