package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// driverRules match faults that drivers log as information, or as warnings that are evidence only when they repeat:
// drivers/net/ethernet/intel/{i40e,iavf,ice,ixgbevf}, drivers/scsi/mpt3sas _base_sas_log_info, drivers/gpu/drm/i915/gt,
// fs/lockd/{host,mon}.c.
func driverRules() []Rule {
	return []Rule{{
		// A single line comes from a boot, a changed MTU, or a request of a guest.
		ID: "nic-function-waits", Reason: "NICFunctionWaits", Domain: Network, Severity: finding.Warning,
		Summary: "a virtual function of an Intel network card and its physical one do not agree, again and again",
		Advice: "On the host of the physical function: `ip link show IFACE` (is it up, which state have its functions?) and " +
			"`dmesg`; in the guest `ethtool -i IFACE`: both drivers must fit; then detach and attach the function.",
		Patterns: []string{`^(?:i40e|i40evf|iavf|ice|ixgbevf) (?P<subject>` + pciAddress + `): (?:PF failed to honor VF \d+, opcode |` +
			`Failed to init adminq: -53$|Never saw reset|PF still in reset state)`},
		Kind: "device", BootGrace: 2 * time.Minute, Raise: Rate{3, time.Hour}, Expiry: time.Hour,
	}, {
		ID: "nic-admin-queue", Reason: "NICAdminQueueFailed", Domain: Network, Severity: finding.Warning,
		Summary: "the driver of an Intel network card cannot talk to the card's firmware or, of a virtual function, to the " +
			"physical one, or a queue of the card does not stop",
		Advice: "Of a virtual function: is the physical interface up on its host? Else `ethtool -i IFACE` and `ethtool -S IFACE`, " +
			"`devlink dev info pci/ADDRESS`; update firmware (NVM) and driver to versions that fit, power-cycle the machine.",
		Patterns: []string{`^(?:i40e|i40evf|iavf|ice|ixgbevf) (?P<subject>` + pciAddress + `): (?:A[RS]Q (?:Critical|Overflow) Error detected|HMC error in(?:terrupt|fo 0x)|` +
			`eeprom check failed \(|VSI seid \d+ (?:XDP )?[RT]x ring \d+ (?:dis|en)able timeout|Failed to init adminq: |` +
			`Reset never finished|(?:init|configure)_lan_hmc failed: |setup_pf_switch failed: |setup of MAIN VSI failed|` +
			`AQ command Config VSI BW allocation per TC failed = |Failed configuring TC map \d+ for VSI )`},
		Kind: "device", Expiry: time.Hour,
	}, {
		// A few come from commands that a disk does not know, and from hot-plugged disks.
		ID: "sas-controller-log", Reason: "SASControllerErrors", Domain: Storage, Severity: finding.Warning,
		Summary: "a SAS controller (LSI, Broadcom) reports error after error of its links or disks",
		Advice: "`dmesg` around the lines names the disks; `smartctl -x /dev/sdX` and the error counters of its link " +
			"(`grep . /sys/class/sas_phy/*/*_count`): cable, backplane, power, then the disk or the controller's firmware.",
		Patterns: []string{`^(?P<subject>mpt[23]sas(?:_cm)?\d+): log_info\(0x3[0-9a-f]{7}\): originator\((?:PL|IOP|IR)\)`},
		Exclude:  `originator\(IOP\), code\(0x03\)`, // a request for a page that the controller does not have
		Kind:     "device", Raise: Rate{5, 10 * time.Minute}, Expiry: time.Hour,
	}, {
		ID: "intel-gpu-hang", Reason: "IntelGPUHang", Domain: Hardware, Severity: finding.Warning,
		Summary: "an Intel GPU hangs, and one of its engines is reset",
		Advice: "`dmesg` names the engine and the program, `cat /sys/class/drm/card*/error` has the driver's report; " +
			"one program: its bug; of several: update kernel and firmware (linux-firmware), then replace the card.",
		Patterns: []string{`^(?:(?:i915|xe) (?P<subject>` + pciAddress + `): )?\[drm\] GPU HANG: `,
			`^(?:i915|xe) (?P<subject2>` + pciAddress + `): \[drm\] Resetting \w+ for (?:preemption time ?out|stopped heartbeat|GPU hang|no progress)`},
		Kind: "gpu", Report: "i915", Expiry: time.Hour,
	}, {
		ID: "nfs-statd-silent", Reason: "NFSStatdNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary: "the node's rpc.statd does not answer the kernel: locks on NFS 3 cannot be had, or are not recovered after the server restarts",
		Advice: "`systemctl status rpc-statd rpcbind` and `rpcinfo -p localhost`: start them, or mount with `nfsvers=4` " +
			"(or `nolock`, when no other node writes there).",
		Patterns: []string{`^lockd: cannot (?:un)?monitor (?P<subject>\S+)$`, `^nsm_mon_unmon: rpc failed, status=-\d+`},
		Kind:     "nfs-server", Expiry: time.Hour,
	}}
}
