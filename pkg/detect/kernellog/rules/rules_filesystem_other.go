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
		Summary:  "the kernel made a filesystem (FAT, F2FS, OCFS2, NILFS2) read-only",
		Literals: []string{"has been set read-only", "F2FS-fs (", "File system is now read-only", "NILFS"},
		Patterns: []string{
			`^FAT-fs \((?P<subject>[^)\s]+)\): Filesystem has been set read-only`,
			`^F2FS-fs \((?P<subject>[^)\s]+)\): Remounting filesystem read-only`,
			`^OCFS2: .*File system is now read-only`,
			`^NILFS(?: error)? \((?:device )?(?P<subject>[^)\s]+)\): (?:.*: )?[Rr]emounting filesystem read-only`,
		},
		Kind: "filesystem", Expiry: UntilBoot, ConfirmedBy: "filesystem-readonly",
	}, {
		// These do not set the read-only flag as the others do: no state shows it.
		ID: "filesystem-withdrawn", Reason: "FilesystemWithdrawn", Domain: Storage, Severity: finding.Warning,
		Summary:  "a filesystem (F2FS, GFS2) was stopped after an error: access to it fails",
		Literals: []string{"Stopped filesystem due to reason: ", "about to withdraw this file system"},
		Patterns: []string{
			`^F2FS-fs \((?P<subject>[^)\s]+)\): Stopped filesystem due to reason: \d+`,
			`^gfs2: fsid=(?P<subject>\S+?)(?:\.\d+)?: about to withdraw this file system`,
		},
		Kind: "filesystem", Expiry: UntilBoot,
	}, {
		ID: "zfs-pool-suspended", Reason: "ZFSPoolSuspended", Domain: Storage, Severity: finding.Fatal,
		Summary:  "a ZFS pool lost its disks and serves no more reads or writes",
		Literals: []string{"has been suspended", "due to an uncorrectable I/O"},
		Patterns: []string{`^(?:WARNING: )?Pool '(?P<subject>[^']+)' has encountered an uncorrectable I/O failure and has been suspended`},
		Kind:     "zfs-pool", Expiry: UntilBoot, ConfirmedBy: "zfs-pools",
	}, {
		ID: "zfs-io-error", Reason: "ZFSIOError", Domain: Storage, Severity: finding.Warning,
		Summary:  "a disk of a ZFS pool fails reads or writes",
		Literals: []string{"zio pool="},
		Patterns: []string{`^zio pool=(?P<subject>\S+) vdev=(?P<disk>\S+) error=\d+ type=\d+ offset=`},
		Kind:     "zfs-pool", Expiry: 24 * time.Hour, // a pool that repairs them is healthy
	}, {
		ID: "squashfs-error", Reason: "SquashfsError", Domain: Storage, Severity: finding.Warning,
		Summary:  "a squashfs image is corrupt, or its disk cannot be read",
		Literals: []string{"SQUASHFS error: "},
		Patterns: []string{`^SQUASHFS error: `},
		Exclude:  `^SQUASHFS error: (?:Xattrs in filesystem, these will be ignored|Can't find a SQUASHFS superblock)`,
		Kind:     NodeKind, Expiry: time.Hour,
	}, {
		ID: "erofs-error", Reason: "ErofsError", Domain: Storage, Severity: finding.Warning,
		Summary:  "an erofs image is corrupt, or its disk cannot be read",
		Literals: []string{"erofs: (device ", "erofs (device "},
		Patterns: []string{`^erofs:? \(device (?P<subject>[^)\s]+)\): .*(?:corrupted|failed to (?:decompress|read)|bogus|invalid (?:checksum|lookback|de|i_mode|xattr)|i/o error|unhandlable)`},
		Kind:     "filesystem", Expiry: time.Hour,
	}}
}

