package detect

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// list is THE list: one line for each check, in the order in which people read them.
func list() []entry {
	return []entry{
		// storage
		plain("filesystem-readonly", DefaultFilesystemReadonlySettings, FilesystemReadonly),
		aided("disk-space", DefaultDiskSpaceSettings, func(s DiskSpaceSettings, a Aids) Check { return DiskSpace(s, a.Memory) }),
		plain("hung-mounts", DefaultHungMountsSettings, HungMounts),
		plain("fuse-congestion", DefaultFUSECongestionSettings, FUSECongestion),
		simple("btrfs-errors", BtrfsErrors),
		simple("zfs-pools", ZFSPools),
		simple("fstab-mounts", FstabMounts),
		plain("io-hang", DefaultIOHangSettings, IOHang),
		plain("disk-saturation", DefaultDiskSaturationSettings, DiskSaturation),
		simple("scsi-device-state", SCSIDeviceState),
		simple("md-arrays", MDArrays),
		simple("multipath", Multipath),
		plain("thin-pools", DefaultThinPoolsSettings, ThinPools),
		aided("nvme-health", noSettings, func(_ bare, a Aids) Check { return NVMeHealth(a.Memory) }),
		aided("disk-health", noSettings, func(_ bare, a Aids) Check { return DiskHealth(a.Memory) }),
		simple("ebs-limits", EBSLimits),

		// cpu, memory
		plain("load", DefaultLoadSettings, Load),
		aided("oom-kills", noSettings, func(_ bare, a Aids) Check { return OOMKills(a.Memory) }),
		plain("memory-available", DefaultMemoryAvailableSettings, MemoryAvailable),
		simple("memory-fragmentation", MemoryFragmentation),
		simple("system-cgroups", SystemCgroups),
		simple("pids-limits", PIDsLimits),
		plain("slab-leak", DefaultSlabLeakSettings, SlabLeak),
		simple("dying-cgroups", DyingCgroups),
		simple("hugepages", Hugepages),
		simple("swap", Swap),

		// kernel
		aided("kernel-log", DefaultKernelLogSettings, func(s KernelLogSettings, a Aids) Check { return KernelLog(s, a.KernelLog, a.Witnesses, a.Memory) }),

		// hardware
		aided("edac", DefaultEDACSettings, func(s EDACSettings, a Aids) Check { return EDAC(s, a.Memory) }),
		simple("memory-corrupted", MemoryCorrupted),
		simple("pcie-errors", PCIeErrors),
		simple("thermal", Thermal),
		aided("sensors", noSettings, func(_ bare, a Aids) Check { return Sensors(a.Memory) }),
		plain("cpu-steal", DefaultCPUStealSettings, CPUSteal),
		plain("cpu-throttling", DefaultCPUThrottlingSettings, CPUThrottling),
		simple("cpu-frequency", CPUFrequency),
		simple("cpus-offline", CPUsOffline),

		// kernel
		simple("kernel-taint", KernelTaint),
		plain("hung-tasks", DefaultHungTasksSettings, HungTasks),
		plain("zombies", DefaultZombiesSettings, Zombies),
		plain("task-limits", DefaultUsageSettings, TaskLimits),
		plain("file-handles", DefaultUsageSettings, FileHandles),
		simple("inotify", Inotify),
		simple("clock-source", ClockSource),
		plain("time-sync", DefaultTimeSyncSettings, TimeSync),
		simple("last-panic", LastPanic),
		simple("unexpected-reboot", UnexpectedReboot),
		simple("entropy", Entropy),
		plain("kernel-modules", DefaultKernelModulesSettings, KernelModules),
		plain("sysctls", DefaultSysctlsSettings, Sysctls),

		// hardware
		simple("hardware-watchdog", HardwareWatchdog),

		// network
		plain("dns", DefaultDNSSettings, DNS),
		simple("cni-config", CNIConfig),
		plain("kube-proxy", DefaultKubeProxySettings, KubeProxy),
		simple("packet-filter", PacketFilter),
		simple("cni-mtu", CNIMTU),
		simple("address-overlap", AddressOverlap),
		plain("apiserver-reachability", DefaultAPIServerReachabilitySettings, APIServerReachability),
		aided("link-state", DefaultLinkStateSettings, func(s LinkStateSettings, a Aids) Check { return LinkState(s, a.Memory) }),
		simple("bonds", Bonds),
		simple("network-errors", NetworkErrors),
		simple("nic-allowance", NICAllowance),
		aided("infiniband", noSettings, func(_ bare, a Aids) Check { return Infiniband(a.Memory) }),
		simple("loopback", Loopback),
		aided("default-route", noSettings, func(_ bare, a Aids) Check { return DefaultRoute(a.Memory) }),
		simple("ipv6-duplicate-address", DuplicateAddress),
		simple("neighbour-table", NeighbourTable),
		simple("conntrack", Conntrack),
		simple("sockets", Sockets),
		simple("tcp", TCP),
		simple("udp", UDP),
		simple("softnet", Softnet),

		// kubernetes
		plain("kubelet-health", DefaultKubeletHealthSettings, KubeletHealth),
		simple("kubelet-pleg", KubeletPLEG),
		simple("daemon-impostors", DaemonImpostors),
		aided("kubelet-restarts", noSettings, func(_ bare, a Aids) Check { return KubeletRestarts(a.Memory) }),
		simple("kubelet-certificates", KubeletCertificates),
		simple("kubelet-sync", KubeletSync),
		simple("volume-mounts", VolumeMounts),
		simple("probe-storms", ProbeStorms),
		simple("evictions", Evictions),
		simple("node-registration", NodeRegistration),
		aided("kubelet-config", noSettings, func(_ bare, a Aids) Check { return KubeletConfig(a.Memory) }),
		plain("stuck-pods", DefaultStuckPodsSettings, StuckPods),
		plain("runtime-health", DefaultRuntimeHealthSettings, RuntimeHealth),
		simple("runtime-deprecations", RuntimeDeprecations),
		simple("runtime-latency", RuntimeLatency),
		aided("runtime-restarts", noSettings, func(_ bare, a Aids) Check { return RuntimeRestarts(a.Memory) }),
		simple("journald", Journald),
		aided("systemd-units", DefaultSystemdUnitsSettings, func(s SystemdUnitsSettings, a Aids) Check { return SystemdUnits(s, a.Memory) }),
		simple("shim-leaks", ShimLeaks),
		aided("csi-registration", DefaultCSIRegistrationSettings, func(s CSIRegistrationSettings, a Aids) Check { return CSIRegistration(s, a.Memory) }),
		aided("critical-daemonsets", DefaultCriticalDaemonSetsSettings, func(s CriticalDaemonSetsSettings, a Aids) Check { return CriticalDaemonSets(s, a.DaemonSets) }),
	}
}

// Aids are what some checks are given besides the read door. The zero value is good: such a check then remembers nothing
// from one run to the next, or leaves a question open.
type Aids struct {
	Memory     Memory
	DaemonSets DaemonSetLookups
	KernelLog  *LiveKernelLog // fed by a source; nil: each look reads what the kernel has kept
	Witnesses  *Witnesses     // of all looks; nil: the kernel's log speaks for itself
}

// With is the settings of one check with what every check has.
type With[S any] struct {
	Common   `yaml:",inline"`
	Settings S `yaml:",inline"`
}

// Common is what can be set of every check.
type Common struct {
	Enabled  bool             `yaml:"enabled"`
	Every    time.Duration    `yaml:"every,omitempty"`    // interval between looks; the check's own unless set
	Severity finding.Severity `yaml:"severity,omitempty"` // of all findings; their own unless set
}

// apply returns the check as the user wants it.
func (c Common) apply(check Check) Check {
	if c.Every > 0 {
		check.Every = c.Every
	}
	check.Severity = c.Severity
	return check
}
