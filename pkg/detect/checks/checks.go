// Package checks holds THE list of all checks and their settings.
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
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/daemonsethang"
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

// list is THE list: one line for each check, in the order of the documentation. The ID is in the check.
func list() []entry {
	return []entry{
		// storage
		plain(filesystemreadonly.DefaultSettings, filesystemreadonly.New),
		withStateAndSettings(diskspace.DefaultSettings, diskspace.New),
		plain(hungmounts.DefaultSettings, hungmounts.New),
		plain(storage.DefaultFUSECongestionSettings, storage.FUSECongestion),
		simple(storage.BtrfsErrors),
		simple(storage.ZFSPools),
		simple(storage.FstabMounts),
		plain(storage.DefaultIOHangSettings, storage.IOHang),
		plain(storage.DefaultDiskSaturationSettings, storage.DiskSaturation),
		simple(storage.SCSIDeviceState),
		simple(storage.MDArrays),
		simple(storage.Multipath),
		plain(storage.DefaultThinPoolsSettings, storage.ThinPools),
		stateful(storage.NVMeHealth),
		stateful(storage.DiskHealth),
		simple(storage.EBSLimits),

		// cpu, memory
		plain(load.DefaultSettings, load.New),
		stateful(oomkills.New),
		plain(memory.DefaultMemoryAvailableSettings, memory.MemoryAvailable),
		simple(memory.MemoryFragmentation),
		simple(memory.SystemCgroups),
		simple(system.PIDsLimits),
		plain(memory.DefaultSlabLeakSettings, memory.SlabLeak),
		simple(memory.DyingCgroups),
		simple(memory.Hugepages),
		simple(memory.Swap),

		// kernel
		aided(kernellog.DefaultSettings, func(s kernellog.Settings, a Deps) detect.Check {
			return kernellog.New(s, a.KernelLog, a.Sources, a.State)
		}),

		// hardware
		withStateAndSettings(edac.DefaultSettings, edac.New),
		simple(hardware.MemoryCorrupted),
		simple(hardware.PCIeErrors),
		simple(hardware.Thermal),
		stateful(hardware.Sensors),
		plain(cpu.DefaultCPUStealSettings, cpu.CPUSteal),
		plain(cpu.DefaultCPUThrottlingSettings, cpu.CPUThrottling),
		simple(cpu.CPUFrequency),
		simple(cpu.CPUsOffline),

		// kernel
		simple(system.KernelTaint),
		plain(hungtasks.DefaultSettings, hungtasks.New),
		plain(system.DefaultZombiesSettings, system.Zombies),
		plain(system.DefaultUsageSettings, system.TaskLimits),
		plain(system.DefaultUsageSettings, system.FileHandles),
		simple(system.Inotify),
		plain(system.DefaultUsageSettings, system.KernelLimits),
		simple(system.ClockSource),
		plain(system.DefaultTimeSyncSettings, system.TimeSync),
		simple(system.LastPanic),
		simple(system.UnexpectedReboot),
		plain(system.DefaultKernelModulesSettings, system.KernelModules),
		plain(system.DefaultSysctlsSettings, system.Sysctls),

		// hardware
		simple(hardware.HardwareWatchdog),

		// network
		plain(dns.DefaultSettings, dns.New),
		simple(cniconfig.New),
		plain(kubeproxy.DefaultSettings, kubeproxy.New),
		simple(packetfilter.New),
		simple(network.CNIMTU),
		plain(apiserverreachability.DefaultSettings, apiserverreachability.New),
		withStateAndSettings(network.DefaultLinkStateSettings, network.LinkState),
		simple(network.Bonds),
		simple(network.NetworkErrors),
		simple(network.NICAllowance),
		stateful(network.Infiniband),
		simple(network.Loopback),
		stateful(network.DefaultRoute),
		simple(network.DuplicateAddress),
		simple(network.NeighbourTable),
		simple(network.Conntrack),
		simple(network.Sockets),
		simple(network.TCP),
		simple(network.UDP),
		simple(network.Softnet),

		// kubernetes
		plain(kubelethealth.DefaultSettings, kubelethealth.New),
		simple(kubernetes.KubeletPLEG),
		simple(kubernetes.DaemonImpostors),
		stateful(kubernetes.KubeletRestarts),
		simple(kubernetes.KubeletCertificates),
		simple(kubernetes.KubeletSync),
		simple(kubernetes.VolumeMounts),
		simple(kubernetes.ProbeStorms),
		simple(kubernetes.Evictions),
		simple(kubernetes.NodeRegistration),
		stateful(kubernetes.KubeletConfig),
		plain(stuckpods.DefaultSettings, stuckpods.New),
		plain(cri.DefaultRuntimeHealthSettings, cri.RuntimeHealth),
		simple(cri.RuntimeDeprecations),
		simple(cri.RuntimeLatency),
		stateful(cri.RuntimeRestarts),
		simple(systemd.Journald),
		withStateAndSettings(systemd.DefaultSystemdUnitsSettings, systemd.SystemdUnits),
		simple(systemd.DaemonStopped),
		simple(cri.ShimLeaks),
		withStateAndSettings(csiregistration.DefaultSettings, csiregistration.New),
		aided(criticaldaemonsets.DefaultSettings, func(s criticaldaemonsets.Settings, a Deps) detect.Check {
			return criticaldaemonsets.New(s, a.DaemonSets)
		}),
		plain(daemonsethang.DefaultSettings, daemonsethang.New),
	}
}

// Deps are the dependencies of some checks besides the host. The zero value is valid: such a check then keeps no state
// across restarts, or leaves a question open.
type Deps struct {
	State      detect.StateStore
	DaemonSets criticaldaemonsets.DaemonSetLookups
	KernelLog  *kernellog.Log       // fed by a source; nil: each run reads the existing records
	Sources    *detect.StateSources // of all checks; kernel-log asks it when it runs
}

// With holds the settings of one check together with those that every check has.
type With[S any] struct {
	Common   `yaml:",inline"`
	Settings S `yaml:",inline"`
}

// Common holds the settings that every check has.
type Common struct {
	Enabled  bool             `yaml:"enabled"`
	Every    time.Duration    `yaml:"every,omitempty"`    // interval between runs; the check's own unless set
	Severity finding.Severity `yaml:"severity,omitempty"` // of all findings; their own unless set
}

// apply returns the check with the settings of the user.
func (c Common) apply(check detect.Check) detect.Check {
	if c.Every > 0 {
		check.Every = c.Every
	}
	check.Severity = c.Severity
	return check
}
