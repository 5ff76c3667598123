package filesystemreadonly

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
)

// examined is a filesystem with a block device and all evidence about it.
type examined struct {
	filesystem.Filesystem

	gone    string      // why its device is gone; empty if it is there
	fstabRO bool        // /etc/fstab wants it read-only
	ext4    *ext4Errors // nil: not ext4, or unknown
	// errno of opening its root directory; empty: it can be opened, or was not probed
	probeErrno string
}

// ext4Errors is the record of the running kernel and earlier ones in the superblock.
type ext4Errors struct {
	count     int
	last      time.Time
	function  string // kernel function that found the last error
	sinceBoot bool   // the last one is of this boot
	observed  bool   // one was recorded while the agent was observing this mount
	shown     bool   // the mount table then showed that it takes no writes, so it will also show the end of that
}

const (
	reasonDeviceGone  = "FilesystemDeviceGone"
	reasonShutdown    = "FilesystemShutdown"
	reasonEmergencyRO = "FilesystemEmergencyReadOnly"
	reasonRemountedRO = "FilesystemRemountedReadOnly"
	reasonErrors      = "FilesystemErrors"
	reasonOldErrors   = "FilesystemErrorsRecorded"
)

// evaluate decides from the evidence alone. A healthy filesystem, or one read-only on purpose, has no fault.
func (f examined) evaluate() (filesystem.Fault, bool) {
	switch {
	case f.gone != "":
		return filesystem.Fault{Reason: reasonDeviceGone, Text: "lost its device", Evidence: f.gone}, true
	case f.Option("shutdown"):
		return filesystem.Fault{Reason: reasonShutdown, Text: "was shut down by the kernel",
			Evidence: "the mount table shows shutdown" + f.recorded()}, true
	case f.probeErrno != "":
		return filesystem.Fault{Reason: reasonShutdown, Text: "was shut down by the kernel",
			Evidence: "opening its root directory: " + f.probeErrno}, true
	case f.Option("emergency_ro"):
		return filesystem.Fault{Reason: reasonEmergencyRO, Text: "takes no writes after an error",
			Evidence: "the mount table shows emergency_ro" + f.recorded()}, true
	case f.Option("ro") && f.forcedReadOnly():
		return filesystem.Fault{Reason: reasonRemountedRO, Text: "was made read-only by the kernel",
			Evidence: "the filesystem is ro but was not mounted so" + f.recorded()}, true
	case f.stoppedUnseen():
		return filesystem.Fault{Reason: reasonEmergencyRO, Text: "takes no writes after an error",
			Evidence: "the kernel stopped it, which the mount table does not show" + f.recorded()}, true
	case f.erredThisBoot():
		return filesystem.Fault{Reason: reasonErrors, Text: "has errors", Evidence: strings.TrimPrefix(f.recorded(),
			", ")}, true
	case f.ext4 != nil && f.ext4.count > 0:
		return filesystem.Fault{Reason: reasonOldErrors, Text: "was never checked after errors of an earlier boot",
			Evidence: f.ext4.String()}, true
	}
	return filesystem.Fault{}, false
}

// forcedReadOnly reports whether it is proven that the kernel, and not a person, made the filesystem read-only. ext4
// records every error that makes it read-only; other filesystems do not, but only a person also sets the flag of the
// mount. Any rw mount of the whole counts, because another one may be a read-only bind.
func (f examined) forcedReadOnly() bool {
	mountRW := slices.ContainsFunc(f.Mounts, func(m mount.Mount) bool {
		return filesystem.WholeRank(m) == 1 && slices.Contains(m.Options, "rw")
	})
	switch {
	case f.fstabRO:
		return false
	case f.ext4 != nil:
		return f.ext4.sinceBoot && (mountRW || f.Option("errors=remount-ro"))
	default:
		return mountRW
	}
}

// stoppedUnseen reports an ext4 that stopped taking writes on a kernel that does not show it: see the head of
// filesystemreadonly.go. The error must have been recorded during this mount, since after another mount the filesystem
// takes writes again.
func (f examined) stoppedUnseen() bool {
	return f.ext4 != nil && f.ext4.observed && !f.ext4.shown &&
		(f.Option("errors=remount-ro") || f.ext4.function == "ext4_journal_check_start")
}

func (f examined) erredThisBoot() bool { return f.ext4 != nil && f.ext4.sinceBoot }

// recorded describes the errors that ext4 recorded in this boot.
func (f examined) recorded() string {
	if !f.erredThisBoot() {
		return ""
	}
	return ", " + f.ext4.String()
}

func (e ext4Errors) String() string {
	return fmt.Sprintf("%d errors recorded, last in %s at %s", e.count, e.function, e.last.UTC().Format(time.RFC3339))
}
