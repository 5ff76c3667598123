package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// ext4Rules: fs/ext4/super.c, fs/jbd2/journal.c. After an error the filesystem is remounted read-only, panics, or
// continues, depending on its errors= option; the state is in the mount table and in /sys/fs/ext4, which only counts
// messages with the word "error".
func ext4Rules() []Rule {
	const (
		message = `^EXT[234]-fs \((?P<subject>[^)\s]+)\): `
		failure = `^EXT[234]-fs error \(device (?P<subject>[^)\s]+)\)`
	)
	return []Rule{{
		ID: "ext4-readonly", Reason: "FilesystemIsReadOnly", Domain: Storage, Severity: finding.Fatal,
		Advice: "Drain the node; `dmesg` before the line has the cause, `smartctl -a /dev/sdX` the disk's " +
			"health. Then `umount` and `e2fsck -f /dev/sdX`; `mount -o remount,rw` without that writes onto a " +
			"damaged filesystem.",
		Summary: "an ext4 filesystem became read-only after an error",
		Patterns: []string{message + `(?:error: )?[Rr]emounting filesystem read-only`,
			`^(?:ext[34]_abort called\.|Remounting filesystem read-only)$`}, // until 2.6.31
		Kind: "filesystem", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "ext4-shutdown", Reason: "Ext4Shutdown", Domain: Storage, Severity: finding.Fatal,
		Advice: "It was shut down on purpose (`xfs_io -x -c shutdown`) or after errors: `umount`, `e2fsck -f " +
			"/dev/sdX`, mount again.",
		Summary:  "an ext4 filesystem was shut down: every access to it fails",
		Patterns: []string{message + `shut down requested \(\d+\)`},
		Kind:     "filesystem", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "journal-aborted", Reason: "JournalAborted", Domain: Storage, Severity: finding.Fatal,
		Advice: "A write to the journal failed: `smartctl -a /dev/sdX` for the disk; then `umount` and `e2fsck " +
			"-f /dev/sdX`.",
		Summary: "the journal of a filesystem was aborted: the filesystem accepts no more writes",
		Patterns: []string{
			`^Aborting journal on device (?P<subject>\S+?)(?:-\d+)?\.$`,
			failure + `(?: in)?:? .*Detected aborted journal$`,
		},
		Kind: "filesystem", Report: "journal", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "ext4-error", Reason: "Ext4Error", Domain: Storage, Severity: finding.Warning,
		Advice: "Damaged metadata or a failing disk: `smartctl -a /dev/sdX`; plan `umount` and `e2fsck -f " +
			"/dev/sdX`. `tune2fs -l` shows what happens at errors.",
		Summary:  "an ext4 filesystem detected corruption",
		Patterns: []string{failure},
		Kind:     "filesystem", Expiry: 24 * time.Hour, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "ext4-warning", Reason: "Ext4Warning", Domain: Storage, Severity: finding.Warning,
		Advice: "The text names the cause: `dmesg`; a maximal mount count or a needed check: `e2fsck -f " +
			"/dev/sdX` at the next maintenance.",
		Summary:  "an operation of an ext4 filesystem failed",
		Patterns: []string{`^EXT[234]-fs warning \(device (?P<subject>[^)\s]+)\)`},
		Exclude:  `ext4_multi_mount_protect:\d+: MMP interval|ext4_resize_fs:\d+: `,
		Kind:     "filesystem", Expiry: time.Hour,
	}, {
		ID: "ext4-recorded-errors", Reason: "Ext4ErrorsRecorded", Domain: Storage, Severity: finding.Warning,
		Advice: "Errors are recorded in the superblock (`tune2fs -l /dev/sdX`): `e2fsck -f /dev/sdX` checks and " +
			"clears the record.",
		Summary: "an ext4 filesystem has recorded errors, possibly before this boot: run e2fsck",
		Patterns: []string{message + `error count since last fsck: (?P<count>\d+)`, message +
			`(?:last error at time \d+: |(?:warning: )?mounting fs with errors, running e2fsck is recommended|Errors on filesystem, clearing orphan list)`},
		Kind: "filesystem", Expiry: 25 * time.Hour, ConfirmedBy: "filesystem-readonly", // logged again every 24 hours
	}, {
		ID: "superblock-write-error", Reason: "SuperblockWriteError", Domain: Storage, Severity: finding.Warning,
		Advice: "The disk does not take writes: `smartctl -a /dev/sdX`, `lsblk`; is a network disk gone? After " +
			"that `e2fsck -f`.",
		Summary: "the superblock of a filesystem could not be written: the disk is failing, or was removed",
		Patterns: []string{message +
			`(?:I/O error while writing superblock|previous I/O error to superblock detected)`},
		Kind: "filesystem", Expiry: 24 * time.Hour,
	}, {
		ID: "ext4-data-loss", Reason: "Ext4DataLoss", Domain: Storage, Severity: finding.Warning,
		Advice: "Data was not written: find the file by its inode (`debugfs -R \"ncheck INODE\" /dev/sdX`), " +
			"restore it; is the volume full (`df -h`), or the disk failing (`smartctl -a`)?",
		Summary: "data that programs wrote did not reach the disk, or the filesystem's metadata is damaged",
		Patterns: []string{
			message +
				`(?:This should not happen!! Data will be lost|Delayed block allocation failed for inode \d+|failed to convert unwritten extents to written extents -- potential data loss!|group descriptors corrupted!|ext4_check_descriptors: |\w+: jbd2_start: \d+ pages, ino \d+; err |` +
				`VFS: Found ext4 filesystem with invalid superblock checksum|can't read group descriptor \d+|corrupt root inode|get root inode failed|error loading journal|I/O error on journal device|journal bmap failed|Could not load journal inode|unable to read superblock)`,
		},
		Kind: "filesystem", Report: "ext4-data-loss", Expiry: 24 * time.Hour,
	}, {
		ID: "jbd2-error", Reason: "JournalError", Domain: Storage, Severity: finding.Warning,
		Advice:   "`smartctl -a /dev/sdX` for the disk; then `umount` and `e2fsck -f /dev/sdX`.",
		Summary:  "the journal of a filesystem could not be read or written",
		Literals: []string{"JBD: ", "journal commit I/O error", "JBD2: ", "\nEXT4: jbd2_", "\njbd2_journal_dirty_", "\njbd2_journal_bmap"},
		Patterns: []string{
			`^JBD2: (?:Error -?\d+ detected|I/O error|previous I/O error detected) when updating journal superblock for (?P<subject>\S+?)(?:-\d+)?\.$`,
			`^JBD2: previous I/O error detected for journal superblock update for (?P<subject2>\S+?)(?:-\d+)?\.$`,
			`^journal commit I/O error$`, // until 2.6.36
			`^JBD: Detected IO errors while flushing file data on (?P<subject5>\S+)$`,
			`^JBD2: Detected IO errors(?: \d+)? while flushing file data on (?P<subject3>\S+?)(?:-\d+)?$`,
			`^EXT4: jbd2_journal_dirty_metadata failed: `, `^jbd2_journal_bmap: journal block not found at offset \d+ on (?P<subject5>\S+?)(?:-\d+)?$`, `^jbd2_journal_dirty_metadata: (?P<subject4>\S+?)(?:-\d+)?: bad jh for block `,
			`^JBD2: (?:journal checksum error|Error while async write back metadata bh|corrupted journal superblock|journal recovery failed|IO error (?:-?\d+ recovering block|reading journal superblock)|Invalid checksum found in transaction|error -?\d+ scanning journal|Invalid checksum recovering|bad block at offset|Failed to read block at offset|journal transaction \d+ on \S+ is corrupt)`,
		},
		Kind: "filesystem", Expiry: 24 * time.Hour,
	}}
}

