package rules

import (
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// deviceDaemonRules match lines of smartd, multipathd, mdadm, iscsid, udevd, mcelog and rasdaemon.
func deviceDaemonRules() []Rule {
	const disk = `^Device: /dev/(?P<subject>[\w/-]{1,64})(?: \[[^\]]{1,40}\])*, `
	return slices.Concat(emittedBy([]Emitter{Smartd}, []Rule{{
		ID: "smartd-failing", Reason: "DiskFailing", Domain: Storage, Severity: finding.Warning,
		Advice:  "`smartctl -a /dev/sdX`: save the data and replace the disk now.",
		Summary: "a disk's self-assessment (SMART) predicts its failure",
		Patterns: []string{disk +
			`(?:FAILED SMART self-check|SMART Failure|Failed SMART (?:usage|prefail|pre-fail) Attribute|Critical Warning \(0x)`},
		Kind: "device", Expiry: 24 * time.Hour, ConfirmedBy: "disk-health",
	}, {
		ID: "smartd-bad-sectors", Reason: "DiskBadSectors", Domain: Storage, Severity: finding.Warning,
		Advice:  "`smartctl -a /dev/sdX`, `smartctl -t long /dev/sdX`; growing numbers: replace the disk.",
		Summary: "a disk cannot read some of its sectors",
		Patterns: []string{disk +
			`(?P<count>[1-9]\d*) (?:Currently unreadable \(pending\)|[Oo]ffline uncorrectable) sectors`},
		Kind: "device", Expiry: 24 * time.Hour, ConfirmedBy: "disk-health",
	}, {
		ID: "smartd-temperature", Reason: "DiskTemperature", Domain: Storage, Severity: finding.Warning,
		Advice:   "`smartctl -A /dev/sdX`, fans and air flow (`ipmitool sdr type Fan`).",
		Summary:  "a disk is too hot",
		Patterns: []string{disk + `Temperature \d+ Celsius reached critical limit of \d+`},
		Kind:     "device", Expiry: hour, ConfirmedBy: "disk-health",
	}, {
		ID: "smartd-errors", Reason: "DiskErrorsLogged", Domain: Storage, Severity: finding.Info,
		Advice:  "`smartctl -l error /dev/sdX`: CRC errors mean the cable, UNC the disk.",
		Summary: "the error log of a disk has new entries",
		// sectors moved, errors, sectors unreadable
		Patterns: []string{disk +
			`(?:ATA error count increased from|Self-Test Log error count increased from|number of Error Log entries increased from|new Self-Test Log error at |SMART (?:Prefailure|Usage) Attribute: (?:5|187|196|197|198) \S+ changed from)`},
		Kind: "device", Expiry: 24 * time.Hour,
	}, {
		ID: "smartd-unreachable", Reason: "DiskNotAnswering", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a /dev/sdX`, `lsblk`: is the disk gone, or was it removed and smartd's configuration " +
			"is old?",
		Summary: "the health of a disk can no longer be read: it hangs, or it was removed",
		Patterns: []string{disk +
			`(?:failed to read SMART |open\(\) (?:of \S+ device )?failed: |Read SMART (?:Self-Test|Error) Log Failed|Read NVMe SMART\S* (?:information|log)\S* failed|Bad IEC \(SMART\) mode page)`},
		Kind: "device", Expiry: hour, ConfirmedBy: "disk-health",
	}}), emittedBy([]Emitter{Multipathd}, []Rule{{
		ID: "multipathd-no-path", Reason: "MultipathNoPath", Domain: Storage, Severity: finding.Warning,
		Advice:   "`multipath -ll`: mend the fabric or session; I/O waits or fails until a path is back.",
		Summary:  "no path to a disk is left",
		Patterns: []string{`^(?P<subject>\S{1,128}): (?:remaining active paths: 0$|Entering recovery mode|Disable queueing)`},
		Kind:     "multipath", Report: "multipathd", Expiry: hour, ConfirmedBy: "multipath",
	}, {
		ID: "multipathd-path-failed", Reason: "MultipathPathFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`multipath -ll` shows what is left; the link of the path: `cat " +
			"/sys/class/fc_host/host*/port_state`, `iscsiadm -m session`.",
		Summary: "one of the paths to a disk failed",
		Patterns: []string{
			`^checker failed path (?P<subject>\S{1,64}) in map (?P<map>\S{1,128})`,
			`^(?P<map>\S{1,128}): (?P<subject>\S{1,64}) - (?:\w+ checker reports path is (?:down|faulty)|path offline|(?:tur|directio|emc_clariion|rdac|hp_sw)\S* checker (?:reports|timed out))`,
			`^(?P<subject2>\S{1,64}): mark as failed`,
		},
		Kind: "path", Expiry: hour, ConfirmedBy: "multipath",
		Recovery: `^(?:(?:\S{1,128}): (?P<subject>\S{1,64}) - \w+ checker reports path is up|(?P<subject2>\S{1,64}): reinstated)`,
	}, {
		ID: "multipathd-map-failed", Reason: "MultipathMapFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`multipath -v3` says why; mostly a local disk, or one that is in use without its map (`lsblk`): put it on the " +
			"blacklist in /etc/multipath.conf.",
		Summary: "multipathd cannot build the map of a disk: its paths are used alone, or not at all",
		Patterns: []string{`^(?P<subject>\S{1,128}): failed (?:in domap|to setup map) for (?:addition of new|removal of) path `,
			`^libdevmapper: \S+: device-mapper: (?:table|reload|resume|create) ioctl on (?P<subject2>\S{1,128}) +failed: `},
		Kind: "multipath", Raise: Rate{3, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "multipath",
	}}), emittedBy([]Emitter{Mdadm}, []Rule{{
		ID: "mdadm-degraded", Reason: "RAIDDiskFailed", Domain: Storage, Severity: finding.Warning,
		Advice:   "`mdadm --detail /dev/mdN`, `smartctl -a` of the failed disk; `mdadm /dev/mdN --add /dev/sdY`.",
		Summary:  "a RAID array lost a disk, or its spare failed",
		Patterns: []string{`^(?:Fail|FailSpare|DegradedArray|DeviceDisappeared) event detected on md device (?:/dev/)?(?P<subject>[\w/-]{1,64})`},
		Kind:     "raid-array", Expiry: 24 * time.Hour, ConfirmedBy: "md-arrays",
	}}), emittedBy([]Emitter{ISCSI}, []Rule{{
		ID: "iscsid-connection", Reason: "ISCSIConnectionLost", Domain: Storage, Severity: finding.Warning,
		Advice: "`iscsiadm -m session -P3`; does the portal's port 3260 answer? `iscsiadm -m node -T TARGET " +
			"--login`.",
		Summary: "the connection to an iSCSI disk was lost",
		Patterns: []string{`^(?:iscsid: )?Kernel reported iSCSI connection (?P<subject>\d+:\d+) error \(`,
			`^(?:iscsid: )?cannot make (?:a )?connection to (?P<subject2>\S{1,128}):`,
			`^(?:iscsid: )?connect to (?P<subject>\S{1,128}) failed \(`,
			`^(?:iscsid: )?(?:conn(?:ection)? ?[\d:]+ login rejected|Login I/O error, failed to|login failed)`,
			`^(?:iscsid: )?can't (?:(?:bind|start|create) conn(?:ection)?|set operational parameter \d+ for connection) (?P<subject>\d+:\d+)`,
			`^(?:iscsid: )?Received iferror -\d+: `},
		Kind: "connection", Expiry: hour,
		Recovery: `^(?:iscsid: )?connection(?P<subject>\d+:\d+) is operational after recovery`,
	}}), emittedBy([]Emitter{Udev}, []Rule{{
		ID: "udev-stuck", Reason: "UdevStuck", Domain: System, Severity: finding.Warning,
		Advice: "`udevadm monitor` and `ps -ef` for the worker that hangs: a device that does not answer " +
			"(`dmesg`).",
		Summary: "a device does not respond while udev sets it up, or its driver hangs",
		Literals: []string{" timeout; kill it", "is taking a long time", " terminated by signal 9", "pawned process ",
			" processing SEQNUM=", "] failed", "vent loop failed: "},
		Patterns: []string{`^(?:\S{1,200}: )?[Ww]orker (?:process )?\[\d+\] (?:\S{1,255} )?(?:.* )?(?:timeout; kill it|is taking a long time|terminated by signal 9)`, `^(?:\S{1,200}: )?Spawned process .{1,200} (?:timed out|is taking longer)`, `^(?P<subject>\S{1,200}): Worker \[\d+\] (?:processing SEQNUM=\d+ (?:is taking a long time|killed)|failed$)`,
			`^Event loop failed: `},
		Kind: "device", Expiry: hour,
	}}), emittedBy([]Emitter{HardwareDaemon}, []Rule{{
		ID: "mcelog-threshold", Reason: "MemoryReadError", Domain: Hardware, Severity: finding.Warning,
		Advice:   "`mcelog --client` names the module or page; replace the module at the next maintenance.",
		Summary:  "a memory module or processor has corrected so many errors that it is about to fail",
		Patterns: []string{`^(?:mcelog: )?.{0,80}(?:memory error|cache|bus|correct\w+) .{0,60}(?:count )?exceed(?:ed)? threshold`},
		Kind:     NodeKind, Expiry: 24 * time.Hour, ConfirmedBy: "edac",
	}, {
		ID: "mcelog-uncorrected", Reason: "MachineCheckUncorrected", Domain: Hardware, Severity: finding.Warning,
		Advice:  "Drain the node; `ras-mc-ctl --errors` or `mcelog --client` names the part to replace.",
		Summary: "the hardware reported an error that it could not correct",
		Patterns: []string{`^(?:mcelog: )?(?:Uncorrected error|Processor context corrupt)`,
			`^(?:.{1,120} )?(?:mc_event|mce_record|aer_event|extlog_mem_event|arm_event|non_standard_event): .*\b(?:Uncorrected|Fatal|Uncorrected \(Fatal\))\b`},
		Kind: NodeKind, Expiry: 24 * time.Hour, ConfirmedBy: "edac",
	}, {
		ID: "mcelog-corrected", Reason: "MachineCheckCorrected", Domain: Hardware, Severity: finding.Info,
		Advice:  "Nothing is lost; `ras-mc-ctl --errors` counts; many from one part: replace it.",
		Summary: "the hardware reported an error that it corrected",
		Patterns: []string{`^(?:mcelog: )?Hardware event\. This is not a software error`,
			`^(?:.{1,120} )?(?:mc_event|mce_record|aer_event|extlog_mem_event): .`},
		Kind: NodeKind, Escalate: Rate{10, time.Hour}, EscalateSeverity: finding.Warning, Expiry: 24 * time.Hour,
		ConfirmedBy: "edac",
	}}))
}

// auditRules match lines of auditd about lost events: auditd-event.c, audisp/queue.c.
func auditRules() []Rule {
	return []Rule{{
		ID: "audit-events-lost", Reason: "AuditEventsLost", Domain: System, Severity: finding.Warning,
		Emitters: []Emitter{Auditd},
		Advice: "`auditctl -s` (lost, backlog) and `q_depth` in /etc/audit/auditd.conf; a plugin (SIEM agent) that is slow or hangs: " +
			"`systemctl status auditd`; fewer rules: `auditctl -l`.",
		Summary:  "auditd drops events because what reads them, or its disk, is too slow",
		Patterns: []string{`^(?:queue to plugins is full - dropping event|dispatch err \(pipe full\) event lost)`},
		Kind:     NodeKind, Expiry: hour,
	}}
}

// uplink matches network devices of the machine itself: those of pods lose their carrier whenever a pod ends.
const uplink = `(?:en[ospx]\w{1,13}|eth\d{1,3}|em\d{1,2}|p\d{1,2}p\d{1,2}\w{0,4}|ib\w{1,12}|bond\d{1,3}|team\d{1,3})`

// hostDaemonRules match lines of daemons for time and network.
func hostDaemonRules() []Rule {
	return slices.Concat(emittedBy([]Emitter{TimeDaemon}, []Rule{{
		ID: "time-unsynchronised", Reason: "ClockUnsynchronised", Domain: System, Severity: finding.Warning,
		Advice: "`chronyc tracking` and `chronyc sources` (or `timedatectl timesync-status`): servers, firewall " +
			"(UDP 123).",
		Summary: "the time daemon has no server that it can synchronise to",
		Patterns: []string{`^Can't synchronise: no (?:majority|selectable sources|reachable sources)`,
			`^no servers? (?:reachable|suitable for synchronization)`, `^synchronization lost$`},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "time-sync",
		Recovery: `^Selected source `,
	}, {
		ID: "time-server-silent", Reason: "ClockUnsynchronised", Domain: System, Severity: finding.Warning,
		Advice: "`chronyc sources -v` (or `timedatectl timesync-status`): reach 0 means blocked or dead; name " +
			"resolution.",
		Summary:  "the time daemon's servers do not answer, or do not know the time themselves",
		Patterns: []string{`^Timed out waiting for reply from (?P<server>\S{1,255})`, `^Server has too large root distance`},
		Kind:     NodeKind, Raise: Rate{5, hour}, Expiry: hour, ConfirmedBy: "time-sync",
		Recovery: `^(?:Initial clock synchronization|Synchronized to time server|Contacted time server )`,
	}, {
		// chrony sources.c, sys_linux.c; ntpd ntp_loopfilter.c. A single line is the first try of a server.
		ID: "time-server-wrong", Reason: "ClockSourcesDisagree", Domain: System, Severity: finding.Warning,
		Advice: "`chronyc sources -v` (x: a falseticker) or `ntpq -p`: take the wrong server out of the configuration; all wrong: this " +
			"machine's own clock.",
		Summary:  "a time server tells another time than the others do, or the machine's clock is too fast or too slow to be corrected",
		Patterns: []string{`^Detected falseticker (?P<server>\S{1,255})`, `^frequency error -?\d+(?:\.\d+)? PPM exceeds tolerance `},
		Kind:     NodeKind, Raise: Rate{5, hour}, Expiry: hour, ConfirmedBy: "time-sync",
	}, {
		ID: "time-jump", Reason: "ClockOffset", Domain: System, Severity: finding.Info,
		Advice: "`chronyc tracking`; in a virtual machine: suspended or moved? Certificates and leases look at " +
			"the clock.",
		Summary: "the clock was off by a second or more, or was stepped",
		Patterns: []string{`^System clock wrong by -?(?:[1-9]\d*)\.\d+ seconds`,
			`^(?:Forward|Backward) time jump detected`, `^System clock was stepped by -?[1-9]\d*\.\d+ seconds`,
			`^time reset [+-]?[1-9]\d*\.\d+ s`},
		Kind: NodeKind, BootGrace: 10 * time.Minute, Expiry: hour, ConfirmedBy: "time-sync",
	}}), emittedBy([]Emitter{NetworkManager}, []Rule{{
		ID: "network-carrier-lost", Reason: "LinkDown", Domain: Network, Severity: finding.Warning,
		Advice:  "`ethtool DEV`, `networkctl status DEV`: cable, transceiver, switch port.",
		Summary: "a network card lost its link",
		Patterns: []string{
			`^(?P<subject>` + uplink + `): Lost carrier$`,
			`^(?:<\w+> +\[[\d.]+\] )?device \((?P<subject2>` + uplink +
				`)\): state change: \S+ -> unavailable \(reason 'carrier-changed'`,
			`^(?:<\w+> +\[[\d.]+\] )?device \((?P<subject3>` + uplink + `)\): carrier: link disconnected`,
		},
		Kind: "network-device", BootGrace: 2 * time.Minute, Expiry: hour, ConfirmedBy: "link-state",
		Recovery: `^(?:(?P<subject>` + uplink + `): Gained carrier$|(?:<\w+> +\[[\d.]+\] )?device \((?P<subject2>` +
			uplink + `)\): carrier: link connected)`,
	}, {
		ID: "network-address-conflict", Reason: "DuplicateAddress", Domain: Network, Severity: finding.Warning,
		Advice:  "`arping -D -I DEV ADDRESS`: find the other machine by its MAC address.",
		Summary: "another machine uses an address of this one",
		Patterns: []string{
			`^(?P<subject>` + uplink + `): (?:.*an address conflict was detected|.*[Aa]ddress conflict detected)`,
			`^(?:<\w+> +\[[\d.]+\] )?.{0,80}(?:already in use in the network by|duplicate address check failed for)`,
		},
		Kind: "network-device", Expiry: hour,
	}, {
		ID: "network-address-lost", Reason: "AddressLost", Domain: Network, Severity: finding.Warning,
		Advice: "`networkctl status DEV` (or `nmcli device show DEV`), `journalctl -u systemd-networkd -e`: does " +
			"the DHCP server answer?",
		Summary: "a network card lost its address, or none can be assigned to it",
		Patterns: []string{
			`^(?P<subject>` + uplink +
				`): (?:DHCP(?:v4|v6)? lease (?:lost|expired)|Could not set (?:DHCPv4 )?(?:route|address|addresses|routes|link)|Could not bring up interface|Failed$)`,
			`^(?:<\w+> +\[[\d.]+\] )?(?:dhcp[46] \((?P<subject2>` + uplink +
				`)\): (?:state changed \S+ -> (?:expire|timeout|fail)|request timed out)|device \((?P<subject3>` +
				uplink + `)\): (?:state change: \S+ -> failed|Activation: failed for connection '))`,
		},
		Kind: "network-device", Expiry: hour, ConfirmedBy: "default-route",
	}}))
}
