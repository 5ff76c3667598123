// Package hungtasks finds tasks that hang in the kernel.
package hungtasks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// hung-tasks reads
//
//	/proc/loadavg                             1.07 0.40 0.15 1/96 488
//	/proc/sys/kernel/hung_task_detect_count   4       since Linux 6.13: how often the kernel's own watch found a hung task
//
// and, only where the load says that a task may be blocked, /proc/PID/stat, /proc/PID/task/TID/stat and of tasks in
// state D
//
//	/proc/PID/task/TID/status     State: D (disk sleep) … voluntary_ctxt_switches: 150 … nonvoluntary_ctxt_switches: 545
//	/proc/PID/task/TID/wchan      rpc_wait_bit_killable
//
// A task in state D adds 1 to the load: after 40 s the load of one minute is 0.5, so that a quiet node needs one
// file. A task that is in state D at two looks and did not run between them (its context switches are the same) has
// waited in the kernel all that time; so has one that only ran to be told to wait on, see wakes.go. The kernel's
// watch asks the same, every two minutes, but leaves out tasks that a signal could kill, which are those of NFS; it
// tells of ten tasks at most, and of none after an oops.
//
// https://docs.kernel.org/admin-guide/sysctl/kernel.html#hung-task-timeout-secs, proc_pid_status(5).
//
// The threshold is the kernel's own, 120 s: no request to a disk that works takes so long (30 s is the timeout of
// SCSI and NVMe commands, retried some times). Hung tasks of kubelet or the runtime have a reason of their own and
// are still a warning: most often one thread of them touched one dead mount, and all others go on. That they do not
// answer any more is for kubelet-health and runtime-health to tell, which ask them.
//
// Known false alarms, and what is done: tasks that the freezer of cgroup v1 holds are left out (its state is read),
// as is a parent that waits for its vfork child to exec, and a kernel thread that never ran yet. Drivers that park a
// thread in state D on purpose can be named in ignore.

// Settings are the settings of hung-tasks.
type Settings struct {
	After  time.Duration `yaml:"after"`  // a task that did not run for so long is hung
	Ignore []string      `yaml:"ignore"` // names of tasks that are never hung
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings { return Settings{After: 120 * time.Second} }

const hungTasksID = "hung-tasks"

// The reasons.
const (
	reasonTaskHung        = "TaskHung"
	reasonKubeletTaskHung = "KubeletTaskHung"
	reasonRuntimeTaskHung = "RuntimeTaskHung"
	reasonTaskWasHung     = "TaskWasHung"
)

// New finds tasks that wait in the kernel for minutes and cannot be killed.
func New(s Settings) detect.Check {
	memory := &hungTasks{}
	return detect.Check{
		ID: hungTasksID, Domain: "kernel",
		Summary: "tasks wait in the kernel for minutes and cannot be killed",
		Advice: "What they wait in tells where to look: rpc_, nfs_ a dead NFS server; request_wait_answer a dead " +
			"FUSE daemon; io_schedule, blk_, xfs_, jbd2_ a disk; a mapped device that is named as suspended: " +
			"dmsetup resume NAME; anything else a lock: echo w > /proc/sysrq-trigger writes all their stacks to " +
			"dmesg. Bring the server or disk back, or unmount it by force; killing them does not help. Where it is a " +
			"lock in the kernel, drain and reboot.",
		Doc: detect.Doc{
			Reads: []string{"/proc/loadavg", "/proc/sys/kernel/hung_task_detect_count",
				"/proc/PID/task/TID/{stat,status,wchan}, only where the load is above 0.5",
				"/sys/block/dm-*/dm/suspended, only where tasks hang"},
			Why: "A pod with such a task cannot be stopped or restarted, and its volumes cannot be unmounted. Where " +
				"it is kubelet's or the runtime's own thread, whatever else needs the same lock or mount will hang as well.",
			Faults: []detect.Fault{
				{Reason: reasonTaskHung, Severity: finding.Warning, When: "a task is in state D and has not run for " +
					"120 s, as long as the kernel's own watch waits"},
				{Reason: reasonKubeletTaskHung, Severity: finding.Warning,
					When: "the same for a thread of kubelet; kubelet-health tells whether it still answers"},
				{Reason: reasonRuntimeTaskHung, Severity: finding.Warning,
					When: "the same for a thread of the container runtime, a shim or runc; runtime-health tells " +
						"whether the runtime still answers"},
				{Reason: reasonTaskWasHung, Severity: finding.Info, When: "the kernel counted a hung task that is " +
					"not hung any more; told for 10 minutes"},
			},
			FalseAlarms: "Frozen tasks and parents that wait for a vfork child are left out. Threads that a driver " +
				"parks in state D can be named in ignore.",
		},
		CounterBased: true,
		Every:        30 * time.Second,
		Wakes:        []detect.Wake{checkkit.KernelWake()},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return memory.look(ctx, h, s)
		},
	}
}

