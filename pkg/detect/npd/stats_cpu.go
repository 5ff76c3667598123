package npd

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/procfs"

	"github.com/nodeagent/nodeagent/internal/host"
)

// The help texts and labels are node-problem-detector's (pkg/systemstatsmonitor). Its counters of the groups cpu/ and
// net/ add up totals since boot again at each sample, so that they grow without bound; here they are the totals.
func cpuMetric(id, help string, counter bool, labels ...string) *metric {
	return &metric{id: id, help: help, counter: counter, labels: labels}
}

// sampleCPU reads /proc/loadavg and /proc/stat.
func sampleCPU(_ context.Context, h *host.Host, _ *previous) ([]sample, error) {
	fs, err := procfs.NewFS(h.Files.Path("/proc"))
	if err != nil {
		return nil, err
	}
	samples, err := sampleLoad(fs)
	stat, statErr := fs.Stat()
	if statErr != nil {
		return samples, errors.Join(err, fmt.Errorf("read /proc/stat: %w", statErr))
	}
	single := func(id, help string, counter bool, value uint64) {
		samples = append(samples, sample{metric: cpuMetric(id, help, counter), value: float64(value)})
	}
	single("system/processes_total", "Number of forks since boot.", true, stat.ProcessCreated)
	single("system/procs_running", "Number of processes currently running.", false, stat.ProcessesRunning)
	single("system/procs_blocked", "Number of processes currently blocked.", false, stat.ProcessesBlocked)
	single("system/interrupts_total", "Total number of interrupts serviced (cumulative).", true, stat.IRQTotal)

	usage := cpuMetric("cpu/usage_time", "CPU usage, in seconds", true, "state")
	for _, s := range stages(stat.CPUTotal) {
		// In ticks of a hundredth of a second, whatever the help text says.
		samples = append(samples, sample{usage, []string{s.state}, 100 * s.seconds})
	}
	times := cpuMetric("system/cpu_stat", "Cumulative time each cpu spent in various stages.", true, "cpu", "stage")
	for number, c := range stat.CPU {
		for _, s := range stages(c) {
			samples = append(samples, sample{times, []string{fmt.Sprintf("cpu%d", number), s.stage}, s.seconds})
		}
	}
	return samples, err
}

func sampleLoad(fs procfs.FS) ([]sample, error) {
	load, err := fs.LoadAvg()
	if err != nil {
		return nil, fmt.Errorf("read /proc/loadavg: %w", err)
	}
	return []sample{
		{metric: cpuMetric("cpu/runnable_task_count", "The average number of runnable tasks in the run-queue during "+
			"the last minute", false), value: load.Load1},
		{metric: cpuMetric("cpu/load_1m", "CPU average load (1m)", false), value: load.Load1},
		{metric: cpuMetric("cpu/load_5m", "CPU average load (5m)", false), value: load.Load5},
		{metric: cpuMetric("cpu/load_15m", "CPU average load (15m)", false), value: load.Load15},
	}, nil
}

// stage is one kind of processor time, by its two names.
type stage struct {
	state, stage string
	seconds      float64
}

func stages(c procfs.CPUStat) []stage {
	return []stage{
		{"user", "user", c.User}, {"nice", "nice", c.Nice}, {"system", "system", c.System}, {"idle", "idle", c.Idle},
		{"iowait", "iowait", c.Iowait}, {"irq", "iRQ", c.IRQ}, {"softirq", "softIRQ", c.SoftIRQ},
		{"steal", "steal", c.Steal},
		{"guest", "guest", c.Guest}, {"guest_nice", "guestNice", c.GuestNice},
	}
}
