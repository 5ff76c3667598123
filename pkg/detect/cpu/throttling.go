package cpu

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cpu-throttling reads, of the cgroup of kubelet and of the runtime and of those above them,
//
//	/sys/fs/cgroup/…/cpu.stat          nr_periods 19234    periods (100 ms) in which a cgroup with a limit had work
//	(v1: below cpu/)                   nr_throttled 8021   of these, those in which it used up its quota and waited
//	                                   throttled_usec 402134552      (v1: throttled_time, ns)
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu, https://docs.kernel.org/scheduler/sched-bwc.html

// CPUThrottlingSettings are the thresholds of cpu-throttling. A raised finding is kept until the value is below three
// quarters of the threshold.
type CPUThrottlingSettings struct {
	Percent float64 `yaml:"percent"` // of the periods of a cgroup, over 10 minutes
}

// DefaultCPUThrottlingSettings returns the settings that are used unless the configuration says otherwise.
func DefaultCPUThrottlingSettings() CPUThrottlingSettings { return CPUThrottlingSettings{Percent: 25} }

// CPUThrottling finds kubelets and runtimes that a CPU limit throttles.
func CPUThrottling(s CPUThrottlingSettings) detect.Check {
	state := &throttleState{percent: s.Percent}
	return detect.Check{
		ID: "cpu-throttling", Domain: "cpu",
		Summary: "kubelet or the runtime is throttled by a CPU limit",
		Advice: "`systemctl show -p CPUQuotaPerSecUSec kubelet containerd system.slice` shows which unit has the " +
			"limit. Raise or remove it, or reserve more for the system (kubeReserved, systemReserved).",
		Doc: detect.Doc{
			Reads: []string{"cpu.stat of the cgroups of kubelet and the runtime and of those above them"},
			Why: "Pods start late, probes time out and the node's lease is renewed late, while the processors are " +
				"idle.",
			Faults: []detect.Fault{
				{Reason: "DaemonThrottled", Severity: finding.Warning, When: "a cgroup that contains kubelet or the " +
					"runtime was throttled in 25 % of its periods, of at least 100, over 10 minutes"},
			},
			FalseAlarms: "None known. Pods that are throttled by their own limits are not checked, and a cgroup " +
				"without a limit counts no periods.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2}},
		Run:    state.run,
	}
}

// throttleState is kept between runs.
type throttleState struct {
	percent float64
	windows map[string]*checkkit.Window[uint64] // by cgroup; only those of the last run
}

func (m *throttleState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	cgroups, err := checkkit.DaemonCgroups(ctx, h, "cpu")
	if err != nil {
		return nil, err
	}
	windows := make(map[string]*checkkit.Window[uint64])
	var results checkkit.Results
	for _, c := range cgroups {
		if windows[c.Name] != nil {
			continue // kubelet's and the runtime's
		}
		subject := finding.Subject{Kind: "cgroup", Name: c.Name}
		stat, err := checkkit.ReadCounts(h.Files, path.Join(c.Dir, "cpu.stat"))
		if results.Unread(subject, err) {
			continue // most often the controller is not enabled there
		}
		w := m.windows[c.Name]
		if w == nil {
			w = &checkkit.Window[uint64]{}
		}
		windows[c.Name] = w
		percent, periods, elapsed := share(w, h.Clock().SinceBoot, stat["nr_throttled"], stat["nr_periods"])
		found, belowRaise := checkkit.Reaches(percent, m.percent)
		results.Add(finding.Finding{
			Subject: subject, Severity: finding.Warning, Reason: "DaemonThrottled",
			Message: fmt.Sprintf("%s, %s, was throttled by a CPU limit in %.0f %% of its periods in the last %s",
				c.Name, c.Why, percent, elapsed.Round(time.Minute)),
			Facts:      map[string]string{"percent": fmt.Sprintf("%.1f", percent), "periods": fmt.Sprint(periods)},
			BelowRaise: belowRaise,
		}, found && elapsed >= minRateSpan && periods >= 100)
	}
	m.windows = windows
	return results.Done()
}
