package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// filesystemTroubleRules: fs/..., net/{sunrpc,ceph,9p}; ZFS and Lustre from recorded lines.
func filesystemTroubleRules() []Rule {
	local := []string{"EXT2-fs", "EXT3-fs", "EXT4-fs", "XFS", "F2FS-fs", "FAT-fs", "exFAT-fs", "GFS2", "REISERFS",
		"NILFS", "NILFS2", "ntfs3", "NTFS-fs", "UDF-fs",
		"ISOFS", "SQUASHFS", "erofs", "JBD2", "JBD", "iomap", "VFS", "fuse", "FUSE", "overlayfs", "pstore", "fscache",
		"FS-Cache", "CacheFiles", "cachefiles",
		"netfs", "fsverity", "fs-verity", "fscrypt", "bcachefs", "zonefs", "aufs", "SPL", "SPLError", "ZFS", "OCFS2: ERROR"}
	remote := []string{"NFS", "nfs", "lockd", "svc", "RPC", "rpc", "sunrpc", "gss_", "xs_", "nlm", "nsm", "statd",
		"pnfs", "smb", "SMB", "ksmbd", "cifs", "9p", "virtiofs",
		"virtio-fs", "orangefs", "afs", "kAFS", "dlm", "ocfs2", "o2net", "o2dlm", "o2hb", "o2cb", "beegfs",
		"glusterfs", "GPFS", "mmfs", "ceph", "libceph", "rbd"}
	return []Rule{{
		// The level is in the line; lines at error or critical are always faults.
		ID: "btrfs-trouble", Reason: "BtrfsTrouble", Domain: Storage, Severity: finding.Warning,
		Summary: "a btrfs filesystem reports an error",
		Advice: "`btrfs device stats MOUNT` and `btrfs filesystem usage MOUNT`: a failing disk, or no space for " +
			"metadata? Then " +
			"`btrfs scrub start MOUNT`; `btrfs check --readonly /dev/sdX` when it is unmounted.",
		Literals: []string{"\nBTRFS error (device ", "\nBTRFS critical (device", "\nBTRFS"},
		Patterns: []string{
			`^BTRFS (?:error|critical) \(device (?P<subject>[^)\s:]+):?(?: state \w+)?\): \S`,
			`^BTRFS warning \(device (?P<subject2>[^)\s:]+):?(?: state \w+)?\): (?:.*\bhas bad |csum hole found|.*has gone missing|could not allocate space)`,
			`^BTRFS(?: (?:error|critical|warning))?: (?:device \S+ )?(?:open_ctree failed|failed to|error|could not|unable to)`,
		},
		Unless: []string{"mount option", "nrecognized", "nrecognised", ": subvol", "qgroup", "quota", "nsupported",
			"not support", "zoned: ", "selftest", "balance: ", "swapfile", "device delete", "cannot disable",
			"is not allowed on", "must not be", "incompat", "invalid option", "invalid argument",
			"cannot replace", "cannot set", ": device label "},
		Kind: "filesystem", Expiry: 24 * time.Hour,
	}, {
		ID: "local-filesystem-trouble", Reason: "FilesystemTrouble", Domain: Storage, Severity: finding.Info,
		Summary: "a filesystem on a disk of this node (ext4, XFS, F2FS, erofs, overlay and others) reports an error",
		Advice: "`findmnt -S /dev/sdX` names the mount, `dmesg` before the line the disk's errors, `smartctl -a` " +
			"its health; then " +
			"`umount` and the filesystem's own check (`e2fsck -f`, `xfs_repair -n`, `fsck.f2fs`).",
		Literals: append(atStart(local, []string{"Quota error (device", "gfs2: fsid=", "Page cache invalidat", "ERROR: (device "}), " ERROR: "),
		Words: append(trouble(), "ran out of log space", "xfs_repair", "was not cleanly", "needs to support",
			"run fsck", "ASSERTION(", "hecksum bad", "nknown journal entry", "doesn't match ", "no device to read", "not point back",
			"last error at", "not happen", "invalidation failure", "Busy inodes after"),
		Patterns: []string{
			`^` + oneOf(local) + `(?: error| warning)?:? \((?:device )?(?P<subject>[^),\s]+)(?:, inode \d+)?\):? `,
			`^` + oneOf(local) + `(?: error)?: `,
			`^Quota error \(device (?P<subject4>[^)\s]+)\): `,
			`^\((?:[^)]{1,64})\):\w+:\d+ ERROR: \S`,
			`^gfs2: fsid=(?P<subject8>\S+?): `, `^ERROR: \(device (?P<subject5>[^)\s]+)\): `, `^Page cache invalidation failure on direct I/O\.`,
		},
		Unless: append(harmless(), "invalid log", "be specified", "DAX", "ENOENT", "EPERM", "successful retry",
			"possible memory allo", "Torn write", "feature incompat", "Can't find", "can't find", "could not find",
			"agic", "nrecognized", "dump compression",
			"nrecognised", " option", "Option", "ad mount", "discard", "quotas cannot", "quota cannot", "an't parse",
			"annot parse", "bogus number", "invalid media value", "invalid sectors", "logical sector size",
			"number of reserved", "ecovery complete", "upper fs does not", "does not support", "falling back",
			"not recommended", "Mounting", "ounted", "Ending", "Unmounting", "too old", "too new", "newer",
			"tmpfile", "nouuid", "duplicate UUID", "block size", "blocksize", "requires",
			"Xattrs in filesystem", "file-max", "MMP interval", "resize", "truncates cleaned", "orphan"),
		Kind: "filesystem", Escalate: again, EscalateSeverity: finding.Warning, Expiry: 24 * time.Hour,
	}, {
		// fs/overlayfs/{super,params}.c. Runtimes that test whether overlay works cause such lines, too: no alarm.
		ID: "overlay-mount-refused", Reason: "OverlayMountRefused", Domain: Storage, Severity: finding.Info,
		Summary: "the kernel refused to mount an overlay filesystem, the usual root of containers",
		Advice: "The directory of the runtime must be on a filesystem that overlay accepts: `findmnt -T /var/lib/containerd` (ext4, XFS " +
			"with `ftype=1`), not on an overlay itself; one that is in use: `findmnt -t overlay`.",
		Patterns: []string{`^overlayfs: (?:filesystem on '?(?P<subject>[^']{1,200}?)'? not supported(?: as upperdir)?$|` +
			`case-insensitive (?:capable )?(?:filesystem|directory) on (?P<subject2>\S{1,200}) not supported|` +
			`workdir and upperdir must (?:reside under the same mount|be separate subtrees)|upper fs is r/o, try |overlapping (?:upper|lower|work)dir path|` +
			`\w+ is in-use as upperdir/workdir of another mount, mount with |too many lower directories, limit is )`},
		Kind: "filesystem", Expiry: time.Hour,
	}, {
		ID: "network-filesystem-trouble", Reason: "NetworkFilesystemTrouble", Domain: Storage,
		Severity: finding.Info,
		Summary: "a network filesystem's client or server (NFS, SMB, Ceph, 9p, GFS2, Lustre, AFS) reports that " +
			"an operation failed",
		Advice: "`findmnt -t nfs,nfs4,cifs,ceph,9p` for the mounts; does the server's port answer (`nc -zv SERVER " +
			"2049`, 445, 6789)? " +
			"`nfsstat -m`, `cat /proc/fs/cifs/DebugData` or `ceph -s` show the session; the number is an errno.",
		Literals: atStart(remote, []string{"CIFS", "LustreError: ", "LNetError: ", "LNet: Service thread"}),
		Words: append(trouble(), "rc = -", "rc=-", "STATUS_", "socket closed", "returned -", "stale", "session reset",
			"connection reset", "closed our session", "Retry sending", "was inactive", "still waiting", "unknown frame", "uses unsupported", "cheating",
			"LustreError: ", "LNetError: "),
		Patterns: []string{
			`^(?P<part>` + oneOf(remote) + `[\w/-]*)(?:: [^\s:]+| \([^)]{1,60}\)|\[\d+\])?: `,
			`^CIFS:? `,
			`^(?:LustreError|LNetError): \S`, `^LNet: Service thread pid \d+ was inactive for `, // of a server
		},
		Unless: append(harmless(), "fileid changed", "less secure dialect", "o dialect specified", "not recommended",
			"mount option", "config argument", "RLERROR (-2)",
			"Unknown mount", "bad option", "deprecated", "registered", "session established", "rpc.idmapd",
			"NFSD: Using", "not loaded", "grace", "nrecognized", "connect success", "Default security",
			"caps renewed", "smb2_get_dfs_refer", "reconnect success", "wrote zero bytes", "skipping old message",
			"Tokens for user of A"),
		Kind: "filesystem", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}}
}

