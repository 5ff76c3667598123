package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// controllerRules match lines that storage controllers' drivers log below the level of errors:
// drivers/scsi/{3w-*,arcmsr,ips, mpi3mr,mpt3sas,scsi_error}. Those of 3ware controllers, and of Fusion-io's driver, are
// recorded lines too.
func controllerRules() []Rule {
	const device = `^(?:sd|scsi|st|ses|sg) (?P<subject0>\d+:\d+:\d+:\d+): (?:\[(?P<subject>\w+)\] )?(?:tag#\d+ )?`
	return []Rule{{
		ID: "storage-host-reset", Reason: "StorageHostReset", Domain: Storage, Severity: finding.Warning,
		Summary: "commands to disks timed out and the driver of their controller aborts them or resets the bus or the controller",
		Advice: "`dmesg` before the line names the disks: one of them, or all? One: `smartctl -a /dev/sdX`; all: controller, " +
			"cable, backplane, firmware (`lsscsi -H`, the vendor's tool).",
		Literals: []string{"abort device command of", "executing bus reset eh", "executing hw bus reset",
			"'abort all outstanding command", "attempting abort task for", "attempting device reset!", "attempting target reset!",
			"attempting bus reset!", "attempting host reset!", "Resetting controller.", "timed out, resetting card",
			"Issuing HardReset", "Issuing Reset", "controller resetting", "Issuing IOP reset", "Issuing SOFT reset",
			"Controller reset type is", "device reset", "resetting device. lun", "SCSI Host reset", "SCSI Bus reset",
			"SCSI device reset on", "Forced reset on cmd", "Attempting Device(lun)", "Attempting Target Res",
			"Reset successful for", "issue target reset: ",
			"task abort failed", " for LUN reset to complet"},
		Patterns: []string{
			`^(?P<subject>arcmsr\d*): (?:abort device command of scsi id|executing (?:bus reset eh|hw bus reset)|wait 'abort all outstanding commands?' timeout)`,
			`^mpt(?:base|scsih|sas|spi|fc|ctl): (?P<subject>ioc\d+): (?:WARNING \S )?Issuing (?:Hard)?Reset from `,
			`^hisi_sas_v\d_hw (?P<subject>\S+): controller resetting\.\.\.`,
			`^aacraid (?P<subject>` + pciAddress + `): (?:aacraid: )?(?:Issuing (?:IOP|SOFT) reset|Controller reset type is \d)`,
			`^(?:megasas|megaraid_sas (?P<subject1>` + pciAddress + `)): Reset successful for scsi\d`,
			`^(?P<subject4>mpt[23]sas(?:_cm)?\d+): issue target reset: handle`,
			`^pm80[x0][x1] .*task abort failed status 0x`,
			`^smartpqi (?P<subject5>` + pciAddress + `): scsi \S+ waiting \d+ seconds for LUN reset to complete`,
			// virtio_scsi, ibmvscsi, vmw_pvscsi
			device + `(?:device reset$|resetting device\. lun 0x|SCSI (?:Host|Bus) reset$|SCSI device reset on scsi|Forced reset on cmd |Attempting (?:Device\(lun\)|Target) Reset! scmd\()`,
			device + `(?P<controller>mpi3mr\d+): (?:attempting abort task for |attempting (?:device|target|bus|host) reset!)`,
			`^ips (?P<subject2>` + pciAddress + `): Resetting controller\.`,
			`^3w-(?:9xxx|sas|xxxx): scsi(?P<subject3>\d+): .*timed out, resetting card\.`,
		},
		Kind: "device", Report: "host-reset", Expiry: time.Hour,
	}, {
		// A single reset comes from a new disk, a changed array, or a controller that another kernel left.
		ID: "storage-resets-repeat", Reason: "StorageResetsRepeat", Domain: Storage, Severity: finding.Warning,
		Summary: "a disk or a storage controller is reset again and again",
		Advice: "`dmesg` around the lines; `smartctl -x /dev/sdX` (power-on count, link errors): the power supply or the " +
			"backplane of one disk, or the controller, its firmware and its heat.",
		Patterns: []string{device + `(?:Power-on or device reset occurred|device_block, handle\()`,
			`^(?P<subject1>mpt[23]sas(?:_cm)?\d+): sending diag reset !!`},
		Kind: "device", BootGrace: 2 * time.Minute, Raise: Rate{3, time.Hour}, Expiry: time.Hour,
	}, {
		ID: "raid-controller-event", Reason: "RAIDControllerEvent", Domain: Storage, Severity: finding.Warning,
		Summary: "a RAID controller or a flash card reports a fault: of a disk, an array, its battery or itself",
		Advice: "The event's text names the port or the part: `tw_cli /c0 show`, `storcli64 /c0 show all` or `fio-status -a` has " +
			"the state; replace the disk or the battery that it names.",
		Literals: []string{"\n3w-", "\nfioerr ", "\nfiocrt ", "volume is now ", "PhysDisk is now ", "SMART data received",
			" has started"},
		Patterns: []string{
			`^3w-(?:9xxx|sas|xxxx): scsi(?P<subject>\d+): (?:AEN: )?(?:ERROR|WARNING)(?:: | \(0x)`,
			`^3w-(?:9xxx|sas|xxxx): scsi(?P<subject>\d+): Command failed: status = 0x`,
			`^mptbase: (?P<subject1>ioc\d+): +(?:volume is now (?:degraded|failed)|PhysDisk is now (?:missing|failed|offline|not compatible)|SMART data received|replacement of PhysDisk \d+ has started)`,
			`^fio(?:err|crt) (?:\S.{0,60} )?(?P<subject2>` + pciAddress + `|fct\d+): \S`,
		},
		// errors of a request (0x03) for queries that the controller does not know
		Exclude: `\(0x04:0x00(?:08|4[23])\)|\(0x03:0?x01(?:01|0[A-DF])\)|[Uu]nclean shutdown|overdue`,
		Kind:    "device", Expiry: 24 * time.Hour,
	}, {
		ID: "disk-write-refused", Reason: "DiskWriteRefused", Domain: Storage, Severity: finding.Warning,
		Summary: "a disk refuses requests because it is write-protected or locked, or its volume in the storage array is full",
		Advice: "Is the volume's pool in the array full (its own tool, `sg_get_lba_status`)? `sg_persist -r /dev/sdX` for " +
			"reservations, `hdparm -I /dev/sdX` (security: locked), `sedutil-cli --query` for a self-encrypting disk.",
		Patterns: []string{
			`^sd (?P<subject0>\d+:\d+:\d+:\d+): (?:\[(?P<subject>\w+)\] )?(?:tag#\d+ )?(?:Sense Key : Data Protect|Add\. Sense: (?:Space allocation failed write protect|(?:Hardware |Permanent |Persistent |Logical unit software )?[Ww]rite protect(?:ed)?$|Thin provisioning soft threshold reached)|` +
				`Warning! Received an indication that the LUN reached a thin provisioning soft threshold)`,
		},
		Kind: "device", Report: "write-refused", Expiry: time.Hour,
	}}
}
