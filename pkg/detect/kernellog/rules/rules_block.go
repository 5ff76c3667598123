package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// noDisk matches block devices whose errors are not faults of the node: floppies, optical drives without a disc, RAM
// disks; and loop devices, which have their own rule.
const noDisk = `(?:fd\d+|sr\d+|scd\d+|loop\d+(?:p\d+)?|ram\d+|zram\d+)`

// ConfirmedBy is set only for faults that the state shows as long as they exist. Errors of single I/Os, timeouts and
// resets leave no state: they also occur on a disk that SMART calls healthy, and a removed disk has no state at all.
// For them the record alone is the evidence until it expires, and it wakes the checks of disks (nvme-health,
// disk-health, md-arrays).

// blockRules: block/blk-mq.c blk_print_req_error, block/blk-core.c, fs/buffer.c. The prefix "blk_update_request: " was
// dropped in 5.16; from 4.15 to 5.3 it was "print_req_error: ".
func blockRules() []Rule {
	const request = `^(?:blk_update_request: |print_req_error: |end_request: )?`
	return []Rule{{
		ID: "disk-medium-error", Reason: "DiskMediumError", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a /dev/sdX` (pending and reallocated sectors); save the data and replace the disk; " +
			"blocks that cannot be read stay lost.",
		Summary:  "a disk can no longer read or write some of its blocks",
		Patterns: []string{request + `critical medium error, dev (?P<subject>[^\s,]+), sector (?P<sector>\d+)`},
		Exclude:  `error, dev ` + noDisk + `,`,
		Kind:     "device", Expiry: 24 * time.Hour,
	}, {
		ID: "block-io-error", Reason: "BlockIOError", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a /dev/sdX` for the disk, `dmesg` around the line for cable, controller or path, " +
			"`lsblk` for what is on it; of a network disk look at its session.",
		Summary: "reads from a disk, or writes to it, fail",
		Patterns: []string{`^ ?I/O error: dev (?P<subject>[0-9a-f]{2}:[0-9a-f]{2})(?: \(\w+\))?, sector \d+`, // 2.4
			request +
				`(?P<class>I/O|critical (?:target|space allocation|nexus)|timeout|protection|integrity|(?:recoverable )?transport|device offline|duration limit exceeded|reservation conflict|zone (?:open|active) resources exceeded|invalid) error, dev (?P<subject>[^\s,]+), sector (?P<sector>\d+)`},
		// A device that cannot discard or zero reports so once with "critical target error" (until 5.2 the flags end
		// with the number of the operation); nbd devices without a server fail the first read of the
		// partition table.
		Exclude: `error, dev ` + noDisk +
			`,|critical target error, .* flags (?:[0-9a-f]*0)?[3579]$|critical target error, .*\((?:DISCARD|WRITE_ZEROES|WRITE_SAME|SECURE_ERASE)\)|error, dev nbd\d+, sector 0(?:$| flags| op 0x0:)`,
		Kind: "device", Expiry: time.Hour,
	}, {
		ID: "buffer-io-error", Reason: "IOError", Domain: Storage, Severity: finding.Warning,
		Advice: "What was written may be lost: `lsblk` shows the filesystem on it, `smartctl -a /dev/sdX` the " +
			"disk's health; then `fsck` it.",
		Summary: "a block of a disk could not be read, or what was written to it is lost",
		Patterns: []string{
			`^(?P<subject3>[\w!-]+): writeback error on inode \d+, offset \d+, sector \d+`, // fs/iomap/buffered-io.c
			`^Buffer I/O error on dev(?:ice)? (?P<subject>[^\s,]+),? logical block (?P<block>\d+)`,
			`^lost page write due to I/O error on (?P<subject2>\S+)$`,
			`^ ?(?P<subject4>(?:sd|vd|xvd|nvme|dasd)\w+): unable to read partition table$`, // block/partitions/core.c
		},
		Exclude: `on (?:dev(?:ice)? )?` + noDisk + `(?:,|$)|on dev(?:ice)? nbd\d+, logical block 0, async page read`,
		Kind:    "device", Expiry: time.Hour,
	}, {
		// The name before the text is that of the program, since 5.12; the device is in the second line of the record.
		ID: "beyond-end-of-device", Reason: "AccessBeyondEndOfDevice", Domain: Storage, Severity: finding.Warning,
		Advice: "`blockdev --getsize64 /dev/sdX` against the filesystem's own size (`dumpe2fs -h`, `xfs_info`): " +
			"was the disk or volume shrunk, or is another one in its place?",
		Summary: "a filesystem accessed blocks beyond the end of its disk: it is damaged, or the disk shrank",
		Patterns: []string{
			// the second line, as a separate record
			`^(?P<subject>[\w!-]+): rw=\d+, (?:want=\d+, |sector=\d+, nr_sectors = \d+ )limit=\d+$`,
			`^(?:` + Command + `: )?attempt to access beyond end of device(?:$|\\x0a(?P<subject>[^\s:]+): rw=)`},
		Exclude: `(?:^|\\x0a)` + noDisk + `: `,
		Kind:    "device", Report: "beyond-end", Expiry: time.Hour,
	}, {
		// block/blk-core.c. Mounted snapshots are written to, too: no alarm.
		ID: "write-to-read-only-device", Reason: "WriteToReadOnlyDevice", Domain: Storage, Severity: finding.Info,
		Advice: "`lsblk -o NAME,RO,MOUNTPOINTS` shows it: an array that stopped (`mdadm --detail`), a volume that its driver or " +
			"server made read-only, or a snapshot; `blockdev --setrw /dev/X` only once the cause is known.",
		Summary:  "something writes to a block device that is read-only",
		Patterns: []string{`^Trying to write to read-only block-device (?P<subject>[\w!-]+)(?: \(partno \d+\))?$`},
		Exclude:  `block-device ` + noDisk,
		Kind:     "device", Expiry: time.Hour,
	}}
}

