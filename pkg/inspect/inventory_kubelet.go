package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// workingFamily is kubelet's count of pods by lifecycle, since v1.27. Kubelet shows it when it has cleaned up for the
// first time, which it does only when each of its sources, the apiserver among them, has told it of its pods:
//
//	kubelet_working_pods{config="orphan",lifecycle="terminating",static=""} 0
const workingFamily = "kubelet_working_pods"

// askWorking counts the pods that kubelet works on though neither the apiserver nor a manifest wants them any more.
func askWorking(ctx context.Context, scan *Scan) (int, error) {
	if scan.Host.Kubelet.Metric == nil {
		return 0, fmt.Errorf("kubelet's metrics: %w", hosterr.ErrNotConfigured)
	}
	samples, err := scan.Host.Kubelet.Metric(ctx, workingFamily)
	if err != nil {
		return 0, err
	}
	if len(samples) == 0 {
		return 0, errNoMetric
	}
	working := 0
	for labels, value := range samples {
		sample := kubelet.Sample{Labels: labels}
		if slices.Contains([]string{"orphan", "runtime_only"}, sample.Label("config")) &&
			slices.Contains([]string{"sync", "terminating"}, sample.Label("lifecycle")) {
			working += int(value)
		}
	}
	return working, nil
}

// errNoMetric says that kubelet does not have workingFamily.
var errNoMetric = errors.New("kubelet has no metric " + workingFamily)

// versionFamily is what every component of Kubernetes says of itself.
const versionFamily = "kubernetes_build_info"

// askVersion returns the version of the kubelet that runs; empty where it does not tell.
func askVersion(ctx context.Context, scan *Scan) string {
	samples, err := scan.Host.Kubelet.Metric(ctx, versionFamily)
	if err != nil || len(samples) != 1 {
		return ""
	}
	for labels := range samples {
		return kubelet.Sample{Labels: labels}.Label("git_version")
	}
	return ""
}

// counting is the first version of kubelet that has workingFamily.
var counting = version.MajorMinor(1, 27)

// notOld says why a kubelet without workingFamily is not proven to be one that never had it. versions are what it
// says of itself and what its Node says, which may be of the kubelet before an update; empty where nobody told.
func notOld(versions ...string) string {
	known := false
	for _, text := range versions {
		if text == "" {
			continue
		}
		v, err := version.ParseGeneric(text)
		if err != nil {
			return fmt.Sprintf("its version %q cannot be read", text)
		}
		if v.AtLeast(counting) {
			return fmt.Sprintf("it is of version %s, so it has not read all its sources of pods yet", text)
		}
		known = true
	}
	if !known {
		return "its version is not known"
	}
	return ""
}
