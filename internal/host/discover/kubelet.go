package discover

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// kubeletSettings are the settings of one kubelet, from flags and files. Flags win.
type kubeletSettings struct {
	KubeletConfiguration
	running    bool
	rootDir    string // --root-dir
	certDir    string // --cert-dir
	configFile string // --config
	kubeconfig string // --kubeconfig
	override   string // --hostname-override
}

// kubeadmFlags are the flags that kubeadm gives a kubelet. They are read when none runs.
const kubeadmFlags = "/var/lib/kubelet/kubeadm-flags.env"

// kubeletSettings reads the settings of the running kubelet or, if none runs, of the installed one.
func (d *discoverer) kubeletSettings() (kubeletSettings, error) {
	process, err := findKubelet(d.host, d.configured.KubeletRoot)
	switch {
	case err == nil:
		d.note("kubelet: process %d", process.PID)
		d.KubeletRunning, d.KubeletInstalled = true, true
		d.findInstall(process)
		flags, err := d.flagsOf(process)
		if err != nil {
			d.doubtKubelet(err)
		}
		return d.readSettings(flags, process.PID), nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrSeveralKubelets) && !errors.Is(err, ErrUnsureKubelet):
		return kubeletSettings{}, err
	}
	d.note("%v", err)
	if errors.Is(err, ErrSeveralKubelets) {
		d.KubeletInstalled = true
		d.doubtKubelet(err)
		return kubeletSettings{}, nil
	}
	settings := d.settingsOnDisk()
	if errors.Is(err, ErrUnsureKubelet) && !d.KubeletInstalled { // there is no other source of its settings
		d.KubeletInstalled = true
		d.doubtKubelet(err)
	}
	return settings, nil
}

// findInstall finds the distribution of a running kubelet.
func (d *discoverer) findInstall(process host.Process) {
	if of, embedded := distro.Embedding(process.Comm); embedded {
		d.install = d.installRunning(of, process)
		d.note("kubelet is part of %s (%s)", process.Comm, of.Name)
		return
	}
	d.install, _ = d.installedHere()
	unit := unitOfProcess(d.host, process.PID)
	if of, ok := distro.OfUnit(unit); ok && unit != d.install.unit {
		if unit != "kubelet" { // shared by many distributions
			d.install = d.installOf(of, map[string]string{unit: of.ID})
		}
		d.install.unit = unit
	}
}

// settingsOnDisk gathers the settings that a newly started kubelet would have.
func (d *discoverer) settingsOnDisk() kubeletSettings {
	here, ok := d.installedHere()
	if !ok {
		args, err := d.environmentFlags()
		if err != nil {
			d.doubtKubelet(err)
		}
		return d.readSettings(parseFlags(args), 0)
	}
	d.KubeletInstalled, d.install = true, here
	d.note("kubelet should run here: %s", here.Name)
	flags, err := d.flagsOnDisk(here)
	if err != nil {
		d.doubtKubelet(err)
	}
	return d.readSettings(flags, 0)
}

// doubtKubelet notes that all settings that kubelet's flags and files decide are unknown.
func (d *discoverer) doubtKubelet(why error) {
	d.note("%v", why)
	d.Doubts.Add(why, host.KubeletRoot, host.Kubeconfig, host.KubeletHealthz, host.KubeletAPI, host.KubeletCAFile,
		host.StaticPods, host.PodLogs, host.CgroupRoot, host.CRISocket)
}

// doubtConfiguration notes the unknown parts of kubelet's configuration: flags win over files.
func (d *discoverer) doubtConfiguration(flags map[string]string) {
	for setting, flag := range map[host.Setting]string{host.KubeletHealthz: "healthz-port", host.KubeletAPI: "port",
		host.KubeletCAFile: "tls-cert-file", host.StaticPods: "pod-manifest-path", host.PodLogs: "pod-logs-dir",
		host.CgroupRoot: "cgroup-root", host.CRISocket: "container-runtime-endpoint"} {
		if flags[flag] == "" {
			d.Doubts.Add(d.failed, setting)
		}
	}
}

func (d *discoverer) exists(name string) bool {
	names, err := d.host.Files.List(filepath.Dir(name))
	return err == nil && slices.Contains(names, filepath.Base(name))
}

