package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// evictions reads from kubelet's /metrics the growth in half an hour of
//
//	kubelet_evictions{eviction_signal="memory.available"} 2
//
// the thresholds in kubelet's configuration (evictionHard and imageGCHighThresholdPercent), and, in a child process,
// statfs(2) of its root directory (nodefs) and of the runtime's (imagefs).
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/.
//
// If a disk is below a hard threshold, kubelet reports DiskPressure: no pod is scheduled here, and kubelet kills the
// pods that use most. If one disk is both nodefs and imagefs, the thresholds of both apply to it, as in kubelet. Memory
// and PIDs are left to their own checks: the kernel does not show kubelet's available memory as one number.

const imageGCGrace = 15 * time.Minute

// Evictions finds a kubelet that evicts pods or soon will.
func Evictions() detect.Check {
	m := &evictionState{meter: checkkit.KubeletMeter{Window: 30 * time.Minute}}
	return detect.Check{
		ID:      "evictions",
		Domain:  "kubernetes",
		Summary: "kubelet evicts pods because the node is short of a resource, or is about to",
		Advice: "Show the pressure with `kubectl describe node`, and the evicted pods with `kubectl get events -A " +
			"--field-selector reason=Evicted`. Disk: run `crictl rmi --prune`, find large folders with `du -xh " +
			"--max-depth=2 /var/lib/kubelet /var/lib/containerd /var/log | sort -h | tail`, and set limits for " +
			"emptyDir and logs. Memory: raise requests that are smaller than what pods use.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics, on a node at rest once in 40 minutes", "kubelet's configuration",
				"statfs(2) of kubelet's and the runtime's root directories"},
			Why: "Evicted pods are killed. Under disk pressure the node takes no new ones.",
			Faults: []detect.Fault{
				{Reason: "EvictionThresholdMet", Severity: finding.Warning,
					When: "less disk is free than kubelet's hard threshold (10 % of nodefs, 15 % of imagefs unless " +
						"configured)"},
				{Reason: "EvictionThresholdNear", Severity: finding.Info, When: "within a tenth of the threshold, or " +
					"2 % of the disk, above it"},
				{Reason: "PodsEvicted", Severity: finding.Warning,
					When: "kubelet has evicted pods within the last 30 minutes"},
				{Reason: "ImageGCFailing", Severity: finding.Warning, When: "more than imageGCHighThresholdPercent " +
					"of the image disk in use for 15 minutes: kubelet collects images every 5 minutes and frees too " +
					"little"},
			},
			FalseAlarms: "None known. Memory and PIDs have their own checks.",
		},
		Uses:   []host.Setting{host.KubeletRoot, host.ContainerdRoot},
		Every:  5 * time.Minute,
		Policy: finding.Policy{BlindAfter: 30 * time.Minute},
		Run:    m.observe,
	}
}

type evictionState struct {
	meter  checkkit.KubeletMeter
	gcFull finding.Timestamp // since when the image disk has been above its threshold
}

func (m *evictionState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	grown, _, err := m.meter.Read(ctx, h, func(_ string, s kubelet.Sample) string {
		return s.Label("eviction_signal")
	}, "kubelet_evictions")
	// Without the right to read metrics the disks can still be checked.
	if _, none := errors.AsType[*finding.NotApplicableError](err); err != nil && (!none || h.Kubelet.Scrape == nil) {
		return nil, err
	}
	config, err := discover.ReadKubeletEviction(h)
	if err != nil {
		return nil, err
	}
	found, unknown := map[string]finding.Finding{}, map[finding.Subject]error{}
	disks := askDisks(ctx, h)
	for _, signal := range []string{"nodefs.available", "imagefs.available"} {
		disk, asked := disks[signal]
		switch {
		case !asked:
			continue
		case disk.err != nil:
			unknown[signalSubject(signal)] = fmt.Errorf("%s: %w", disk.path, disk.err)
			continue
		}
		evaluateDisk(found, signal, disk.path, config.Hard[signal], disk.answer)
		if signal == "imagefs.available" {
			m.evaluateImages(found, h.Clock(), disk.path, config.ImageGCHighPercent, disk.answer)
		}
	}
	m.meter.NoRest = slices.Max(append(slices.Collect(maps.Values(grown)), 0)) > 0
	evaluateEvicted(found, grown, m.meter.Span())
	return slices.SortedFunc(maps.Values(found), finding.Compare), finding.Partial(unknown)
}

// evictionDisk is the statfs of one of kubelet's two disks.
type evictionDisk struct {
	path   string
	answer probe.ProbeAnswer
	err    error
}