// xfsRules: fs/xfs/{xfs_fsops,xfs_log,xfs_error,xfs_buf}.c. The text of a shutdown differs between kernels: until 5.15
// "xfs_do_force_shutdown(0x8) called from …" came first, since 5.19 "Filesystem has been shut down due to log error
// (0x2)." too. A shutdown can be read from the filesystem; damage and I/O errors that it survives are only in the log.
func xfsRules() []Rule {
	const message = `^XFS \((?P<subject>[^)\s]+)\): `
	return []Rule{{
		ID: "xfs-shutdown", Reason: "XfsHasShutdown", Domain: Storage, Severity: finding.Fatal,
		Advice: "Everything on it fails until it is unmounted: `dmesg` has the cause; `umount`, `mount` (replays " +
			"the log), `umount`, `xfs_repair /dev/sdX`.",
		Summary: "an XFS filesystem was shut down: every access to it fails",
		Literals: []string{"hutting down filesystem", "ilesystem has been shut down due to", "xfs_do_force_shutdown(",
			"User initiated shutdown received", "rectify the problem", "I/O error", "I/O Error",
			"\nxfs_force_shutdown("},
		Patterns: []string{message +
			`(?:.*[Ss]hutting down filesystem|Filesystem has been shut down due to|xfs_do_force_shutdown\(|User initiated shutdown received|(?:I/O Error|I/O error) Detected\. Shutting down|Please (?:un|u)mount the filesystem,? and rectify the problem|.*I/O error.* Shutting down)`,
			`^xfs_force_shutdown\((?P<subject2>[^\s,)]+),0x[0-9a-f]+\) called from line `, // until 2.6.38
			`^(?:Filesystem "(?P<subject3>[^"\s]+)": )?(?:(?:Log )?I/O Error Detected|Corruption of in-memory data detected)\.  ?Shutting down filesystem: (?P<subject4>\S+)$`,
			`^Please umount the filesystem, and rectify the problem`,
		},
		Kind: "filesystem", Report: "xfs-shutdown", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "xfs-corruption", Reason: "XfsCorruption", Domain: Storage, Severity: finding.Warning,
		Advice: "`umount` and `xfs_repair -n /dev/sdX` (shows), then `xfs_repair /dev/sdX`; `smartctl -a " +
			"/dev/sdX` for the disk.",
		Summary:  "an XFS filesystem detected corruption: run xfs_repair",
		Literals: []string{"XFS (", "XFS: Internal error", "XFS: Assertion failed", "\nFilesystem ", "\nxfs_da_do_buf: "},
		Patterns: []string{`^XFS: (?:Internal error |Assertion failed: )`,
			`^Filesystem "(?P<subject2>[^"\s]+)": (?:XFS internal error |corrupt |[Cc]orruption )`, `^xfs_da_do_buf: bno \d+`, // until 2.6.38
			message +
				`(?:Metadata (?:corruption|CRC error) detected at |Corruption detected\. |Corruption warning: |Internal error |Unmount and run xfs_repair|Corruption of in-memory data|xfs_\w+: (?:[Bb]ad |detected corrupt |daddr 0x[0-9a-f]+ out of range)|Uncorrected metadata errors detected|First \d+ bytes of corrupted metadata buffer|Bad inode |Bad [\w ]{3,40} magic!|log record CRC mismatch|corrupt dinode |Allocated a known in-use inode |Access to block zero in inode |.{0,40}[Bb](?:Tree|t) record corruption in AG \d+|WARNING: Reset corrupted AGFL|AGF corruption\.|bad inode magic|SB summary counter sanity check failed|Bad buffer log item|[Bb]ad buffer log item size|bad number of regions|dquot corrupt at |` +
				`Corruption detected! Free inode|Failed to remove inode\(s\) from unlinked list|\w+: (?:corrupt iclog ring|invalid (?:magic num|ptr|clientid)|op \d+ invalid clientid|bad (?:clientid|flag|header|length))|AAIEEE! Log failed size checks|Invalid (?:log )?block[ /]length|corrupted root inode|ondisk log corrupt|inode 0x[0-9a-f]+ (?:has|data fork|attr fork).{0,60}corrupt|xfs_\w+: CORRUPTED BTREE|(?:empty )?zone \d+ (?:has |write pointer )|xfs_\w+: Could not map)`},
		Kind: "filesystem", Report: "xfs-corruption", Expiry: 24 * time.Hour,
	}, {
		ID: "xfs-io-error", Reason: "XfsIOError", Domain: Storage, Severity: finding.Warning,
		Advice: "The disk fails reads or writes: `smartctl -a /dev/sdX`, `multipath -ll`; mount again when it is " +
			"well.",
		Summary: "an XFS filesystem could not read or write its disk",
		Patterns: []string{message +
			`(?:[Mm]etadata I/O error|log I/O error|Log I/O [Ee]rror|writeback error on |Failing async write|page discard on page|log mount/recovery failed: error|xfs_log_force: error -\d+|xfs_imap_to_bp: xfs_trans_read_buf\(\) returned error|log recovery (?:write|read) I/O error|log mount (?:finish )?failed|empty log check failed|xfs_\w+: xfs_\w+(?:\(\))? returned error -?\d+|Failed to recover (?:intents|leftover CoW)|failed to (?:find log head|locate log tail|write sb changes|read root inode|read RT inodes)|Failed to read root inode|last sector read failed|log device read failed|SB validate failed with error -(?:5|74|117)\.|\w+ ag[fi] read failed agno|\w+: (?:unmount record failed|failed to clear agi)|Failed (?:post-)?recovery per-ag init|Failing async write)`,
			`^I/O error in filesystem \("(?P<subject2>[^"\s]+)"\) meta-data dev `},
		Kind: "filesystem", Report: "xfs-io-error", Expiry: 24 * time.Hour,
	}, {
		ID: "xfs-memory-deadlock", Reason: "XfsMemoryDeadlock", Domain: Storage, Severity: finding.Warning,
		Advice: "Memory is so fragmented that XFS waits for a large piece: `cat /proc/buddyinfo`; `sysctl " +
			"vm.drop_caches=2` helps for a while, a newer kernel or fewer extents (`xfs_fsr`) for long.",
		Summary:  "XFS waits for memory that may not be freed before XFS continues", // fs/xfs/kmem.c, until 6.8
		Patterns: []string{`^XFS(?: \([^)\s]+\))?: (?:(?P<subject>` + Command + `)\(\d+\) )?possible memory allocation deadlock (?:size \d+ )?in \w+`},
		Kind:     "process", Expiry: 30 * time.Minute,
	}}
}

