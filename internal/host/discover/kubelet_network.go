package discover

import (
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// KubeletNetwork are kubelet's settings of the network of its pods.
type KubeletNetwork struct {
	// addresses that kubelet writes into /etc/resolv.conf of pods with dnsPolicy ClusterFirst; may be none
	ClusterDNS    []string
	ClusterDomain string // "cluster.local"; empty where kubelet adds no search domain
	ResolvConf    string // the file that pods with dnsPolicy Default get; empty: none
}

// networkFlags applies the flags to what the configuration file says. See AddKubeletConfigFlags in
// cmd/kubelet/app/options.
func (s *kubeletSettings) networkFlags(flags map[string]string) {
	if addresses := flags["cluster-dns"]; addresses != "" {
		s.ClusterDNS = strings.Split(addresses, ",")
	}
	setIf(&s.ClusterDomain, flags["cluster-domain"])

	if file, given := flags["resolv-conf"]; given {
		s.ResolverConfig = &file
	}
}

// ReadKubeletNetwork reads those of the running kubelet or, if none runs, of the installed one. Kubelet reads its files
// only when it starts, so the answer is valid while its process lives. An error that wraps ErrNotConfigured means that
// no file or flag of a kubelet is known.
func ReadKubeletNetwork(h *host.Host) (KubeletNetwork, error) {
	d := &discoverer{host: h, configured: host.Paths{KubeletConfig: h.Paths.KubeletConfig}}
	d.Paths = h.Paths
	settings, err := d.knownKubeletSettings()
	if err != nil {
		return KubeletNetwork{}, err
	}
	if d.failed != nil {
		return KubeletNetwork{}, d.failed
	}
	network := KubeletNetwork{
		ClusterDNS: settings.ClusterDNS, ClusterDomain: strings.TrimSuffix(settings.ClusterDomain, "."),
		ResolvConf: "/etc/resolv.conf", // kubetypes.ResolvConfDefault
	}
	if settings.ResolverConfig != nil {
		network.ResolvConf = *settings.ResolverConfig
	}
	return network, nil
}

// knownKubeletSettings reads the settings of the kubelet process already known, without a scan of all processes.
func (d *discoverer) knownKubeletSettings() (kubeletSettings, error) {
	process, err := runningKubelet(d.host)
	if err != nil {
		return kubeletSettings{}, err
	}
	flags, err := d.knownFlags(process)
	if err != nil {
		return kubeletSettings{}, err
	}
	if process.PID == 0 && d.configured.KubeletConfig == "" && flags["config"] == "" && flags["config-dir"] == "" &&
		flags["cluster-dns"] == "" {
		return kubeletSettings{}, hosterr.ErrNotConfigured
	}
	return d.readSettings(flags, process.PID), nil
}
