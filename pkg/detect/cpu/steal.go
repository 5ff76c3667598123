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
//	/proc/stat    cpu  23024 10 8841 1183200 3312 0 402 120 0 0     the eighth number: ticks that the hypervisor gave to others
//
// https://man7.org/linux/man-pages/man5/proc_stat.5.html
//
// 10 % of the time over ten minutes is where latency of pods becomes visibly worse: every tenth time slice is not there
// when it is due. What a burstable instance without credits gets is far above (50 % and more).
//
// Known false alarms, and what is done: steal while the node itself is idle harms nobody, and is little then, for it is
// only counted while a processor wants to run. After a live migration the counter may go back or jump: it begins again.

// CPUStealSettings are the thresholds of cpu-steal. A finding that was raised is kept until the value is below three
// quarters of them.
type CPUStealSettings struct {
	Percent float64 `yaml:"percent"` // of the time of all processors, over 10 minutes
}

// DefaultCPUStealSettings returns the settings that are used unless the configuration says otherwise.
func DefaultCPUStealSettings() CPUStealSettings { return CPUStealSettings{Percent: 10} }

const cpuStealID = "cpu-steal"

// A rate is taken over ten minutes, and said when half of them are known.
const (
	rateSpan  = 10 * time.Minute
	rateLeast = 5 * time.Minute
)

// CPUSteal finds virtual machines that do not get the processors that they were promised.
func CPUSteal(s CPUStealSettings) detect.Check {
	var window checkkit.CounterWindow
	return detect.Check{
		ID: cpuStealID, Domain: "cpu",
		Summary: "the hypervisor gives the node's processors to other machines",
		Advice: "Nothing on the node helps. Move the machine to another host (stop and start it on most clouds), " +
			"take a type without shared processors or with more credits, and tell the provider.",
		Doc: detect.Doc{
			Reads: []string{"/proc/stat"},
			Why:   "Pods become slow although the node shows idle time, and kubelet, probes and leases miss their deadlines.",
			Faults: []detect.Fault{
				{Reason: "CPUStolen", Severity: finding.Warning, When: "10 % of the time of all processors over 10 " +
					"minutes: every tenth time slice is not there when it is due"},
			},
			FalseAlarms: "None known. Real machines have no such time.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Clear: finding.Hold{Looks: 2}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			times, err := readCPUTimes(h.Files)
			if err != nil {
				return nil, err
			}
			all := times[-1]
			rise, elapsed := window.Add(h.Clock().SinceBoot, rateSpan, all.steal, all.total)
			percent := 100 * float64(rise[0]) / float64(max(rise[1], 1))
			if elapsed < rateLeast || s.Percent <= 0 || percent < s.Percent*checkkit.ClearRatio {
				return nil, nil
			}
			return []finding.Finding{{
				Check: cpuStealID, Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "CPUStolen",
				Message: fmt.Sprintf("the hypervisor kept %.0f %% of the processors' time for others in the last %s",
					percent, elapsed.Round(time.Minute)),
				Facts:      map[string]string{"percent": fmt.Sprintf("%.1f", percent)},
				BelowRaise: percent < s.Percent,
			}}, nil
		},
	}
}
