package main

// filesystemFamilies are filesystems on local disks. Bcachefs left the kernel in 6.18, and came in 6.7: it shares its
// family with btrfs.
func filesystemFamilies() []family {
	btrfs, xfs := map[string]string{}, map[string]string{}
	for short, level := range map[string]string{"emerg": "emergency", "alert": "alert", "crit": "critical",
		"err": "error", "warn": "warning"} {
		for _, suffix := range []string{"", "_rl", "_in_rcu", "_rl_in_rcu"} {
			btrfs["btrfs_"+short+suffix] = "BTRFS " + level + " (device sda3): "
		}
		xfs["xfs_"+short], xfs["xfs_"+short+"_ratelimited"] = "XFS (dm-5): ", "XFS (dm-5): "
	}
	for _, printer := range []string{"bch_err", "bch_err_ratelimited", "bch2_fs_fatal_error",
		"bch2_fs_inconsistent"} {
		btrfs[printer] = "bcachefs (sdb): "
	}
	btrfs["bch_err_dev"], btrfs["bch_err_dev_ratelimited"] = "bcachefs (sdb): ", "bcachefs (sdb): "
	return []family{{
		name: "copy-on-write",
		files: []string{"fs/btrfs/disk-io.c", "fs/btrfs/volumes.c", "fs/btrfs/inode.c", "fs/btrfs/scrub.c",
			"fs/btrfs/bio.c",
			"fs/btrfs/extent_io.c", "fs/btrfs/super.c", "fs/btrfs/tree-log.c", "fs/btrfs/relocation.c",
			"fs/btrfs/dev-replace.c",
			"fs/bcachefs/*.c"},
		words: `i/o error|io error|corrupt|checksum|csum|fail|lost|missing|degraded|emergency|read-only|readonly|panic|` +
			`inconsist|shutting down|cannot|unable|fatal|error (validating|reading|writing)|stuck|unrecover|transid`,
		except: `alloc|sysfs|option|balance|verity|ioctl|swap|subvol|sub_?page|zoned|discard|quota|qgroup|free.space.tree|` +
			`resume|register|debug|devid %llu is|send|clone|defrag|replace|property|unknown|init|encrypt|passphrase|key`,
		printers: btrfs,
	}, {
		name: "xfs",
		files: []string{"fs/xfs/xfs_log*.c", "fs/xfs/xfs_error.c", "fs/xfs/xfs_buf*.c", "fs/xfs/xfs_fsops.c",
			"fs/xfs/xfs_mount.c",
			"fs/xfs/xfs_super.c", "fs/xfs/xfs_aops.c", "fs/xfs/xfs_inode.c", "fs/xfs/xfs_trans*.c",
			"fs/xfs/libxfs/xfs_inode_buf.c",
			"fs/xfs/libxfs/xfs_sb.c", "fs/xfs/libxfs/xfs_alloc.c", "fs/xfs/xfs_icache.c",
			"fs/xfs/xfs_notify_failure.c"},
		words:    `i/o error|corrupt|checksum|crc|shut|fail|lost|returned error|unmount|deadlock|bad |damag|stuck|cannot|invalid`,
		except:   `alloc.*sysfs|option|quota|support|experimental|mount with|realtime|rt ?dev|v5|proto|feature|argument|log size|debug|assert|block ?size|sector ?size|stripe|alignment|debug|scrub`,
		printers: xfs,
	}}
}
