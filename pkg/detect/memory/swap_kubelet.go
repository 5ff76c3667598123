package memory

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// kubeletRefusesSwap reports whether the running kubelet would not start with swap on: failSwapOn is true unless set by
// the flag, which has precedence, or in the configuration files, of which the last one counts. With neither the result
// is false. https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
func kubeletRefusesSwap(h *host.Host) (bool, error) {
	kubelet, names, err := discover.KubeletConfigFiles(h)
	if err != nil || kubelet.PID == 0 { // other checks report that no kubelet runs
		return false, err
	}
	for _, arg := range kubelet.Args {
		if name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); name == "fail-swap-on" {
			return value != "false" && value != "0", nil
		}
	}
	refuses := len(names) > 0
	for _, name := range names {
		data, err := h.Files.ReadOwned(name)
		if err != nil {
			return false, err
		}
		var config struct {
			FailSwapOn *bool `json:"failSwapOn"`
		}
		if len(data) > 1<<20 {
			return false, fmt.Errorf("read %s: larger than 1 MiB", name)
		}
		if err := yaml.Unmarshal(data, &config); err != nil {
			return false, fmt.Errorf("read %s: %s", name, checkkit.Sanitize(err.Error(), checkkit.MaxLine))
		}
		if config.FailSwapOn != nil {
			refuses = *config.FailSwapOn
		}
	}
	return refuses, nil
}
