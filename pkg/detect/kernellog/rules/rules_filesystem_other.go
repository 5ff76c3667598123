package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// filesystemRules: fs/fat/misc.c, fs/f2fs/super.c, fs/gfs2/util.c, fs/squashfs/squashfs.h, fs/erofs/super.c, and
// OpenZFS (module/zfs/zio.c).
func filesystemRules() []Rule {
	return []Rule{{
		ID: "filesystem-stopped", Reason: "FilesystemStopped", Domain: Storage, Severity: finding.Warning,
		Advice: "`dmesg` before the line has the cause, `smartctl -a /dev/sdX` the disk's health; `umount` and " +
			"`fsck` before it is mounted again.",
		Summary: "the kernel made a filesystem (FAT, F2FS, OCFS2, NILFS2) read-only",
		Patterns: []string{
			`^FAT-fs \((?P<subject>[^)\s]+)\): Filesystem has been set read-only`,
			`^F2FS-fs \((?P<subject>[^)\s]+)\): Remounting filesystem read-only`,
			`^OCFS2: .*File system is now read-only`,
			`^NILFS(?: error)? \((?:device )?(?P<subject>[^)\s]+)\): (?:.*: )?[Rr]emounting filesystem read-only`,
		},
		Kind: "filesystem", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		// A journal is replayed: these filesystems have none, or did not use it.
		ID: "filesystem-unclean", Reason: "FilesystemUnclean", Domain: Storage, Severity: finding.Info,
		Advice: "The machine lost power or crashed, or the disk was pulled: `last -x reboot`; `umount` and check it (`fsck.fat`, " +
			"`e2fsck -f`, `ntfsfix`) before it is written again.",
		Summary: "a filesystem was not unmounted before it is mounted again: some of its files may be damaged",
		Patterns: []string{
			`^(?:ex)?FAT-fs \((?P<subject>[^)\s]+)\): Volume was not properly unmounted`,
			`^EXT[234]-fs(?: warning)?(?: \((?:device )?(?P<subject2>[^)\s]+)\))?: (?:warning: )?mounting unchecked fs`,
			`^MINIX-fs: mounting unchecked file system`,
			`^hfs(?:plus)?: [Ff]ilesystem (?:was |is )?(?:marked )?not cleanly unmounted`,
			`^HFS(?:\+|PLUS)?-fs warning: Filesystem was not cleanly unmounted`,
			`^ntfs3(?:: |\()(?P<subject3>[\w-]+)\)?: volume is dirty and`,
			`^(?:NTFS-fs|ntfs:)[^:]{0,40}[: ].{0,80}Volume is dirty\. `,
		},
		Kind: "filesystem", Expiry: 24 * time.Hour,
	}, {
		// Unlike the others, these do not set the read-only flag: no state shows it.
		ID: "filesystem-withdrawn", Reason: "FilesystemWithdrawn", Domain: Storage, Severity: finding.Warning,
		Advice: "Unmount it, `fsck` it (GFS2: on no node mounted), mount again; `smartctl -a /dev/sdX` and " +
			"`multipath -ll` for the disk.",
		Summary: "a filesystem (F2FS, GFS2) was stopped after an error: access to it fails",
		Patterns: []string{
			`^F2FS-fs \((?P<subject>[^)\s]+)\): Stopped filesystem due to reason: \d+`,
			`^gfs2: fsid=(?P<subject>\S+?)(?:\.\d+)?: about to withdraw this file system`,
		},
		Kind: "filesystem", Expiry: UntilBoot,
	}, {
		ID: "zfs-pool-suspended", Reason: "ZFSPoolSuspended", Domain: Storage, Severity: finding.Fatal,
		Advice:  "`zpool status -v` names the disks that are gone; when they are back: `zpool clear POOL`.",
		Summary: "a ZFS pool lost its disks and serves no more reads or writes",
		Patterns: []string{
			`^(?:SPLError: \d+:\d+:\(\S+\) )?(?:WARNING: )?Pool '(?P<subject>[^']+)' has encountered an uncorrectable I/O failure and has been suspended`,
			`^(?:WARNING: )?MMP writes to pool '(?P<subject2>[^']+)' have not succeeded in over \d+.{1,60}; suspending pool`,
		},
		Kind: "zfs-pool", Expiry: UntilBoot, ConfirmedBy: "zfs-pools",
	}, {
		// OpenZFS, module/os/linux/spl/spl-err.c: the thread stops for ever, with its locks.
		ID: "zfs-panic", Reason: "ZFSPanic", Domain: Storage, Severity: finding.Fatal,
		Advice: "Drain the node and reboot: what uses the pool hangs. `zpool status -v`, then `zpool scrub POOL`; if it " +
			"comes again at the import: `zpool import -o readonly=on POOL`, and save the data.",
		Summary: "ZFS met a state that must not be and stopped: access to its pools may hang until the next boot",
		Patterns: []string{
			`^(?:SPLError: \d+:\d+:\(\S+\) )?(?:VERIFY|ASSERT)[03]?[BPSUF]?\(.{1,400}\) failed(?: \(.*\)|$)`,
			`^PANIC at [\w./-]+\.[ch]:\d+:\w+\(\)$`, `^SPLError: \d+:\d+:\(\S+\) SPL PANIC$`, // until 0.6.2
			`^PANIC: (?:zfs: |blkptr (?:at|has) |\S+: blkptr (?:at|has) )`,
		},
		Kind: NodeKind, Report: "zfs-panic", Expiry: UntilBoot,
	}, {
		ID: "zfs-io-error", Reason: "ZFSIOError", Domain: Storage, Severity: finding.Warning,
		Advice: "`zpool status -v` and `smartctl -a /dev/sdX` of the disk in the line; `zpool replace POOL OLD " +
			"NEW`.",
		Summary:  "a disk of a ZFS pool fails reads or writes",
		Patterns: []string{`^zio pool=(?P<subject>\S+) vdev=(?P<disk>\S+) error=\d+ type=\d+ offset=`},
		Kind:     "zfs-pool", Expiry: 24 * time.Hour, // a pool that repairs the errors is healthy
	}, {
		ID: "squashfs-error", Reason: "SquashfsError", Domain: Storage, Severity: finding.Warning,
		Advice: "The image is damaged or its disk fails: `losetup -l` names the file; fetch the image (snap, " +
			"container) again.",
		Summary:  "a squashfs image is corrupt, or its disk cannot be read",
		Patterns: []string{`^(?:squashfs: )?SQUASHFS error: `}, // newer kernels put the module first
		Exclude:  `^(?:squashfs: )?SQUASHFS error: (?:Xattrs in filesystem, these will be ignored|Can't find a SQUASHFS superblock)`,
		Kind:     NodeKind, Expiry: time.Hour,
	}, {
		ID: "erofs-error", Reason: "ErofsError", Domain: Storage, Severity: finding.Warning,
		Advice:   "The image is damaged or its disk fails: `losetup -l` names the file; fetch the image again.",
		Summary:  "an erofs image is corrupt, or its disk cannot be read",
		Literals: []string{"erofs: (device ", "erofs (device "},
		Patterns: []string{`^erofs:? \(device (?P<subject>[^)\s]+)\): .*(?:corrupted|failed to (?:decompress|read)|bogus|invalid (?:checksum|lookback|de|i_mode|xattr)|i/o error|unhandlable)`},
		Kind:     "filesystem", Expiry: time.Hour,
	}, {
		// fs/verity/{verify,open,signature}.c
		ID: "fsverity-corrupted", Reason: "FileCorrupted", Domain: Storage, Severity: finding.Warning,
		Advice: "Reading this file fails: write it (image, package, system) anew; `find MOUNT -xdev -inum INODE` names it; `smartctl -a " +
			"/dev/sdX` and `dmesg` for its disk; on a healthy disk: somebody changed the file.",
		Summary: "a file does not match its checksum or signature (fs-verity)",
		Patterns: []string{
			`^fs-verity \((?P<subject>[^,)\s]+), inode (?P<inode>\d+)\): (?:FILE CORRUPTED!|Error -\d+ (?:reading|getting) |Wrong data_size|Verity descriptor is too large|Unrecognized descriptor|Reserved bits set|Signature overflows|(?:Incorrect|Malformed) file signature)`,
		},
		Kind: "filesystem", Report: "fsverity-corrupted", Expiry: 24 * time.Hour,
	}, {
		// fs/fat/misc.c, fs/exfat/misc.c, fs/f2fs, fs/ubifs/misc.c, fs/ntfs3/fsntfs.c
		ID: "filesystem-corruption", Reason: "FilesystemCorruption", Domain: Storage, Severity: finding.Warning,
		Advice: "`umount` and check it with its own tool (`fsck.fat`, `fsck.exfat`, `fsck.f2fs`, `ntfsfix`); " +
			"`smartctl -a /dev/sdX` for the disk.",
		Summary:  "a filesystem (FAT, exFAT, F2FS, UBIFS, NTFS, OCFS2) detected corruption",
		Literals: []string{"FAT-fs (", "F2FS-fs (", "UBIFS error (", "ntfs3: ", "ntfs3(", "\nOCFS2: ", "\nOn-disk corruption di"},
		Patterns: []string{
			`^(?:ex)?FAT-fs \((?P<subject>[^)\s]+)\): (?:error, |Medium has reported failures)`,
			`^F2FS-fs \((?P<subject>[^)\s]+)\): (?:Mismatch valid blocks|access invalid blkaddr|[Ii]nconsistent |.{0,40}(?:corrupted|checksum (?:invalid|mismatch)|Failed to get valid F2FS checkpoint))`,
			`^On-disk corruption discovered\. Please run fsck\.ocfs2`, `^OCFS2: (?:abort \(device |Returning error to the calling process)`,
			`^UBIFS error \((?:(?P<subject>ubi\d+:\d+) )?pid \d+\): `,
			`^ntfs3(?:: |\()(?P<subject>[\w-]+)\)?: Mark volume as dirty due to NTFS errors`,
		},
		Kind: "filesystem", Expiry: 24 * time.Hour,
	}}
}

