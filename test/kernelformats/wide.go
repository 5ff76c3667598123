package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"

	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

// The wide selection is every format at the level of errors or worse in the directories that servers have, whatever its
// text: the measure of how much of the kernel the rules see. A sample of it, judged by hand, is in
// pkg/detect/kernellog/testdata/sample.txt.

// serverParts are the directories of the kernel whose code runs on servers.
func serverParts() family {
	const ethernet = "drivers/net/ethernet/"
	f := family{name: "wide", level: atError, unlisted: true, printers: map[string]string{}, files: []string{
		"kernel/...", "mm/...", "lib/*.c", "block/...", "io_uring/...", "security/...", "virt/...",
		"crypto/*.c", "arch/x86/kernel/...", "arch/x86/mm/...", "arch/x86/kvm/...", "arch/x86/events/...",
		"arch/arm64/kernel/...", "arch/arm64/mm/...", "arch/arm64/kvm/...", "arch/powerpc/kernel/...",
		"arch/powerpc/mm/...", "arch/powerpc/platforms/pseries/...", "arch/powerpc/platforms/powernv/...",
		"arch/s390/kernel/...", "arch/s390/mm/...", "arch/s390/pci/...", "fs/...", "net/core/...",
		"net/ipv4/...", "net/ipv6/...", "net/netfilter/...", "net/bridge/...", "net/sched/...", "net/sctp/...",
		"net/sunrpc/...", "net/ceph/...", "net/rds/...", "net/openvswitch/...", "net/smc/...", "net/9p/...",
		"net/tls/...", "net/xfrm/...", "net/vmw_vsock/...", "net/tipc/...", "net/mptcp/...", "net/packet/...",
		"net/8021q/...", "drivers/ata/libata*.c", "drivers/ata/libahci*.c", "drivers/ata/ahci.c",
		"drivers/base/...", "drivers/block/*.c", "drivers/block/drbd/...", "drivers/block/rnbd/...",
		"drivers/block/mtip32xx/...", "drivers/block/zram/...", "drivers/block/xen-blkback/...",
		"drivers/acpi/...", "drivers/char/ipmi/...", "drivers/char/tpm/...", "drivers/cpufreq/*pstate*.c",
		"drivers/cpufreq/cpufreq.c", "drivers/cpufreq/acpi*.c", "drivers/cxl/...", "drivers/crypto/intel/...",
		"drivers/crypto/ccp/...", "drivers/dma/idxd/...", "drivers/dma/ioat/...", "drivers/dma/ptdma/...",
		"drivers/edac/...", "drivers/firmware/efi/...", "drivers/firmware/*.c",
		"drivers/gpu/drm/amd/amdgpu/amdgpu*.c", "drivers/gpu/drm/amd/amdgpu/gfx_v*.c",
		"drivers/gpu/drm/amd/amdgpu/gmc_v*.c", "drivers/gpu/drm/amd/amdgpu/sdma_v*.c",
		"drivers/gpu/drm/amd/amdkfd/...", "drivers/gpu/drm/scheduler/...", "drivers/gpu/drm/ast/...",
		"drivers/gpu/drm/ttm/...", "drivers/gpu/drm/nouveau/*.c", "drivers/gpu/drm/vmwgfx/...",
		"drivers/gpu/drm/virtio/...", "drivers/accel/habanalabs/...", "drivers/hv/...",
		"drivers/hwmon/*power*.c", "drivers/hwmon/coretemp.c", "drivers/hwmon/k10temp.c",
		"drivers/hwmon/pmbus/*.c", "drivers/i2c/busses/i2c-i801.c", "drivers/i2c/busses/i2c-designware*.c",
		"drivers/infiniband/...", "drivers/iommu/amd/...", "drivers/iommu/intel/...", "drivers/iommu/arm/...",
		"drivers/iommu/*.c", "drivers/irqchip/irq-gic*.c", "drivers/md/...", "drivers/message/...",
		"drivers/mmc/core/...", "drivers/mmc/host/sdhci*.c", "drivers/misc/mei/...", "drivers/misc/hpilo.c",
		"drivers/net/*.c", "drivers/net/bonding/...", "drivers/net/team/...", "drivers/net/hyperv/...",
		"drivers/net/vmxnet3/...", "drivers/net/vxlan/...", "drivers/net/wireguard/...",
		"drivers/net/ipvlan/...", "drivers/net/xen-netback/...", "drivers/net/mdio/...",
		"drivers/net/phy/phy*.c", "drivers/net/phy/sfp*.c", ethernet + "mellanox/...", ethernet + "intel/...",
		ethernet + "broadcom/...", ethernet + "amazon/...", ethernet + "google/...", ethernet + "qlogic/...",
		ethernet + "realtek/...", ethernet + "chelsio/...", ethernet + "emulex/...", ethernet + "cisco/...",
		ethernet + "sfc/...", ethernet + "microsoft/...", ethernet + "huawei/...",
		ethernet + "hisilicon/hns3/...", ethernet + "netronome/...", ethernet + "pensando/...",
		ethernet + "aquantia/...", ethernet + "cavium/...", ethernet + "marvell/octeontx2/...",
		ethernet + "amd/xgbe/...", ethernet + "amd/pds_core/...", ethernet + "wangxun/...",
		ethernet + "fungible/...", ethernet + "ibm/...", "drivers/nvdimm/...", "drivers/nvme/...",
		"drivers/pci/*.c", "drivers/pci/pcie/...", "drivers/pci/hotplug/...", "drivers/pci/switch/...",
		"drivers/pci/controller/vmd.c", "drivers/pci/controller/pci-hyperv.c", "drivers/powercap/...",
		"drivers/ptp/*.c", "drivers/ras/...", "drivers/s390/block/...", "drivers/s390/net/...",
		"drivers/s390/scsi/...", "drivers/s390/cio/...", "drivers/scsi/*.c", "drivers/scsi/megaraid/...",
		"drivers/scsi/mpt3sas/...", "drivers/scsi/mpi3mr/...", "drivers/scsi/smartpqi/...",
		"drivers/scsi/aacraid/...", "drivers/scsi/pm8001/...", "drivers/scsi/hisi_sas/...",
		"drivers/scsi/libfc/...", "drivers/scsi/libsas/...", "drivers/scsi/lpfc/...",
		"drivers/scsi/qla2xxx/...", "drivers/scsi/qedf/...", "drivers/scsi/qedi/...",
		"drivers/scsi/bnx2fc/...", "drivers/scsi/bnx2i/...", "drivers/scsi/be2iscsi/...",
		"drivers/scsi/fnic/...", "drivers/scsi/snic/...", "drivers/scsi/elx/...", "drivers/scsi/arcmsr/...",
		"drivers/scsi/csiostor/...", "drivers/scsi/fcoe/...", "drivers/scsi/ibmvscsi/...",
		"drivers/scsi/device_handler/...", "drivers/scsi/isci/...", "drivers/scsi/mvsas/...",
		"drivers/target/...", "drivers/thermal/thermal*.c", "drivers/thermal/intel/...",
		"drivers/usb/core/...", "drivers/usb/host/xhci*.c", "drivers/usb/host/ehci-h*.c",
		"drivers/usb/storage/...", "drivers/vdpa/...", "drivers/vfio/...", "drivers/vhost/...",
		"drivers/virt/...", "drivers/virtio/...", "drivers/watchdog/watchdog*.c", "drivers/watchdog/iTCO*.c",
		"drivers/watchdog/hpwdt.c", "drivers/watchdog/softdog.c", "drivers/xen/...",
	}}
	for name, prefix := range map[string]string{
		"xfs": "XFS (dm-5): ", "btrfs": "BTRFS error (device sda3): ", "f2fs": "F2FS-fs (sda1): ",
		"erofs": "erofs (device sda1): ", "ibdev": "infiniband mlx5_0: ", "bch_dev": "bcachefs (sda1): ",
		"bch": "bcachefs (sda1): ", "ubifs": "UBIFS error (ubi0:0 pid 12): ", "ntfs": "ntfs3: sda1: ",
		"nilfs": "NILFS (sda1): ", "gfs2": "gfs2: fsid=c1:gfs0.0: ", "fs": "gfs2: fsid=c1:gfs0.0: ",
		"exfat": "exFAT-fs (sda1): ", "fscrypt": "fscrypt (sda1): ", "fsverity": "fs-verity (sda1): ",
		"mlx5_core": "mlx5_core {pci}: mlx5_f:123:(pid 456): ", "mlx4": "mlx4_core {pci}: ",
		"drm": "{mod} {pci}: [drm] *ERROR* ", "rnbd_clt": "rnbd_client L123: <sda@c1> ", "cifs": "CIFS: VFS: ",
		"usb_serial": "usb 1-1: ", "hub": "usb 1-1: ", "dmz_dev": "device-mapper: zoned: (sda): ",
		"nd": "nd_region region0: ",
	} {
		for _, level := range levels {
			f.printers[name+"_"+level] = prefix
			f.printers[name+"_"+level+"_rl"] = prefix
			f.printers[name+"_"+level+"_ratelimited"] = prefix
		}
	}
	for name, prefix := range map[string]string{
		"ext4_error": "EXT4-fs error (device sda1): ext4_f:123: ", "ext4_msg": "EXT4-fs (sda1): ",
		"ext4_abort":            "EXT4-fs error (device sda1): ext4_f:123: ",
		"ext4_error_inode":      "EXT4-fs error (device sda1): ext4_f:123: inode #12: comm cp: ",
		"EXT4_ERROR_INODE":      "EXT4-fs error (device sda1): ext4_f:123: inode #12: comm cp: ",
		"ext4_grp_locked_error": "EXT4-fs error (device sda1): ext4_f:123: group 12, block 5:",
		"ext2_error":            "EXT2-fs (sda1): error: ext2_f: ", "ext2_msg": "EXT2-fs (sda1): error: ",
		"jfs_error": "ERROR: (device sda1): jfs_f: ", "fat_msg": "FAT-fs (sda1): ",
		"fat_fs_error": "FAT-fs (sda1): error, ", "udf_err": "UDF-fs: error (device sr0): udf_f: ",
		"cifs_dbg": "CIFS: VFS: ", "cifs_server_dbg": `CIFS: VFS: \\srv `, "cifs_tcon_dbg": `CIFS: VFS: `,
		"mlog": "(kworker/u8:1,123,3):fn:12 ERROR: ", "ocfs2_error": "OCFS2: ERROR (device sda1): ",
		"quota_error": "Quota error (device sda1): ", "ERROR": "SQUASHFS error: ",
		"ntfs_error": "ntfs: (device sda1): ", "f2fs_printk": "F2FS-fs (sda1): ",
		"fs_err": "gfs2: fsid=c1:gfs0.0: ", "DRM_ERROR": "[drm:fn [{mod}]] *ERROR* ",
		"DRM_DEV_ERROR":        "{mod} {pci}: [drm:fn [{mod}]] *ERROR* ",
		"XFS_CORRUPTION_ERROR": "XFS (dm-5): Internal error ", "nfs_fatal_error": "NFS: ", "snd_err": "{pr}",
	} {
		f.printers[name] = prefix
	}
	return f
}

