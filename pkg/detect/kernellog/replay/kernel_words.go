package replay

import (
	"bytes"
	"strings"
	"sync"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// onTheBus is the start of drivers' lines: the driver's name, the address of a device, a colon.
//
//	nvme 0000:01:00.0: …    usb 1-1.2: …    sd 0:0:0:0: …    virtio_net virtio0 eth0: …    e1000 0000:00:03.0 eth0: …
var onTheBus = kernellog.WhenNeeded(`^[a-zA-Z][\w-]{0,30} (?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d{1,3}-[\d.:-]{1,20}|\d{1,3}:\d{1,3}:\d{1,3}:\d{1,3}|virtio\d{1,3}|[0-9a-f]{1,4}:[0-9a-f]{1,4})[^:]{0,40}: `)

// numbered is the kernel's name of a numbered device at the start of a line: "ata1.00: ", "md127: ".
var numbered = kernellog.WhenNeeded(`^(?:ata|md|dm|loop|sd[a-z]|nvme|usb|hub|eth|en[opsx]\w{0,12}|wl\w{0,12}|veth\w{0,12}|cali\w{0,12}|lxc\w{0,12}|br|bond|cni|docker|tun|tap|vd[a-z]|xvd[a-z]|mmc|fb|tty|psmouse serio|cpu|CPU|CPU#|node|Node )\d{0,4}\w{0,12}[\d.]{0,4}(?: \([\w-]{1,20}\))?: `)

// firstWords are first words of other kernel lines, which name no device or subsystem: lines of a boot and of a report.
var firstWords = strings.Fields(`ACPI acpi APIC AppArmor: apparmor: audit: AVX BIOS-e820: BIOS-provided BUG: Bluetooth:
	bridge: Btrfs BTRFS Calgary calling cfg80211: cgroup: clocksource: Console: console [Hardware cpuidle: Cpuset cryptd: crng
	dca Demotion device-mapper: devtmpfs: DMA: DMAR: DMI: docker0: Dentry e820: EDAC EFI efi: efivars: erofs: EXT4-fs
	FAT-fs FS-Cache: ftrace: fuse: Freeing futex hrtimer: hv_vmbus: hv_utils: HugeTLB: Hypervisor i8042: IMA: ima: INFO:
	Initmem Initialise Inode-cache input: integrity: intel_pstate: io iommu: IOMMU IPI IPv6: ISO ip_tables: jbd2 JBD2:
	kauditd_printk_skb: kdump: Kernel kernel KERNEL Key kexec KVM: kvm: kvm-clock: kvm-guest: landlock: LSM: LVT0 Linux
	livepatch: Loading loop: MTRR mce: Memory Memory: Mem-Info: microcode: mm MPTCP mptcp: NET: NetLabel: netfs: nf_conntrack
	NMI NR_IRQS: NUMA: numa_balancing: NVRM: nvidia-nvlink: oom-kill: oom_reaper: Out overlayfs: PCI PCI: pci_bus pcieport
	percpu: perf: Performance pid_max: PKRU PM: pnp pnp: pps_core: printk: PTP random: ras: RAS: RBP: rcu: RCU Registered
	registered RETBleed: RIP: RPC: RSP: Run rtc_cmos Sched sched_clock: SCSI scsi SELinux: serial8250: SGI SLUB: SLAB: SMP
	smp: smpboot: software SPE Spectre Speculative SQUASHFS squashfs: srcu: systemd[1]: TCP TCP: tcp_listen_portaddr_hash:
	thermal_sys: Timer Tracing tsc: tun: Unknown UDP UDP-Lite usbcore: usbhid: user vgaarb: VFS: virtio_blk virtio-pci vsock:
	vmwgfx Warning: WARNING: watchdog: workingset: workqueue: x86: x86/bugs: x86/fpu: x86/mm: x86/PAT: xen: xfs XFS xor: zbud:
	ZFS: zram: zram0: zswap: Call Code: RAX: RDX: R10: R13: FS: CS: CR2: Tasks Modules Hardware Comm: task: Workqueue:
	unregister_netdevice: neighbour: nfs: NFS: NFSD: ceph: libceph: rbd: drbd CIFS: dlm: GFS2: ocfs2: bcache: raid6: async_tx:`)

// beginnings are the first words by which the rules know a part of the kernel, and firstWords.
var beginnings = sync.OnceValue(func() map[string]bool {
	words := map[string]bool{}
	for _, word := range firstWords {
		words[word] = true
	}
	for _, rule := range rules.Kernel() {
		for _, literal := range rule.Literals {
			if name, ok := strings.CutPrefix(literal, "\n"); ok && len(name) > 2 && !strings.Contains(name, " ") {
				words[strings.TrimSuffix(name, ":")+":"] = true
			}
		}
	}
	return words
})

// looksLikeKernel reports whether a text without time and sender starts like the kernel's lines. Not every line of a
// report or a manual does.
func looksLikeKernel(text []byte) bool {
	word, rest, _ := bytes.Cut(text, []byte(" "))
	words := beginnings()
	if len(rest) > 0 && len(word) <= 40 && words[string(word)] {
		return true
	}
	// "i40e 0000:3b:00.0 ens1f0: ", "EXT4-fs (sda1): ", "XFS (dm-0): "
	return onTheBus.Regexp().Match(text) || numbered.Regexp().Match(text)
}
