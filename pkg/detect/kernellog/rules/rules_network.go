package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// networkTableRules match full tables of the network stack. A pod can fill some of them in its own network namespace:
// the line alone is never more than a warning.
//
//	net/netfilter/nf_conntrack_core.c, net/core/neighbour.c, net/core/dst.c, net/ipv4/tcp.c, net/ipv4/tcp_input.c,
//	net/core/dev.c, net/ipv6/addrconf.c
func networkTableRules() []Rule {
	return []Rule{{
		ID: "conntrack-full", Reason: "ConntrackFull", Domain: Network, Severity: finding.Warning,
		Advice: "`conntrack -C` against `sysctl net.netfilter.nf_conntrack_max`; `conntrack -L` shows who opens " +
			"so many; raise it (kube-proxy: conntrack.maxPerCore).",
		Summary:  "the connection tracking table is full: packets of new connections are dropped",
		Patterns: []string{`^(?:nf_conntrack: |ip_conntrack: ){1,2}table full(?: in netns \d+)?(?:, dropping packet|$)`},
		Kind:     NodeKind, Expiry: 5 * time.Minute, ConfirmedBy: "conntrack",
	}, {
		ID: "conntrack-expectations-full", Reason: "ConntrackExpectationsFull", Domain: Network,
		Severity: finding.Warning,
		Advice:   "`sysctl net.netfilter.nf_conntrack_expect_max`; which helper (FTP, SIP): `conntrack -L expect`.",
		Summary:  "the table of expected connections (helpers for FTP, SIP) is full: such connections fail",
		Patterns: []string{`^(?:nf_conntrack: |ip_conntrack: ){1,2}expectation table full`},
		Kind:     NodeKind, Expiry: 5 * time.Minute,
	}, {
		ID: "neighbour-table-full", Reason: "NeighbourTableFull", Domain: Network, Severity: finding.Warning,
		Advice: "`ip -s neigh` counts against `sysctl net.ipv4.neigh.default.gc_thresh3` (IPv6: net.ipv6): raise " +
			"gc_thresh1 to 3.",
		Summary: "the neighbour table (ARP, NDP) is full: new peers cannot be reached",
		Patterns: []string{`^(?:neighbour: |(?:arp|ndisc)_cache: )?(?P<subject>\w+): neighbor table overflow!`,
			`^(?:neighbour: |ipv4: )?Neighbour table overflow`},
		Kind: "neighbour-table", Expiry: 5 * time.Minute, ConfirmedBy: "neighbour-table",
	}, {
		ID: "route-cache-full", Reason: "RouteCacheFull", Domain: Network, Severity: finding.Warning,
		Advice: "`sysctl net.ipv6.route.max_size` (raise it), `ip -6 route show cache`; kernels since 6.3 have " +
			"no such limit.",
		Summary:  "the route cache is full",
		Patterns: []string{`^(?:IPv[46]: |ipv6: |dst: |dst_alloc: )*(?:Route cache is full: consider increasing sysctl|dst cache overflow)`},
		Kind:     NodeKind, Expiry: 5 * time.Minute,
	}, {
		ID: "tcp-memory", Reason: "TCPMemoryExhausted", Domain: Network, Severity: finding.Warning,
		Advice: "`cat /proc/net/sockstat` against `sysctl net.ipv4.tcp_mem`; `ss -tm` shows the sockets with " +
			"full buffers: a program does not read.",
		Summary:  "TCP reached its limit of memory or of orphaned sockets: connections are reset",
		Patterns: []string{`^TCP: (?:out of memory -- consider tuning tcp_mem|too many (?:of )?orphaned sockets)`, `^Out of socket memory$`}, // the second until 3.5
		// The memory may be free again, and the counter of resets belongs to a pod's namespace: only the line is
		// certain.
		Kind: NodeKind, Report: "tcp-memory", Expiry: 10 * time.Minute,
	}, {
		ID: "syn-flood", Reason: "SYNFlooding", Domain: Network, Severity: finding.Warning,
		Advice: "`ss -ltn` (Recv-Q against Send-Q of the port): raise its backlog and `sysctl " +
			"net.core.somaxconn`, or block the flood.",
		Summary: "a listening socket receives more connections than its program accepts: a SYN flood, or a slow " +
			"program",
		Patterns: []string{`^(?:TCP: )?(?:\w+: )?[Pp]ossible SYN flooding on port (?:\[[0-9a-fA-F:.]*\]:|[0-9.]+:)?(?P<subject>\d+)\. `},
		Kind:     "port", Expiry: 10 * time.Minute, // no state names the port
	}, {
		ID: "unregister-netdevice", Reason: "UnregisterNetDevice", Domain: Network, Severity: finding.Warning,
		Advice: "`ip netns` and `lsns -t net` for what still uses it; a known kernel bug if nothing does: new " +
			"kernel; the node may need a reboot.",
		Summary: "a removed network device is still referenced in the kernel: pods may neither start nor terminate",
		// Once or twice means a late release of a device: the kernel logs it every 10 seconds.
		Patterns: []string{`^unregister_netdevice: waiting for (?P<subject>\S+) to become free\. Usage count = (?P<references>-?\d+)`},
		Kind:     "network-device", Raise: Rate{3, 20 * time.Minute}, Expiry: 30 * time.Minute,
	}, {
		ID: "duplicate-address", Reason: "DuplicateAddress", Domain: Network, Severity: finding.Warning,
		Advice: "`arping -D -I DEV ADDRESS`, `ip neigh` of a neighbour: find the other machine by its MAC " +
			"address; of a pod, the network plugin's addresses.",
		Summary: "another machine or pod uses an address of this one",
		Patterns: []string{`^(?:IPv6: |ICMPv6: )?(?P<subject>` + netdev +
			`): (?:privacy stable address generation failed because of DAD|IPv6 duplicate address (?P<address>[0-9a-f:]+) (?:used by \S+ )?detected!|IPv6 duplicate address detected!)`},
		Kind: "network-device", Expiry: time.Hour,
	}}
}

