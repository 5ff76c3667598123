package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// iscsiRules: drivers/scsi/{libiscsi,scsi_transport_iscsi,scsi_transport_srp}.c, drivers/infiniband/ulp/srp. The lines
// of iSCSI have no driver name, so they start with a blank. The kernel does not log that a session is back; iscsid
// does.
func iscsiRules() []Rule {
	return []Rule{{
		ID: "iscsi-connection", Reason: "ISCSIConnectionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the connection to an iSCSI disk was lost",
		Advice: "`iscsiadm -m session -P3` shows the session, its target and its disks; does the portal's port 3260 " +
			"answer? After \"session recovery timed out\" the disks fail: `iscsiadm -m node -T TARGET --login`.",
		Literals: []string{": detected conn error (", "session recovery timed out after", ": ping timeout of ",
			": Could not send nopout", " rejected",
			"iSCSI Login timeout on Network Portal "},
		Patterns: []string{
			`^ ?(?:iscsi )?(?P<subject>connection\d+:\d+): (?:detected conn error \(-?\d+\)|ping timeout of \d+ secs expired|Could not send nopout|pdu \(op 0x[0-9a-f]+ itt 0x[0-9a-f]+\) rejected)`,
			`^iSCSI Login timeout on Network Portal (?P<subject3>\S+)`, // of the target
			`^ ?(?:iscsi:? )?(?P<subject2>session\d+): session recovery timed out after \d+ secs`,
		},
		Kind: "connection", Expiry: time.Hour,
	}, {
		ID: "srp-connection", Reason: "SRPConnectionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the connection to a disk over InfiniBand (SRP) was lost",
		Advice:  "`ibstat` for the port, `srp_daemon -o` for the targets that are seen; `multipath -ll` for other paths.",
		Literals: []string{": ib_srp: ", "reconnect attempt ", "dev_loss_tmo expired for SRP",
			"fast_io_fail_tmo expired for SRP", "SRP abort called", "SRP reset_"},
		Patterns: []string{
			`^scsi (?P<subject>host\d+): ib_srp: (?:failed \S.* status |connection closed|giving up on stale connection|Got target logout request|DREQ received|received DREQ|Path record query failed|Connection \d+/\d+ to \S+ failed)`,
			`^scsi (?P<subject>host\d+): (?:ib_srp: )?SRP (?:abort|reset_device|reset_host) called`,
			`^scsi (?P<subject>host\d+): reconnect attempt \d+ failed`,
			`^(?:scsi_transport_srp: )?(?:dev_loss_tmo|fast_io_fail_tmo) expired for SRP \S+ / (?P<subject2>host\d+)`,
		},
		Kind: "connection", Expiry: time.Hour,
		Recovery: `^scsi (?P<subject>host\d+): ib_srp: reconnect succeeded`,
	}}
}

// targetRules: drivers/target: this node serves disks to others. The driver also logs unsupported requests of
// initiators ("Unsupported SCSI Opcode", "MODE SENSE: unimplemented"), which are harmless.
func targetRules() []Rule {
	return []Rule{{
		ID: "iscsi-target-error", Reason: "ISCSITargetError", Domain: Storage, Severity: finding.Warning,
		Summary: "this node's iSCSI or SCSI target lost an initiator, or does not get its commands done in time",
		Advice: "`iostat -x 1` for the disk behind the LUN: one that is too slow makes initiators abort; else the network to the " +
			"initiator (`targetcli sessions detail` names it).",
		Patterns: []string{
			`^ABORT_TASK: (?:Found referenced \w+ task_tag|Sending TMR_)`,
			`^Did not receive response to NOPIN on CID: \d+`,
			`^Time2Retain timer expired for SID: \d+, cleaning up`,
			`^(?:HeaderDigest CRC32C failed, received|ITT: 0x[0-9a-f]+, .{0,80}CRC32C DataDigest 0x[0-9a-f]+ does not match)`,
		},
		Kind: NodeKind, Report: "target", Expiry: time.Hour,
	}, {
		// A monitoring system that only connects to the port causes the same lines.
		ID: "iscsi-target-login", Reason: "ISCSITargetLoginRefused", Domain: Storage, Severity: finding.Info,
		Summary: "this node's iSCSI or SCSI target refuses an initiator: its name, its password or the LUN is wrong",
		Advice: "`targetcli ls` shows targets, ACLs and LUNs: does the initiator's name (IQN) have an ACL, the LUN a backstore? " +
			"Without a name in the line it may be a probe of port 3260.",
		Patterns: []string{
			`^(?:iSCSI Login negotiation failed\.|Security negotiation failed)`,
			`^(?:iSCSI - )?Unable to locate Target (?:Portal Group on|IQN:?) ?(?P<subject>\S+)`,
			`^iSCSI Initiator Node: (?P<subject2>\S+) is not authorized to access iSCSI target portal group`,
			`^TARGET_CORE\[\w+\]: Detected NON_EXISTENT_LUN Access`,
		},
		Kind: "connection", Report: "target", Expiry: time.Hour,
	}}
}