// LoopIOError is the ID of the rule for errors of loop devices: the check tests whether the device is in use.
const LoopIOError = "loop-io-error"

// loopRules: the same for loop devices; drivers/block/loop.c. Tools that attach images leave such errors behind when
// they detach them, or when the image is gone.
func loopRules() []Rule {
	const loop = `loop\d+(?:p\d+)?`
	return []Rule{{
		ID: LoopIOError, Reason: "LoopIOError", Domain: Storage, Severity: finding.Warning,
		Advice: "`losetup -l` names the file behind it, `findmnt /dev/loopN` and `lsblk` who uses it; is the file's disk " +
			"full (`df -h`) or failing? What nobody uses: `losetup -d /dev/loopN`.",
		Summary: "reads from a loop device, or writes to it, fail: a fault where a mount or the device mapper uses it, " +
			"else what a detached image leaves behind",
		Literals: []string{" error, dev loop", "Buffer I/O error on dev", "lost page write due to I/O error on loop",
			": rw=", "attempt to access beyond end of device",
			"loop: Write error at byte offset "},
		Patterns: []string{
			`^(?:blk_update_request: |print_req_error: |end_request: )?(?P<class>I/O|critical (?:medium|target|space allocation)|timeout) error, dev (?P<subject>` + loop + `), sector (?P<sector>\d+)`,
			`^Buffer I/O error on dev(?:ice)? (?P<subject>` + loop + `), logical block (?P<block>\d+)`,
			`^lost page write due to I/O error on (?P<subject>` + loop + `)$`,
			// the image is smaller than the filesystem in it; for a detached image the limit is 0
			`^(?:` + Command + `: )?attempt to access beyond end of device\\x0a(?P<subject>` + loop + `): rw=\d+, .{1,80}limit=[1-9]`,
			`^(?P<subject>` + loop + `): rw=\d+, (?:want=\d+, |sector=\d+, nr_sectors = \d+ )limit=[1-9]\d*$`,
			`^loop: Write error at byte offset \d+, length \d+\.`,
		},
		Exclude: `critical target error, .*\((?:DISCARD|WRITE_ZEROES|WRITE_SAME|SECURE_ERASE)\)|critical target error, .* flags (?:[0-9a-f]*0)?[3579]$`,
		Kind:    "device", Expiry: time.Hour,
	}}
}

