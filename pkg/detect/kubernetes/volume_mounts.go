package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// volume-mounts reads from kubelet's /metrics the growth in 10 minutes of
//
//	storage_operation_duration_seconds_count{operation_name="volume_mount",status="fail-unknown",volume_plugin="kubernetes.io/csi:x"} 8
//	csi_operations_seconds_count{driver_name="x",method_name="…/NodeStageVolume",grpc_status_code="DeadlineExceeded"} 3
//
// and, if some fail, those of kubelet's pods that wait and mount a volume of that kind.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/, pkg/volume/util/metrics.go in Kubernetes.
//
// Kubelet retries a volume that fails after 0.5 s, 1 s and so on up to 2 minutes: one that always fails causes 5
// failures in 10 minutes. A ConfigMap, Secret or projected volume fails as long as an object that it names does not
// exist, a hostPath as long as its path does not: only their authors can correct that.

const (
	volumeMountsRaise = 5
	volumeMountsKeep  = 2
	maxVolumePlugins  = 50 // reported
)

// VolumeMounts finds volumes that cannot be mounted or unmounted, by driver.
func VolumeMounts() detect.Check {
	m := &meterCheck{meter: checkkit.KubeletMeter{Window: 10 * time.Minute}}
	return detect.Check{
		ID:      "volume-mounts",
		Domain:  "kubernetes",
		Summary: "kubelet keeps failing to mount or unmount volumes of one driver",
		Advice: "Run `kubectl describe pod` for a pod that waits: its events (FailedMount) have the driver's error. " +
			"Then check the log of the driver's pod on this node, its registration (`nodeagent explain " +
			"csi-registration`) and the storage behind it. A volume that cannot be unmounted is in use by a process: " +
			"`nodeagent inspect` names it.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics, on a node at rest once in 40 minutes", "https://127.0.0.1:10250/pods, when volumes fail"},
			Why:   "Pods with such volumes stay in ContainerCreating, or in Terminating, until the driver is repaired.",
			Faults: []detect.Fault{
				{Reason: "VolumeMountsFail", Severity: finding.Warning,
					When: "5 failures of one driver and operation in 10 minutes, and more than successes: as many as " +
						"a volume causes that always fails"},
				{Reason: "VolumeUnmountsFail", Severity: finding.Warning,
					When: "the same for unmounting and detaching"},
				{Reason: "VolumeObjectsMissing", Severity: finding.Info, When: "the same for volumes made of objects " +
					"of the cluster or paths of the host: most often these do not exist"},
			},
			FalseAlarms: "The restart of a driver causes a failure or two for each volume; that is below the " +
				"threshold.",
		},
		Every: time.Minute,
		Run:   m.volumes,
	}
}

func (m *meterCheck) volumes(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	grown, _, err := m.meter.Read(ctx, h, volumeKey, "storage_operation_duration_seconds_count",
		"csi_operations_seconds_count")
	if err != nil || grown == nil {
		return nil, err
	}
	plugins := volumeFailures(grown)
	if len(plugins) == 0 {
		return m.meter.Follow(nil), nil
	}
	pods, _ := discover.NodePods(ctx, h) // without them the finding names no pods
	var found []finding.Finding
	for _, name := range slices.Sorted(maps.Keys(plugins))[:min(len(plugins), maxVolumePlugins)] {
		found = append(found, plugins[name].finding(name, pods, m.meter.Span()))
	}
	return m.meter.Follow(found), nil
}

// volumeKey is plugin, operation and outcome. Answers of CSI drivers are counted separately, by their code.
func volumeKey(name string, s kubelet.Sample) string {
	if name == "csi_operations_seconds_count" {
		if code := s.Label("grpc_status_code"); code != "OK" {
			return strings.Join([]string{"csi", s.Label("driver_name"), code}, "\x00")
		}
		return ""
	}
	return strings.Join([]string{"op", s.Label("volume_plugin"), s.Label("operation_name"), s.Label("status")}, "\x00")
}

// pluginFailures is the outcome of the worst operation of one plugin.
type pluginFailures struct {
	operation    string
	failed, good float64
	codes        []string // of a CSI driver's own answers
}

