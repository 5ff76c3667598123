package host

import (
	"fmt"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// KubeletConfiguration is the part of kubelet's own (k8s.io/kubelet/config/v1beta1) that the agent needs. The real type
// would link logging and tracing libraries into the agent.
type KubeletConfiguration struct {
	Kind                     string `json:"kind"`
	APIVersion               string `json:"apiVersion"`
	EnableServer             *bool  `json:"enableServer"`
	StaticPodPath            string `json:"staticPodPath"`
	PodLogsDir               string `json:"podLogsDir"`
	Address                  string `json:"address"`
	Port                     int    `json:"port"`
	TLSCertFile              string `json:"tlsCertFile"`
	HealthzPort              *int   `json:"healthzPort"`
	HealthzBindAddress       string `json:"healthzBindAddress"`
	CgroupRoot               string `json:"cgroupRoot"`
	CgroupDriver             string `json:"cgroupDriver"`
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`

	ClusterDNS     []string `json:"clusterDNS"`
	ClusterDomain  string   `json:"clusterDomain"`
	ResolverConfig *string  `json:"resolvConf"`
	PodCIDR        string   `json:"podCIDR"`
}

// maxKubeletConfig bounds one configuration file, in bytes, and maxDropIns the number of files beside it.
const (
	maxKubeletConfig = 1 << 20
	maxDropIns       = 100
)

// ParseKubeletConfiguration applies one file, YAML or JSON, to config: what it does not set stays. Relative paths are
// relative to dir, the folder of the file. Unknown fields are skipped.
func ParseKubeletConfiguration(config *KubeletConfiguration, data []byte, dir string) error {
	if len(data) > maxKubeletConfig {
		return fmt.Errorf("larger than %d bytes", maxKubeletConfig)
	}
	next := *config
	next.Kind, next.APIVersion = "", ""
	next.ClusterDNS = slices.Clone(config.ClusterDNS) // the decoder writes over what is there, also where it then fails
	if config.ResolverConfig != nil {
		next.ResolverConfig = new(*config.ResolverConfig)
	}
	if err := yaml.Unmarshal(data, &next); err != nil {
		return err
	}
	if next.Kind != "KubeletConfiguration" || next.APIVersion != "kubelet.config.k8s.io/v1beta1" {
		return fmt.Errorf("kind %q of %q is no KubeletConfiguration", clip(next.Kind), clip(next.APIVersion))
	}
	// The paths that kubelet resolves: KubeletConfigurationPathRefs in pkg/kubelet/apis/config.
	for _, path := range []*string{&next.StaticPodPath, &next.TLSCertFile, &next.PodLogsDir} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	*config = next
	return nil
}

func (d *discoverer) readConfiguration(config *KubeletConfiguration, name string) {
	data, err := d.host.Files.Read(name)
	if err == nil {
		err = ParseKubeletConfiguration(config, data, filepath.Dir(name))
	}
	if err != nil {
		d.note("kubelet configuration %s: %v", name, err)
		return
	}
	d.note("kubelet configuration: %s", name)
}

// readDropIns applies the *.conf files of kubelet's --config-dir in the order of their names. Kubelet descends into
// folders too (filepath.WalkDir), which nobody is known to use: they are named in a note.
func (d *discoverer) readDropIns(config *KubeletConfiguration, dir string) {
	names, err := d.host.Files.List(dir)
	if err != nil {
		d.note("kubelet drop-ins: %v", err)
		return
	}
	slices.Sort(names)
	if len(names) > maxDropIns {
		d.note("kubelet drop-ins: only the first %d of %d files in %s are read", maxDropIns, len(names), dir)
		names = names[:maxDropIns]
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		if filepath.Ext(name) == ".conf" {
			d.readConfiguration(config, path)
		} else if _, err := d.host.Files.List(path); err == nil {
			d.note("kubelet drop-ins: folder %s is not read", path)
		}
	}
}