// scsiRules: drivers/scsi/{scsi_error,scsi_lib,scsi_logging,sd}.c and host adapters' drivers.
func scsiRules() []Rule {
	const device = `^(?:sd|scsi|st|ses|sg) (?P<subject0>\d+:\d+:\d+:\d+): (?:\[(?P<subject>\w+)\] )?(?:tag#\d+ )?`
	return []Rule{{
		ID: "scsi-medium-error", Reason: "SCSIMediumError", Domain: Storage, Severity: finding.Warning,
		Advice:  "`smartctl -a /dev/sdX` (SAS: `smartctl -l error`); save the data and replace the disk.",
		Summary: "a disk reports that it cannot read some of its blocks, or that it is defective",
		Patterns: []string{device +
			`(?:Sense Key : (?P<sense>Medium Error|Hardware Error|0x[34])\b|Add\. Sense: (?:Unrecovered read error|Write error|Peripheral device write fault|Internal target failure|Logical unit failure|Id CRC or ECC error|Data synchronization mark error|(?:Mechanical |Random )?[Pp]ositioning error|Tracking servo failure|` +
			`No defect spare location available|Defect list error|Recor(?:d|ded entity) not found|Logical block (?:guard|application tag|reference tag) check failed|Diagnostic failure on component|` +
			`(?:Media |Logical unit )?[Ff]ailure prediction threshold exceeded|[A-Z][\w ]{3,30} impending failure))`,
			// until 2.6.32
			`^ *(?:Info fld=0x[0-9a-f]+, )?(?:(?P<subject1>sd\w+): )?Current(?: \[\w+\])?(?: (?P<subject2>sd\w+))?: sense key:? (?:Medium|Hardware) Error`,
			`^ *Additional sense: (?:Unrecovered read error|Write error|Peripheral device write fault|Internal target failure|Failure prediction threshold exceeded)`,
			`^(?:hpsa|cciss) (?P<subject3>` + pciAddress + `): .*(?: sense key = 0x[34]\b| Sense: 0x[34],)`},
		Kind: "device", Report: "scsi-sense", Expiry: 24 * time.Hour,
	}, {
		ID: "scsi-device-offline", Reason: "DiskOffline", Domain: Storage, Severity: finding.Warning,
		Advice: "`cat /sys/block/sdX/device/state`; when its cause (cable, controller, path) is mended: " +
			"`rescan-scsi-bus.sh`, or write \"running\" to that file.",
		Summary: "the kernel took a disk offline: every access to it fails",
		Patterns: []string{device +
			`(?:scsi: )?(?:rejecting I/O to offline device|killing request$|Device offlined - not ready after error recovery|Medium access timeout failure\. Offlining disk!)`,
			`^scsi(?P<subject2>\d+ \(\d+:\d+\)): rejecting I/O to offline device`, // until 2.6.26
		},
		Kind: "device", Expiry: 24 * time.Hour, ConfirmedBy: "scsi-device-state",
	}, {
		ID: "scsi-device-dead", Reason: "DiskGone", Domain: Storage, Severity: finding.Warning,
		Advice: "A removed disk is still in use: `lsof /dev/sdX`, `findmnt /dev/sdX`, `dmsetup ls --tree`: end " +
			"the users, unmount.",
		Summary: "a disk that was removed is still in use: every access to it fails",
		Patterns: []string{device + `rejecting I/O to dead device`,
			`^scsi(?P<subject2>\d+ \(\d+:\d+\)): rejecting I/O to dead device`},
		Kind: "device", Expiry: time.Hour,
	}, {
		ID: "scsi-command-failed", Reason: "SCSICommandFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a /dev/sdX`, `multipath -ll`; many disks at once: controller, backplane, cable or " +
			"fabric, not the disk.",
		Summary: "a disk, or the path to it, does not respond or breaks its protocol",
		Literals: []string{"Result: hostbyte=", "Add. Sense: ", "uas_eh_", "SCSI host ", " reset logical ", " reset physical ",
			"task abort: ", "device reset: ", "target reset: ", "bus reset: ", "host reset: ", " called for scmd(",
			"SCSI error", "aborting command due to timeout", "SCSI bus is being reset for host", "timing out command, waited", "Sense Key : Aborted Command",
			"attempting task abort!", "attempting device reset!", "attempting target reset!", "attempting host reset!",
			"attempting bus reset!", " RESET ISSUED", " RESET FAILED", "Abort command issued nexus", ": resetting ",
			"_reset failed for cmd=", "attempting TASK ABORT on ", " uas-tag ", " timed out after ",
			"Task abort tm failed", " FAILED err ", " FAILED to ",
			" resetting logical", " resetting physical", " cmd 0x"},
		Patterns: []string{
			device +
				`(?:(?:UNKNOWN\(0x[0-9a-f]+\) |FAILED |alua: rtpg failed, |[A-Z][\w /()]{3,40} failed: )?Result: hostbyte=(?:DID_(?P<result>TIME_OUT|NO_CONNECT|BAD_TARGET|TRANSPORT_\w+|ABORT|ERROR|SOFT_ERROR)|0x0*(?:[13457bef])\b|(?:DID_OK|0x0+) driverbyte=(?:DRIVER_(?:TIMEOUT|HARD)\b|0x0[67]\b))|timing out command, waited \d+s|Sense Key : Aborted Command)`,
			device + `Add\. Sense: (?:Logical unit communication (?:failure|time-?out|parity error|CRC error)|Timeout on logical unit|Information unit iuCRC error|Data phase CRC error|` +
				`Protocol service CRC error|(?:SCSI |Scsi )?[Pp]arity error|Nak received|Ack/nak timeout|Initiator (?:response timeout|detected error message)|(?:Command|Data) phase error|Unaligned write command)`,
			// Codes of drivers/scsi/sense_codes.h that an active path never returns. "Manual intervention required"
			// also comes from passive paths.
			`^sd (?P<subject0>\d+:\d+:\d+:\d+): (?:\[(?P<subject>\w+)\] )?(?:tag#\d+ )?Add\. Sense: (?:Logical unit not accessible, target port in unavailable state|` +
				`Logical unit not ready, (?:cause not reportable|offline|hard reset required|logical unit reset required|power cycle required)|` +
				`Logical unit (?:not supported|not configured|failed self-(?:test|configuration)|does not respond to selection)|Configuration failure$)`,
			device + `attempting (?:task abort|device reset|target reset)! ?scmd\(`, // drivers/scsi/mpt3sas
			`^(?P<subject>mpt[23]sas(?:_cm)?\d+): attempting (?:task abort|device reset|target reset|host reset)! ?scmd\(`,
			`^mptscsih: (?P<subject>ioc\d+): attempting (?:task abort|target reset|bus reset|host reset)! \(sc=`,
			`^qla2xxx \[(?P<subject>` + pciAddress +
				`)\]-[0-9a-f]+:\d+: (?:(?:(?:DEVICE|TARGET|BUS|ADAPTER) RESET (?:ISSUED|FAILED: .{1,60}?)|Abort command issued) nexus|(?:do|target)_reset failed for cmd=)`,
			`^(?:hpsa|smartpqi) (?P<subject>` + pciAddress +
				`): (?:scsi \S+ reset(?:ting)? (?:logical|physical) |resetting scsi \S+|attempting TASK ABORT on |scsi \d+:\d+:\d+:\d+: timed out after )`,
			// drivers/usb/storage/uas.c
			device + `[a-z][\w ]{2,30} -?\d+ uas-tag \d+ inflight:`,
			device + `(?:task abort|device reset|target reset|bus reset|host reset): (?:SUCCESS|FAILED) scmd\(|` + device + `(?:target reset|task abort) called for scmd\(`,
			`^mptscsih: (?P<subject>ioc\d+): (?:task abort|target reset|bus reset|host reset): (?:SUCCESS|FAILED) `,
			// until 2.6.32, and RHEL 5: the second byte is that of the host
			`^(?:sd (?P<subject>\d+:\d+:\d+:\d+): )?SCSI error ?: (?:<\d+ \d+ \d+ \d+> )?return code = 0x(?:[0-9a-f]{2}0[13457bef][0-9a-f]{4}|06[0-9a-f]{6}|[13457bef]0000)$`,
			`^scsi host(?P<subject>\d+): uas_eh_\w+ (?:FAILED (?:err|to) |start$)`,
			`^(?P<subject>mpt[23]sas(?:_cm)?\d+): Task abort tm failed: `,
			// until 2.4
			`^SCSI host (?P<subject>\d+) (?:abort|channel \d+ reset|reset) \(pid \d+\) timed out`,
			`^scsi ?: aborting command due to timeout`, `^SCSI bus is being reset for host (?P<subject>\d+) channel`,
			// Lines of Hyper-V's storage about reads and writes; it refuses other commands at every boot.
			`^hv_storvsc (?P<subject>\S+): (?:tag#\d+ )?cmd 0x(?:28|2a|35|88|8a|8f) (?:status: scsi|scsi status) 0x`,
		},
		Kind: "device", Report: "scsi-sense", Expiry: time.Hour,
	}, {
		ID: "storage-controller-fault", Reason: "StorageControllerFault", Domain: Storage, Severity: finding.Warning,
		Advice: "`storcli64 /c0 show all` (`ssacli ctrl all show status`, `sas3ircu LIST`): firmware, battery, " +
			"heat; update firmware and driver.",
		Summary: "a storage controller stopped or was reset",
		Literals: []string{"FW in FAULT state", "fault_state(0x", "SAS host is non-operational",
			"Controller lockup detected", "controller is offline", "controller offline", "Host adapter abort request",
			" reset request", "Adapter health - ", "megasas: RESET cmd=", "resetting fusion adapter",
			"Controller in crit error", "HBA is killed", "Controller is not operational", "killing adapter ",
			"dapter already dead", "FW detected to be in fault",
			"cannot recover from previous reset", "Diag reset adapter never", "is timed out", "DCMD timed out, ",
			"DCMD timeout is", "OCR is requested due to", "pending commands remain after", "Heartbeat never completed",
			"task mgmt type 0x", "coredump_state(0x", "diag reset: FAILED", "CoreDump ", "host has been removed",
			"Disabling adapter",
			"FAILED with timeout", "WarpDrive Fatal Error", "PQI reset failed", "timed out waiting for ",
			"lockup detected after", "board not ready, timed out", "controller message ", "giving up on device.",
			"Host adapter is dead", "IOC is in FAULT state", "first asynchronous command timed", "adapter blinkLED", "adapter BLINK LED", "Host adapter dead",
			"reset failed", "ARC Reset attempt failed", "PCI error - slot reset f",
			"ISP System Error", "Heartbeat Failure", "board disabled", "nrecoverable", "ISP error recover failed",
			"Parity error -- HCCR",
			"MPI Heartbeat stop", "RISC paused --", "unable to recover from PCI", "Wait for hba online", "lpfc ",
			"AHCI controller unavail", "no heartbeat detected", " commands to complete", "ISP error recovery",
			"Firmware is halted", "will reset adapter", "/FATAL) - ", "/CRIT) - ", "/DEAD) - ", "- Predictive failure",
			"failed due to timeout count(", ") found"},
		Patterns: []string{
			`^(?:megaraid_sas|hpsa|smartpqi|aacraid) (?P<subject>` + pciAddress +
				`): (?:.*FW in FAULT state|Controller lockup detected|controller is offline|controller offline(?:: |$)|Adapter health - |resetting fusion adapter|Controller in crit error|(?:aacraid: )?PCI error - slot reset failed|ARC Reset attempt failed|(?:IOP|SOFT) reset failed|` +
				`PQI reset failed|timed out waiting for (?:PQI|admin response|soft reset status|pending IO)|(?:controller )?lockup detected after|board not ready, timed out|controller message \w+:\w+ timed out|giving up on device\.|` +
				`(?:\S+:\d+ )?(?:OCR failed and )?HBA is killed|(?:.*[ ,])?killing adapter scsi|Adapter already dead|FW detected to be in faultstate|cannot recover from previous reset failures|Diag reset adapter never cleared|` +
				`(?:MFI command|DCMD ?\(opcode: 0x[0-9a-f]+\)|Abort\(to be aborted DCMD opcode: 0x[0-9a-f]+\)) is timed out|\w+ DCMD timed out, |IO/DCMD timeout is detected|pending commands remain after waiting|` +
				`(?:SR-IOV: )?Heartbeat never completed|task mgmt type 0x[0-9a-f]+ timed out|Controller is not operational|no heartbeat detected|\[ *\d+\]waiting for \d+ commands to complete)`,
			// An event of the firmware of a megaraid controller: number, time, class, severity.
			`^megaraid_sas (?P<subject>` + pciAddress +
				`): \d+ \([^)]{1,40}/0x[0-9a-f]+/(?:(?:CRIT|FATAL|DEAD)\) - |WARN\) - Predictive failure)`,
			`^qla2xxx \[(?P<subject>` + pciAddress + `)\]-[0-9a-f]+:\d+: (?:Performing ISP error recovery|ISP System Error - |ISP error recover failed|Heartbeat Failure|.*board disabled\.|Device in unrecoverable|` +
				`Unrecoverable (?:Fatal|Hardware) [Ee]rror|Parity error -- HCCR|MPI Heartbeat stop\.|Device unable to recover from PCI|Wait for hba online failed|RISC (?:reset failed|paused --)|Disabling adapter\.)`,
			// drivers/scsi/lpfc: the message number identifies the message
			`^lpfc (?P<subject>` + pciAddress + `): \d+:(?:\(\d+\):)?(?:0310 Mailbox command|0345 Resetting board|0406 Adapter maximum temperature|` +
				`0(?:436|437|438|439|440|442|446|448|453|498) Adapter failed|0459 Adapter heartbeat|1422 |1423 |1805 |2751 |2752 |2888 |2889 |3152 |3317 |8888 )`,
			`^(?P<subject2>mpt[23]sas(?:_cm)?\d+): (?:_\w+ : )?(?:fault_state\(0x|coredump_state\(0x|SAS host is non-operational|Firmware is halted|diag reset: FAILED|\w+: (?:failed due to timeout count\(|CoreDump [Tt]imed out|host has been removed)|` +
				`port enable: FAILED with timeout|WarpDrive Fatal Error: )`,
			`^sd \d+:\d+:\d+:\d+: \[(?P<subject3>\w+)\] (?:megasas: RESET cmd=|tag#\d+ OCR is requested due to IO timeout)`,
			`^ahci (?P<subject>` + pciAddress + `): AHCI controller unavailable!`,
			`^megasas: (?:\[ *\d+\]waiting for \d+ commands to complete|(?:Found )?FW in FAULT state|.*will reset adapter|pending commands remain after)`, // until 4.3
			`^(?:aacraid|AAC\d*): Host adapter (?:BLINK LED 0x|dead -?\d)`,
			`^aacraid: (?:Host (?:adapter abort|(?:adapter|bus|device|target) reset) request|Host adapter is dead|aac_fib_send: (?:adapter blinkLED |first asynchronous command timed out))`,
			`^mptbase: (?P<subject4>ioc\d+): (?:WARNING|ERROR) \S IOC is in FAULT state`,
			// fatal_axi_int_v2_hw, multi_bit_ecc_error_process_v2_hw; a line without a number in brackets is a
			// corrected error
			`^hisi_sas_v2_hw (?P<subject5>\S+): (?:\w+_AXI_[RW]_ERR|\w+_FIF(?:O|IO)|(?:write|read) pointer and depth|iptt no match slot|lm add/fetch list|SAS_HGC_ABT fetch LM list|\w+_eccbad_\w+) \(0x[0-9a-f]+\) found`,
		},
		Kind: "device", Expiry: 24 * time.Hour,
	}}
}

