// Package checks holds THE list of all checks, their settings, and which known fault is found by which of them.
package checks

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/cpu"
	"github.com/nodeagent/nodeagent/pkg/detect/cri"
	"github.com/nodeagent/nodeagent/pkg/detect/hardware"
	"github.com/nodeagent/nodeagent/pkg/detect/hardware/edac"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/criticaldaemonsets"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/csiregistration"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/kubelethealth"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/stuckpods"
	"github.com/nodeagent/nodeagent/pkg/detect/memory"
	"github.com/nodeagent/nodeagent/pkg/detect/memory/oomkills"
	"github.com/nodeagent/nodeagent/pkg/detect/network"
	"github.com/nodeagent/nodeagent/pkg/detect/network/apiserverreachability"
	"github.com/nodeagent/nodeagent/pkg/detect/network/cniconfig"
	"github.com/nodeagent/nodeagent/pkg/detect/network/dns"
	"github.com/nodeagent/nodeagent/pkg/detect/network/kubeproxy"
	"github.com/nodeagent/nodeagent/pkg/detect/network/packetfilter"
	"github.com/nodeagent/nodeagent/pkg/detect/storage"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/diskspace"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystemreadonly"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/hungmounts"
	"github.com/nodeagent/nodeagent/pkg/detect/system"
	"github.com/nodeagent/nodeagent/pkg/detect/system/hungtasks"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
	"github.com/nodeagent/nodeagent/pkg/detect/systemd"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// list is THE list: one line for each check, in the order in which people read them.