// nvmeFabricRules: drivers/nvme/host/{tcp,rdma,fc,fabrics,core}.c.
func nvmeFabricRules() []Rule {
	// Until 4.5, and in enterprise kernels of that time, it is a message of the PCI device.
	const controller = `^nvme (?P<subject>nvme\d+|` + pciAddress + `): `
	return []Rule{{
		ID: "nvme-keepalive", Reason: "NVMeConnectionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the network connection to an NVMe disk was lost",
		Advice: "`nvme list-subsys` shows the paths and their state; does the target's address answer? A controller " +
			"that was removed (ctrl_loss_tmo) comes back with `nvme connect-all`.",
		Literals: []string{"nvme_keep_alive_end_io error", ": keep-alive failed", ": failed to connect queue",
			": starting error recovery", ": Failed reconnect attempt ", ": Reconnecting in ",
			": Removing controller", ": NVME-FC{", ": failed to connect socket: ", "eceive failed: ",
			": failed to send request ", " digest error: recv ", ": Connect rejected: status ",
			"rdma connection establishment failed", ": Connect command failed", ": Connect for subsystem ",
			": authentication failed", "TLS handshake ", ": failfast expired", "rdma_resolve_addr failed",
			": Fail Reconnect: ", "nvme_tcp: queue "},
		Patterns: []string{controller +
			`(?:failed nvme_keep_alive_end_io error=|keep-alive failed(?:: -?\d+|$)|failed to connect queue: \d+ ret=|starting error recovery|Failed reconnect attempt \d+|Reconnecting in \d+ seconds|Removing controller(?: \(-?\d+\))?\.\.\.|failfast expired|` +
			`failed to connect socket: -?\d+|(?:queue \d+: )?receive failed: +-?\d+|failed to send request -?\d+|(?:header|data) digest error: recv |` +
			`Connect rejected: status -?\d+|rdma connection establishment failed|rdma_resolve_addr failed|Connect command failed|Connect for subsystem \S+ is not allowed|qid \d+: authentication failed|queue \d+: TLS handshake (?:failed|complete), error -?[1-9]|Fail Reconnect: |` +
			`NVME-FC\{\d+\}: (?:controller connectivity lost|io failed|transport (?:association|detected|error)|dev_loss_tmo|couldn't reconnect|Max reconnect attempts|create_assoc failed|.*(?:reconnect|Reconnect) (?:failure|attempt)))`,
			`^nvme_tcp: queue \d+: (?:failed to receive icresp, error -|(?:header|data) digest mismatch |bad (?:type|pdu length|pfv) returned |unhandled TLS record )`,
		},
		Kind: "device", Expiry: time.Hour,
		Recovery: controller +
			`(?:Successfully reconnected|NVME-FC\{\d+\}: (?:controller connect complete|connectivity re-established))`,
	}}
}