// askDisks reads the disks of kubelet's and the runtime's directories, by signal; once if they are one.
func askDisks(ctx context.Context, h *host.Host) map[string]evictionDisk {
	disks := map[string]evictionDisk{}
	if h.Prober.Do == nil {
		return disks
	}
	ask := func(path string) evictionDisk {
		answer, err := h.Prober.Do(ctx, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: path})
		if err == nil && (answer.Errno != 0 || answer.TotalBytes == 0) {
			err = fmt.Errorf("statfs: errno %d, %d bytes in all", answer.Errno, answer.TotalBytes)
		}
		return evictionDisk{path: path, answer: answer, err: err}
	}
	mounts, _ := mount.Recent(h) // without them both are read
	node, known := filesystem.MountHolding(mounts, h.Paths.KubeletRoot)
	images, _ := filesystem.MountHolding(mounts, h.Paths.ContainerdRoot)
	if h.Paths.KubeletRoot != "" {
		disks["nodefs.available"] = ask(h.Paths.KubeletRoot)
	}
	switch {
	case h.Paths.ContainerdRoot == "":
	case known && node.Device() == images.Device():
		disk := disks["nodefs.available"]
		disk.path = h.Paths.ContainerdRoot
		disks["imagefs.available"] = disk
	default:
		disks["imagefs.available"] = ask(h.Paths.ContainerdRoot)
	}
	return disks
}

func signalSubject(signal string) finding.Subject {
	return finding.Subject{Kind: "eviction-signal", Name: checkkit.Sanitize(signal, 60)}
}

// evaluateDisk compares free space with a threshold, "10%" or a quantity; kubelet refuses any other.
func evaluateDisk(found map[string]finding.Finding, signal, path, threshold string, answer probe.ProbeAnswer) {
	limit := thresholdBytes(threshold, answer.TotalBytes)
	if limit <= 0 {
		return
	}
	free := float64(answer.FreeBytes)
	near := max(limit*1.1, limit+0.02*float64(answer.TotalBytes))
	f := finding.Finding{
		Subject: signalSubject(signal), Severity: finding.Warning, Reason: "EvictionThresholdMet",
		Message: fmt.Sprintf("%s of %s are free on the filesystem of %s, less than kubelet's threshold of %s: it "+
			"evicts pods and reports DiskPressure",
			checkkit.SizeText(answer.FreeBytes), checkkit.SizeText(answer.TotalBytes), path, threshold),
		Facts: map[string]string{"freeBytes": fmt.Sprint(answer.FreeBytes),
			"totalBytes": fmt.Sprint(answer.TotalBytes), "threshold": threshold, "path": path},
	}
	switch {
	case free < limit:
	case free < near:
		f.Severity, f.Reason = finding.Info, "EvictionThresholdNear"
		f.Message = fmt.Sprintf(
			"%s of %s are free on the filesystem of %s; below %s kubelet evicts pods and takes no new ones",
			checkkit.SizeText(answer.FreeBytes), checkkit.SizeText(answer.TotalBytes), path, threshold)
	default:
		return
	}
	found[signal] = f
}

// evaluateImages reports that image garbage collection frees too little.
func (m *evictionState) evaluateImages(found map[string]finding.Finding, now finding.Timestamp, path string, high int,
	answer probe.ProbeAnswer) {
	used := 100 - int(answer.FreeBytes*100/answer.TotalBytes) // as kubelet computes it
	if high <= 0 || high >= 100 || used < high {
		m.gcFull = finding.Timestamp{}
		return
	}
	if m.gcFull.Boot != now.Boot {
		m.gcFull = now
	}
	if now.Since(m.gcFull) < imageGCGrace {
		return
	}
	found["image-gc"] = finding.Finding{
		Subject: finding.Subject{Kind: "image-gc", Name: "imagefs"}, Severity: finding.Warning,
		Reason: "ImageGCFailing",
		Message: fmt.Sprintf("%d %% of the filesystem of %s have been in use for %s, above the %d %% at which "+
			"kubelet collects images: the images in use, or other files, fill it",
			used, path, now.Since(m.gcFull).Round(time.Minute), high),
		Facts: map[string]string{"usedPercent": strconv.Itoa(used), "thresholdPercent": strconv.Itoa(high),
			"path": path},
	}
}

// evaluateEvicted reports the signals for which kubelet evicted pods. A threshold still met is more severe.
func evaluateEvicted(found map[string]finding.Finding, grown map[string]float64, minutes time.Duration) {
	for signal, count := range grown {
		if count <= 0 {
			continue
		}
		text := fmt.Sprintf("kubelet has evicted %.0f pods within %s because of %s", count, minutes,
			checkkit.Sanitize(signal, 60))
		f, met := found[signal]
		if met && f.Severity == finding.Warning {
			f.Message += "; " + text
		} else {
			f = finding.Finding{Subject: signalSubject(signal), Severity: finding.Warning,
				Reason: "PodsEvicted", Message: text, Facts: map[string]string{}}
		}
		f.Facts["evicted"] = checkkit.WholeNumber(count)
		found[signal] = f
	}
}

// thresholdBytes reads "10%" of a whole, or a quantity; 0 if it is neither.
func thresholdBytes(threshold string, total uint64) float64 {
	if percent, ok := strings.CutSuffix(threshold, "%"); ok {
		var share float64
		if _, err := fmt.Sscanf(percent, "%g", &share); err != nil || share <= 0 || share >= 100 {
			return 0
		}
		return share / 100 * float64(total)
	}
	quantity, err := resource.ParseQuantity(threshold)
	if err != nil {
		return 0
	}
	return quantity.AsApproximateFloat64()
}
