package agent

import (
	"errors"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/criticaldaemonsets"
)

// Clients is the host and the clients of all socket APIs.
type Clients struct {
	Host   *host.Host
	Client *kube.Client // nil if there is no Kubernetes
	Notes  []string     // what discovery found, and where

	found   discover.Discovery
	layout  layoutSeen
	mutator *mutate.Mutator // of releases and repairs; see openMutator
	closers []io.Closer
}

// Close closes all connections.
func (d *Clients) Close() error {
	var problems []error
	for _, c := range d.closers {
		problems = append(problems, c.Close())
	}
	return errors.Join(problems...)
}

// OpenHost discovers the layout of this node and creates the clients. It dials none of them yet: a component that is
// down now is used once it is back.
func OpenHost(cfg config.Config, log *slog.Logger) (*Clients, error) {
	files := host.Files{}
	found, err := discoverLayout(files, cfg)
	if err != nil {
		return nil, err
	}
	d := &Clients{Notes: found.Notes, found: found}
	d.Host = &host.Host{
		NodeName: found.NodeName, Paths: found.Paths, Files: files, Clock: host.NewClock(),
		Doubts: found.Doubts, Node: found.Node,
		Prober:    probe.NewProber(),
		KernelLog: kmsg.KernelLog,
		Processes: host.NewProcesses(),
		Mounts:    &mountinfo.Reader{},
		Plugins:   kubelet.NewPlugins(found.Paths.KubeletRoot, filepath.Dir(found.Paths.CRISocket), "/run", "/var/run"),
		Network:   host.NewNetwork(),
		Inotify:   watch.ProbeInotify,
		TimeClock: host.ReadClock,
		Systemd:   systemd.NewSystemd(),
	}
	d.closers = append(d.closers, d.Host.Mounts)
	if cfg.NodeName != "" {
		d.Host.NodeName = cfg.NodeName
	}
	if err := d.openRuntime(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if found.KubeletInstalled || cfg.NodeName != "" {
		err = d.openKubernetes(cfg, log)
	} else {
		d.Host.NodeName = ""
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.Host.Refuse()
	return d, nil
}

// openMutator returns the Mutator, the only part that may change the host.
func (d *Clients) openMutator(log *slog.Logger) (*mutate.Mutator, error) {
	if d.mutator != nil {
		return d.mutator, nil
	}
	m, err := mutate.New(d.Host, log)
	if err != nil {
		return nil, err
	}
	d.mutator, d.closers = m, append(d.closers, m)
	return m, nil
}

// Deps returns the dependencies of checks besides the host. State may be nil.
func (d *Clients) Deps(state detect.StateStore) checks.Deps {
	deps := checks.Deps{State: state, Sources: &detect.StateSources{}}
	if d.Client != nil {
		deps.DaemonSets = criticaldaemonsets.DaemonSetLookups{DaemonSet: d.Client.DaemonSet,
			Unscheduled: d.Client.UnscheduledPods}
	}
	return deps
}

func (d *Clients) openRuntime() error {
	paths := d.Host.Paths
	runtime, closer, err := cri.NewRuntime(paths.CRISocket)
	if err != nil {
		return err
	}
	d.Host.Runtime, d.closers = runtime, append(d.closers, closer)
	if paths.ContainerdSocket == "" {
		return nil
	}
	containerd, closer, err := cri.NewContainerd(paths.ContainerdSocket)
	if err != nil {
		return err
	}
	d.Host.Containerd, d.closers = containerd, append(d.closers, closer)
	return nil
}

func (d *Clients) openKubernetes(cfg config.Config, log *slog.Logger) error {
	settings := kube.Config{
		Node: d.Host.NodeName, Version: Version,
		Kubeconfig: cfg.Paths.Kubeconfig, ServiceAccountDir: cfg.ServiceAccountDir, ServiceAddress: cfg.ServiceAddress,
		KubeletKubeconfig: d.Host.Paths.Kubeconfig, KubeletNamed: d.found.KubeconfigNamed,
	}
	client, err := kube.New(settings, log)
	if err != nil {
		return err
	}
	d.Client, d.closers = client, append(d.closers, client)
	d.Host.Cluster = client.Cluster()
	d.Host.Kubelet = client.AtRest(kube.NewKubelet(settings, d.Host.Files, d.Host.Paths))
	return nil
}
