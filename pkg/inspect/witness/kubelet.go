package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// WorkingFamily is kubelet's count of pods by lifecycle, since v1.27. It appears after kubelet's first housekeeping,
// which waits until each source of pods, including the apiserver, has been received:
//
//	kubelet_working_pods{config="orphan",lifecycle="terminating",static=""} 0
const WorkingFamily = "kubelet_working_pods"

// askWorking counts the pods that kubelet still works on although neither the apiserver nor a manifest wants them.
func askWorking(ctx context.Context, scan *hostscan.Scan) (int, error) {
	if scan.Host.Kubelet.Metric == nil {
		return 0, fmt.Errorf("kubelet's metrics: %w", hosterr.ErrNotConfigured)
	}
	samples, err := scan.Host.Kubelet.Metric(ctx, WorkingFamily)
	if err != nil {
		return 0, err
	}
	if len(samples) == 0 {
		return 0, ErrNoMetric
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

// ErrNoMetric means that kubelet does not report workingFamily.
var ErrNoMetric = errors.New("kubelet has no metric " + WorkingFamily)

// versionFamily is the version metric of every Kubernetes component.
const versionFamily = "kubernetes_build_info"

// askVersion returns the version of the running kubelet; empty when it is not reported.
func askVersion(ctx context.Context, scan *hostscan.Scan) string {
	samples, err := scan.Host.Kubelet.Metric(ctx, versionFamily)
	if err != nil || len(samples) != 1 {
		return ""
	}
	for labels := range samples {
		return kubelet.Sample{Labels: labels}.Label("git_version")
	}
	return ""
}

// counting is the first kubelet version that has workingFamily.
var counting = version.MajorMinor(1, 27)

// NotOld returns why a kubelet without workingFamily is not proven to be one that never had it. versions are those that
// kubelet itself and its Node report (the Node's may be from before an update); empty when unknown.
func NotOld(versions ...string) string {
	known := false
	for _, text := range versions {
		if text == "" {
			continue
		}
		v, err := version.ParseGeneric(text)
		if err != nil {
			return fmt.Sprintf("its version %q cannot be parsed", text)
		}
		if v.AtLeast(counting) {
			return fmt.Sprintf("its version is %s, so it has not received all its sources of pods yet", text)
		}
		known = true
	}
	if !known {
		return "its version is not known"
	}
	return ""
}

// SourceAnnotation is the source from which kubelet got the pod: api, file or http. kubelet copies the pod's
// annotations to the sandbox.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-source
const SourceAnnotation = "kubernetes.io/config.source"

// MirrorAnnotation is on the pods that kubelet creates in the apiserver to show static pods: its value is the UID on
// the node.
const MirrorAnnotation = "kubernetes.io/config.mirror"
