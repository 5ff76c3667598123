package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
)

// KubeletEviction holds the thresholds at which kubelet evicts pods and collects images.
type KubeletEviction struct {
	Hard               map[string]string // by signal: "10%" or a quantity
	ImageGCHighPercent int               // of the image filesystem in use; 100 switches it off
	ImageMinimumGCAge  time.Duration     // a younger image is not collected
}

// imageMinimumGCAge is kubelet's default, which also stands for 0 (pkg/kubelet/apis/config/v1beta1/defaults.go).
const imageMinimumGCAge = 2 * time.Minute

// ReadKubeletEviction reads the running kubelet's flag and configuration files. Unset values have kubelet's defaults
// for Linux (pkg/kubelet/eviction/defaults_linux.go): all of evictionHard, or none of it.
func ReadKubeletEviction(h *host.Host) (KubeletEviction, error) {
	process, names, err := KubeletConfigFiles(h)
	if err != nil {
		return KubeletEviction{}, err
	}
	e := KubeletEviction{ImageGCHighPercent: 85, ImageMinimumGCAge: imageMinimumGCAge}
	for _, name := range names {
		data, err := h.Files.ReadOwned(name)
		if err == nil {
			err = parseEviction(&e, data)
		}
		if err != nil {
			return KubeletEviction{}, fmt.Errorf("kubelet configuration %s: %w", name, err)
		}
	}
	flags, err := (&discoverer{host: h}).knownFlags(process)
	if err != nil {
		return KubeletEviction{}, err
	}
	if given, ok := flags["eviction-hard"]; ok {
		e.Hard = evictionFlag(given)
	}
	if given, ok := flags["minimum-image-ttl-duration"]; ok {
		if e.ImageMinimumGCAge, err = time.ParseDuration(given); err != nil {
			return KubeletEviction{}, fmt.Errorf("kubelet's flag minimum-image-ttl-duration: %w", err)
		}
	}
	if e.Hard == nil {
		e.Hard = map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%"}
	}
	return e, nil
}

// KubeletConfigFiles returns the running kubelet and the configuration files that it reads when it starts, in their
// order. A process without a PID is none.
func KubeletConfigFiles(h *host.Host) (host.Process, []string, error) {
	process, err := runningKubelet(h)
	if err != nil {
		return host.Process{}, nil, err
	}
	var names []string
	if h.Paths.KubeletConfig != "" {
		names = append(names, h.Paths.KubeletConfig)
	}
	d := &discoverer{host: h}
	flags, err := d.knownFlags(process)
	if err != nil {
		return host.Process{}, nil, err
	}
	dir := d.absolute(flags["config-dir"], process.PID)
	if dir == "" {
		return process, names, nil
	}
	dropIns, err := dropIns(h.Files, dir, ".conf")
	if err != nil {
		return host.Process{}, nil, err
	}
	return process, append(names, dropIns...), nil
}

// CheckKubeletConfiguration returns why the files of kubelet's configuration cannot be used: they are not root's alone,
// or cannot be parsed. A missing file is a change like any other.
func CheckKubeletConfiguration(h *host.Host, names []string) error {
	var problems []error
	for _, name := range names {
		data, err := h.Files.ReadOwned(name)
		if err == nil {
			err = ParseKubeletConfiguration(&KubeletConfiguration{}, data, filepath.Dir(name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("kubelet configuration %s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

// runningKubelet returns the known process of kubelet; one without a PID is none.
func runningKubelet(h *host.Host) (host.Process, error) {
	if h.Kubelet.Process == nil {
		return host.Process{}, nil
	}
	process, err := h.Kubelet.Process()
	if errors.Is(err, fs.ErrNotExist) {
		return host.Process{}, nil
	}
	return process, err
}

// knownFlags returns the flags of the running kubelet or, if none runs and no file is configured, of the installed one.
func (d *discoverer) knownFlags(kubelet host.Process) (map[string]string, error) {
	if kubelet.PID != 0 {
		return d.flagsOf(kubelet)
	}
	if d.host.Paths.KubeletConfig != "" {
		return nil, nil
	}
	here, ok := d.installedHere()
	if !ok {
		return nil, nil
	}
	return d.flagsOnDisk(here)
}

// parseEviction applies one configuration file: unset values stay.
func parseEviction(e *KubeletEviction, data []byte) error {
	if len(data) > maxKubeletConfig {
		return fmt.Errorf("larger than %d bytes", maxKubeletConfig)
	}
	config := struct {
		EvictionHard       map[string]string `json:"evictionHard"`
		ImageGCHighPercent *int              `json:"imageGCHighThresholdPercent"`
		ImageMinimumGCAge  metav1.Duration   `json:"imageMinimumGCAge"`
	}{EvictionHard: e.Hard}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return err
	}
	e.Hard = config.EvictionHard
	if config.ImageGCHighPercent != nil {
		e.ImageGCHighPercent = *config.ImageGCHighPercent
	}
	if config.ImageMinimumGCAge.Duration > 0 {
		e.ImageMinimumGCAge = config.ImageMinimumGCAge.Duration
	}
	return nil
}

// evictionFlag parses --eviction-hard=memory.available<1Gi,nodefs.available<10%.
func evictionFlag(text string) map[string]string {
	hard := map[string]string{}
	for _, part := range strings.Split(text, ",") {
		if signal, value, ok := strings.Cut(part, "<"); ok {
			hard[strings.TrimSpace(signal)] = strings.TrimSpace(value)
		}
	}
	return hard
}