func list() []entry {
	return []entry{
		// storage
		plain("filesystem-readonly", filesystemreadonly.DefaultSettings, filesystemreadonly.New),
		aided("disk-space", diskspace.DefaultSettings, func(s diskspace.Settings, a Deps) detect.Check { return diskspace.New(s, a.State) }),
		plain("hung-mounts", hungmounts.DefaultSettings, hungmounts.New),
		plain("fuse-congestion", storage.DefaultFUSECongestionSettings, storage.FUSECongestion),
		simple("btrfs-errors", storage.BtrfsErrors),
		simple("zfs-pools", storage.ZFSPools),
		simple("fstab-mounts", storage.FstabMounts),
		plain("io-hang", storage.DefaultIOHangSettings, storage.IOHang),
		plain("disk-saturation", storage.DefaultDiskSaturationSettings, storage.DiskSaturation),
		simple("scsi-device-state", storage.SCSIDeviceState),
		simple("md-arrays", storage.MDArrays),
		simple("multipath", storage.Multipath),
		plain("thin-pools", storage.DefaultThinPoolsSettings, storage.ThinPools),
		aided("nvme-health", noSettings, func(_ bare, a Deps) detect.Check { return storage.NVMeHealth(a.State) }),
		aided("disk-health", noSettings, func(_ bare, a Deps) detect.Check { return storage.DiskHealth(a.State) }),
		simple("ebs-limits", storage.EBSLimits),

		// cpu, memory
		plain("load", load.DefaultSettings, load.New),
		aided("oom-kills", noSettings, func(_ bare, a Deps) detect.Check { return oomkills.New(a.State) }),
		plain("memory-available", memory.DefaultMemoryAvailableSettings, memory.MemoryAvailable),
		simple("memory-fragmentation", memory.MemoryFragmentation),
		simple("system-cgroups", memory.SystemCgroups),
		simple("pids-limits", system.PIDsLimits),
		plain("slab-leak", memory.DefaultSlabLeakSettings, memory.SlabLeak),
		simple("dying-cgroups", memory.DyingCgroups),
		simple("hugepages", memory.Hugepages),
		simple("swap", memory.Swap),

		// kernel
		aided("kernel-log", kernellog.DefaultSettings, func(s kernellog.Settings, a Deps) detect.Check {
			return kernellog.New(s, a.KernelLog, a.Sources, a.State)
		}),

		// hardware
		aided("edac", edac.DefaultSettings, func(s edac.Settings, a Deps) detect.Check { return edac.New(s, a.State) }),
		simple("memory-corrupted", hardware.MemoryCorrupted),
		simple("pcie-errors", hardware.PCIeErrors),
		simple("thermal", hardware.Thermal),
		aided("sensors", noSettings, func(_ bare, a Deps) detect.Check { return hardware.Sensors(a.State) }),
		plain("cpu-steal", cpu.DefaultCPUStealSettings, cpu.CPUSteal),
		plain("cpu-throttling", cpu.DefaultCPUThrottlingSettings, cpu.CPUThrottling),
		simple("cpu-frequency", cpu.CPUFrequency),
		simple("cpus-offline", cpu.CPUsOffline),

		// kernel
		simple("kernel-taint", system.KernelTaint),
		plain("hung-tasks", hungtasks.DefaultSettings, hungtasks.New),
		plain("zombies", system.DefaultZombiesSettings, system.Zombies),
		plain("task-limits", system.DefaultUsageSettings, system.TaskLimits),
		plain("file-handles", system.DefaultUsageSettings, system.FileHandles),
		simple("inotify", system.Inotify),
		simple("clock-source", system.ClockSource),
		plain("time-sync", system.DefaultTimeSyncSettings, system.TimeSync),
		simple("last-panic", system.LastPanic),
		simple("unexpected-reboot", system.UnexpectedReboot),
		simple("entropy", system.Entropy),
		plain("kernel-modules", system.DefaultKernelModulesSettings, system.KernelModules),
		plain("sysctls", system.DefaultSysctlsSettings, system.Sysctls),

		// hardware
		simple("hardware-watchdog", hardware.HardwareWatchdog),

		// network
		plain("dns", dns.DefaultSettings, dns.New),
		simple("cni-config", cniconfig.New),
		plain("kube-proxy", kubeproxy.DefaultSettings, kubeproxy.New),
		simple("packet-filter", packetfilter.New),
		simple("cni-mtu", network.CNIMTU),
		simple("address-overlap", network.AddressOverlap),
		plain("apiserver-reachability", apiserverreachability.DefaultSettings, apiserverreachability.New),
		aided("link-state", network.DefaultLinkStateSettings, func(s network.LinkStateSettings, a Deps) detect.Check { return network.LinkState(s, a.State) }),
		simple("bonds", network.Bonds),
		simple("network-errors", network.NetworkErrors),
		simple("nic-allowance", network.NICAllowance),
		aided("infiniband", noSettings, func(_ bare, a Deps) detect.Check { return network.Infiniband(a.State) }),
		simple("loopback", network.Loopback),
		aided("default-route", noSettings, func(_ bare, a Deps) detect.Check { return network.DefaultRoute(a.State) }),
		simple("ipv6-duplicate-address", network.DuplicateAddress),
		simple("neighbour-table", network.NeighbourTable),
		simple("conntrack", network.Conntrack),
		simple("sockets", network.Sockets),
		simple("tcp", network.TCP),
		simple("udp", network.UDP),
		simple("softnet", network.Softnet),

		// kubernetes
		plain("kubelet-health", kubelethealth.DefaultSettings, kubelethealth.New),
		simple("kubelet-pleg", kubernetes.KubeletPLEG),
		simple("daemon-impostors", kubernetes.DaemonImpostors),
		aided("kubelet-restarts", noSettings, func(_ bare, a Deps) detect.Check { return kubernetes.KubeletRestarts(a.State) }),
		simple("kubelet-certificates", kubernetes.KubeletCertificates),
		simple("kubelet-sync", kubernetes.KubeletSync),
		simple("volume-mounts", kubernetes.VolumeMounts),
		simple("probe-storms", kubernetes.ProbeStorms),
		simple("evictions", kubernetes.Evictions),
		simple("node-registration", kubernetes.NodeRegistration),
		aided("kubelet-config", noSettings, func(_ bare, a Deps) detect.Check { return kubernetes.KubeletConfig(a.State) }),
		plain("stuck-pods", stuckpods.DefaultSettings, stuckpods.New),
		plain("runtime-health", cri.DefaultRuntimeHealthSettings, cri.RuntimeHealth),
		simple("runtime-deprecations", cri.RuntimeDeprecations),
		simple("runtime-latency", cri.RuntimeLatency),
		aided("runtime-restarts", noSettings, func(_ bare, a Deps) detect.Check { return cri.RuntimeRestarts(a.State) }),
		simple("journald", systemd.Journald),
		aided("systemd-units", systemd.DefaultSystemdUnitsSettings, func(s systemd.SystemdUnitsSettings, a Deps) detect.Check { return systemd.SystemdUnits(s, a.State) }),
		simple("shim-leaks", cri.ShimLeaks),
		aided("csi-registration", csiregistration.DefaultSettings, func(s csiregistration.Settings, a Deps) detect.Check { return csiregistration.New(s, a.State) }),
		aided("critical-daemonsets", criticaldaemonsets.DefaultSettings, func(s criticaldaemonsets.Settings, a Deps) detect.Check {
			return criticaldaemonsets.New(s, a.DaemonSets)
		}),
	}
}

// Deps are what some checks are given besides the read door. The zero value is good: such a check then remembers nothing
// from one run to the next, or leaves a question open.
type Deps struct {
	State      detect.StateStore
	DaemonSets criticaldaemonsets.DaemonSetLookups
	KernelLog  *kernellog.LiveKernelLog // fed by a source; nil: each look reads what the kernel has kept
	Sources    *detect.StateSources     // of all looks; nil: the kernel's log speaks for itself
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
func (c Common) apply(check detect.Check) detect.Check {
	if c.Every > 0 {
		check.Every = c.Every
	}
	check.Severity = c.Severity
	return check
}