// hungTasks is what one look leaves for the next.
type hungTasks struct {
	seen  map[tasks.TaskID]*blockedTask // tasks in state D, at most maxTasks
	count kernelHungCount
}

func (m *hungTasks) look(ctx context.Context, h *host.Host, s Settings) ([]finding.Finding, error) {
	now := h.Clock().SinceBoot
	if err := m.count.renew(h.Files, now); err != nil {
		return nil, err
	}
	may, err := mayBeBlocked(h.Files)
	if err != nil {
		return nil, err
	}
	if !may {
		m.seen = nil
		return m.count.finding(h, now), nil
	}
	hung, err := m.hung(ctx, h, s)
	switch {
	case err != nil:
		return nil, err
	case len(hung) == 0:
		return m.count.finding(h, now), nil
	}
	return hungFindings(ctx, h, hung, now), nil
}

// hung looks at the tasks and returns those that have been blocked for long enough.
func (m *hungTasks) hung(ctx context.Context, h *host.Host, s Settings) ([]*blockedTask, error) {
	seen, err := stillBlocked(ctx, h, m.seen, s.Ignore)
	if err != nil {
		return nil, err
	}
	m.seen = seen
	now := h.Clock().SinceBoot
	var hung []*blockedTask
	for _, t := range seen {
		if now-t.since < s.After {
			continue
		}
		if t.Wchan = tasks.WaitChannel(h.Files, t.PID, t.ID.Tid); !waitsForVfork(t.Wchan) {
			hung = append(hung, t)
		}
	}
	return hung, nil
}

// mayBeBlocked reports whether the load leaves room for a task that has been blocked for 40 s.
func mayBeBlocked(files host.Files) (bool, error) {
	const file, quiet = "/proc/loadavg", 0.5
	data, err := files.Read(file)
	if err != nil {
		return false, err
	}
	var seen load.LoadSeen
	if err := load.ParseLoadavg(string(data), &seen); err != nil {
		return false, fmt.Errorf("read %s: %w", file, err)
	}
	return seen.Load1 >= quiet, nil
}

// kernelHungCount follows the kernel's own count of hung tasks, which adds every task at every round of its watch.
// Root may set it back.
type kernelHungCount struct {
	known bool
	last  uint64
	rise  uint64        // by how much it rose last
	at    time.Duration // uptime when that was seen; 0 for never
}

func (c *kernelHungCount) renew(files host.Files, now time.Duration) error {
	const file = "/proc/sys/kernel/hung_task_detect_count"
	text, err := files.Text(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // before Linux 6.13, or built without the watch
	}
	if err != nil {
		return err
	}
	count, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if c.known && count > c.last {
		c.rise, c.at = count-c.last, now
	}
	c.known, c.last = true, count
	return nil
}

// finding tells of tasks that were hung a moment ago. It is asked when none is hung now.
func (c *kernelHungCount) finding(h *host.Host, now time.Duration) []finding.Finding {
	const fresh = 10 * time.Minute
	if c.at == 0 || now-c.at > fresh {
		return nil
	}
	return []finding.Finding{{
		Check: hungTasksID, Subject: checkkit.NodeSubject(h), Severity: finding.Info, Reason: reasonTaskWasHung,
		Message: fmt.Sprintf("the kernel found hung tasks %d times, %s ago; none is hung now", c.rise,
			(now - c.at).Round(time.Second)),
		Facts: map[string]string{"detectCount": strconv.FormatUint(c.last, 10)},
	}}
}