// linkRules: net/sched/sch_generic.c dev_watchdog, drivers/net. Until 6.7 the line of the watchdog started with its
// name, since then with that of the device. Links go down and up while a machine starts.
func linkRules() []Rule {
	// The prefix of netdev_printk: driver, bus address and name, or the name alone; some drivers repeat theirs.
	const device = `^(?:[\w-]+ \S*[^\s:] )?(?P<subject>` + netdev + `)(?: \([a-z ]+\))?: (?:[\w-]+: ` + netdev + ` )?`
	return []Rule{{
		// drivers/net/phy/{phy,phy_device}.c: the prefix is the name of the PHY's driver, and its address on the bus.
		ID: "nic-phy-failed", Reason: "NICPHYFailed", Domain: Network, Severity: finding.Warning,
		Advice: "`ethtool IFACE` (speed, link) and `ethtool -r IFACE`; a lower speed than both sides have: the cable or the socket " +
			"(`ethtool --cable-test IFACE`); a PHY that does not reset: power-cycle, firmware (linux-firmware), then the card.",
		Summary:  "the transceiver chip (PHY) of a network card does not start, or cannot hold the speed with this cable",
		Patterns: []string{`^(?P<driver>[A-Z][\w .,()/+-]{2,60}) (?P<subject>\S{1,60}:[0-9a-f]{2}): (?:phy_(?:poll_reset|init_hw) failed: -\d+|Downshift occurred from |Master/Slave resolution failed)`},
		Kind:     "device", Expiry: time.Hour,
	}, {
		ID: "nic-tx-timeout", Reason: "NICTxTimeout", Domain: Network, Severity: finding.Warning,
		Advice: "`ethtool -S DEV` and `ethtool -i DEV` (driver, firmware): update both; again: cable, switch " +
			"port, card.",
		Summary: "a network card stopped transmitting and is being reset",
		Patterns: []string{
			`^NETDEV WATCHDOG: (?P<subject>` + netdev +
				`) \((?P<driver>[^)]*)\): transmit queue (?P<queue>\d+) timed out`,
			`^NETDEV WATCHDOG: (?P<subject>` + netdev + `)(?: \((?P<driver>[^)]*)\))?: transmit timed out$`, // until 2.6.27
			device + `NETDEV WATCHDOG: CPU: \d+: transmit queue (?P<queue>\d+) timed out`,
		},
		Kind: "network-device", Report: "tx-timeout", Expiry: time.Hour, ConfirmedBy: "network-errors",
	}, {
		// A hang that a driver detects itself raises no counter; its lines after the watchdog's belong to that report.
		ID: "nic-hang", Reason: "NICHang", Domain: Network, Severity: finding.Warning,
		Advice: "`ethtool -S DEV`, `ethtool -i DEV`: update driver and firmware; with offloads off (`ethtool -K " +
			"DEV tso off gso off`) it may stay away.",
		Summary: "the driver of a network card detected a hang and resets the card",
		Literals: []string{"Starting a recovery",
			"tx_timeout recovery level", "tx_timeout: VSI", "Reset adapter", "wasn't completed on time",
			"TX hasn't completed", "rigger reset is on", "_stop_block timed out", "_cond == ", "Timeout on tx queue",
			"Tx timeout", "tx timeout", "tx_timeout recovery unsuccessful", "bnx2x: [",
			"nit Hang", "Detected Tx Hung", "to clear Tx work after", "TX timeout",
			"initiating reset due to tx timeout", "transmit timed out, resetting",
			"Keep alive watchdog timeout", "ost TX completions are above", "lost tx completions is above", ": tx hang",
			"Transmit timeout reset Device!", "Transmit time out", "TX watchdog timeout on ring",
			"Tx timeout called on",
			" error.  Resetting chip", "Wait for SQ 0x", "Wait for ICOSQ 0x", "potentially stuck in state",
			"] is stuck", ": tx_timeout count: ",
			"ME firmware caused invalid ", "Received ECC Err, initiating", "Potential MSIX issue", "Device requested reset",
			"<--- start ", "driver issue detecte", "transmit timed out", "nitiating reset", " reset interrupt", " reset requested", "transmit timeout: latency",
		},
		Patterns: []string{
			`^tx_timeout(?:: VSI_(?:seid|num)| recovery level \d+)`, // the start is cut off, or an old driver
			`^(?P<driver>[\w-]+) (?P<subject>` + pciAddress + `): (?:(?P<device>` + netdev +
				`): )?(?:Detected (?:Hardware|Tx) Unit Hang|tx_timeout recovery level \d+|Trigger reset is on|tg3_stop_block timed out|[Ii]nitiating reset due to tx timeout|[RT]X driver issue detected, PF reset issued|<--- start (?:FTQ|TBDC|MCP states) dump)`,
			// until 2.6.36 a driver named only the interface
			`^(?:e1000e?|igb|ixgbe?|tg3|bnx2|forcedeth): (?P<subject5>` + netdev + `):? (?:\w+: )?(?:Detected (?:Tx|Hardware) Unit Hang|Reset adapter|transmit timed out|[Ii]nitiating reset)`,
			`^(?:gve|hclge(?:vf)?) (?P<subject3>` + pciAddress + `): (?:Device requested reset\.|(?:IMP|global) reset (?:interrupt|requested))`,
			`^mlx4_en: (?P<subject>` + netdev + `): (?:TX timeout on queue: |Tx timeout called on port)`,
			`^\[qede_\w+:\d+\((?P<subject>[^)]{1,15})\)\](?:TX timeout|Tx queue\[\d+\] is stuck|Starting a recovery process)`,
			`^bnx2x: \[bnx2x_\w+:\d+\((?P<subject>[^)]{1,15})\)\](?:begin crash dump|MC assert|SPIO5 hw attention|.*timeout)`,
			device +
				`(?:<--- start (?:FTQ|TBDC|MCP states) dump|Detected (?:(?:Hardware|Tx) Unit Hang|Tx Hung)|(?:TX|Tx|tx) timeout\b|[Ii]nitiating reset (?:due to tx timeout|to clear Tx work after link loss)|tx_timeout recovery unsuccessful|tx_timeout: VSI_(?:seid|num)|tx_timeout recovery level \d+|transmit timed out, resetting|Reset adapter(?: unexpectedly)?\s*$|tx hang|Transmit timeout reset Device!|Timeout on tx queue|rtl_\w+_cond == \d \(loop: |` +
				`Keep alive watchdog timeout|Lost TX completions are above the threshold|The number of lost tx completions is above the threshold|Found a Tx that wasn't completed on time|TX hasn't completed|Trigger reset is on|Transmit time out|TX watchdog timeout on ring|Tx timeout called on port|` +
				`tx_timeout count: \d+|(?:DMA Status|FLOW Attention|MSI Status) error\.  Resetting chip|Wait for (?:ICO)?SQ 0x[0-9a-f]+ flush timeout|` +
				`ME firmware caused invalid [RT]DT - resetting|Potential MSIX issue on [RT]x side|transmit timeout: latency |Received ECC Err, initiating reset)`,
			`^cxgb4 (?P<subject2>` + pciAddress + `): SGE idma\d, queue \d+, potentially stuck in state \d+`,
		},
		Kind: "network-device", Report: "tx-timeout", Continuation: true, Expiry: time.Hour,
	}, {
		ID: "nic-hardware-error", Reason: "NICHardwareError", Domain: Network, Severity: finding.Warning,
		Advice: "`ethtool -S DEV`, `ethtool -m DEV` (transceiver), `lspci -vv`; update the firmware, replace " +
			"transceiver, cable or card.",
		Summary: "a network card, its transceiver or its cable reports an error",
		Literals: []string{": Fatal error ", "ealth issue observed", "health recovery ", "High temperature on sensors",
			"Will cause a leak of a command resource", "firmware internal error", "Internal error detected",
			"Error (timeout: ", "Firmware not responding", "Firmware reports adapter error", "Abandoning msg {",
			"Error detected in the ", "Firmware fatal ", "Firmware non-fatal reset",
			"nsufficient power on the PCIe slot", "Port module event[error]", "health compromised", "handling bad device here",
			"Detected thermal alarm", "over heat", "overheated", "Adapter removed", "PCIe link lost",
			"Detected firmware fatal condition", " thermal threshold!", "arity ", " RAS error", "fatal attention",
			"[bnx2x_", "[qed_", "[qede_", ": Hardware Error", "HW error detected: 0x", ": Reg read", "out of queue timeout",
			"PCI reads still not", "Wait for completion (polling)", "Reading reg failed for",
			"Reconfig timeout (status",
			"FW assertion at ", "PCI error (cmd = ", "PCI link not ready (", ": HWC", "Timeout when setting up HWC",
			"Internal error mark was", "Warning firmware error", "ommand 0x", "while waiting for a slot",
			": AQ commands timed out", "Recovered ",
			"FW requests reset", "Issuing FW Reset", "device was reset successfully", "FW heartbeat stalled"},
		Patterns: []string{
			`^mlx[45]_core (?P<subject>` + pciAddress +
				`)(?: \S+)?: .*(?:Detected insufficient power on the PCIe slot|Port module event\[error\]|health compromised|handling bad device here|Fatal error \d+ detected|Health issue observed|health recovery (?:flow aborted|failed)|High temperature on sensors|timeout\. Will cause a leak of a command resource|firmware internal error|Internal error detected)`,
			`^(?P<driver>[\w-]+) (?P<subject2>` + pciAddress + `)(?: (?P<device>` + netdev +
				`))?: (?:.*: )?(?:Error \(timeout: \d+\) msg|Firmware not responding|Firmware reports adapter error|Abandoning msg \{|Error detected in the (?:card|adapter)|Firmware (?:fatal|non-fatal) reset event|Network adapter has been stopped because it has over ?heated|The network adapter (?:was stopped|link speed was downshifted) because it overheated|Adapter removed|PCIe link lost)`,
			`^mlx5_core (?P<subject3>` + pciAddress +
				`): .*(?:Recovered \d+ (?:EQEs on cmd_eq|eqes on EQ)|FW requests reset, synd|Issuing FW Reset$|PCI link not ready \(|canceled on out of queue timeout|timed out while waiting for a slot|PCI reads still not working)`,
			`^(?P<driver>[\w-]+) (?P<subject4>` + pciAddress + `)(?: \S+)?: (?:(?:[Cc]ommunication channel )?command 0x[0-9a-f]+ (?:\(op=0x[0-9a-f]+\) |in mailbox \d+ )?timed out|` +
				`Internal error mark was detected on device|Detected firmware fatal condition|Chip temperature has gone \w+ the \w+ thermal threshold!|` +
				`Parity errors detected in blocks: |Hardware Error(?:: -?\d+)?$|FW assertion at |.{1,40} FIFO parity error|MA parity error|SGE Cause\d Parity Error|Unrecoverable HW error detected: 0x|` +
				`Warning firmware error detected FWSM: 0x|(?:HNS|ROCEE) Non-Fatal RAS error(?:\(status=0x[0-9a-f]+\))? identified|PCI error \(cmd = 0x|Reconfig timeout \(status: 0x|AQ commands timed out|` +
				`Reg read(?:32)? timeout occurred|Wait for completion \(polling\) timeout|Reading reg failed for timeout|` +
				`HWC: Request timed out!|HWC timeout occurred|Command 0x[0-9a-f]+ timed out: \d+ ms|Timeout when setting up HWC)`,
			`^(?:mlx4_core|ionic) (?P<subject6>` + pciAddress + `): (?:device was reset successfully|FW heartbeat stalled at )`,
			`^(?:bnx2x: )?\[(?:bnx2x|qed)_\w+:\d+\((?P<subject5>[^)]{1,15})\)\](?:FATAL |MFW seems hanged|GRC time-?out|MCP assert!|Unknown HW assert!|DMAE PCI error!|.{1,80} parity attention is set|DORQ fatal attention)`,
			`^\[qede?_\w+:\d+\((?P<subject7>[^)]{1,31})\)\](?:Illegal read by chip from |Timeout waiting for (?:clear status 0x|tx queue\[))`,
		},
		Kind: "device", Expiry: 24 * time.Hour,
	}, {
		ID: "nic-reset-failed", Reason: "NICResetFailed", Domain: Network, Severity: finding.Warning,
		Advice: "`ethtool -i IFACE` names driver and firmware; load the driver anew (`modprobe -r`, " +
			"`modprobe`) or restart the node; then update both.",
		Summary: "the driver of a network card could not start it, or bring it back after an error: the interface " +
			"stays down",
		Literals: []string{"eset failed", "ebuild failed", "Rebuild AdminQ failed", "rebuild of switch failed",
			"unrecoverable",
			"Error resetting device. Please", "rebuild VSI failed", "reset ", "Reset during resume failed",
			"Power cycle", "HW_RESET failed", "failed to reset NIC, closing", "Firmware reset aborted",
			"RX queue restart failed",
			"Failed to reinitialize after aborted", "Failed to re-initialize device, ab", "Can not reset device",
			"Reset attempt failed", "esume failed", "ail to reset HCA", "ailed to reset HCA",
			"mlx4_restart_one_up failed",
			"Failed restarting port", "mlx5e_safe_reopen_channels failed", "encountered fatal error, ",
			"Adapter recovery failed",
			"Reset fail", "fail to rebuild, ret=", "Wait for reset timeout", "MAC reinit failed", "_one failed",
			"Initial pf_reset failed", "reset polling failed to", "due to repeated FW", "because an unsupported SFP"},
		Patterns: []string{
			`^(?P<driver>[\w-]+) (?P<subject>` + pciAddress + `)(?: (?P<device>` + netdev +
				`))?: (?:PF reset failed[:,] |Initial pf_reset failed: |Rebuild AdminQ failed, |rebuild of switch failed: |Rebuild failed, unload|` +
				`(?:PF VSI|control VSI|Switchdev CTRL VSI|VSI \(type:\w+\) at index \d+) rebuild failed|rebuild VSI failed, |` +
				`\w[\w ]* failed, device is unrecoverable|\w+: unrecoverable device error |Error resetting device\. Please reload|reset \d+ failed$|Reset during resume failed|` +
				`Recovery (?:has )?failed\. Power cycle|Recovery handling has failed\. Power cycle|failed to reset NIC, closing|Firmware reset aborted|` +
				`Failed to reinitialize after aborted firmware reset|RX queue restart failed: |Failed to re-initialize device, aborting|` +
				`Device reset failed$|Can not reset device$|Reset attempt failed\. |Reset failed! !!! DISABLING|MANA reset cycle failed|MANA service: resume failed|` +
				`Fail(?:ed)? to reset HCA|mlx4_restart_one_up failed|mlx5e_safe_reopen_channels failed|encountered fatal error, adapter stopped|` +
				`Adapter recovery failed|Reset failed \.\. Reboot server|EEH resume failed|Reset fail!|fail to rebuild, ret=|Wait for reset timeout: |MAC reinit failed|Entering recovery mode due to repeated FW resets|failed to (?:initialize|load) because an unsupported SFP)`,
			`^mlx4_en: (?P<subject2>` + netdev + `): Failed restarting port`,
			// hw_dbg of i40e names bus and slot
			`^i40e (?P<subject5>[0-9a-f:]{5,7}\.[0-7]):? (?:PF|Global) reset polling failed to complete`,
			`^mlx[45]_core (?P<subject3>` + pciAddress + `): .*(?:mlx5e_resume|mlx[45]_(?:load|init)_one) failed`,
			`^bnx2x: \[bnx2x_\w+:\d+\((?P<subject4>[^)]{1,15})\)\]HW_RESET failed`,
		},
		Kind: "device", Expiry: UntilBoot,
	}, {
		// net/core/dev.c netdev_rx_csum_fault; a tunnel's packet may no longer have a device
		ID: "nic-checksum", Reason: "NICChecksum", Domain: Network, Severity: finding.Info,
		Advice: "`ethtool -K DEV rx off` of the card that received the packets (`dmesg` names it as iif) until its driver " +
			"and firmware are updated.",
		Summary:  "a network card reports wrong checksums for packets that are good: a bug of its driver or firmware",
		Patterns: []string{`^(?:[\w-]+ \S*[^\s:] )?(?P<subject>` + netdev + `|\(NULL net_device\))(?: \([a-z ]+\))?: hw csum failure\.?$`},
		Kind:     "network-device", Report: "csum", Expiry: time.Hour,
	}, {
		ID: "nic-firmware", Reason: "NICFirmware", Domain: Network, Severity: finding.Warning,
		Advice: "`ethtool -i IFACE` names driver and firmware: install the firmware that the driver's " +
			"release notes name, with the vendor's tool.",
		Summary: "the firmware or the settings memory of a network card is damaged or does not fit its driver, " +
			"which does not use the card",
		Patterns: []string{`^(?P<driver>[\w-]+) (?P<subject>` + pciAddress + `)(?: ` + netdev +
			`)?: (?:The (?:NVM|EEPROM) Checksum Is Not Valid|The driver for the device stopped because the |` +
			`Rx/Tx is disabled on this device because the module does not meet thermal requirements|(?:Firmware|FW) recovery mode detected|Device failed to load the FW for the external PHY)`},
		Kind: "device", Expiry: UntilBoot,
	}, {
		ID: "nic-link-down", Reason: "NICLinkDown", Domain: Network, Severity: finding.Warning,
		Advice:  "`ethtool DEV` (speed, link), `ethtool -m DEV` (light); cable, transceiver, switch port.",
		Summary: "a network card lost its link",
		Literals: []string{"ink is Down", "ink is down", "ink down", "Link Down", "ink DOWN", "ink is DOWN",
			"Cable unplugged"},
		Patterns: []string{
			`^(?:e1000e?|igb|ixgbe|i40e|r8169|mlx4_en): (?P<subject>` + netdev + `):? (?:NIC )?Link (?:is )?Down`,
			device + `(?:(?:ena|hns3|igb): )?(?:NIC (?:\w+ )?|Device |HINIC_)?[Ll]ink (?:is )?(?:[Dd]own|DOWN)\.?(?: \([A-Za-z ,_/-]{1,60}\))?\s*$`,
			// older kernels' virtual functions name no interface
			`^(?:ixgbevf|igbvf) (?P<subject>` + pciAddress + `): (?:NIC )?Link is Down`,
			`^\[qede_\w+:\d+\((?P<subject>[^)]{1,15})\)\]Link is down`,
			`^mlx5_core (?P<subject2>` + pciAddress + `)(?: \S+)?: Port module event: module \d+, Cable unplugged`,
			`^mlx[45]_(?:core|en) (?P<pci>` + pciAddress + `)(?:: | )(?P<subject>` + netdev + `): Link [Dd]own`,
		},
		Kind: "network-device", BootGrace: 2 * time.Minute, Expiry: 30 * time.Minute, ConfirmedBy: "link-state",
		Recovery: device +
			`(?:(?:ena|hns3|igb): )?(?:NIC (?:\w+ )?|Device |HINIC_)?[Ll]ink (?:is )?(?:[Uu]p|UP)\b|^(?:ixgbevf|igbvf) (?P<subject2>` + pciAddress + `): (?:NIC )?Link is Up`,
	}, {
		ID: "bond-no-link", Reason: "BondDown", Domain: Network, Severity: finding.Warning,
		Advice:  "`cat /proc/net/bonding/BOND`; `ethtool` of each link; with LACP: the switch's group.",
		Summary: "a bond has no link left",
		Patterns: []string{`^(?:bonding: )?(?P<subject>` + netdev +
			`): (?:now running without any active interface|Warning: No 802\.3ad response from the link partner)`},
		Kind: "network-device", BootGrace: 2 * time.Minute, Expiry: time.Hour, ConfirmedBy: "bonds",
		Recovery: `^(?:bonding: )?(?P<subject>` + netdev +
			`): (?:(?:first )?active interface up!|(?:\(slave [^)]+\): )?making interface .*the new active one)`,
	}, {
		ID: "bond-link-down", Reason: "BondDegraded", Domain: Network, Severity: finding.Warning,
		Advice: "`cat /proc/net/bonding/BOND` shows the links that are left; `ethtool DEV` of the lost one: " +
			"cable, transceiver, switch port.",
		Summary: "a bond lost one of its links",
		Patterns: []string{
			`^(?P<bond>` + netdev + `): \(slave (?P<subject>[^)]+)\): link status (?:definitely down|down for )`,
			`^(?:bonding: )?(?P<bond>` + netdev +
				`): link status (?:definitely )?down for (?:(?:active|backup|idle) )?interface (?P<subject>[^\s,]+)`,
			`^(?P<bond>` + netdev + `): \(slave (?P<subject>[^)]+)\): (?:backup )?interface is now down`, // by ARP
		},
		Kind: "network-device", BootGrace: 2 * time.Minute, Expiry: time.Hour, ConfirmedBy: "bonds",
		Recovery: `^(?:bonding: )?` + netdev +
			`: (?:\(slave (?P<subject>[^)]+)\): link status definitely up|link status definitely up for interface (?P<subject2>[^\s,]+))`,
	}}
}