var (
	// errorSuffix is the name of a printer of errors.
	errorSuffix = regexp.MustCompile(`(?:^|_)(?:emerg|alert|crit|err|error)(?:_ratelimited|_once|_rl|_limited)?$|^(?:BNX2X|DP|DRM|IPR)_ERR(?:OR)?$`)
	otherSuffix = regexp.MustCompile(`(?:^|_)(?:warn|warning|notice|info|dbg)(?:_ratelimited|_once|_rl|_limited)?$|^printk\w*$`)
	macro       = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)\n]*)\)[ \t]*\\?\n?((?:.*\\\n)*.*)$`)
)

// wide returns the formats of the wide selection at a level, each once.
func wide(t *tree, l level) (all []printed) {
	f := serverParts()
	f.level = l
	f.adoptMacros(t)
	seen := map[string]bool{}
	for _, p := range f.formats(t) {
		shape := strings.ToLower(p.format)
		if seen[shape] || strings.TrimSpace(verbs.ReplaceAllString(p.format, "")) == "" {
			continue
		}
		seen[shape] = true
		all = append(all, p)
	}
	return all
}

var verbs = regexp.MustCompile(`%[-+ #0-9.*]*[a-zA-Z]+`)

// adoptMacros adds the wrappers that the sources define as macros around a known printer.
func (f *family) adoptMacros(t *tree) {
	for range 3 { // a macro of a macro of a macro
		for file, text := range t.files {
			if !f.has(file) || !strings.Contains(text, "#define") {
				continue
			}
			for _, m := range macro.FindAllStringSubmatch(uncomment(text), -1) {
				f.adopt(m[1], m[2], strings.ReplaceAll(m[3], "\\\n", " "))
			}
		}
	}
}

func (f *family) adopt(name, parameters, body string) {
	_, own := f.printers[name]
	if _, listed := printers[name]; own || listed || !errorSuffix.MatchString(name) {
		return
	}
	fields := strings.Split(strings.NewReplacer("...", "", "args", "", "arg", "").Replace(parameters), ",")
	format := ""
	for _, p := range fields {
		if p = strings.TrimSpace(p); p != "" {
			format = p
		}
	}
	for _, at := range callHead.FindAllStringSubmatchIndex(body, -1) {
		prefix, ok := f.printers[body[at[2]:at[3]]]
		if !ok {
			prefix, ok = printers[body[at[2]:at[3]]]
		}
		if !ok {
			continue
		}
		s := scope{texts: map[string]string{format: "{}", "fmt": "{}"}}
		text, ok := s.format(arguments(body[at[1]:] + ")"))
		if !ok {
			text = "{}"
		}
		if head, tail, ok := strings.Cut(prefix, "{}"); ok {
			prefix = head + text + tail
		} else {
			prefix += text
		}
		f.printers[name] = prefix
		return
	}
}

// printSample prints n formats of each kernel at a level, chosen at random, without a verdict.
func printSample(out io.Writer, sources []string, n int, seed uint64, at string) error {
	l := belowWarning
	for l.String() != at {
		if l++; l > atError {
			return fmt.Errorf("unknown level %q", at)
		}
	}
	f := serverParts()
	for _, source := range sources {
		t, err := load(source, wanted([]family{f}))
		if err != nil {
			return err
		}
		all := wide(&t, l)
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		fmt.Fprintf(out, "# %d of %d formats of the level %s of %s, seed %d\n", min(n, len(all)), len(all), l, t.version, seed)
		for _, p := range all[:min(n, len(all))] {
			fmt.Fprintf(out, "? | %s | %s\n", p.file, formats.Escape(p.format))
		}
	}
	return nil
}
