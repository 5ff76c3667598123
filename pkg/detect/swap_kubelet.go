package detect

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
)

// kubeletRefusesSwap reports whether the running kubelet would not start while there is swap: failSwapOn is true unless it
// is set, by the flag, which counts more, or in the configuration file. Where neither can be known, it is not said.
// https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
func kubeletRefusesSwap(h *host.Host) (bool, error) {
	if h.Kubelet.Process == nil {
		return false, nil
	}
	kubelet, err := h.Kubelet.Process()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // no kubelet runs: other checks tell
	}
	if err != nil {
		return false, err
	}
	for _, arg := range kubelet.Args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch name {
		case "fail-swap-on":
			return value != "false" && value != "0", nil
		case "config-dir":
			return false, nil
		}
	}
	if h.Paths.KubeletConfig == "" {
		return false, nil
	}
	data, err := h.Files.Read(h.Paths.KubeletConfig)
	if err != nil {
		return false, err
	}
	var config struct {
		FailSwapOn *bool `json:"failSwapOn"`
	}
	if len(data) > 1<<20 {
		return false, fmt.Errorf("read %s: larger than 1 MiB", h.Paths.KubeletConfig)
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return false, fmt.Errorf("read %s: %s", h.Paths.KubeletConfig, plainText(err.Error(), lineText))
	}
	return config.FailSwapOn == nil || *config.FailSwapOn, nil
}