// hardwareReportRules match the lines of a report whose head another rule matches, and controllers without a module
// name.
func hardwareReportRules() []Rule {
	return []Rule{{
		ID: "edac-error", Reason: "MemoryControllerError", Domain: Hardware, Severity: finding.Warning,
		Summary: "a memory controller counts errors without the name of a module",
		Advice: "`ras-mc-ctl --errors`, `grep . /sys/devices/system/edac/mc/mc*/[cu]e_count` and `ipmitool sel " +
			"elist` name " +
			"the module: CE were corrected, UE were not (drain the node).",
		Literals: []string{"\nEDAC "}, Words: []string{" CE", " UE", "orrected", "orrectable", "arity ", "emory ",
			"DRAM ECC", "overflow", "Non-Fatal", "FATAL", "Internal error"},
		Patterns: []string{`^EDAC (?:\w+ )?(?:MC|mc|DEVICE|PCI)(?P<controller>\d+): (?:[1-9]\d* )?(?:CE|UE)\b`,
			`^EDAC \w+(?: \w+)?: .*(?:(?:[Uu]n)?[Cc]orrect(?:ed|able) (?:\w+ )?[Ee]rror|[Pp]arity [Ee]rror|[Mm]emory (?:read |write |scrub )?[Ee]rror|DRAM ECC error|Uncorrectable|overflow|Non-Fatal|FATAL|Internal error)`},
		Unless: []string{"ailed to register", "Couldn't", "Error: F", "not enabled", "not found", "Giving out",
			"Can't",
			"No such", "disabled"},
		Kind: NodeKind, Expiry: 24 * time.Hour, ConfirmedBy: "edac",
	}, {
		ID: "hardware-error-detail", Reason: "HardwareErrorReported", Domain: Hardware, Severity: finding.Info,
		Summary: "details of a hardware error that the processor or the firmware reports",
		Advice: "The lines belong together: `dmesg | grep 'Hardware Error'` shows section, address and module " +
			"(fru_text, DIMM " +
			"location); `ras-mc-ctl --errors` and `ipmitool sel elist` name the part.",
		Patterns: []string{`^(?:mce: )?(?:\{\d+\})?\[Hardware Error\]: +\S`},
		Exclude:  `BERT|Skipped|corrected by h/w|APEI Generic Hardware Error Source: \d+ (?:disabled|enabled)|[Ee]rror [Rr]ecord|No error`,
		Kind:     NodeKind, Report: "hardware-detail", Expiry: 24 * time.Hour,
	}}
}