// ataRules: drivers/ata/libata-eh.c
func ataRules() []Rule {
	const port = `^(?P<subject>ata\d+(?:\.\d+)?): `
	return []Rule{{
		ID: "ata-device-disabled", Reason: "ATADeviceDisabled", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a /dev/sdX`; reseat the disk and its cable; `echo \"- - -\"` into " +
			"/sys/class/scsi_host/hostN/scan finds it again.",
		Summary:  "the kernel disabled a SATA disk",
		Literals: []string{": disable device", ": disabled", "giving up", " tries, disabling"},
		Patterns: []string{port +
			`(?:disable device|disabled$|reset failed, giving up|EH pending after \d+ tries, giving up|failed to recover (?:link|PMP) after \d+ tries, (?:disabling|giving up)|failed to reset PMP, giving up|PHY status changed but maxed out on retries, giving up)`},
		Kind: "device", Expiry: UntilBoot,
		Recovery: port + `(?:configured for |SATA link up )`,
	}, {
		ID: "ata-error", Reason: "ATAError", Domain: Storage, Severity: finding.Warning,
		Advice:  "`smartctl -a /dev/sdX`: UDMA_CRC errors mean the cable or backplane, pending sectors the disk.",
		Summary: "commands to a SATA disk fail: the disk, its cable or its power supply is faulty",
		Literals: []string{
			": exception Emask ", ": failed command: ", ": NCQ disabled due to excessive errors", ": qc timeout ",
			": COMRESET failed", ": status: { ", ": error: { ", ": SError: { ",
			" resetting link", ": revalidation failed", ": failed to IDENTIFY", ": limiting SATA link speed", ": limiting speed to ",
			": softreset failed", ": hardreset failed", ": SRST failed", ": FLUSH failed Emask",
			": reset failed (errno=",
			": prereset failed", ": device not ready (errno=", ": irq_stat 0x", ": port failed to respond",
			": failed to resume link",
			": failed to read SCR ", ": failed to write SCR ", "reports diagnostics failure", ": VERIFY failed (", " Emask 0x", ": cmd ", "\nhd",
			": link online but ",
		},
		Patterns: []string{port +
			`(?:(?:status|error|SError): \{ |(?:hard|soft) resetting link|irq_stat 0x[0-9a-f]+, (?:.*, )?(?:interface fatal error|host bus error|unknown FIS )|revalidation failed|failed to IDENTIFY \(|limiting (?:SATA link )?speed to |(?:softreset|hardreset|SRST) failed|exception Emask 0x[0-9a-f]+ |failed command: (?P<command>\S.*)|NCQ disabled due to excessive errors|COMRESET failed|FLUSH failed Emask|(?:pre)?reset failed \(errno=|device not ready \(errno=|port failed to respond \(|failed to resume link|failed to (?:read|write) SCR \d+ |Drive reports diagnostics failure|VERIFY failed \(|link online but \d+ devices misclassified, device detection might fail|qc timeout (?:after \d+ msecs )?\(cmd |cmd [0-9a-f]{2}/[0-9a-f]{2}:)`,
			`^ *res [0-9a-f]{2}/[0-9a-f:/]{20,60} Emask 0x[0-9a-f]+ \(`, // the second line of the failed command
			// until 2.6.30, of the old IDE drivers
			`^(?P<subject>hd[a-z]): (?:(?:(?:dma|read|write|multwrite|recal|task_\w+)_intr|task_\w+|ide_dma_\w+): (?:status|error)=0x[0-9a-f]{2} \{|lost interrupt|DMA (?:timeout|interrupt)|status (?:timeout|error): status=0x|timeout waiting for DMA|drive not ready for command|dma_timer_expiry: )`,
		},
		Exclude: `failed command: (?:PACKET|IDENTIFY PACKET DEVICE)|^ata\S+ cmd a0/`,
		Kind:    "device", Report: "ata", Expiry: time.Hour,
	}}
}

