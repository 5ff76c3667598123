package storage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// disk-saturation reads /proc/diskstats (see diskStat) and compares two runs:
//
//	queue   = weighted ms (14th field) gained / ms passed         how many I/Os were waiting or served at a time
//	latency = weighted ms gained / I/Os completed meanwhile       how long each took on average
//
// https://docs.kernel.org/admin-guide/iostats.html. For disks that serve many I/Os at once "ms with any in flight" has
// no meaning, so utilization is not used. The mixin of Prometheus' node exporter warns at a queue above 10 for 30
// minutes; a flash disk at its best has a queue of hundreds and answers each I/O within a millisecond, so here both
// must be bad.

// DiskSaturationSettings are the thresholds of disk-saturation. A raised finding is kept until the value is below three
// quarters of them.
type DiskSaturationSettings struct {
	Queue   float64       `yaml:"queue"`   // I/Os waiting or being served, on average over a minute
	Latency time.Duration `yaml:"latency"` // of each, together with such a queue
	Slow    time.Duration `yaml:"slow"`    // latency of each, with any queue
}

// DefaultDiskSaturationSettings returns the default settings.
func DefaultDiskSaturationSettings() DiskSaturationSettings {
	return DiskSaturationSettings{Queue: 10, Latency: 100 * time.Millisecond, Slow: time.Second}
}

const minIOs = 60 // completed between two runs, required for an average

// DiskSaturation finds overloaded and slow disks.
func DiskSaturation(s DiskSaturationSettings) detect.Check {
	state := &saturationState{settings: s}
	return detect.Check{
		ID: "disk-saturation", Domain: "storage",
		Summary: "a disk is overloaded, or very slow",
		Advice: "Find what causes the I/O with `iostat -x 5`, `pidstat -d 5` or the io.stat files of the pods' " +
			"cgroups, and limit or move it. A disk that is slow with little to do is about to fail or is throttled " +
			"by its provider: see its health (nvme-health, disk-health) and its limits.",
		Doc: detect.Doc{
			Reads: []string{diskStatsFile},
			Why: "Every pod with a volume on the disk waits, probes time out and databases elect new leaders (etcd " +
				"wants 10 ms for an fsync); on the disk of the node, kubelet and the runtime become slow too.",
			Faults: []detect.Fault{
				{Reason: "DiskSaturated", Severity: finding.Warning, When: "on average of 15 minutes more than " +
					"10 I/Os wait or are served and each takes more than 100 ms: ten seeks of a spinning disk"},
				{Reason: "DiskSlow", Severity: finding.Warning, When: "each I/O takes more than a second on " +
					"average, for 15 minutes"},
			},
			FalseAlarms: "Backups and scrubbing fill the queue for long: it is a warning only, and begins after 15 " +
				"minutes. Flash disks with a long queue that answer fast, and single slow I/Os (fewer than 60 a " +
				"minute), are not reported.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 10, For: 15 * time.Minute},
			Clear: finding.Hold{Runs: 3, For: 3 * time.Minute}},
		Run: state.run,
	}
}

// saturationState is kept between runs.
type saturationState struct {
	settings DiskSaturationSettings
	lastRun  time.Duration       // uptime
	last     map[string]diskStat // by name
}

func (m *saturationState) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	stats, err := readDiskStats(h.Files)
	if err != nil {
		return nil, err
	}
	names, err := checkkit.BlockNames(h.Files)
	if err != nil {
		return nil, err
	}
	now := h.Clock().SinceBoot
	passed := now - m.lastRun
	last := m.last
	m.lastRun, m.last = now, make(map[string]diskStat, len(names))
	disks := 0
	var results checkkit.Results
	for _, d := range stats {
		// Loop devices repeat the I/O of the disk below, partitions that of their disk.
		if _, whole := slices.BinarySearch(names, d.name); !whole || d.major == majorLoop {
			continue
		}
		disks++
		m.last[d.name] = d
		before, known := last[d.name]
		if !known || before.device() != d.device() || passed <= 0 {
			continue
		}
		results.Add(saturation(m.settings, before, d, passed))
	}
	if disks == 0 {
		return nil, finding.NotApplicable("there is no disk")
	}
	return results.Done()
}

// saturation compares two runs.
func saturation(s DiskSaturationSettings, before, now diskStat, passed time.Duration) (finding.Finding, bool) {
	// The time is a 32-bit number of ms, which wraps every 50 days of I/O; a run in which it wraps has no result.
	if now.weightedMS < before.weightedMS || now.completed < before.completed ||
		now.completed-before.completed < minIOs {
		return finding.Finding{}, false
	}
	spent := time.Duration(now.weightedMS-before.weightedMS) * time.Millisecond
	queue := float64(spent) / float64(passed)
	latency := spent / time.Duration(now.completed-before.completed)
	f := finding.Finding{
		Subject: deviceSubject(now.name), Severity: finding.Warning,
		Facts: map[string]string{
			"queue": fmt.Sprintf("%.1f", queue), "latencyMilliseconds": fmt.Sprint(latency.Milliseconds()),
			"iosPerSecond": fmt.Sprintf("%.0f", float64(now.completed-before.completed)/passed.Seconds()),
			"mibPerSecond": fmt.Sprintf("%.1f",
				float64(now.sectors-min(before.sectors, now.sectors))*512/(1<<20)/passed.Seconds()),
		},
	}
	long, belowLong := checkkit.Reaches(queue, s.Queue)
	late, belowLate := checkkit.Reaches(float64(latency), float64(s.Latency))
	slow, belowSlow := checkkit.Reaches(float64(latency), float64(s.Slow))
	switch saturated := long && late; {
	case slow && !(belowSlow && saturated):
		f.Reason, f.BelowRaise = "DiskSlow", belowSlow
	case saturated:
		f.Reason, f.BelowRaise = "DiskSaturated", belowLong || belowLate
	default:
		return finding.Finding{}, false
	}
	f.Message = fmt.Sprintf("disk %s takes %s for each I/O on average, with %.1f waiting or served at a time (%s "+
		"I/Os and %s MiB a second)",
		now.name, latency.Round(time.Millisecond), queue, f.Facts["iosPerSecond"], f.Facts["mibPerSecond"])
	return f, true
}
