// Package discover finds kubelet and the runtime, their directories, and whether they can be trusted.
package discover

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Discovery is the detected layout of a node.
type Discovery struct {
	Paths            host.Paths
	NodeName         string   // as kubelet registers it; a guess from the host name if no kubelet names it
	KubeletInstalled bool     // a kubelet runs here, or its files show that one should
	KubeletRunning   bool     // the settings are those of the running kubelet
	KubeconfigNamed  bool     // by the running kubelet: programs that it names for credentials may be run
	Notes            []string // sources of the settings and read errors, for people

	Node   distro.Node // the node's distribution, and the units of kubelet and the runtime
	Doubts host.Doubts // unknown settings of Paths: they have their default, which is no proof
}

// distribution notes the node's distribution.
func (d *discoverer) distribution() {
	if d.KubeletInstalled {
		d.Node = distro.Node{ID: d.install.ID, Unit: d.install.unit, Socket: d.Paths.CRISocket}
	}
}

// DefaultPaths is the layout of a kubeadm node with containerd.
func DefaultPaths() host.Paths {
	return host.Paths{
		InitPID:          1,
		KubeletRoot:      "/var/lib/kubelet",
		Kubeconfig:       "/etc/kubernetes/kubelet.conf",
		KubeletHealthz:   "http://127.0.0.1:10248/healthz",
		KubeletAPI:       "https://127.0.0.1:10250",
		PluginRegistry:   "/var/lib/kubelet/plugins_registry",
		PodLogs:          "/var/log/pods",
		CRISocket:        "/run/containerd/containerd.sock",
		ContainerdSocket: "/run/containerd/containerd.sock",
		ContainerdState:  "/run/containerd",
		ContainerdRoot:   "/var/lib/containerd",
		CgroupMount:      "/sys/fs/cgroup",
		CgroupRoot:       "/",
		CNIConfDir:       "/etc/cni/net.d",
		CNIBinDirs:       []string{"/opt/cni/bin", "/usr/lib/cni"},
		CNICacheDir:      "/var/lib/cni",
		CNINetworksDir:   "/var/lib/cni/networks",
		NetnsDirs:        []string{"/run/netns", "/run/containerd/io.containerd.grpc.v1.cri/netns"},
	}
}

// Discover detects the layout of this node: the defaults, corrected by the flags and the configuration of the running
// kubelet and containerd (of those on disk if none runs, so that a dead kubelet does not make the agent blind),
// overridden by the fields set in configured. It reads files only. Only root's own processes and files are trusted: see
// ErrImpostor and package owned. A file that is unreadable, malformed or not root's alone becomes a note and leaves the
// default; an error means that not even the processes could be listed.
func Discover(files host.Files, configured host.Paths) (Discovery, error) {
	d := &discoverer{host: &host.Host{Files: files}, configured: configured}
	d.Doubts = host.Doubts{}
	d.Paths = DefaultPaths()
	if configured.InitPID != 0 {
		d.Paths.InitPID = configured.InitPID
	}
	d.Paths.KubeletElsewhere = configured.KubeletElsewhere
	d.host.Paths = d.Paths
	for _, read := range []func() error{d.kubelet, d.containerd, d.crio} {
		if err := read(); err != nil {
			return Discovery{}, fmt.Errorf("discover the node's layout: %w", err)
		}
	}
	Override(&d.Paths, configured)
	d.distribution()
	for setting := range d.Doubts {
		if isSet(configured, setting) {
			delete(d.Doubts, setting)
		}
	}
	return d.Discovery, nil
}

// isSet reports whether the configuration decides a setting.
func isSet(configured host.Paths, setting host.Setting) bool {
	value := reflect.ValueOf(configured)
	for i := range value.NumField() {
		if value.Type().Field(i).Tag.Get("yaml") == string(setting) {
			return !value.Field(i).IsZero()
		}
	}
	return false
}

// discoverer gathers a Discovery.
type discoverer struct {
	Discovery
	host       *host.Host
	configured host.Paths
	failed     error   // kubelet configuration that could not be read
	install    install // the node's distribution
}

func (d *discoverer) note(format string, args ...any) {
	d.Notes = append(d.Notes, strings.ToValidUTF8(fmt.Sprintf(format, args...), "?"))
}

