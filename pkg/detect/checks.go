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
		plain("io-hang", DefaultIOHangSettings, IOHang),
		plain("disk-saturation", DefaultDiskSaturationSettings, DiskSaturation),

		// cpu, memory
		plain("load", DefaultLoadSettings, Load),
		aided("oom-kills", noSettings, func(_ bare, a Aids) Check { return OOMKills(a.Memory) }),
		plain("memory-available", DefaultMemoryAvailableSettings, MemoryAvailable),
		simple("memory-fragmentation", MemoryFragmentation),
		plain("slab-leak", DefaultSlabLeakSettings, SlabLeak),
		simple("dying-cgroups", DyingCgroups),
		simple("hugepages", Hugepages),
		simple("swap", Swap),

		// kernel
		aided("kernel-log", DefaultKernelLogSettings, KernelLog),

		// hardware
		simple("memory-corrupted", MemoryCorrupted),

		// network
		plain("dns", DefaultDNSSettings, DNS),
		simple("cni-config", CNIConfig),
		plain("kube-proxy", DefaultKubeProxySettings, KubeProxy),
		plain("apiserver-reachability", DefaultAPIServerReachabilitySettings, APIServerReachability),

		// kubernetes
		plain("kubelet-health", DefaultKubeletHealthSettings, KubeletHealth),
		simple("kubelet-pleg", KubeletPLEG),
		aided("kubelet-restarts", noSettings, func(_ bare, a Aids) Check { return KubeletRestarts(a.Memory) }),
		simple("kubelet-certificates", KubeletCertificates),
		plain("stuck-pods", DefaultStuckPodsSettings, StuckPods),
		plain("runtime-health", DefaultRuntimeHealthSettings, RuntimeHealth),
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
