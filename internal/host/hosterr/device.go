package hosterr

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Device formats a device number as the mount table does: "major:minor".
func Device(number uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number))
}
