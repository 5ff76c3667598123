// Package host is everything that a check or a lister may read of the machine, of its kubelet and runtime and of the
// cluster, as plain structs. Nothing here changes anything. Everything outside is taken as broken or hostile: reads
// are bounded, errors name their operand, and whatever might block for ever in the kernel is done by a child process
// (see Probe).
package host

import (
	"context"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Host is one machine as the agent sees it. A client's function that is nil means that this host has no such thing
// configured; the client's methods then return ErrNotConfigured.
type Host struct {
	NodeName string // the Node object that stands for this machine; empty where there is no Kubernetes
	Paths    Paths
	Doubts   Doubts      // settings of Paths that could not be told
	Node     distro.Node // of which distribution of Kubernetes it is
	Files    Files
	Clock    func() finding.Timestamp
	// Processes shares scans of /proc: see ProcessTable. Where it is nil every call scans again.
	Processes *Processes
	// Mounts reads the host's mount table without parsing again what has not changed; may be nil.
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
	TimeClock  func() (ClockState, error) // how good the wall clock is: see ReadClock
}

// Paths is where things are on this node. Every one has a default, is corrected by what the running kubelet says
// (Discover), and can be set in the configuration. All are absolute.
type Paths struct {
	InitPID int `yaml:"initPID"` // the process whose mount table and namespaces stand for the host; 1 unless set

	// believe a kubelet of root's in a mount namespace of its own, or started by hand
	KubeletElsewhere bool   `yaml:"kubeletElsewhere"`
	KubeletRoot      string `yaml:"kubeletRoot"`    // /var/lib/kubelet
	KubeletConfig    string `yaml:"kubeletConfig"`  // kubelet's --config file; empty when unknown
	Kubeconfig       string `yaml:"kubeconfig"`     // credentials of the agent; kubelet's own when not set
	KubeletHealthz   string `yaml:"kubeletHealthz"` // http://127.0.0.1:10248/healthz
	KubeletAPI       string `yaml:"kubeletAPI"`     // https://127.0.0.1:10250
	// verifies kubelet's serving certificate; empty: see internal/kube
	KubeletCAFile    string `yaml:"kubeletCAFile"`
	PluginRegistry   string `yaml:"pluginRegistry"`   // <KubeletRoot>/plugins_registry
	StaticPods       string `yaml:"staticPods"`       // kubelet's staticPodPath
	PodLogs          string `yaml:"podLogs"`          // /var/log/pods
	CRISocket        string `yaml:"criSocket"`        // /run/containerd/containerd.sock
	ContainerdSocket string `yaml:"containerdSocket"` // same, unless the runtime is another one
	ContainerdState  string `yaml:"containerdState"`  // /run/containerd
	ContainerdRoot   string `yaml:"containerdRoot"`   // /var/lib/containerd
	CgroupMount      string `yaml:"cgroupMount"`      // /sys/fs/cgroup
	// kubelet's cgroupRoot: "/" or e.g. "/lab"; kubepods is below it
	CgroupRoot string `yaml:"cgroupRoot"`
	// systemd or cgroupfs; empty: an inspection asks the node (pkg/inspect/cgroup_driver.go)
	CgroupDriver   string   `yaml:"cgroupDriver"`
	CNIConfDir     string   `yaml:"cniConfDir"`     // /etc/cni/net.d
	CNIBinDirs     []string `yaml:"cniBinDirs"`     // /opt/cni/bin, /usr/lib/cni
	CNICacheDir    string   `yaml:"cniCacheDir"`    // /var/lib/cni; results are in results/ below it
	CNINetworksDir string   `yaml:"cniNetworksDir"` // /var/lib/cni/networks: leases of host-local
	NetnsDirs      []string `yaml:"netnsDirs"`      // /run/netns and the runtime's own
}