// remoteFilesystemRules: net/sunrpc/clnt.c, fs/nfs/nfs4state.c, fs/smb/client/connect.c, net/ceph,
// fs/ceph/mds_client.c. The kernel logs when an NFS server is back. No state confirms a hanging Ceph: statfs asks
// the monitors, which mostly still answer.
func remoteFilesystemRules() []Rule {
	return []Rule{{
		ID: "nfs-server-silent", Reason: "NFSServerNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary:  "an NFS server does not respond: programs that access its files hang",
		Literals: []string{" not responding, "},
		Patterns: []string{`^nfs: server (?P<subject>.+) not responding, (?:still trying|timed out)`},
		Kind:     "nfs-server", Expiry: time.Hour, ConfirmedBy: "hung-mounts",
		Recovery: Recovery{Literals: []string{": server "}, Pattern: `^nfs: server (?P<subject>.+) OK$`},
	}, {
		// The files of the server are accessible, so that no state shows it: only locks, or new mounts, hang.
		ID: "nfs-helper-silent", Reason: "NFSHelperNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary: "a helper daemon of an NFS server (locks, mounts, port mapper) does not respond: locks or new " +
			"mounts hang",
		Literals: []string{" not responding, "},
		Patterns: []string{`^(?:nfsd|lockd|mountd?|statd|portmap|rpcbind|nfs_acl): server (?P<subject>.+) not responding, (?:still trying|timed out)`},
		Kind:     "nfs-server", Expiry: time.Hour,
		Recovery: Recovery{Literals: []string{": server "},
			Pattern: `^(?:nfsd|lockd|mountd?|statd|portmap|rpcbind|nfs_acl): server (?P<subject>.+) OK$`},
	}, {
		ID: "nfs-lock-lost", Reason: "NFSLockReclaimFailed", Domain: Storage, Severity: finding.Warning,
		Summary: "after an NFS server came back, locks or open files could not be reclaimed",
		// "lost" since Linux 6.0
		Literals: []string{"nfs4_reclaim_open_state: ", "reclaim_locks: ", ": lost ", "NFS: state manager"},
		Patterns: []string{
			`^(?:NFS: )?_*nfs4_reclaim_(?:open_state|locks): (?:Lock reclaim failed|unhandled error)`,
			`^NFS: (?P<subject>\S+): lost \d+ locks$`,
			`^NFS: state manager(?:: [\w -]{1,60})? failed on NFSv4 server (?P<subject2>\S+) with error \d+`,
		},
		Kind: "nfs-server", Expiry: time.Hour,
	}, {
		ID: "smb-server-silent", Reason: "SMBServerNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary:  "an SMB server does not respond",
		Literals: []string{" has not responded in "},
		Patterns: []string{`^CIFS: (?:VFS: )?(?P<subject>\S+) has not responded in \d+ seconds`,
			`^CIFS VFS: Server (?P<subject2>\S+) has not responded in \d+ seconds`},
		Kind: "smb-server", Expiry: 30 * time.Minute, ConfirmedBy: "hung-mounts",
	}, {
		ID: "ceph-hung", Reason: "CephHung", Domain: Storage, Severity: finding.Warning,
		Summary:  "a Ceph server does not respond",
		Literals: []string{"ceph: ", "rbd: rbd"},
		Patterns: []string{
			`^ceph: (?:\[[^\]]+\]: )?(?P<subject>mds\d+) (?:hung|caps (?:stale|renewed too late)|rejected session|reconnect denied)`,
			`^libceph: (?P<subject2>osd\d+) (?:\S+ )?down$`,
			`^rbd: (?P<subject3>rbd\d+): (?:encountered watch error|(?:write|read|discard)\w*(?: \d+)? at (?:objno )?\d+[ \d~]* result -|failed to)`,
		},
		Kind: "ceph-server", Expiry: 30 * time.Minute,
		Recovery: Recovery{
			Literals: []string{"ceph: "},
			Pattern:  `^(?:ceph: (?:\[[^\]]+\]: )?(?P<subject>mds\d+) (?:came back|reconnect success)|libceph: (?P<subject2>osd\d+) (?:\S+ )?up$)`,
		},
	}}
}
