package checks

func filesystemCoverage() []Coverage {
	return []Coverage{
		{Fault: "ext4 remounted read-only after an error", By: []string{"filesystem-readonly", "ext4-readonly"}},
		{Fault: "a filesystem is in truth read-only or shut down (ro, emergency_ro, shutdown in the mount table)",
			By: []string{"filesystem-readonly", "ext4-shutdown"}},
		{Fault: "the block device under a filesystem is gone", By: []string{"filesystem-readonly"}},
		{Fault: "ext4 recorded errors, in this boot or an earlier one", By: []string{"filesystem-readonly",
			"ext4-recorded-errors"}},
		{Fault: "ext4 error lines", By: []string{"ext4-error", "filesystem-readonly"}},
		{Fault: "ext4 warning lines", By: []string{"ext4-warning"}},
		{Fault: "ext4 lost data that programs had written, or its tables are damaged", By: []string{"ext4-data-loss"}},
		{Fault: "the journal of a filesystem was aborted", By: []string{"journal-aborted", "filesystem-readonly"}},
		{Fault: "the journal of a filesystem cannot be read or written", By: []string{"jbd2-error"}},
		{Fault: "the superblock cannot be written", By: []string{"superblock-write-error"}},
		{Fault: "XFS shut down", By: []string{"filesystem-readonly", "xfs-shutdown"}},
		{Fault: "XFS metadata corruption, metadata and log I/O errors", By: []string{"xfs-corruption", "xfs-io-error"}},
		{Fault: "XFS cannot get memory to go on", By: []string{"xfs-memory-deadlock"}},
		{
			Fault: "XFS free space is fragmented",
			Not: "only xfs_db shows it, which reads the metadata of a mounted filesystem from the disk: costly, and " +
				"what it sees may be half written",
		},
		{Fault: "btrfs aborted a transaction and is read-only", By: []string{"filesystem-readonly", "btrfs-readonly"}},
		{Fault: "btrfs checksum, transid and device errors", By: []string{"btrfs-errors", "btrfs-error"}},
		{Fault: "a device of a btrfs filesystem is missing", By: []string{"btrfs-errors"}},
		{Fault: "a ZFS pool is degraded, faulted or suspended", By: []string{"zfs-pools", "zfs-pool-suspended",
			"zfs-io-error"}},
		{Fault: "FAT, F2FS, GFS2, OCFS2 or NILFS2 stopped taking writes", By: []string{"filesystem-stopped",
			"filesystem-withdrawn"}},
		{Fault: "a squashfs or erofs image is damaged", By: []string{"squashfs-error", "erofs-error"}},
		{Fault: "a disk is almost full, or will be soon", By: []string{"disk-space"}},
		{Fault: "inodes are exhausted", By: []string{"disk-space"}},
		{Fault: "a mount hangs: statfs does not come back", By: []string{"hung-mounts"}},
		{Fault: "a FUSE daemon is dead, an NFS export is stale", By: []string{"hung-mounts"}},
		{Fault: "an NFS server does not respond", By: []string{"hung-mounts", "nfs-server-silent",
			"nfs-helper-silent"}},
		{Fault: "an SMB server does not respond", By: []string{"hung-mounts", "smb-server-silent"}},
		{Fault: "a Ceph server does not respond", By: []string{"hung-mounts", "ceph-hung"}},
		{Fault: "NFS locks could not be reclaimed", By: []string{"nfs-lock-lost"}},
		{Fault: "writing back to an NFS server hangs", By: []string{"hung-mounts", "task-hung"}},
		{
			Fault: "files of a shared directory cannot be written and read back",
			Not: "the agent writes nothing to volumes; a mount that is dead, hangs, or refuses to be opened is found " +
				"by hung-mounts, and a plugin of the user may write",
		},
		{Fault: "a FUSE connection is congested", By: []string{"fuse-congestion"}},
		{Fault: "a mount that /etc/fstab wants is absent, so that its data land on another disk",
			By: []string{"fstab-mounts"}},
		{
			Fault: "the mount of /etc/hosts into a container is broken",
			Not: "only a line of the runtime's log shows it; the pod it happens to fails to start, with the same " +
				"words in its status, and the node is well",
		},
		{
			Fault: "files of the image store are corrupt (structure needs cleaning, invalid readlink)",
			By:    []string{"ext4-error", "xfs-corruption", "btrfs-error", "filesystem-readonly"},
		},
	}
}
