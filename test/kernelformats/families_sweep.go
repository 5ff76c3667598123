package main

// sweepFamilies are wide: failures that the kernel's core, its filesystems and the drivers of servers print at the
// level of errors. The rules of subsystems are tried with them. The preparation of a driver (memory, registration,
// options) is left out: it fails in tests, or with a fault that has its own lines.
func sweepFamilies() []family {
	const words = `fail|error|time-?d? ?out|abort|unable|can'?not|can't|could ?n[o']t|corrupt|fatal|not respon|offline|lost|stuck|dead\b|unrecover|invalid|bad `
	const except = `alloc|regist|sysfs|debugfs|workqueue|memory|not support|unsupport|unknown|option|param|self.?test|inject|irq|msi|\bmap\b|iomap|ioremap|dma_?mask|set dma|` +
		`clk|clock|regulator|gpio|pinctrl|of_|devm|kthread|thread|proc entry|create|init(ial)?|probe|test|ioctl|config|attach|valid(ate)? |argument|usage|vlan|filter|ethtool|firmware image|\bget\b|\bset\b|query|dump|flow|rule|policy|tunable|%\*|debug`
	printers := map[string]string{"f2fs_err": "F2FS-fs (sda1): ", "f2fs_err_ratelimited": "F2FS-fs (sda1): ",
		"fs_err":     "gfs2: fsid=c1:gfs0.0: ",
		"ext4_error": "EXT4-fs error (device sda1): ext4_f:123: ", "cifs_dbg": "CIFS: VFS: ",
		"cifs_server_dbg": `CIFS: VFS: \\srv `, "erofs_err": "erofs (device sda1): ",
		"mlog": "(kworker/u8:1,123,3):fn:12 ERROR: ", "ocfs2_error": "OCFS2: ERROR (device sda1): ",
		"quota_error": "Quota error (device sda1): "}
	for short, level := range map[string]string{"emerg": "emergency", "alert": "alert", "crit": "critical",
		"err": "error"} {
		printers["btrfs_"+short] = "BTRFS " + level + " (device sda3): "
		printers["xfs_"+short] = "XFS (dm-5): "
	}
	sweep := func(name string, files ...string) family {
		return family{name: "sweep-" + name, files: files, level: atError, words: words, except: except,
			printers: printers}
	}
	const ethernet = "drivers/net/ethernet/"
	return []family{
		sweep("core", "kernel/...", "mm/...", "security/integrity/...", "arch/x86/kernel/...", "arch/x86/kvm/...",
			"arch/arm64/kernel/...", "arch/s390/pci/...", "virt/..."),
		sweep("block", "block/...", "drivers/md/...", "drivers/nvme/...", "drivers/block/...",
			"drivers/ata/libata*.c", "drivers/ata/libahci.c", "drivers/nvdimm/..."),
		sweep("scsi", "drivers/scsi/scsi*.c", "drivers/scsi/sd.c", "drivers/scsi/hpsa.c",
			"drivers/scsi/storvsc_drv.c", "drivers/scsi/virtio_scsi.c", "drivers/scsi/megaraid/...",
			"drivers/scsi/mpt3sas/...", "drivers/scsi/mpi3mr/...", "drivers/scsi/smartpqi/...",
			"drivers/scsi/aacraid/...", "drivers/scsi/pm8001/...", "drivers/scsi/hisi_sas/...",
			"drivers/scsi/libfc/...", "drivers/scsi/libsas/..."),
		sweep("filesystems", "fs/ext4/...", "fs/xfs/...", "fs/btrfs/...", "fs/f2fs/...", "fs/jbd2/...",
			"fs/overlayfs/...", "fs/erofs/...", "fs/squashfs/...", "fs/quota/...", "fs/fuse/...",
			"fs/gfs2/...", "fs/ocfs2/...", "fs/iomap/...", "fs/nfs/...", "fs/nfsd/...", "fs/lockd/...", "fs/smb/...",
			"fs/cifs/...", "fs/ceph/...", "fs/9p/...", "fs/netfs/...", "fs/cachefiles/..."),
		sweep("network", "net/core/...", "net/ipv4/...", "net/ipv6/...", "net/netfilter/...", "net/bridge/...",
			"net/sctp/...", "net/sunrpc/...", "net/ceph/...", "net/rds/...",
			"net/openvswitch/...", "net/smc/...", "net/9p/..."),
		sweep("cards", "drivers/net/virtio_net.c", "drivers/net/hyperv/...", "drivers/net/vmxnet3/...",
			ethernet+"mellanox/mlx4/...", ethernet+"mellanox/mlx5/...", ethernet+"intel/...",
			ethernet+"broadcom/...", ethernet+"amazon/...", ethernet+"google/...", ethernet+"qlogic/qed*/...",
			ethernet+"realtek/...", ethernet+"chelsio/cxgb4/...", ethernet+"emulex/...",
			ethernet+"cisco/...", ethernet+"sfc/*.c", ethernet+"microsoft/...", "drivers/infiniband/core/...",
			"drivers/infiniband/hw/mlx5/...", "drivers/infiniband/hw/bnxt_re/..."),
		sweep("platform", "drivers/edac/...", "drivers/acpi/...", "drivers/hv/...", "drivers/virtio/...",
			"drivers/xen/...", "drivers/vhost/...", "drivers/vfio/...", "drivers/iommu/...",
			"drivers/pci/*.c", "drivers/pci/pcie/...", "drivers/pci/hotplug/...", "drivers/base/...",
			"drivers/char/tpm/...", "drivers/char/ipmi/...", "drivers/dma/idxd/...", "drivers/cxl/..."),
		sweep("gpu", "drivers/gpu/drm/amd/amdgpu/amdgpu*.c", "drivers/gpu/drm/amd/amdkfd/...",
			"drivers/gpu/drm/nouveau/*.c", "drivers/gpu/drm/scheduler/...", "drivers/accel/habanalabs/..."),
	}
}