// remoteBlockRules: drivers/scsi/scsi_transport_fc.c, drivers/block/nbd.c,
// drivers/block/drbd/drbd_{state,req,receiver,worker,main}.c and DRBD 9. Older kernels name a DRBD device "block drbdN".
func remoteBlockRules() []Rule {
	const drbd = `^(?:block )?drbd (?P<subject>[^\s:]+)(?: [^:]+)?: `
	const drbdFault = `(?:uuid_compare\(\)=(?:split-brain|unrelated-data|-?100\b|-?1000\b)|.*(?:conn\( \w+ -> (?:NetworkFailure|Timeout|BrokenPipe|ProtocolError) |conn\( (?:WF\w+|Connect\w+|Sync\w+|Unconnected) -> StandAlone |disk\( \w+ -> (?:Failed|Diskless) |pdsk\( \w+ -> Failed |quorum\( yes -> no |susp-io\( no -> [\w,]*quorum)|helper command: \S+ quorum-lost|` +
		`Split-Brain detected but unresolved|PingAck did not arrive in time|Local backing device failed to meet the disk-timeout|Remote failed to (?:finish a request within|answer a P_BARRIER)|Timed out waiting for missing ack packets|IO ERROR: neither local nor remote data|local (?:READ|WRITE) IO error sector|Authentication of peer failed$|Digest integrity check FAILED|Disk broke down during resync|meta-data IO operation timed out|Cluster is now split$|[\w-]+ handler returned \d+, dropping connection|Unrelated data, aborting)`
	return []Rule{{
		ID: "fc-port-lost", Reason: "FCPortLost", Domain: Storage, Severity: finding.Warning,
		Summary: "a Fibre Channel port was lost",
		Advice: "`grep . /sys/class/fc_host/host*/port_state` for the link, `multipath -ll` for the paths that are " +
			"left; then the transceiver, the cable and the switch's port.",
		Patterns: []string{
			`^ ?(?P<subject>rport-[\d:-]+): blocked FC remote port time out`,
			`^qla2xxx \[(?P<subject2>` + pciAddress + `)\]-[0-9a-f]+:\d+: (?:LOOP DOWN detected|Cable is unplugged)`, `^lpfc (?P<subject3>` +
				pciAddress + `): \d+:(?:\(\d+\):)?(?:1305 Link Down Event |0203 Devloss timeout on )`,
			`^qla2xxx (?P<subject4>` + pciAddress + `): LOOP DOWN detected`, // until 2.6.39
		},
		Kind: "port", BootGrace: 2 * time.Minute, Expiry: time.Hour,
	}, {
		ID: "nbd-connection", Reason: "NBDConnectionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the server of a network block device does not respond",
		Advice: "`nbd-client -c /dev/nbdN` says whether it is connected; is its server (qemu-nbd, nbd-server, the CSI " +
			"driver's daemon) running? `nbd-client -d /dev/nbdN` ends one that hangs.",
		Literals: []string{"block nbd"},
		Patterns: []string{`^block (?P<subject>nbd\d+): (?:Connection timed out|Dead connection, failed to find a fallback|Possible stuck request|Attempted (?:send|recv) on (?:invalid|closed) socket|Send (?:control|data) failed \(result -|Receive (?:control|data) failed \(result -|Other side returned error|Request send failed|Socks array is empty)`},
		Kind:     "device", Report: "nbd", Expiry: time.Hour,
		Recovery: `^block (?P<subject>nbd\d+): reconnected socket`,
	}, {
		// "Disconnecting -> StandAlone" is the administrator's decision.
		ID: "drbd-degraded", Reason: "DRBDDegraded", Domain: Storage, Severity: finding.Warning,
		Summary: "a DRBD device lost its disk or its peer",
		Advice: "`drbdadm status` shows connection and disks; StandAlone: `drbdadm connect RES`; Diskless: `drbdadm " +
			"attach RES` after the disk is good; a split brain needs a decision: `drbdadm connect --discard-my-data RES`.",
		Literals: []string{"drbd"},
		Patterns: []string{drbd + drbdFault, `^block (?P<subject2>drbd\d+): ` + drbdFault},
		Kind:     "device", Expiry: time.Hour,
		Recovery: `^(?:block )?(?:drbd (?P<subject>[^\s:]+)(?: [^:]+)?|(?P<subject2>drbd\d+)): (?:.*conn\( \w+ -> Connected \)|.*disk\( \w+ -> UpToDate \))`,
	}}
}