// bcachefsRules: fs/bcachefs/{error,io_read,btree_io,journal_io,recovery,super}.c of 6.7 to 6.17, and the out-of-tree
// module after that. The name is that of the device if there is only one, otherwise the UUID of the filesystem. The
// mount table does not show that it became read-only.
func bcachefsRules() []Rule {
	const message = `^bcachefs \((?P<subject>[^)\s]+)(?: [^)]{1,60})?\): `
	return []Rule{{
		ID: "bcachefs-readonly", Reason: "BcachefsReadOnly", Domain: Storage, Severity: finding.Warning,
		Advice: "`dmesg` before the line has the cause, `bcachefs fs usage -h MOUNT` the devices; `umount`, then " +
			"`bcachefs fsck -n /dev/sdX`; mount again only when it is clean.",
		Summary: "a bcachefs filesystem met an error that it cannot go on with: it accepts no more writes",
		Patterns: []string{
			message + `(?:.{0,80}emergency read only|Unable to continue, halting|too many IO errors, setting \S+ RO|(?:\w+\(\): )?fatal error|[Jj]ournal stuck[!?])`,
			`^emergency read only at (?:journal )?seq \d+`,
		},
		Kind: "filesystem", Report: "bcachefs-readonly", Expiry: UntilBoot,
	}, {
		ID: "bcachefs-error", Reason: "BcachefsError", Domain: Storage, Severity: finding.Warning,
		Advice: "`bcachefs fs usage -h MOUNT` and `/sys/fs/bcachefs/UUID/dev-*/io_errors` name the disk, `smartctl -a /dev/sdX` " +
			"its health; `bcachefs scrub MOUNT` mends what has a copy.",
		Summary: "a bcachefs filesystem read data that is damaged, could not access its disk, or could not be mounted",
		Patterns: []string{message +
			`(?:(?:.{0,120}[ :])?(?:data |btree |metadata |journal )?checksum error|(?:.{0,80}\): )?IO error:|(?:btree |data |journal |superblock )?(?:read|write|IO) error|.{0,60}data (?:read|write) error|error (?:validating|reading|writing) |Error in recovery|bch2_fs_\w+\(\):? error|error (?:starting|in recovery|creating stripe|doing reconstruct|verifying existing)|` +
			`unable to (?:read|write) |missing device|corrupt |insufficient devices (?:online|to)|inconsistency detected|unexpected inconsistency|flagging btree \w+ lost data|btree node (?:read error|verify failed)|(?:btree topology|bkey) error|overlapping backpointer found|cannot go rw, unfixed|snapshot parent \d+ missing|write error |.{0,40}bucket_ref_update|bucket \d+:\d+ gen)`},
		Exclude: `: (?:ENOENT|EPERM|EACCES)\w*$|successful retry`,
		Kind:    "filesystem", Report: "bcachefs-error", Expiry: 24 * time.Hour,
	}}
}
