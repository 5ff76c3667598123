package detect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// filesystem is one superblock and its mounts. Its binds are the same thing.
type filesystem struct {
	device    string // major:minor, as all its mounts show it
	principal host.Mount
	mounts    []host.Mount
}

// examined is a filesystem with a block device behind it and all that is known of it.
type examined struct {
	filesystem

	gone       string      // why there is no device behind it; empty when there is
	fstabRO    bool        // /etc/fstab wants it read-only
	ext4       *ext4Errors // nil: not ext4, or unknown
	probeErrno string      // why the filesystem refuses to open its root directory; empty: it does not, or was not asked
}

// ext4Errors is what the running kernel and earlier ones recorded in the superblock.
type ext4Errors struct {
	count     int
	last      time.Time
	function  string // of the kernel, that found the last error
	sinceBoot bool   // the last one is of this boot; others are not this kernel's
	seenCome  bool   // one came since this mount of the filesystem was seen first
	shown     bool   // the mount table showed then that it takes no writes: this kernel shows it, and shows when that is over
}

// fault is one way in which a filesystem fails.
type fault struct{ reason, text, evidence string }

// The reasons.
const (
	reasonDeviceGone  = "FilesystemDeviceGone"
	reasonShutdown    = "FilesystemShutdown"
	reasonEmergencyRO = "FilesystemEmergencyReadOnly"
	reasonRemountedRO = "FilesystemRemountedReadOnly"
	reasonErrors      = "FilesystemErrors"
	reasonOldErrors   = "FilesystemErrorsRecorded"
)

// readOnlyByDesign reports filesystems that were never writable, and those of which the mount table's device number is not
// one of a block device, or whose state only a foreign daemon knows (fuseblk).
func readOnlyByDesign(fstype string) bool {
	return slices.Contains([]string{"squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "jffs2", "fuseblk"}, fstype)
}

// onBlockDevice tells filesystems on disks from all others by their device number, which is anonymous (major 0) for
// pseudo, network and FUSE filesystems. btrfs spans disks and so has an anonymous number too.
func onBlockDevice(m host.Mount) bool {
	return m.Major != 0 || m.FSType == "btrfs" && strings.HasPrefix(m.Source, "/dev/")
}

// principalOf returns the mount that people know the filesystem by: of those that show the whole of it the one with the
// shortest path.
func principalOf(mounts []host.Mount) host.Mount {
	return slices.MinFunc(mounts, func(a, b host.Mount) int {
		return cmp.Or(
			-cmp.Compare(wholeRank(a), wholeRank(b)),
			cmp.Compare(len(a.Point), len(b.Point)),
			cmp.Compare(a.ID, b.ID), // the older one, as a rule
		)
	})
}

// wholeRank is 1 for mounts of a whole filesystem, or of a whole subvolume of btrfs, and 0 for binds of a part.
func wholeRank(m host.Mount) int {
	if m.Root == "/" || m.FSType == "btrfs" && slices.Contains(m.SuperOptions, "subvol="+m.Root) {
		return 1
	}
	return 0
}

func (f filesystem) subject() finding.Subject {
	return finding.Subject{Kind: "filesystem", Name: f.principal.Point}
}

func (f filesystem) ignored(points []string) bool {
	return slices.ContainsFunc(f.mounts, func(m host.Mount) bool { return slices.Contains(points, m.Point) })
}

// option reports whether the filesystem itself shows an option. All of its mounts show the same ones.
func (f filesystem) option(name string) bool { return slices.Contains(f.principal.SuperOptions, name) }

// judge decides from the evidence alone. A filesystem that is healthy, or read-only because somebody wants it so, has no
// fault.
func (f examined) judge() (fault, bool) {
	switch {
	case f.gone != "":
		return fault{reasonDeviceGone, "lost its device", f.gone}, true
	case f.option("shutdown"):
		return fault{reasonShutdown, "was shut down by the kernel", "mount table says shutdown" + f.recorded()}, true
	case f.probeErrno != "":
		return fault{reasonShutdown, "was shut down by the kernel", "opening its root directory: " + f.probeErrno}, true
	case f.option("emergency_ro"):
		return fault{reasonEmergencyRO, "takes no writes after an error", "mount table says emergency_ro" + f.recorded()}, true
	case f.option("ro") && f.forcedReadOnly():
		return fault{reasonRemountedRO, "was made read-only by the kernel", "filesystem is ro without being mounted so" + f.recorded()}, true
	case f.stoppedUnseen():
		return fault{reasonEmergencyRO, "takes no writes after an error", "the kernel stopped it, which the mount table does not show" + f.recorded()}, true
	case f.erredThisBoot():
		return fault{reasonErrors, "has errors", strings.TrimPrefix(f.recorded(), ", ")}, true
	case f.ext4 != nil && f.ext4.count > 0:
		return fault{reasonOldErrors, "was never checked after errors of an earlier boot", f.ext4.String()}, true
	}
	return fault{}, false
}

// forcedReadOnly reports whether it is proven that the kernel, and not a person, made the filesystem read-only. ext4
// records every error that makes it do so; what others record is lost, but only a person sets the flag of the mount too.
// Any mount of the whole that says rw counts, because another one may be a read-only bind.
func (f examined) forcedReadOnly() bool {
	mountRW := slices.ContainsFunc(f.mounts, func(m host.Mount) bool { return wholeRank(m) == 1 && slices.Contains(m.Options, "rw") })
	switch {
	case f.fstabRO:
		return false
	case f.ext4 != nil:
		return f.ext4.sinceBoot && (mountRW || f.option("errors=remount-ro"))
	default:
		return mountRW
	}
}

// stoppedUnseen reports ext4 that stopped taking writes on a kernel that shows nothing of it: see the head of
// filesystem_readonly.go. The error must have come during this mount, since after another one the filesystem takes writes again.
func (f examined) stoppedUnseen() bool {
	return f.ext4 != nil && f.ext4.seenCome && !f.ext4.shown && (f.option("errors=remount-ro") || f.ext4.function == "ext4_journal_check_start")
}

func (f examined) erredThisBoot() bool { return f.ext4 != nil && f.ext4.sinceBoot }

// recorded words what ext4 recorded in this boot.
func (f examined) recorded() string {
	if !f.erredThisBoot() {
		return ""
	}
	return ", " + f.ext4.String()
}

func (e ext4Errors) String() string {
	return fmt.Sprintf("%d errors recorded, last in %s at %s", e.count, e.function, e.last.UTC().Format(time.RFC3339))
}
