// Package host is everything that a check or a lister may read of the machine, of its kubelet and runtime and of the
// cluster, as plain structs. It never writes. It treats all input as broken or hostile: reads are bounded, errors name
// their operand, and child processes make all calls that might block forever in the kernel (see package probe).
package host

import (
	"context"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The files of the host: see package files, which has few dependencies.
type (
	Files    = files.Tree
	Entry    = files.Entry
	FileStat = files.FileStat
)

// Host is one machine as the agent sees it. If a client's function is nil, this host has no such thing configured; the
// client's methods then return ErrNotConfigured.
type Host struct {
	NodeName string // the Node object of this machine; empty without Kubernetes
	Paths    Paths
	Doubts   Doubts      // settings of Paths that could not be determined
	Node     distro.Node // its Kubernetes distribution
	Files    Files
	Clock    func() finding.Timestamp
	// Processes shares scans of /proc: see ProcessTable. If it is nil every call scans again.
	Processes *Processes
	// Mounts reads the host's mount table and parses only changes; may be nil.
	Mounts *mountinfo.Reader

	Kubelet    Kubelet
	Runtime    Runtime
	Containerd Containerd
	Cluster    Cluster
	Prober     probe.Prober
	Plugins    kubelet.Plugins
	KernelLog  func(ctx context.Context, each func(kmsg.KernelRecord)) error // see KernelLog; nil: not configured
	Network    Network
	Inotify    func() (watch.InotifyRoom, error)
	Systemd    systemd.Systemd
	TimeClock  func() (ClockState, error) // quality of the wall clock: see ReadClock
}

// Paths are the locations on this node. Each has a default, is corrected by the settings of the running kubelet
// (discover.Discover), and can be set in the configuration. All are absolute.
type Paths struct {
	InitPID int `yaml:"initPID"` // the process whose mount table and namespaces are the host's; default 1

	// trust root's kubelet in its own mount namespace, or started by hand
	KubeletElsewhere bool   `yaml:"kubeletElsewhere"`
	KubeletRoot      string `yaml:"kubeletRoot"`    // /var/lib/kubelet
	KubeletConfig    string `yaml:"kubeletConfig"`  // kubelet's --config file; empty if unknown
	Kubeconfig       string `yaml:"kubeconfig"`     // credentials of the agent; default: kubelet's own
	KubeletHealthz   string `yaml:"kubeletHealthz"` // http://127.0.0.1:10248/healthz
	KubeletAPI       string `yaml:"kubeletAPI"`     // https://127.0.0.1:10250
	// verifies kubelet's serving certificate; empty: see internal/kube
	KubeletCAFile    string `yaml:"kubeletCAFile"`
	PluginRegistry   string `yaml:"pluginRegistry"`   // <KubeletRoot>/plugins_registry
	StaticPods       string `yaml:"staticPods"`       // kubelet's staticPodPath
	PodLogs          string `yaml:"podLogs"`          // /var/log/pods
	CRISocket        string `yaml:"criSocket"`        // /run/containerd/containerd.sock
	ContainerdSocket string `yaml:"containerdSocket"` // same, unless there is another runtime
	ContainerdState  string `yaml:"containerdState"`  // /run/containerd
	ContainerdRoot   string `yaml:"containerdRoot"`   // /var/lib/containerd
	CgroupMount      string `yaml:"cgroupMount"`      // /sys/fs/cgroup
	// kubelet's cgroupRoot: "/" or e.g. "/lab"; kubepods is below it
	CgroupRoot string `yaml:"cgroupRoot"`
	// systemd or cgroupfs; empty: an inspection finds it (pkg/inspect/kinds/cgroup_driver.go)
	CgroupDriver   string   `yaml:"cgroupDriver"`
	CNIConfDir     string   `yaml:"cniConfDir"`     // /etc/cni/net.d
	CNIBinDirs     []string `yaml:"cniBinDirs"`     // /opt/cni/bin, /usr/lib/cni
	CNICacheDir    string   `yaml:"cniCacheDir"`    // /var/lib/cni; results are in results/ below it
	CNINetworksDir string   `yaml:"cniNetworksDir"` // /var/lib/cni/networks: leases of host-local
	NetnsDirs      []string `yaml:"netnsDirs"`      // /run/netns and the runtime's own
}