// kubelet applies kubelet's settings, running or not.
func (d *discoverer) kubelet() error {
	settings, err := d.kubeletSettings()
	if err != nil {
		return err
	}
	p := &d.Paths
	d.applyTable()
	p.KubeletRoot = cmp.Or(d.configured.KubeletRoot, settings.rootDir, p.KubeletRoot)
	p.PluginRegistry = filepath.Join(p.KubeletRoot, "plugins_registry")
	p.KubeletConfig = settings.configFile
	p.StaticPods = settings.StaticPodPath
	if p.StaticPods == "" && d.install.Embeds() {
		p.StaticPods = d.install.at(d.install.Kubelet.StaticPods)
	}
	p.KubeletHealthz = settings.healthzURL()
	p.KubeletAPI = settings.apiURL()
	p.KubeletCAFile = settings.servingCertificate(d.host.Files, p.KubeletRoot)
	setIf(&p.Kubeconfig, settings.kubeconfig)
	d.KubeconfigNamed = settings.running && settings.kubeconfig != "" && !d.install.Embeds()
	d.setPath(&p.PodLogs, settings.PodLogsDir, host.PodLogs)
	d.setPath(&p.CgroupRoot, settings.CgroupRoot, host.CgroupRoot)
	if settings.CgroupDriver != "" {
		// Since 1.31 kubelet follows the runtime's driver if the runtime reports it (KubeletCgroupDriverFromCRI), so
		// the file is no proof; the layouts of both drivers are understood.
		d.note("kubelet is configured with cgroupDriver %s, which the runtime may overrule", settings.CgroupDriver)
	}
	d.criSocket(settings.ContainerRuntimeEndpoint)
	d.nodeName(settings)
	return nil
}

// applyTable sets the paths in which the node's distribution differs from containerd and kubeadm.
func (d *discoverer) applyTable() {
	p, r := &d.Paths, d.install.Runtime
	setIf(&p.ContainerdRoot, d.install.at(r.Root))
	setIf(&p.ContainerdState, d.install.at(r.State))
	setIf(&p.CNIConfDir, d.install.at(r.CNIConf))
	if r.State != "" {
		p.NetnsDirs = netnsDirs(p.ContainerdState)
	}
	if len(r.CNIBins) > 0 {
		p.CNIBinDirs = nil
		for _, dir := range r.CNIBins {
			p.CNIBinDirs = append(p.CNIBinDirs, d.install.at(dir))
		}
	}
}

// criSocket applies kubelet's containerRuntimeEndpoint: a path, with or without unix:// before it.
func (d *discoverer) criSocket(endpoint string) {
	path, err := socketPath(endpoint)
	if err != nil {
		err = fmt.Errorf("containerRuntimeEndpoint: %w", err)
		d.note("%v", err)
		d.Doubts.Add(err, host.CRISocket)
	}
	if path == "" {
		path = d.existingSocket()
	}
	path = cmp.Or(d.configured.CRISocket, path)
	d.Paths.CRISocket, d.Paths.ContainerdSocket = path, path
	switch filepath.Base(path) {
	case "crio.sock", "cri-dockerd.sock":
		d.Paths.ContainerdSocket = "" // there is no containerd with a namespace k8s.io behind it
	}
}

func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if path == "" {
		return "", nil
	}
	if err := CheckSocket(path); err != nil {
		return "", err
	}
	return filepath.Clean(path), nil
}

// existingSocket tries the socket of the node's distribution, then the default sockets of runtimes.
func (d *discoverer) existingSocket() string {
	standard := cmp.Or(d.install.at(d.install.Runtime.Socket), d.Paths.CRISocket)
	for _, path := range append([]string{standard, d.Paths.CRISocket}, distro.Sockets()...) {
		if d.exists(path) {
			if path != d.Paths.CRISocket {
				d.note("container runtime: %s", path)
			}
			return path
		}
	}
	return standard
}

// setPath accepts only an absolute path.
func (d *discoverer) setPath(target *string, path string, setting host.Setting) {
	switch {
	case filepath.IsAbs(path):
		*target = filepath.Clean(path)
	case path != "":
		err := fmt.Errorf("path %q is not absolute: %s is taken", hosterr.Clip(path), *target)
		d.note("%v", err)
		d.Doubts.Add(err, setting)
	}
}

func setIf(target *string, value string) {
	if value != "" {
		*target = value
	}
}

// Override copies every field set in configured to paths.
func Override(paths *host.Paths, configured host.Paths) {
	target, source := reflect.ValueOf(paths).Elem(), reflect.ValueOf(configured)
	for i := range source.NumField() {
		if field := source.Field(i); !field.IsZero() {
			target.Field(i).Set(field)
		}
	}
}
