package npd

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/procfs"

	"github.com/nodeagent/nodeagent/internal/host"
)

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
	single := func(m *metric, value uint64) {
		samples = append(samples, sample{metric: m, value: float64(value)})
	}
	single(total("system/processes_total", "Number of forks since boot."), stat.ProcessCreated)
	single(gauge("system/procs_running", "Number of processes currently running."), stat.ProcessesRunning)
	single(gauge("system/procs_blocked", "Number of processes currently blocked."), stat.ProcessesBlocked)
	single(total("system/interrupts_total", "Total number of interrupts serviced (cumulative)."), stat.IRQTotal)

	usage := total("cpu/usage_time", "CPU usage, in seconds", "state")
	for _, s := range stages(stat.CPUTotal) {
		// In ticks of a hundredth of a second, unlike the help text.
		samples = append(samples, sample{usage, []string{s.state}, 100 * s.seconds})
	}
	times := total("system/cpu_stat", "Cumulative time each cpu spent in various stages.", "cpu", "stage")
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
		{metric: gauge("cpu/runnable_task_count", "The average number of runnable tasks in the run-queue during "+
			"the last minute"), value: load.Load1},
		{metric: gauge("cpu/load_1m", "CPU average load (1m)"), value: load.Load1},
		{metric: gauge("cpu/load_5m", "CPU average load (5m)"), value: load.Load5},
		{metric: gauge("cpu/load_15m", "CPU average load (15m)"), value: load.Load15},
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