// volumeFailures returns the plugins that keep failing.
func volumeFailures(grown map[string]float64) map[string]pluginFailures {
	plugins := map[string]pluginFailures{}
	for _, key := range slices.Sorted(maps.Keys(grown)) {
		part := strings.Split(key, "\x00")
		if part[0] != "op" || part[3] == "success" {
			continue
		}
		good := grown[strings.Join([]string{"op", part[1], part[2], "success"}, "\x00")]
		failed := grown[key]
		if failed >= volumeMountsKeep && failed > good && failed > plugins[part[1]].failed {
			plugins[part[1]] = pluginFailures{operation: part[2], failed: failed, good: good}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(grown)) {
		part := strings.Split(key, "\x00")
		name := csiPlugin + part[1]
		if p, ok := plugins[name]; ok && part[0] == "csi" && grown[key] > 0 {
			p.codes = append(p.codes, fmt.Sprintf("%s %.0f", part[2], grown[key]))
			plugins[name] = p
		}
	}
	return plugins
}

// csiPlugin precedes the name of a CSI driver in the label volume_plugin.
const csiPlugin = "kubernetes.io/csi:"

func (p pluginFailures) finding(name string, pods []corev1.Pod, minutes time.Duration) finding.Finding {
	subject := finding.Subject{Kind: "volume-plugin", Name: checkkit.Sanitize(name, 200)}
	if driver, ok := strings.CutPrefix(name, csiPlugin); ok {
		subject = finding.Subject{Kind: "csi-driver", Name: checkkit.Sanitize(driver, 200)}
	}
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning, Reason: "VolumeMountsFail",
		BelowRaise: p.failed < volumeMountsRaise,
		Message: fmt.Sprintf("%s failed %.0f times within %s and succeeded %.0f times", checkkit.Sanitize(p.operation, 60),
			p.failed, minutes, p.good),
		Facts: map[string]string{"operation": checkkit.Sanitize(p.operation, 60),
			"failed": checkkit.WholeNumber(p.failed), "succeeded": checkkit.WholeNumber(p.good)},
	}
	ending := strings.Contains(p.operation, "unm") || strings.Contains(p.operation, "detach") ||
		strings.Contains(p.operation, "tear")
	switch {
	case ending:
		f.Reason = "VolumeUnmountsFail"
	case ownVolumes(name):
		f.Reason, f.Severity = "VolumeObjectsMissing", finding.Info
	}
	if len(p.codes) > 0 {
		f.Message += "; the driver answers " + checkkit.Sanitize(finding.JoinFirst(p.codes, 3), 200)
	}
	if waiting := podsWaiting(name, pods, ending); len(waiting) > 0 {
		f.Message += "; pods that may wait for it: " + finding.JoinFirst(waiting, 3)
		f.Facts["pods"] = finding.JoinFirst(waiting, 20)
	}
	return f
}

// ownVolumes reports whether volumes of a plugin usually fail because an object that they name does not exist.
func ownVolumes(plugin string) bool {
	return slices.Contains([]string{"kubernetes.io/configmap", "kubernetes.io/secret", "kubernetes.io/projected",
		"kubernetes.io/downward-api", "kubernetes.io/host-path"}, plugin)
}

// podsWaiting names the pods that do not start, or do not end, and mount a volume of that plugin. The pod does not show
// the driver of a claim: it may be any but a plugin of objects.
func podsWaiting(plugin string, pods []corev1.Pod, ending bool) []string {
	var waiting []string
	for i := range pods {
		pod := &pods[i]
		if ending != (pod.DeletionTimestamp != nil) || !ending && !podstate.IsStarting(pod) {
			continue
		}
		if slices.ContainsFunc(podstate.MountedVolumes(pod), func(v corev1.Volume) bool { return mayUse(v, plugin) }) {
			waiting = append(waiting, checkkit.PodName(pod))
		}
	}
	slices.Sort(waiting)
	return waiting
}

func mayUse(v corev1.Volume, plugin string) bool {
	driver, csi := strings.CutPrefix(plugin, csiPlugin)
	switch own, _ := podstate.VolumePlugin(v); {
	case v.CSI != nil:
		return csi && v.CSI.Driver == driver
	case v.HostPath != nil:
		return plugin == "kubernetes.io/host-path"
	case own != "":
		return strings.ReplaceAll(own, "~", "/") == plugin
	}
	return cmp.Or(v.PersistentVolumeClaim != nil, v.Ephemeral != nil) && !ownVolumes(plugin)
}
