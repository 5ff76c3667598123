package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// deviceRules: drivers/base/dd.c, drivers/hv/vmbus_drv.c, and the external aborts of arch/arm64/mm/fault.c (until 4.16)
// and arch/arm/mm/fault.c.
func deviceRules() []Rule {
	// Many drivers reject a device that another driver serves, or that does not really exist. Drivers of disks, network
	// cards and GPUs do not.
	const driver = `(?P<driver>nvme|ahci|megaraid_sas|mpt[23]sas|mpi3mr|smartpqi|hpsa|aacraid|lpfc|qla2xxx|pm80xx|arcmsr|vmw_pvscsi|virtio_(?:blk|scsi|net)|` +
		`mlx[45]_core|i40e|iavf|ice|ixgbe(?:vf)?|igbv?f?|igc|e1000e?|bnxt_en|bnx2x?|tg3|ena|gve|qede?|cxgb4|sfc|be2net|enic|nfp|hns3|atlantic|r8169|vmxnet3|` +
		`mvsas|isci|hisi_sas_v[23]_hw|hinic3?|ionic|mana|vmd|fnic|3w-(?:sas|9xxx)|irdma|bnxt_re|mlx[45]_ib|dh895xcc|c6[2x]x|4xxx|` +
		`hv_(?:netvsc|storvsc)|nvidia|amdgpu)`
	return []Rule{{
		ID: "driver-probe-failed", Reason: "DriverProbeFailed", Domain: Hardware, Severity: finding.Warning,
		Summary: "the driver of a disk controller, network card, GPU or offload engine could not start its device, which is unusable",
		Advice: "`dmesg` before the line has the driver's reason, `lspci -vv -s ADDRESS` the device; firmware and driver " +
			"must fit; a device that was well before: reseat it, power-cycle the machine, replace it.",
		Patterns: []string{
			`^` + driver + `: probe of (?P<subject>\S+) failed with error -\d+$`,
			`^` + driver + ` (?P<subject>\S+): probe with driver \w+ failed with error -\d+$`,
			`^hv_vmbus: probe failed for device (?P<subject2>[0-9a-f-]{36}) \(-\d+\)$`,
		},
		Kind: "device", Expiry: UntilBoot,
	}, {
		ID: "external-abort", Reason: "ExternalAbort", Domain: Hardware, Severity: finding.Warning,
		Summary: "an ARM processor got an error from the memory or the device that it accessed",
		Advice: "The lines after it name the driver (\"pc\"): firmware or hardware of its device; of many processes: memory " +
			"(`ras-mc-ctl --errors`), then drain the node and replace.",
		Literals: []string{"Unhandled fault: ", "Unhandled prefetch abort: ",
			"Synchronous External"},
		Patterns: []string{`^Unhandled (?:fault|prefetch abort): (?:(?:a?synchronous|imprecise|external) (?:external )?abort|synchronous (?:parity|parity or ECC) error|` +
			`external abort on (?:non-)?linefetch)[^(]{0,60}\(0x[0-9a-f]+\) at 0x[0-9a-f]+`,
			`^Synchronous External Abort: .{1,60}\(0x[0-9a-f]+\) at 0x[0-9a-f]+`},
		Kind: NodeKind, Expiry: 24 * time.Hour,
	}, {
		ID: "virtio-queue-broken", Reason: "VirtioQueueBroken", Domain: Hardware, Severity: finding.Warning,
		// drivers/virtio/virtio_ring.c: BAD_RING; drivers/net/virtio_net.c
		Summary: "a virtual device broke the protocol of its queue, and does no more I/O",
		Advice: "The hypervisor's side failed: look at its log (QEMU, vhost) for the same time; `dmesg | grep virtio` names the " +
			"disk or network card. Move the virtual machine, or power-cycle it.",
		Patterns: []string{
			`^virtio\w* (?P<subject>virtio\d+): [\w.-]{1,32}:id \d+ (?:is not a head!|out of range)`,
			`^(?:virtio_net virtio\d+|net) (?P<subject2>` + netdev + `): Unexpected TXQ \(\d+\) queue failure: -\d+`,
		},
		Kind: "device", Expiry: UntilBoot,
	}, {
		// drivers/vfio/pci/vfio_pci_config.c. One or two come from a guest that resets its device at start.
		ID: "vfio-resets-repeat", Reason: "VFIOResetsRepeat", Domain: Hardware, Severity: finding.Warning,
		Summary: "a PCI device that a virtual machine uses was reset behind the kernel's back, again and again",
		Advice: "`lspci -vv -s ADDRESS` (\"rev ff\" means gone), `dmesg` and the guest's log around the lines: a GPU that does not " +
			"survive its reset needs a power-cycle of the host; else firmware and driver of the guest.",
		Patterns: []string{`^(?:vfio-pci (?P<subject>` + pciAddress + `): )?vfio_bar_restore: (?:(?P<subject2>` + pciAddress + `) )?reset recovery - restoring (?:BARs|bars)`},
		Kind:     "device", Raise: Rate{3, 10 * time.Minute}, Expiry: time.Hour,
	}, {
		ID: "root-mount-failed", Reason: "RootMountFailed", Domain: Storage, Severity: finding.Fatal,
		// init/do_mounts.c; a panic follows
		Summary: "the kernel could not mount its root filesystem or start its first program: the boot failed",
		Advice: "The device is missing, or its driver is not in the initramfs: compare `root=` of the boot loader with `blkid`, " +
			"write the initramfs anew (`dracut -f`, `update-initramfs -u`), or boot the previous kernel.",
		Patterns: []string{`^(?:Starting init: \S+ exists but couldn't execute it|Failed to execute /init|Default init \S+ failed)`,
			`^VFS: (?:Cannot open root device |Unable to mount root fs (?:on|via))`},
		Kind: NodeKind, Report: "panic", Expiry: UntilBoot,
	}, {
		ID: "zpci-error", Reason: "ZPCIError", Domain: Hardware, Severity: finding.Warning,
		// arch/s390/pci/pci_event.c
		Summary: "the firmware of an IBM Z machine reports an error of a PCI function; its devices are lost until it recovers",
		Advice: "`zpcictl --diag ADDRESS` sends the diagnosis to the service element, `zpcictl --reset ADDRESS` resets it; " +
			"`lspci -s ADDRESS` shows what is behind it.",
		Patterns: []string{`^zpci: (?P<subject>` + pciAddress + `): (?:Event 0x[0-9a-f]+ reports an error for PCI function 0x|Automatic recovery failed|The reset request failed|Unblocking (?:DMA|device access) failed|Cannot be recovered )`},
		Kind:     "device", Expiry: 24 * time.Hour,
		Recovery: `^zpci: (?P<subject>` + pciAddress + `): The device is ready to resume operations`,
	}, {
		// For a TPM that is switched off the kernel has other words.
		ID: "tpm-failed", Reason: "TPMFailed", Domain: Hardware, Severity: finding.Warning,
		// drivers/char/tpm/{tpm2-cmd,tpm-chip}.c
		Summary: "the security chip (TPM) does not work: measured boot and keys that are sealed in it cannot be used",
		Advice: "`tpm2_getcap properties-fixed` (does it answer, which firmware?), then the vendor's update of its firmware; a power-cycle " +
			"with the power cord out resets one that hangs.",
		Patterns: []string{`^tpm (?P<subject>tpm\d+): TPM in field (?:failure|upgrade) mode, requires firmware upgrade`,
			// it does not answer: EIO, ETIME, ETIMEDOUT
			`^tpm\w* (?P<subject2>\S+): A TPM error \(-(?:5|62|110)\) occurred `},
		Kind: "device", Expiry: UntilBoot,
	}, {
		ID: "xen-device-timeout", Reason: "XenDeviceTimeout", Domain: Hardware, Severity: finding.Warning,
		// drivers/xen/xenbus/{xenbus_probe,xenbus_client,xenbus_probe_frontend}.c
		Summary: "a virtual disk or network card of Xen does not answer, on the host's side or the guest's",
		Advice: "`xenstore-ls /local/domain` shows the state of both sides; look at the backend's log on the host " +
			"(`xl dmesg`), and move or restart the virtual machine.",
		Patterns: []string{
			`^xenbus: xenbus_dev_shutdown: (?P<subject>\S+) timeout closing device`,
			`^(?:vbd|vif) (?P<subject2>\S+): failed to write error node for `,
			`^(?:xenbus_probe_frontend: |XENBUS: )Timeout connecting to device: (?P<subject3>device/(?:vbd|vif)/\S+)`,
		},
		Kind: "device", Report: "xenbus", Expiry: time.Hour,
	}}
}
