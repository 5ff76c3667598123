package rules

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Rules of subsystems match lines that no specific rule matches: a line with the prefix of a server subsystem or driver
// that says that something failed. They are tried last, claim no more than the line says, and skip lines that healthy
// machines log with the same words. In the log of a running kernel they ignore lines below the level of errors, except
// for warnings with words of a fault (FaultWords) once the machine has started. Most recognise a fault by such words alone: one
// line is information, and an alarm only if its words are dire (EscalationWords) or it repeats. TestKernelFormats tries them with
// the formats of the level of errors in the kernel's sources (the families sweep-*).

// again is how often a line that is a fault only by its words must occur for one subject to be an alarm.
var again = Rate{3, 10 * time.Minute}

// trouble are the words by which drivers report failures.
func trouble() []string {
	return []string{"ailed", "ailure", "ailing", "fails", " fail", "FAIL", "rror", "ERROR", "imed out", "imedout",
		"imeout", "ime-out", "ime out",
		"TIMEOUT", "bort", "nable to", "an't", "annot", "ould not", "ouldn't", "orrupt", "CORRUPT", "atal", "FATAL",
		"ot respon",
		"o respon", "unresponsive",
		"ffline", "nvalid", "verflow", "xpected", "eject", "isconnect", "expired", "stuck", "hung", "hang!",
		"Hung ", "crash",
		"ritical", "verheat", "ismatch", "ot match", "onflict", "nconsisten", "ncorrect", "rong ", "ncomplete",
		"runcated", "uplicate", "verrun", "purious", "bnormal",
		"ot ready", "ot valid", "ot recover", "ot complete", "nrecover", "iving up", "an not ", "id not ", "idn't ",
		" lost", " dead", "egraded", "DEGRADED", "lockup detected", "alicious", "driver issue detecte",
		" err ", " err=", " err:", " err(", "roblem", "BUG", "NULL", "nhandled", " leak", "ail to ",
		"xceed", "broken", "halted", "HALTED", "is unavailable", "wrongly", "llegal", "Bad ", " bad ",
		"ut of range", "ut of memory", "ut of resources", "un out of ",
		" too ", "ot enough", "nsufficient", "issing", "never ", "o free "}
}

