package load

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// loadFault is a shortage of one resource, ordered by severity: a fault that blocks all work comes first.
type loadFault struct {
	reason   string
	text     string
	marginal bool // keeps a raised finding, but raises none
}

// perCPU is a load average for each processor.
func (l LoadSeen) perCPU(load float64) float64 { return load / float64(max(l.CPUs, 1)) }

// without returns the load without the agent's own part: the threads of this run, of which the reader was left out
// already, and probes that hang.
func (l LoadSeen) without(scan tasks.TaskScan) LoadSeen {
	l.Runnable = max(l.Runnable-max(scan.OwnRunnable-1, 0), 0)
	for _, load := range []*float64{&l.Load1, &l.Load5, &l.Load15} {
		*load = max(*load-float64(scan.OwnBlockedLong()), 0)
	}
	return l
}

// unusual reports whether tasks are worth a scan, which takes some milliseconds for a thousand of them. Blocked tasks
// are part of the load, so many of them show as load without runnable tasks.
func (l LoadSeen) unusual(s Settings) bool {
	return l.perCPU(l.Load5) >= s.LoadPerCPU*checkkit.ClearRatio ||
		l.perCPU(l.Load15) >= s.FatalLoadPerCPU*checkkit.ClearRatio ||
		l.CPU.Some60 >= s.CPUPressure*checkkit.ClearRatio ||
		l.Memory.Full60 >= s.MemoryPressure*checkkit.ClearRatio ||
		l.Memory.Full300 >= s.FatalMemoryStalls*checkkit.ClearRatio ||
		l.IO.Full60 >= s.IOPressure*checkkit.ClearRatio ||
		l.Load1-float64(l.Runnable) >= float64(s.BlockedTasks)*checkkit.ClearRatio/2
}

// evaluate returns the faults, the most severe first; marginal faults come last.
func (l LoadSeen) evaluate(s Settings) []loadFault {
	var faults []loadFault
	add := func(value, threshold float64, reason, format string, args ...any) {
		if found, belowRaise := checkkit.Reaches(value, threshold); found {
			faults = append(faults, loadFault{reason, fmt.Sprintf(format, args...), belowRaise})
		}
	}
	add(l.Memory.Full60, s.MemoryPressure, "MemoryPressureStall",
		"all tasks waited for memory in %.0f %% of the last minute", l.Memory.Full60)
	// Without an earlier scan, the load of five minutes must show that tasks have been blocked for long.
	blocked := max(l.BlockedLong, min(l.Blocked, int(l.Load5/0.8)))
	add(float64(blocked), float64(s.BlockedTasks), "BlockedTasks", "%d tasks are blocked in the kernel", l.Blocked)
	// Little work that always waits for I/O is no fault of the node.
	if l.perCPU(l.Load5) >= 1 {
		add(l.IO.Full60, s.IOPressure, "IOPressureStall", "all tasks waited for I/O in %.0f %% of the last minute",
			l.IO.Full60)
	}
	add(l.perCPU(l.Load5), s.LoadPerCPU, "HighLoad", "load is %.1f for each of %d CPUs over 5 minutes",
		l.perCPU(l.Load5), l.CPUs)
	// Tasks that wait only for their own CPU limit are no fault of the node.
	if l.perCPU(l.Load5) >= 1 {
		add(l.CPU.Some60, s.CPUPressure, "CPUPressure", "tasks waited for a CPU in %.0f %% of the last minute",
			l.CPU.Some60)
	}
	slices.SortStableFunc(faults, func(a, b loadFault) int {
		switch {
		case a.marginal == b.marginal:
			return 0
		case a.marginal:
			return 1
		}
		return -1
	})
	return faults
}

// isFatal reports whether the node cannot serve pods, by the longest windows available. Tasks that are blocked in the
// kernel are part of the load and use no processor: a pod whose file server is gone has as many as it likes. A fatal
// finding stays fatal until well below the threshold.
func (l LoadSeen) isFatal(s Settings, was bool) bool {
	share := 1.0
	if was {
		share = checkkit.ClearRatio
	}
	return s.FatalLoadPerCPU > 0 && l.perCPU(l.Load15-float64(l.Blocked)) >= s.FatalLoadPerCPU*share ||
		s.FatalMemoryStalls > 0 && l.Memory.Full300 >= s.FatalMemoryStalls*share
}

// loadFinding reports all faults in one finding; the most severe gives its reason.
func loadFinding(h *host.Host, l LoadSeen, faults []loadFault, fatal bool, c tasks.LoadCauses) finding.Finding {
	texts := make([]string, 0, len(faults))
	for _, f := range faults {
		texts = append(texts, f.text)
	}
	message := strings.Join(texts, ", ")
	if len(c.CPU) > 0 {
		message += "; most CPU: " + finding.JoinFirst(c.CPU, 3)
	}
	if len(c.Blocked) > 0 {
		message += "; blocked: " + finding.JoinFirst(c.Blocked, 3)
	}
	severity := finding.Warning
	if fatal {
		severity = finding.Fatal
	}
	return finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: severity,
		Reason: faults[0].reason, Message: message, Facts: l.facts(c), BelowRaise: faults[0].marginal,
	}
}

func (l LoadSeen) facts(c tasks.LoadCauses) map[string]string {
	number := func(f float64) string { return fmt.Sprintf("%.2f", f) }
	facts := map[string]string{
		"cpus": strconv.Itoa(l.CPUs), "load1": number(l.Load1), "load5": number(l.Load5), "load15": number(l.Load15),
		"runnable": strconv.Itoa(l.Runnable), "blocked": strconv.Itoa(l.Blocked),
	}
	if l.CPU.Known {
		facts["cpuSomeAvg60"] = number(l.CPU.Some60)
	}
	if l.Memory.Known {
		facts["memoryFullAvg60"] = number(l.Memory.Full60)
	}
	if l.IO.Known {
		facts["ioFullAvg60"] = number(l.IO.Full60)
	}
	if len(c.CPU) > 0 {
		facts["topCPU"] = finding.JoinFirst(c.CPU, 10)
	}
	if len(c.Blocked) > 0 {
		facts["blockedIn"] = finding.JoinFirst(c.Blocked, 10)
	}
	if c.Cut {
		facts["tasksCut"] = "true" // more tasks than a scan covers
	}
	return facts
}
