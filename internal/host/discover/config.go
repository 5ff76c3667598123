package discover

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/owned"
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
}

// maxKubeletConfig bounds one configuration file, in bytes; the others how many files are beside it, and how deep.
const (
	maxKubeletConfig = 1 << 20
	maxDropIns       = 100
	maxDropInDepth   = 4
)

// ParseKubeletConfiguration applies one file, YAML or JSON, to config: unset fields keep their values. Relative paths
// are relative to dir, the folder of the file. Unknown fields are skipped.
func ParseKubeletConfiguration(config *KubeletConfiguration, data []byte, dir string) error {
	if len(data) > maxKubeletConfig {
		return fmt.Errorf("larger than %d bytes", maxKubeletConfig)
	}
	next := *config
	next.Kind, next.APIVersion = "", ""
	next.ClusterDNS = slices.Clone(config.ClusterDNS) // the decoder overwrites existing values, even if it then fails
	if config.ResolverConfig != nil {
		next.ResolverConfig = new(*config.ResolverConfig)
	}
	if err := yaml.Unmarshal(data, &next); err != nil {
		return err
	}
	if next.Kind != "KubeletConfiguration" || next.APIVersion != "kubelet.config.k8s.io/v1beta1" {
		return fmt.Errorf("kind %q of %q is no KubeletConfiguration", hosterr.Clip(next.Kind),
			hosterr.Clip(next.APIVersion))
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

// readConfiguration applies one file. A read error is noted, and kept for callers that need it.
func (d *discoverer) readConfiguration(config *KubeletConfiguration, name string) {
	data, err := d.host.Files.ReadOwned(name)
	if err == nil {
		err = ParseKubeletConfiguration(config, data, filepath.Dir(name))
	}
	if err != nil {
		d.unread("kubelet configuration %s: %w", name, err)
		return
	}
	d.note("kubelet configuration: %s", name)
}

func (d *discoverer) unread(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	d.failed = errors.Join(d.failed, err)
	d.note("%v", err)
}

// readDropIns applies the files of kubelet's --config-dir.
func (d *discoverer) readDropIns(config *KubeletConfiguration, dir string) {
	if _, err := d.host.Files.CheckOwned(dir); errors.Is(err, owned.ErrOthers) {
		d.unread("kubelet drop-ins: %w", err) // whoever may write there may also remove files
		return
	}
	names, err := dropIns(d.host.Files, dir, ".conf")
	if err != nil {
		d.unread("kubelet drop-ins: %w", err)
	}
	for _, name := range names {
		d.readConfiguration(config, name)
	}
}

// dropIns lists the files with a suffix, or all, in a configuration folder in the order in which kubelet and CRI-O read
// them: by name, with a folder's files in the folder's place (filepath.WalkDir in cmd/kubelet/app/server.go). K3s and
// RKE2 have such a folder: 20-cli-config-dir. The files found are returned beside an error, too.
func dropIns(f host.Files, dir, suffix string) ([]string, error) {
	return dropInsBelow(f, dir, suffix, nil, 0)
}

func dropInsBelow(f host.Files, dir, suffix string, found []string, depth int) ([]string, error) {
	names, err := f.List(dir)
	if err != nil {
		return found, err
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(dir, name)
		stat, err := f.Stat(path)
		switch folder := err == nil && stat.IsDir(); {
		case folder && depth == maxDropInDepth:
			return found, fmt.Errorf("%s: folders more than %d deep", dir, maxDropInDepth)
		case folder:
			if found, err = dropInsBelow(f, path, suffix, found, depth+1); err != nil {
				return found, err
			}
		case strings.HasSuffix(name, suffix) && len(found) == maxDropIns:
			return found, fmt.Errorf("%s: more than %d files", dir, maxDropIns)
		case strings.HasSuffix(name, suffix):
			found = append(found, path)
		}
	}
	return found, nil
}
