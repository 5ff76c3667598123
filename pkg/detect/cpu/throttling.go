package cpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cpu-throttling reads, of the cgroup of kubelet and of the runtime and of those above them,
//
//	/sys/fs/cgroup/…/cpu.stat          nr_periods 19234    periods (100 ms) in which it had something to do, while it has a limit
//	(v1: below cpu/)                   nr_throttled 8021   of these, periods in which it used up its share and had to wait
//	                                   throttled_usec 402134552      (v1: throttled_time, ns)
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu, https://docs.kernel.org/scheduler/sched-bwc.html
//
// Pods are throttled by their own limits all day, which is theirs to mend. The daemons that serve all pods have no
// limit unless somebody set CPUQuota on their unit or on system.slice. When every fourth period is cut short over ten
// minutes, kubelet's loops and the runtime's calls take a third longer and more, at the times when much is to be
// done.
//
// Known false alarms, and what is done: fewer than 100 periods in the time are too few to tell; a cgroup without a
// limit has none.

// CPUThrottlingSettings are the thresholds of cpu-throttling. A finding that was raised is kept until the value is
// below three quarters of them.
type CPUThrottlingSettings struct {
	Percent float64 `yaml:"percent"` // of the periods of a cgroup, over 10 minutes
}

// DefaultCPUThrottlingSettings returns the settings that are used unless the configuration says otherwise.
func DefaultCPUThrottlingSettings() CPUThrottlingSettings { return CPUThrottlingSettings{Percent: 25} }

const cpuThrottlingID = "cpu-throttling"

// CPUThrottling finds kubelets and runtimes that their own limit of processor time holds back.
func CPUThrottling(s CPUThrottlingSettings) detect.Check {
	memory := &throttleState{}
	return detect.Check{
		ID: cpuThrottlingID, Domain: "cpu",
		Summary: "kubelet or the runtime is held back by a limit of processor time",
		Advice: "systemctl show -p CPUQuotaPerSecUSec kubelet containerd system.slice tells who set it. Raise or " +
			"remove the limit, or reserve more for the system (kubeReserved, systemReserved).",
		Doc: detect.Doc{
			Reads: []string{"cpu.stat of the cgroups of kubelet and the runtime and of those above them"},
			Why:   "Pods start late, probes time out and the node's lease is renewed late, while the processors are idle.",
			Faults: []detect.Fault{
				{Reason: "DaemonThrottled", Severity: finding.Warning, When: "a cgroup that kubelet or the runtime " +
					"is in was throttled in 25 % of its periods, of at least 100, over 10 minutes"},
			},
			FalseAlarms: "Throttled pods are not looked at: their limits are theirs.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Clear: finding.Hold{Looks: 2}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return memory.look(ctx, h, s)
		},
	}
}

// throttleState is what one look leaves for the next.
type throttleState struct {
	windows map[string]*checkkit.CounterWindow // by cgroup; at most those of the last look
}

func (m *throttleState) look(ctx context.Context, h *host.Host, s CPUThrottlingSettings) ([]finding.Finding, error) {
	cgroups, err := checkkit.DaemonCgroups(ctx, h, "cpu")
	if err != nil {
		return nil, err
	}
	windows, doubts := make(map[string]*checkkit.CounterWindow), make(map[finding.Subject]error)
	var findings []finding.Finding
	for _, c := range cgroups {
		if windows[c.Name] != nil {
			continue // that of both
		}
		subject := finding.Subject{Kind: "cgroup", Name: c.Name}
		stat, err := readThrottling(h.Files, c.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the controller is not enabled there
		}
		if err != nil {
			doubts[subject] = err
			continue
		}
		w := m.windows[c.Name]
		if w == nil {
			w = &checkkit.CounterWindow{}
		}
		windows[c.Name] = w
		rise, elapsed := w.Add(h.Clock().SinceBoot, rateSpan, stat.periods, stat.throttled)
		percent := 100 * float64(rise[1]) / float64(max(rise[0], 1))
		if elapsed < rateLeast || rise[0] < 100 || s.Percent <= 0 || percent < s.Percent*checkkit.ClearRatio {
			continue
		}
		findings = append(findings, finding.Finding{
			Check: cpuThrottlingID, Subject: subject, Severity: finding.Warning, Reason: "DaemonThrottled",
			Message: fmt.Sprintf("%s, %s, had to wait for its next share of processor time in %.0f %% of its periods "+
				"in the last %s",
				c.Name, c.Why, percent, elapsed.Round(time.Minute)),
			Facts: map[string]string{"percent": fmt.Sprintf("%.1f", percent),
				"periods": strconv.FormatUint(rise[0], 10)},
			BelowRaise: percent < s.Percent,
		})
	}
	m.windows = windows
	return findings, finding.Partial(doubts)
}

// throttling is what cpu.stat tells of limits. It is zero where there was never one.
type throttling struct{ periods, throttled uint64 }

func readThrottling(files host.Files, dir string) (throttling, error) {
	file := path.Join(dir, "cpu.stat")
	data, err := files.Read(file)
	if err != nil {
		return throttling{}, err
	}
	var t throttling
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		into := map[string]*uint64{"nr_periods": &t.periods, "nr_throttled": &t.throttled}[key]
		if into == nil {
			continue
		}
		if *into, err = strconv.ParseUint(value, 10, 63); err != nil {
			return throttling{}, fmt.Errorf("read %s: line %q: want a number", file, checkkit.Sanitize(line, 80))
		}
	}
	return t, nil
}