// The drivers of servers and clouds, under all names in their lines.
var (
	nics = []string{"mlx4_core", "mlx5_core", "mlx4_en", "mlx5_en", "i40evf", "i40e", "iavf", "ice", "idpf", "ixgbe",
		"ixgbevf", "igb", "igbvf", "igc",
		"fm10k", "e1000", "e1000e", "bnxt_en", "bnx2", "bnx2x", "tg3", "ena", "gve", "mana", "qede", "qed", "qlcnic",
		"netxen_nic", "cxgb3", "cxgb4",
		"cxgb4vf", "sfc", "sfc_siena", "sfc_falcon", "be2net", "enic", "nfp", "hns3", "hclge", "hclgevf", "hinic",
		"hinic3", "atlantic", "r8169",
		"vmxnet3", "ionic", "pds_core", "rvu_af", "rvu_nicpf", "rvu_nicvf", "nicpf", "nicvf", "amd-xgbe",
		"virtio_net", "hv_netvsc", "xen_netfront",
		"stmmaceth", "mvneta", "mvpp2", "fsl_dpaa2_eth", "ngbe", "txgbe", "thunder-nicvf", "octeontx2-nicpf",
		"mlxsw_spectrum", "mlxsw_core", "ehea", "ibmvnic", "ibmveth", "liquidio", "ntb_netdev",
		"hinic_ethdev", "qlge", "funeth", "octeon_ep", "octeon_ep_vf", "qla3xxx", "myri10ge", "bng_en", "fbnic", "bna",
		"enetc", "fsl_enetc", "LiquidIO", "e100", "8139too", "8139cp", "forcedeth", "sky2", "macb", "hns-nic",
		"hns_dsaf",
		"xgene-enet", "thunder_bgx", "eea", "rnpgbe", "ixd", "mlx5e", "qeth", "ism"}
	hbas = []string{"megaraid_sas", "mpt2sas", "mpt3sas", "mpi3mr", "smartpqi", "hpsa", "aacraid", "lpfc", "qla2xxx",
		"pm80xx", "pm8001", "arcmsr",
		"vmw_pvscsi", "virtio_blk", "virtio_scsi", "ahci", "isci", "hisi_sas_v2_hw", "hisi_sas_v3_hw",
		"hisi_sas_main", "fnic", "snic", "bnx2fc",
		"bnx2i", "qedf", "qedi", "ipr", "3w-9xxx", "3w-sas", "csiostor", "efct", "elx", "be2iscsi", "xen-blkfront",
		"mvsas", "ibmvfc", "ibmvscsi", "cciss", "ips", "hptiop", "qla4xxx", "bfa", "esas2r", "pmcraid", "stex",
		"myrs", "myrb",
		"zfcp", "mtip32xx", "rsxx", "vmd", "hv_storvsc", "leapraid", "cxlflash", "ibmvscsis", "mvumi", "qla1280",
		"sym53c8xx", "sata_mv", "sata_sil24", "megaraid"}
	gpus = []string{"amdgpu", "amdkfd", "kfd", "i915", "xe", "nouveau", "radeon", "ast", "mgag200", "nvidia",
		"habanalabs", "vmwgfx", "bochs-drm",
		"qxl", "virtio_gpu", "nvidia-gpu", "intel_vpu", "qaic", "amdxdna", "neuron", "mhi-pci-generic", "xocl", "xclmgmt"}
	rdma = []string{"infiniband", "mlx4_ib", "mlx5_ib", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx4_0", "<mlx4_ib>",
		"bnxt_re", "bnxt_qplib", "irdma", "i40iw", "iw_cxgb4",
		"hns_roce", "hns_roce_hw_v2", "efa", "qedr", "ocrdma", "vmw_pvrdma", "erdma", "rdma_rxe", "rxe0", "siw",
		"hfi1", "ib0", "ib1", "ib_core",
		"ib_ipoib", "ib_srp", "ib_srpt", "ib_isert", "ib_iser", "ib_umad", "isert", "iser", "rtrs_client",
		"rtrs_server", "rnbd_client", "rpcrdma",
		"rdma", "rdma_cm", "ib_qib", "scsi_transport_srp", "ib_mthca", "usnic_verbs", "mana_ib", "ionic_rdma"}
)

// harmless are words of lines of healthy machines: refusals by design, and settings.
func harmless() []string {
	return []string{"not supported", "nsupported", "does not support", "doesn't support", " set to ", "timeout is ",
		"timeout = ", "timeout=",
		"timeout value", "timeout: ", "errors=", "error handl", "error inject", "error report",
		"invalidation policy", "nvalidation will be",
		"firmware crash dump", "Direct firmware load", "module verification"}
}

// oneOf is an expression that matches any of the names.
func oneOf(lists ...[]string) string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		all = append(all, regexp.QuoteMeta(name))
	}
	return `(?:` + strings.Join(all, "|") + `)`
}

// atStart are literals for lines that start with one of the names.
func atStart(lists ...[]string) (literals []string) {
	for _, name := range slices.Concat(lists...) {
		literals = append(literals, "\n"+name)
	}
	return literals
}

func subsystemRules() []Rule {
	all := slices.Concat(
		hardwareReportRules(),
		networkDriverRules(),
		storageDriverRules(),
		filesystemTroubleRules(),
		platformRules(),
	)
	for i := range all {
		all[i].Errors = true
		if all[i].Exclude == "" {
			all[i].Exclude = aerDetail + `|` + announced
		}
	}
	return all
}

// aerDetail matches the lines that drivers/pci/pcie/aer.c logs after the line of pcieRules: the bits of the status
// ("[12] Timeout" is a corrected error), under the name of the driver of any device.
const aerDetail = `^[\w-]+ ` + pciAddress + `: (?:AER: )? +(?:\[ ?\d+\] |device \[[0-9a-f]{4}:|Error of this Agent)`

// announced matches lines in which drivers list their features at start; timeouts and recoveries are among them.
const announced = `: (?:[A-Z][\w/-]* ){0,8}(?:(?:[A-Z]\w*|timeouts?|recovery|failover|detection|reporting|handling|abort|reset) )(?:is |are )?(?:enabled|supported)\.?$`

