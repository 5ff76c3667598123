// Package filesystemreadonly finds filesystems that the kernel made read-only or shut down.
package filesystemreadonly

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// filesystem-readonly reads the mount table, /sys/fs/ext4/DEV, /sys/dev/block and, for XFS, probes the filesystem
// itself in a child process. Output of Linux 6.18 for filesystems that really failed (loop devices; fields are mount
// options, "-", type, source, options of the filesystem):
//
//	ext4, errors=remount-ro, error        rw,relatime - ext4 /dev/loop0 rw,errors=remount-ro,emergency_ro
//	                                      writes EROFS, statfs without ST_RDONLY, errors_count 1, last_error_time now
//	ext4, errors=continue, error          rw,relatime - ext4 /dev/loop0 rw         writes go on, errors_count 1
//	ext4, shut down (ioctl, dead device)  rw,relatime - ext4 /dev/loop0 rw,shutdown      writes EIO, errors_count 0
//	ext4, remounted ro by a person        ro,relatime - ext4 /dev/loop0 ro
//	ext4, mounted again without e2fsck    rw,relatime - ext4 /dev/loop0 rw         errors_count stays 1 (it is on disk)
//	XFS, shut down                        rw,relatime - xfs /dev/loop0 rw,inode64,…      nothing in /sys/fs/xfs/loop0;
//	                                      statfs works, open of any directory EIO, writes EIO
//	btrfs, transaction aborted            rw,relatime - btrfs /dev/loop0 ro,…      of the filesystem only, device 0:39
//
// Linux 6.12 to 6.14 and stable kernels with the same change (Debian's 6.1) show the first of these as "rw", without
// emergency_ro: there an error recorded while the agent was running counts if errors=remount-ro is shown, or if
// ext4_journal_check_start found it, which refuses writes after the journal was aborted. An ext4 shut down on a kernel
// before 6.15 is not found: only the kernel log shows it.
//
// A failure is proven by "emergency_ro" or "shutdown" (ext4, Linux 6.15), EIO (XFS), or "ro" of a filesystem whose
// principal mount is "rw": mount(8) sets both, the kernel itself only the former (btrfs, FAT, ext4 before 6.15, where
// errors recorded since boot must confirm it). A loop device without its backing file has size 0; a removed disk has no
// entry in /sys/dev/block.
//
// https://docs.kernel.org/filesystems/ext4/, https://docs.kernel.org/admin-guide/xfs.html,
// Documentation/ABI/testing/sysfs-fs-ext4, proc_pid_mountinfo(5)

// Settings adjust filesystem-readonly.
type Settings struct {
	ProbeTimeout time.Duration `yaml:"probeTimeout"` // how long one XFS filesystem may take to answer
	// a volume that pods have mounted counts as much as the node's filesystems
	PodVolumesFatal bool `yaml:"podVolumesFatal"`
	// mount points, or directories above them, of filesystems that are needed although no pod uses them yet
	Needed []string `yaml:"needed"`
	Ignore []string `yaml:"ignore"` // mount points of filesystems that are not checked
}

// DefaultSettings returns the default settings. Opening a directory takes microseconds; a busy disk may need a second.
func DefaultSettings() Settings {
	return Settings{ProbeTimeout: 2 * time.Second, PodVolumesFatal: true}
}

// New finds filesystems that ought to be writable and no longer take writes.
func New(s Settings) detect.Check {
	probes, errors, users := &probeState{hung: checkkit.HungProbes{}}, &ext4State{}, &usersState{}
	return detect.Check{
		ID: "filesystem-readonly", Domain: "storage",
		Summary: "a filesystem that ought to be writable stopped taking writes, or its disk is gone",
		Advice: "Check `dmesg` and the disk's health first, and drain the node. The filesystem takes writes again " +
			"only after it was unmounted, checked (`e2fsck`, `xfs_repair`, `btrfs check`) and mounted again; for the " +
			"root filesystem that is a reboot.",
		Doc: filesystemReadonlyDoc(),
		UsesPartly: []host.Setting{host.KubeletRoot, host.ContainerdRoot, host.ContainerdState, host.PodLogs, host.KubeletAPI,
			host.CgroupRoot},
		Condition: finding.Condition{
			Type: "ReadonlyFilesystem", ReadyType: "StorageReady",
			HealthyReason: "FilesystemIsNotReadOnly", HealthyMessage: "Filesystem is not read-only",
		},
		Every: 30 * time.Second,
		Wakes: []detect.Wake{
			checkkit.LogWake("EXT4-fs"), checkkit.LogWake("XFS ("), checkkit.LogWake("BTRFS"), checkkit.LogWake("JBD2"),
			checkkit.LogWake("I/O error"), {Source: detect.WakeMounts}, checkkit.KernelWake(),
		},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return checkFilesystems(ctx, h, s, probes, errors, users)
		},
	}
}

func filesystemReadonlyDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{
			"/proc/1/mountinfo, /etc/fstab", "/sys/dev/block, size and device/state of the disk",
			"/sys/fs/ext4/DEV/{errors_count,last_error_time,last_error_func}",
			"open(2) of the root directory of XFS filesystems, in a child process",
		},
		Why: "Each write to such a filesystem fails or hangs: databases lose data, and on the node's own " +
			"filesystems neither kubelet nor the runtime can start a pod any more. A filesystem that stopped taking writes " +
			"is fatal if the node or its pods need it, and the fact `neededBy` names the user: the system's directories, " +
			"kubelet's, the runtime's, the logs of pods or etcd lie on it, a living pod has it mounted, /etc/fstab has " +
			"its disk (no loop device, no noauto), the setting needed names it, or a real disk is mounted on a directory in " +
			"which provisioners make local volumes (" + strings.Join(distro.LocalVolumeDirs(), ", ") + ", or below). A pod that has " +
			"used it since it failed needs it until kubelet forgets the pod or the pod has finished. Any other is a warning: a disk " +
			"that somebody mounted by hand, an unused loop mount, a volume that is staged for no pod. A pod that " +
			"merely sees it below the host's root directory or below a read-only volume does not need it. " +
			"The agent may not read PersistentVolumes, so it sees a local volume by a pod that has it mounted, by a local static " +
			"provisioner's pod that has its directory mounted for writing, or by such a directory: name other directories " +
			"under needed, so that a volume that no pod uses yet is fatal too. With podVolumesFatal: false a volume of a pod that " +
			"is mounted below kubelet's directories alone is a warning.",
		Faults: []detect.Fault{
			{Reason: reasonDeviceGone, Severity: finding.Fatal,
				When: "the block device has no entry in /sys/dev/block, has size 0, or its disk is offline"},
			{Reason: reasonShutdown, Severity: finding.Fatal, When: "the mount table shows shutdown (ext4, Linux " +
				"6.15), or XFS answers EIO to opening its root directory"},
			{Reason: reasonEmergencyRO, Severity: finding.Fatal, When: "the mount table shows emergency_ro (ext4, " +
				"Linux 6.15), or, where kernels do not show it, an error was recorded with errors=remount-ro or an " +
				"aborted journal: it takes no writes"},
			{Reason: reasonRemountedRO, Severity: finding.Fatal, When: "the filesystem is ro, and was not mounted " +
				"so; ext4 must have recorded an error in this boot"},
			{Reason: reasonErrors, Severity: finding.Warning,
				When: "ext4 recorded an error in this boot, and continues"},
			{Reason: reasonOldErrors, Severity: finding.Info, When: "ext4 recorded errors in an earlier boot, and " +
				"e2fsck has not checked it since"},
		},
		FalseAlarms: "A filesystem other than ext4 and XFS that was mounted with ro=fs, or whose whole was remounted " +
			"read-only through one of its binds, looks as if the kernel had done it: put it under ignore. Images " +
			"(squashfs, erofs, iso9660), read-only binds, and what /etc/fstab wants read-only are known and left " +
			"out.",
	}
}

func checkFilesystems(ctx context.Context, h *host.Host, s Settings, probes *probeState,
	errors *ext4State, users *usersState) ([]finding.Finding, error) {
	mounts, cut, err := mount.Known(mount.Filesystems(h, filesystem.Writable))
	if err != nil {
		return nil, err
	}
	var filesystems []examined
	for _, f := range filesystem.BlockFilesystems(mounts) {
		if !f.Ignored(s.Ignore) {
			filesystems = append(filesystems, examined{Filesystem: f})
		}
	}
	if len(filesystems) == 0 && cut != nil {
		return nil, cut
	}
	if len(filesystems) == 0 {
		errors.settle(nil)
		return nil, finding.NoneLeft("no filesystem on a block device is mounted")
	}
	var results checkkit.Results
	if err := gatherEvidence(h, filesystems, &results); err != nil {
		return nil, err
	}
	errors.settle(filesystems)
	for subject, err := range probes.probeAll(ctx, h, s.ProbeTimeout, mounts, filesystems) {
		results.Doubt(subject, err)
	}
	users.begin()
	for _, f := range filesystems {
		fault, ok := f.evaluate()
		if !ok {
			continue
		}
		var use use
		if fault.Reason != reasonOldErrors {
			use = users.useOf(ctx, h, mounts, f.Filesystem, s)
		}
		results.Settle(f.finding(fault, use))
	}
	return results.DoneWithMounts(h, cut)
}

func (f examined) finding(what filesystem.Fault, use use) finding.Finding {
	failed := finding.Finding{
		Subject: f.Subject(), Severity: use.severity(what), Reason: what.Reason,
		Message: fmt.Sprintf("%s (%s on %s) %s: %s", f.Principal.Point, f.Principal.FSType, f.Principal.Source,
			what.Text, what.Evidence),
		Facts: map[string]string{
			"device": f.Device, "source": f.Principal.Source, "fstype": f.Principal.FSType,
			"evidence": what.Evidence, "mountPoints": fmt.Sprint(len(f.Mounts)),
		},
	}
	switch {
	case use.neededBy != "":
		failed.Facts["neededBy"] = use.neededBy
	case len(use.pods) == 0 && what.Reason != reasonErrors && what.Reason != reasonOldErrors:
		failed.Message += "; neither the node nor a pod needs it"
	}
	checkkit.AddAffectedPods(&failed, use.pods)
	return failed
}