// nvmeRules: drivers/nvme/host/{pci,core,multipath,fc,tcp}.c. The text of a timeout differs in nearly every kernel
// version.
func nvmeRules() []Rule {
	// Until 4.5, and in enterprise kernels of that time, it is a message of the PCI device.
	const controller = `^nvme (?P<subject>nvme\d+|` + pciAddress + `): `
	const nvmeHead = `^(?:block |nvme )?(?P<subject>nvme\S+): `
	return []Rule{{
		ID: "nvme-disabled", Reason: "NVMeDisabled", Domain: Storage, Severity: finding.Warning,
		Advice: "`nvme list` and `nvme smart-log /dev/nvmeN`; a power-cycle of the slot brings it back, or it is " +
			"dead: replace.",
		Summary: "the kernel disabled an NVMe disk: every access to it fails",
		Patterns: []string{controller +
			`(?:Identify Controller failed \(|could not bring controller to|Disabling device after reset failure|Removing after probe failure|Device not ready; aborting (?:initiali[sz]ation|reset)|failed to mark controller |failure state error detected)`},
		Kind: "device", Expiry: UntilBoot,
		Recovery: controller + `\d+/\d+/\d+ default/read/poll queues`,
	}, {
		ID: "nvme-controller-down", Reason: "NVMeControllerDown", Domain: Storage, Severity: finding.Warning,
		Advice: "`nvme smart-log /dev/nvmeN`, `nvme error-log /dev/nvmeN`; update its firmware; if the line " +
			"advises it: `nvme_core.default_ps_max_latency_us=0` on the kernel's command line.",
		Summary: "an NVMe disk stopped responding and is being reset",
		Patterns: []string{controller +
			`(?:controller is down; will reset|resetting controller due to (?:persistent internal error|AER$)|frozen state error detected, reset controller|IO queues lost|Does your device have a faulty power saving mode enabled\?)`},
		Kind: "device", Expiry: 24 * time.Hour,
	}, {
		ID: "nvme-timeout", Reason: "NVMeTimeout", Domain: Storage, Severity: finding.Warning,
		Advice: "`nvme smart-log /dev/nvmeN`; of a cloud's network disk raise `nvme_core.io_timeout`; else " +
			"firmware, slot, replacement.",
		Summary: "commands to an NVMe disk time out",
		Patterns: []string{
			controller +
				`I/O [^:]{0,120} QID \d+ timeout, (?:aborting|reset controller|disable controller|completion polled)`,
			controller +
				`I/O (?:tag )?\d+ .{0,160}timeout, (?:aborting|reset controller|disable controller|completion polled)`,
			controller + `I/O [^:]{0,120} QID \d+ timeout$`, // over a fabric
			controller + `(?:Fw activation timeout, reset controller|ANATT timeout, resetting controller)`,
			controller + `queue \d+: timeout (?:cid|request) 0x[0-9a-f]+`,
			controller + `Abort status: 0x[1-9a-f][0-9a-f]*`, // the late command could not be aborted
		},
		Kind: "device", Expiry: time.Hour,
	}, {
		ID: "nvme-media-error", Reason: "NVMeMediaError", Domain: Storage, Severity: finding.Warning,
		Advice:   "`nvme smart-log /dev/nvmeN` (media_errors, available_spare); save the data and replace the disk.",
		Summary:  "an NVMe disk can no longer read or write some of its blocks",
		Patterns: []string{`^(?P<subject>nvme\d+(?:c\d+)?n\d+): [A-Z][\w /]*\(0x[0-9a-f]+\)(?: @ LBA (?P<lba>\d+), \d+ blocks)?, .*\(sct 0x(?:2 / sc 0x[0-9a-f]+|0 / sc 0x6)\)`},
		Kind:     "device", Expiry: 24 * time.Hour,
	}, {
		// Of the generic status codes only those that blame the disk: the others reject unsupported commands.
		ID: "nvme-command-failed", Reason: "NVMeCommandFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`nvme error-log /dev/nvmeN` and `nvme smart-log /dev/nvmeN`; of a fabric also `nvme " +
			"list-subsys`.",
		Summary:  "commands to an NVMe disk fail: the disk, or the path to it, is faulty",
		Patterns: []string{`^(?P<subject>nvme\d+(?:c\d+)?n\d+): [A-Z][\w /]*\(0x[0-9a-f]+\)(?: @ LBA \d+, \d+ blocks)?, .*\(sct 0x(?:3 / sc 0x[0-9a-f]+|0 / sc 0x(?:4|5|8|82))\)`},
		Kind:     "device", Expiry: time.Hour,
	}, {
		ID: "nvme-no-path", Reason: "NVMeNoPath", Domain: Storage, Severity: finding.Warning,
		Advice: "`nvme list-subsys` shows the paths and their state: I/O waits until one is back, or " +
			"ctrl_loss_tmo ends.",
		Summary:  "no path to an NVMe namespace is usable, and I/O waits for one",
		Patterns: []string{nvmeHead + `no (?:available |usable )?path(?: available)? - requeuing I/O`},
		Kind:     "device", Expiry: time.Hour, ConfirmedBy: "multipath",
	}, {
		ID: "nvme-paths-lost", Reason: "NVMePathsLost", Domain: Storage, Severity: finding.Warning,
		Advice: "`nvme list-subsys`; `nvme connect-all` when the target answers; filesystems on it must be " +
			"unmounted and checked.",
		Summary:  "no path to an NVMe namespace is left, and I/O fails",
		Patterns: []string{nvmeHead + `no (?:available |usable )?path(?: available)? - failing I/O`},
		Kind:     "device", Expiry: time.Hour,
	}}
}