// readSettings applies the flags and reads the files that they name. PID is 0 if no kubelet runs.
func (d *discoverer) readSettings(flags map[string]string, pid int) kubeletSettings {
	absolute := func(path string) string { return d.absolute(path, pid) }
	s := kubeletSettings{
		running:    pid > 0,
		rootDir:    absolute(flags["root-dir"]),
		certDir:    absolute(flags["cert-dir"]),
		configFile: absolute(flags["config"]),
		kubeconfig: absolute(flags["kubeconfig"]),
		override:   flags["hostname-override"],
	}
	setIf(&s.configFile, d.configured.KubeletConfig)
	if s.configFile != "" {
		d.readConfiguration(&s.KubeletConfiguration, s.configFile)
	}
	if dir := absolute(flags["config-dir"]); dir != "" {
		d.readDropIns(&s.KubeletConfiguration, dir)
	}
	setIf(&s.ContainerRuntimeEndpoint, flags["container-runtime-endpoint"])
	setIf(&s.CgroupRoot, flags["cgroup-root"])
	setIf(&s.CgroupDriver, flags["cgroup-driver"])
	setIf(&s.StaticPodPath, absolute(flags["pod-manifest-path"]))
	setIf(&s.TLSCertFile, absolute(flags["tls-cert-file"]))
	setIf(&s.Address, flags["address"])
	setIf(&s.HealthzBindAddress, flags["healthz-bind-address"])
	if d.failed != nil {
		d.doubtConfiguration(flags)
	}
	s.networkFlags(flags)
	if port, err := strconv.Atoi(flags["port"]); err == nil {
		s.Port = port
	}
	if port, err := strconv.Atoi(flags["healthz-port"]); err == nil {
		s.HealthzPort = &port
	}
	if on, err := strconv.ParseBool(flags["enable-server"]); err == nil {
		s.EnableServer = &on
	}
	return s
}

// absolute resolves a path that kubelet takes relative to its working directory.
func (d *discoverer) absolute(path string, pid int) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	dir, err := d.host.Files.Link(proc.File(pid, "cwd"))
	if err != nil || !filepath.IsAbs(dir) {
		d.unread("kubelet's path %q is relative, and its working directory is not known", path)
		return ""
	}
	return filepath.Join(dir, path)
}

// healthzURL is empty if kubelet serves none (healthzPort 0).
func (s kubeletSettings) healthzURL() string {
	port := 10248
	if s.HealthzPort != nil {
		port = *s.HealthzPort
	}
	if port <= 0 {
		return ""
	}
	return "http://" + local(s.HealthzBindAddress, port) + "/healthz"
}

// apiURL is empty if kubelet serves none (enableServer false).
func (s kubeletSettings) apiURL() string {
	if s.EnableServer != nil && !*s.EnableServer {
		return ""
	}
	return "https://" + local(s.Address, cmp.Or(max(s.Port, 0), 10250))
}

// local returns the address at which this machine reaches a server that listens on address.
func local(address string, port int) string {
	ip := net.ParseIP(address)
	switch {
	case ip == nil || ip.Equal(net.IPv4zero):
		ip = net.IPv4(127, 0, 0, 1)
	case ip.IsUnspecified():
		ip = net.IPv6loopback
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// certificates is kubelet's --cert-dir. Its default does not follow --root-dir (NewKubeletFlags in
// cmd/kubelet/app/options).
func (s kubeletSettings) certificates() string {
	return cmp.Or(s.certDir, "/var/lib/kubelet/pki")
}

// servingCertificate is the path of kubelet's certificate; empty if it is in the usual place below the root directory,
// which is checked anyway.
func (s kubeletSettings) servingCertificate(files host.Files, root string) string {
	dir := s.certificates()
	if s.TLSCertFile != "" || dir == filepath.Join(root, "pki") {
		return s.TLSCertFile
	}
	signed := filepath.Join(dir, "kubelet-server-current.pem")
	if _, err := files.Link(signed); err == nil {
		return signed
	}
	return filepath.Join(dir, "kubelet.crt")
}

// parseFlags reads --name=value and --name value. The last value of a repeated flag counts, as in pflag; names are
// normalized as in kubelet (cliflag.WordSepNormalizeFunc).
func parseFlags(args []string) map[string]string {
	flags := make(map[string]string)
	for i, arg := range args {
		name, ok := strings.CutPrefix(arg, "--")
		if !ok {
			continue
		}
		if name == "" {
			break // "--" ends the flags
		}
		name, value, given := strings.Cut(name, "=")
		if !given && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value = args[i+1]
		}
		flags[strings.ReplaceAll(name, "_", "-")] = value
	}
	return flags
}

// parseEnvironmentFlags reads the arguments in a file that systemd reads as environment:
//
//	KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --node-ip=10.0.0.1"
func parseEnvironmentFlags(text string) []string {
	var args []string
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.HasPrefix(name, "KUBELET_") {
			args = append(args, strings.Fields(strings.Trim(value, `"'`))...)
		}
	}
	return args
}
