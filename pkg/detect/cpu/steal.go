package cpu

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cpu-steal reads
//
//	/proc/stat    cpu  23024 10 8841 1183200 3312 0 402 120 0 0    the eighth number: ticks that the hypervisor withheld
//
// https://man7.org/linux/man-pages/man5/proc_stat.5.html

// CPUStealSettings are the thresholds of cpu-steal. A raised finding is kept until the value is below three quarters of
// the threshold.
type CPUStealSettings struct {
	Percent float64 `yaml:"percent"` // of the time of all processors, over 10 minutes
}

// DefaultCPUStealSettings returns the settings that are used unless the configuration says otherwise.
func DefaultCPUStealSettings() CPUStealSettings { return CPUStealSettings{Percent: 10} }

// CPUSteal finds virtual machines that do not get the processor time that they were promised.
func CPUSteal(s CPUStealSettings) detect.Check {
	var window checkkit.Window[uint64]
	return detect.Check{
		ID: "cpu-steal", Domain: "cpu",
		Summary: "the hypervisor gives processor time of the node to other machines",
		Advice: "This cannot be fixed on the node. Move the machine to another host (on most clouds: stop and start " +
			"it), or choose an instance type with dedicated processors or more credits, and report it to the provider.",
		Doc: detect.Doc{
			Reads: []string{"/proc/stat"},
			Why: "Pods become slow although the node shows idle time, and kubelet, probes and leases miss their " +
				"deadlines.",
			Faults: []detect.Fault{
				{Reason: "CPUStolen", Severity: finding.Warning, When: "10 % of the time of all processors over 10 " +
					"minutes: every tenth time slice is late"},
			},
			FalseAlarms: "None known: steal is only counted while a processor wants to run, and bare-metal machines " +
				"have none. After a live migration the counter may jump; the measurement then begins again.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			times, err := readCPUTimes(h.Files)
			if err != nil {
				return nil, err
			}
			all := times[-1]
			percent, _, elapsed := share(&window, h.Clock().SinceBoot, all.steal, all.total)
			found, belowRaise := checkkit.Reaches(percent, s.Percent)
			if elapsed < minRateSpan || !found {
				return nil, nil
			}
			return []finding.Finding{{
				Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "CPUStolen",
				Message: fmt.Sprintf("the hypervisor withheld %.0f %% of the processor time in the last %s", percent,
					elapsed.Round(time.Minute)),
				Facts:      map[string]string{"percent": fmt.Sprintf("%.1f", percent)},
				BelowRaise: belowRaise,
			}}, nil
		},
	}
}