// networkDriverRules: drivers/net, drivers/infiniband, net/{ipv4,ipv6,netfilter,openvswitch,sctp,rds,smc,tipc}.
func networkDriverRules() []Rule {
	qlogic := []string{"[qed", "[bnx2x_", "bnx2x: [bnx2x"}
	parts := []string{"IPVS", "IPv4", "IPv6", "TCP", "UDP", "UDPv6", "ICMPv6", "nf_conntrack", "nf_tables", "nf_nat",
		"nft_compat", "ip_set", "x_tables", "ip_tables",
		"ip6_tables", "ctnetlink", "openvswitch", "vxlan", "geneve", "bonding", "team", "8021q", "macvlan", "ipvlan",
		"wireguard", "sctp", "rds", "RDS/IB", "RDS/TCP",
		"RDS", "smc", "tipc", "TLS", "tls", "net_sched", "htb", "HTB", "bridge", "l2tp_core", "mptcp", "MPTCP",
		"xfrm", "IPsec", "nfnetlink_queue", "nf_queue"}
	cards := []string{"eth", "eno", "enp", "ens", "bond", "br", "veth", "vxlan", "flannel", "cali", "lxc", "cni",
		"docker", "team", "ib", "tun", "tap", "vlan", "em"}
	return []Rule{{
		ID: "nic-driver-error", Reason: "NICDriverError", Domain: Network, Severity: finding.Info,
		Summary: "the driver of a network card reports that an operation failed",
		Advice: "`ethtool -i IFACE` names driver and firmware, `ethtool -S IFACE` counts errors; `dmesg` around " +
			"the line has " +
			"the cause; once at a change of settings: that setting was refused. Again: update both, reseat or " +
			"replace the card.",
		Literals: atStart(nics, qlogic),
		Words: append(trouble(), "not cleared", "hang ", "operable", "_err found", "ot Valid", "Reset adapter",
			"still in reset",
			"ble to reserve only", "QPLIB: ", "not exist", "o available", "ot set within", "oing to be reset",
			"port restart", "o done completion", "an be found", "need to clean", "asn't been called", "stalled pool", "ever saw ", "emory region found", " UE: ", "rides the rocket", "ERR CQE", " assert_", "reboot server"),
		Patterns: []string{
			`^(?:bnx2x: )?\[(?:bnx2x|qed|qede)_\w+:\d+\((?P<subject3>[^)]{0,31})\)\]`,
			`^(?P<driver>` + oneOf(nics) + `) (?P<subject>[\w.:-]{3,40}?)(?: [^:]{1,60})?: `,
			`^(?P<driver>` + oneOf(nics) + `): (?:(?P<subject2>` + netdev + `): )?`,
		},
		Unless: append(harmless(), "disabled on Tx", "reset tx rate", "try with current", "newer version of",
			"Link up", "loopback",
			"VPD access failed", "ink Up", "ink up", "NIC Link is", "Flow Control", "ASPM", " LED", "wd_expired",
			"ethtool: ", "ACCESS_REG(0x805) op", "MSI-X vectors num", "alling back to MSI", "alling back to leg",
			"hwmon", "DCB init failed", "I40E_ERR_NOT_READY", "address invalid",
			"random", "serdes", "FEC", "get phy page", ": probe ", "optimal perform", "out of range [",
			"invalid api vers", "annot change channel", "DCB active", "DCB agent", "offload is active",
			"acknowledge mask", "max timeout of", "not assigned by adm", "bnxt_tc_add", "tc mappings"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "rdma-error", Reason: "RDMAError", Domain: Network, Severity: finding.Info,
		Summary: "the RDMA part of a network card, or what uses it, reports that an operation failed",
		Advice: "`rdma link show` and `ibstat` for the state of the port, `rdma statistic show` for its errors; a " +
			"queue pair that " +
			"fails alone is the program's, many at once are the fabric's or the card's.",
		Literals: atStart(rdma), Words: trouble(),
		Patterns: []string{
			`^` + oneOf(rdma) + ` (?P<subject>[\w.:-]{1,40}?)(?: [^:]{1,60})?: `,
			`^` + oneOf(rdma) + `:? `,
		},
		Unless: harmless(), Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "network-stack-error", Reason: "NetworkStackError", Domain: Network, Severity: finding.Info,
		Summary: "a part of the kernel's network (routing, packet filter, bridge, tunnels, load balancer) reports " +
			"that an operation failed",
		Advice: "`nstat -az` and `ip -s link` for what is dropped, `dmesg` for the part that the line begins with: " +
			"full tables and memory limits are in `sysctl net`, refused rules are the network plugin's.",
		Literals: atStart(parts, cards, []string{"net ", "Dead loop on virtual", "page_pool_"}), Words: append(trouble(), "NAPI poll",
			"no destination avai", "Dead loop", "limit reached", "gave up with errno", "posted but not deliv", "not complete!",
			"stalled pool"),
		Patterns: []string{
			`^(?P<part>` + oneOf(parts) + `)(?: [^:]{1,30})?: `,
			`^(?P<subject>(?:bond|team)\d+)(?: \([^)]{1,40}\))?: `, `^Dead loop on virtual device (?P<subject3>` + netdev + `), fix it urgently!`,
			`^page_pool_\w+\(\) gave up with errno -`, // net/core/page_pool.c
			`^(?:net )?(?P<subject2>` + oneOf(cards) + `[\w.@-]*): (?:NAPI poll function|set_features\(\) failed|(?:[Ff]ail(?:ed)?|[Uu]nable) to |[Cc]ould not |[Cc]annot |[Ee]rror |tx hang|Interrupt posted but not delivered|command 0x[0-9a-f]+ did not complete|Transmit error, |[Tt]ransmit(?:ter)? (?:timed out|timeout)|(?:PCI )?[Bb]us error)`,
		},
		Unless: append(harmless(), "link speed", "Possible SYN floodin", "window scaling", "Cannot find map file", "martian",
			"link status", ": option ", "via netlink (err", "Warning: ", "warning: ",
			"Enslaving", "Releasing", "invalid hash", "invalid argument", "invalid option",
			"could not find neste", "could not find helpe", "truncated", "short packet", "bad checksum",
			"ADDRCONF"),
		Kind: "network-device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}}
}

// storageDriverRules: drivers/{scsi,ata,nvme,md,block,nvdimm,target,message/fusion}.
func storageDriverRules() []Rule {
	hosts := []string{"mpt2sas", "mpt3sas", "mpi3mr", "megasas", "megaraid_sas", "aacraid", "arcmsr", "hpsa",
		"mptbase", "mptscsih", "mptsas", "ioc", "libfc", "libfcoe",
		"bnx2fc", "fcoe", "sas", "pm80xx", "pm8001", "qla2xxx", "3w-9xxx", "3w-sas", "zfcp", "lpfc", "qedf", "qedi",
		"bnx2i", "be2iscsi", "ipr", "storvsc",
		"hv_storvsc", "host", "stex", "hisi_sas", "iscsi", "iSCSI", "scsi", "3w-xxxx", "megaraid", "megaraid mbox",
		"mptspi",
		"mptfc", "aic7xxx", "aic79xx", "aic94xx", "gdth", "qla4xxx", "mptctl",
		"mptlan", "vhost_scsi", "tcm_loop", "fcoe"}
	disks := []string{"sd", "scsi", "ses", "sg", "st", "sr", "ch"}
	blocks := []string{"mmc", "nbd", "zram", "rbd", "drbd", "loop", "vda", "vdb", "vdc", "xvd", "dm-", "sda", "sdb",
		"sdc", "sdd", "sde", "sdf", "pmem", "block", "rnbd",
		"virtio_blk", "vbd", "nd_", "nfit", "libnvdimm", "xen-blkback", "xen_blkfront", "TARGET_CORE", "blk-mq",
		"bio", "btt", "rsxx", "cciss", "aoe", "dasd", "ublk", "blk-crypto", "zloop", "IBLOCK", "FILEIO"}
	return []Rule{{
		ID: "storage-driver-error", Reason: "StorageDriverError", Domain: Storage, Severity: finding.Info,
		Summary: "the driver of a storage controller reports that an operation failed",
		Advice: "`lsscsi -H` names the controller, `dmesg` around the line the disks behind it; the vendor's tool " +
			"(`storcli64 /call " +
			"show`, `ssacli ctrl all show`, `sas3ircu LIST`) its state; cables, power, then firmware and driver.",
		Literals: append(atStart(hbas, hosts, []string{"TCMU: ", "cmd_id "}), "***ERROR***", "***CRITICAL ERROR***"),
		Words: append(trouble(), "ring is broken", "panic'd", " is not idle",
			"is not coming back",
			"able is unplugged", "issue target reset", " layer issued ", "fault info", "esetting ", "RESET ISSUED",
			"utstanding commands", "SCSI status: ", "oop down", "LOOP DOWN", "local link is down",
			"error recovery", "F/W: bug", "not present handle", "queue an ABORT", "eceive queue closed", "adapter deregistered"),
		Patterns: []string{
			`^(?P<driver>` + oneOf(hbas) + `) (?P<subject>[\w.:-]{3,40}?)(?: [^:]{1,40})?: `,
			`^(?P<driver>` + oneOf(hbas) + `) \[(?P<subject2>[\w.:-]{3,40})\]-[0-9a-f]+:(?:\d+: )?`,
			`^scsi (?:host|target)(?P<subject4>[\d:]+): `,
			`^(?P<subject3>(?:mpt[23]sas(?:_cm)?|mpi3mr|megasas|aacraid|arcmsr|ioc|hisi_sas|host|stex)\d*)(?:: | fault info )`,
			`^(?P<driver>` + oneOf(hosts) + `)(?:\d*|-\w+):`, `^pm80[x0][x1] `,
			`^\[\d+\]: (?:[\w-]+: )?(?:scst|iscsi-scst|dev_\w+|qla2x00t?-?\w*): \w+:\d+:\*\*\*(?:CRITICAL )?ERROR\*\*\*`,
			`^TCMU: `, `^cmd_id (?:\d+ )?not found, ring is broken`, // drivers/target/target_core_user.c
		},
		Unless: append(harmless(), "cm0: ignoring", "cm0: Ignoring", "event phy", "failed stop FIS RX",
			"overriding NVDATA", "ault tolerant", "SUCCESS", "error code 0x0",
			"SSS flag", "controller can't do", "PBA", "VPD", "Read Capacity", "annot use", "ASPM",
			"HBA mode", "no retry", "flags: ", "ANSI: ", "Reset timeout ", "0 secs", "esetting controller",
			"permissible range", "mpt_ioctl_", "user data", "arameters set for", "out of bounds", "(no card)", "sas_scsi_recover_hos",
			"(0x03:0x0101)", "(0x03:x010D)", "(0x03:0x010A)", "(0x03:0x010B)", "(0x03:0x010C)", "(0x03:0x010D)", "(0x03:0x010F)"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "disk-driver-error", Reason: "DiskDriverError", Domain: Storage, Severity: finding.Info,
		Summary: "the kernel reports that a request to a disk, or its set-up, failed",
		Advice: "`smartctl -x /dev/sdX` or `nvme smart-log /dev/nvmeN`, and `dmesg` around the line; at boot " +
			"only: a disk that lacks a " +
			"feature; at work: cable, slot, or the disk itself.",
		Literals: atStart(disks, []string{"ata", "nvme", "PXD_TIMEOUT (", "target"}, blocks), Words: append(trouble(), "Split-Brain", "ASSERT",
			"BrokenPipe", "NetworkFailure", "kicking failed", "keep-alive timer", "no-disk", "terminated",
			"shut down by peer", "was reset by peer", "short read ", "nsuccessful"),
		Patterns: []string{
			`^` + oneOf(disks) + ` (?P<subject0>\d+:\d+:\d+:\d+): (?:\[(?P<subject>\w+)\] )?(?:tag#\d+ )?`,
			`^(?P<subject>ata\d+(?:\.\d+)?): `,
			`^nvme\w* (?P<subject2>[\w.:-]{3,40}): `,
			`^(?P<subject3>nvme[\w-]*): `,
			`^(?P<subject4>` + oneOf(blocks) + `[\w-]*): `,
			`^` + oneOf(blocks) + `[\w-]* (?P<subject5>[\w.:-]{2,40}): `, `^TARGET_CORE\[\w+\]: `, `^(?P<subject7>st\d+): (?:Error|Tape error)`, `^PXD_TIMEOUT \(`,
			`^target\d+:\d+:\d+: Domain Validation `,
			`^drbd (?P<subject6>[\w./-]{1,60})(?: [\w./-]{1,60}){0,2}: `,
		},
		Unless: append(harmless(), "exit code 0", "autocal timeout", "CHS sector", ": SUCCESS", "getting Control mode", "parse quirk", "less than minimum", "Illegal Request",
			"nvalid command oper", "nvalid Command Opco", "nvalid Field", "nvalid field in", "\nsr ", "[sr0]", "PACKET",
			"slow to respond", "Abort status: 0x0", "shutdown incomplete", "tuning execution", "SDIO",
			"IDENTIFY failed on d", "misclassified", "SATA link down", "sking for cache dat", "test WP failed",
			"Assuming drive cache",
			"an't queue", "an't print",
			"Mode Sense", "No Caching mode", "READ LOG DMA EXT", "Security Log", "APST", "SUBNQN",
			"globally duplicate", "ANA", "bogus", "host memory buffer", "CMB", "D3 ", "failed to get WWN",
			"VPD", "mode parameter", "Attached", "INQUIRY", "diag page", "iagnostic page", "enclosure", "Medium not present",
			"Sense not available", "Write Protect", "Power-on or device", "ACPI", "_GTF", "rain buffer",
			"nit Attention", "nit attention", "max_hw", "optimal", "err_mask=0x0", "model number",
			"applying bridge", "due to user request", "unit is not ready", "utomatically solved", "manually solved",
			"trying again", "too aggressive", "Disconnecting -> ", "must specify", "unhandled page",
			"-> UpToDate", "Wrong diag", "alua: supports", "alua: port group", "alua: Attached", "alua: disable",
			"nknown partition", "wrong magic",
			"artition table", "GPT", "capacity change", "uevent", "DPO", "Removable", "Media removed",
			"couldn't mount", "ounting", "ANSI: ", "Shutdown timeout", "hostbyte=DID_OK", "receiver terminated", "Aborting remote stat", "CDL", "DIPM",
			"DEVSLP", "Broken RAID", "WARNING: synchronous"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "raid-mapper-error", Reason: "RAIDMapperError", Domain: Storage, Severity: finding.Info,
		Summary: "software RAID, the device mapper or bcache reports that an operation failed",
		Advice: "`cat /proc/mdstat`, `mdadm --detail /dev/mdN`, `dmsetup status`, `lvs -a -o+devices`: is a disk " +
			"missing or an array degraded? " +
			"`dmesg` before the line names the disk.",
		Literals: atStart([]string{"md", "device-mapper: ", "bcache: ", "kvdo"}), Words: append(trouble(),
			"kicking non-fresh", "not clean", "could not open", "ot aligned on ", "Too big sector numb", "y: unaligned io"),
		Patterns: []string{
			`^md(?:/[\w-]+)?: ?(?:(?P<subject>\w+)(?:: )?)?`, `^(?P<subject2>md\d+): `, `^md-cluster(?:\([\w:]+\))?: `,
			`^device-mapper: (?P<target>[\w -]+(?::[a-zA-Z][\w-]*)?): (?:(?P<subject3>\d+:\d+): )?`,
			`^bcache: `, `^kvdo\d*(?::\S{1,40})?: `,
		},
		Unless: append(harmless(), "Disabling writeback", "starting backgroun", "already running",
			"Stopping all devices", "stop_when", "initialised", "initialized", "version", "device-mapper: table",
			"device-mapper: ioctl", "raid6",
			"0 pages", "invalid feature", "nknown feature", "nknown target", "nrecogni", "argument", "faulted",
			"active with",
			" stopped", "Caching disabled", "already set", "IMA measurements", "to continue reshape",
			"reshape: not ", "cblock out of", "configured devices",
			"must have missing", "already registered"),
		Kind: "device", Escalate: again, EscalateSeverity: finding.Warning, Expiry: 24 * time.Hour,
	}, {
		ID: "mapper-table-refused", Reason: "DeviceMapperTableRefused", Domain: Storage, Severity: finding.Info,
		Summary: "the device mapper refused a table: a device below it is missing or in use",
		Advice: "`dmsetup ls --tree` and `lsblk`: which device is missing or held? Of multipath: a local disk is " +
			"in use, put it on the " +
			"blacklist in /etc/multipath.conf; of LVM: `pvs` for what is missing.",
		Patterns: []string{`^device-mapper: table: (?:(?P<subject>\d+:\d+): )?\S`,
			`^device-mapper: (?:ioctl: )?error adding target to table`},
		Kind: "device", Expiry: time.Hour,
	}}
}