// bridgeRules: net/bridge/br_fdb.c, drivers/net/bonding/bond_3ad.c. teamd handles the links of a team: the team driver
// does not log them.
func bridgeRules() []Rule {
	return []Rule{{
		// A single one may be a switch's answer to a link that comes up.
		ID: "bridge-own-address", Reason: "BridgeLoop", Domain: Network, Severity: finding.Warning,
		Summary: "a bridge receives packets that it sent itself: there is a loop, or another machine has its MAC address",
		Advice: "`bridge fdb show` and `ip -d link show` for the address in the line: is a virtual machine cloned with " +
			"its MAC, are two ports of the bridge in one LAN, or a bond's links not one group (LACP) at the switch?",
		Literals: []string{" with own address as source address"},
		Patterns: []string{`^(?P<bridge>` + netdev + `): received packet (?:on (?P<subject>` + netdev +
			`) )?with own address as ?source address(?: \(addr:(?P<address>[0-9a-f:]{17}), vlan:(?P<vlan>\d+)\))?`},
		Kind: "network-device", Raise: Rate{3, 10 * time.Minute}, Expiry: 30 * time.Minute,
	}, {
		ID: "bond-loopback", Reason: "BondLoop", Domain: Network, Severity: finding.Warning,
		Summary: "a link of an LACP bond gets its own packets back, or finds no partner to join",
		Advice: "`grep -A12 \"Slave Interface\" /proc/net/bonding/BOND`: all links must lead to one switch (or a " +
			"pair of one name) whose ports are one LACP group.",
		Patterns: []string{
			`^(?P<bond>` + netdev + `): \(slave (?P<subject>[^)]+)\): (?:An illegal loopback occurred on slave|Port \d+ did not find a suitable aggregator|speed changed to 0 on port \d+)`,
			`^(?:bonding: )?(?P<bond>` + netdev + `): An illegal loopback occurred on (?:adapter|slave) \(?(?P<subject2>[^\s)]+)`,
		},
		Kind: "network-device", BootGrace: 2 * time.Minute, Expiry: time.Hour,
	}}
}