// btrfsRules: fs/btrfs/{messages,disk-io,inode,volumes}.c. Since 5.18 a state such as " state EA" follows the device.
// Since 5.14 sysfs counts some of the errors of btrfs-error (btrfs-errors reads them); the log has all of them, for
// every kernel.
func btrfsRules() []Rule {
	const device = `\(device (?P<subject>[^)\s:]+):?(?: state \w+)?\)`
	return []Rule{{
		ID: "btrfs-readonly", Reason: "BtrfsReadOnly", Domain: Storage, Severity: finding.Fatal,
		Advice: "`btrfs device stats MOUNT` and `dmesg` have the cause; `btrfs filesystem usage MOUNT`: is it " +
			"full? Then `umount` and `btrfs check --readonly /dev/sdX` before anything else.",
		Summary: "a btrfs filesystem aborted a transaction and became read-only",
		Patterns: []string{
			`^BTRFS:? error ` + device + ` in `,
			`^BTRFS (?:info|warning|error|critical) ` + device + `: forced readonly`,
			`^BTRFS(?: error| critical)?:? ` + device + `: Transaction aborted \(error -\d+\)`,
			`^BTRFS: Transaction aborted \(error -\d+\)`,
			`^BTRFS warning ` + device + `: Skipping commit of aborted transaction\.`,
		},
		Exclude: `: errno=-30 Readonly filesystem`,
		Kind:    "filesystem", Report: "btrfs-readonly", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		ID: "btrfs-error", Reason: "BtrfsError", Domain: Storage, Severity: finding.Warning,
		Advice: "`btrfs device stats MOUNT` counts by disk, `btrfs scrub start MOUNT` finds and mends what has a " +
			"copy; `smartctl -a /dev/sdX`.",
		Summary: "a btrfs filesystem read data that does not match its checksum, or could not access its disk",
		Literals: []string{"BTRFS error (device ", "BTRFS critical (device ", "BTRFS warning (device ",
			": read error corrected: ", "parent transid verify fai", "\nbtrfs"},
		Patterns: []string{
			`^BTRFS info ` + device + `: read error corrected: `,
			// until 3.13
			`^(?:btrfs: )?parent transid verify failed on \d+ wanted \d+ found \d+`,
			`^btrfs(?::? csum failed ino|: (?:open_ctree failed|bdev \S+ errs: |corrupt leaf|bad tree block|read error corrected|lost page write|checksum verify failed|failed to read))`,
			`^BTRFS (?:error|critical|warning) ` + device +
				`: (?:.*csum failed|(?:\S+ )?checksum (?:verify failed|error)|parent transid verify failed|bad tree block|bad fsid|` +
				`bdev \S+ errs: |corrupt(?:ed)? (?:leaf|node)|(?:read|write) time tree block corruption|tree (?:level|first key) mismatch|invalid tree nritems|super ?block (?:corruption|contains fatal errors)|\d+ errors while writing supers|` +
				`open_ctree failed|devid \d+ uuid \S+ (?:is )?missing|failed to (?:verify dev extents|load root|run delayed ref|recover relocation)|i/o error at logical|direct IO failed ino|(?:unexpected zero|invalid) (?:reference count|iref|refs_to_drop|extent)|` +
				`unable to find (?:ref|block group)|extent item not found|bytenr \d+ has 0 references|btree block \d+ has|inode mode mismatch|error writing primary super block|lost (?:page|super block) write|lost super block|unable to find logical|unable to fixup|` +
				`superblock checksum mismatch|failed to read|tree block corrupted|unrecoverable|level verify failed|block=\d+ |dirty buffer transid mismatch|writable (?:re)?mount is not allowed due to too many missing devices|too many missing devices, writable remount|` +
				`failed to (?:submit blocks|lookup extent item|recover|resolve tree backref|rebuild valid|load free space|commit transaction)|csum error at logical|.{1,60} at logical \d+ on (?:dev|mirror) |IO error rebuilding logical|super block at physical \d+ devid \d+ has bad|tree block \d+ mirror \d+ has bad|` +
				`panic in |csum for on-disk super block no longer matches|unable to find chunk map|mapping failed logical|chunk \d+ (?:has missing dev extent|missing \d+ devices)|corrupted chunk tree|scrub: failed to|error reading free space cache|couldn't (?:read|load|open) |block group \d+ has wrong amount of free space|bad eb member |access to eb bytenr )`,
		},
		Kind: "filesystem", Report: "btrfs-error", Expiry: 24 * time.Hour,
	}}
}
