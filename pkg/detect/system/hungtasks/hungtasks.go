// Package hungtasks finds tasks that hang in the kernel.
package hungtasks

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// hung-tasks reads
//
//	/proc/loadavg                             1.07 0.40 0.15 1/96 488
//	/proc/sys/kernel/hung_task_detect_count   4       since Linux 6.13: the number of hung tasks that the kernel detected
//
// and, only if the load shows that a task may be blocked, /proc/PID/stat, /proc/PID/task/TID/stat and, of tasks in
// state D,
//
//	/proc/PID/task/TID/status     State: D (disk sleep) … voluntary_ctxt_switches: 150 … nonvoluntary_ctxt_switches: 545
//	/proc/PID/task/TID/wchan      rpc_wait_bit_killable
//
// https://docs.kernel.org/admin-guide/sysctl/kernel.html#hung-task-timeout-secs, proc_pid_status(5).
//
// A task in state D adds 1 to the load, so a quiet node needs one file: see loadReading. Otherwise all threads are read
// once a minute, and those in state D again in between: a task that hangs is noticed within 70 s, and reported when
// it has not run for another two minutes.
//
// A task that is in state D in two runs and did not run between them (its context switches are the same) has waited in
// the kernel all that time; so has one that was woken only to wait again, see kernelWakes. The kernel's detection does
// the same every two minutes, but leaves out tasks that a signal could kill, which are those of NFS; it logs at most
// ten tasks, and none after an oops.
//
// No request to a working disk takes 120 s: 30 s is the timeout of SCSI and NVMe commands, which are retried a few
// times. A hung thread of kubelet or the runtime is still a warning: mostly one thread touched one dead mount, and all
// others continue.

// Settings are the settings of hung-tasks.
type Settings struct {
	After  time.Duration `yaml:"after"`  // a task that did not run for this long is hung
	Ignore []string      `yaml:"ignore"` // names of tasks that are never hung
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings { return Settings{After: 120 * time.Second} }

const (
	reasonTaskHung        = "TaskHung"
	reasonKubeletTaskHung = "KubeletTaskHung"
	reasonRuntimeTaskHung = "RuntimeTaskHung"
	reasonTaskWasHung     = "TaskWasHung"
)

// New finds tasks that are blocked in the kernel for minutes and cannot be killed.
func New(s Settings) detect.Check {
	state := &hungTasks{}
	return detect.Check{
		ID: "hung-tasks", Domain: "kernel",
		Summary: "tasks are blocked in the kernel for minutes and cannot be killed",
		Advice: "The wait channel indicates the cause: rpc_ and nfs_ a dead NFS server; request_wait_answer a dead " +
			"FUSE daemon; io_schedule, blk_, xfs_ and jbd2_ a disk; anything else a lock: `echo w > " +
			"/proc/sysrq-trigger` writes the stacks of all blocked tasks to dmesg. Restore the server or disk, or " +
			"unmount it by force; killing the tasks does not help. Resume a mapped device that the message names as " +
			"suspended: `dmsetup resume NAME`. Where it is a lock in the kernel, drain the node and reboot it.",
		Doc: detect.Doc{
			Reads: []string{"/proc/loadavg", "/proc/sys/kernel/hung_task_detect_count",
				"/proc/PID/task/TID/{stat,status,wchan}, once a minute, only where the load leaves room for a blocked task",
				"/sys/block/dm-*/dm/suspended, only where tasks hang"},
			Why: "A pod with such a task cannot be stopped or restarted, and its volumes cannot be unmounted. Where " +
				"it is kubelet's or the runtime's own thread, whatever else needs the same lock or mount will hang " +
				"as well.",
			Faults: []detect.Fault{
				{Reason: reasonTaskHung, Severity: finding.Warning, When: "a task is in state D and has not run for " +
					"120 s, the default of the kernel's own detection"},
				{Reason: reasonKubeletTaskHung, Severity: finding.Warning,
					When: "the same for a thread of kubelet; kubelet-health reports whether it still answers"},
				{Reason: reasonRuntimeTaskHung, Severity: finding.Warning,
					When: "the same for a thread of the container runtime, a shim or runc; runtime-health reports " +
						"whether the runtime still answers"},
				{Reason: reasonTaskWasHung, Severity: finding.Info, When: "the kernel counted a hung task that is " +
					"not hung any more; reported for 10 minutes"},
			},
			FalseAlarms: "Frozen tasks, parents that wait for a vfork child, kernel threads that never ran, and the " +
				"agent's own probes are left out. Threads that a driver parks in state D can be named in ignore.",
		},
		CounterBased: true,
		UsesPartly:   []host.Setting{host.CgroupRoot, host.CRISocket},
		Every:        10 * time.Second,
		Wakes:        []detect.Wake{checkkit.KernelWake()},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return state.run(ctx, h, s)
		},
	}
}

// scanEvery is the least time between two scans of all threads. Between them only the tasks in state D are read again.
const scanEvery = 55 * time.Second

// hungTasks is kept between runs.
type hungTasks struct {
	seen    map[tasks.TaskID]*blockedTask // tasks in state D, at most MaxTasks
	scanned time.Duration                 // uptime of the last scan of all threads; 0: none since no task was blocked
	loads   []loadReading                 // the last one that is older than loadGap, and those after it
	count   kernelHungCount
}

func (m *hungTasks) run(ctx context.Context, h *host.Host, s Settings) ([]finding.Finding, error) {
	now := h.Clock().SinceBoot
	if err := m.count.renew(h.Files, now); err != nil {
		return nil, err
	}
	nothing, err := m.nothingBlocks(h.Files, now)
	if err != nil {
		return nil, err
	}
	if nothing {
		m.seen, m.scanned = nil, 0
		return m.count.finding(h, now), nil
	}
	if m.count.at == now {
		m.scanned = 0 // the kernel has just found one
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

// hung returns the tasks that have been blocked for long enough.
func (m *hungTasks) hung(ctx context.Context, h *host.Host, s Settings) ([]*blockedTask, error) {
	now := h.Clock().SinceBoot
	inStateD, err := m.inStateD(ctx, h, now)
	if err != nil {
		return nil, err
	}
	seen, err := stillBlocked(h, inStateD, m.seen, s.Ignore)
	if err != nil {
		return nil, err
	}
	m.seen = seen
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

// kernelHungCount follows the kernel's count of hung tasks, to which each round of its detection adds every task. Root
// may reset it.
type kernelHungCount struct {
	known bool
	last  uint64
	rise  uint64        // by how much it rose last
	at    time.Duration // uptime at that time; 0 for never
}

func (c *kernelHungCount) renew(files host.Files, now time.Duration) error {
	count, err := checkkit.ReadCount(files, "/proc/sys/kernel/hung_task_detect_count")
	if err != nil {
		return hosterr.Ignore(err, fs.ErrNotExist) // before Linux 6.13, or built without the detection
	}
	if c.known && count > c.last {
		c.rise, c.at = count-c.last, now
	}
	c.known, c.last = true, count
	return nil
}

// finding reports recently hung tasks. It is called if none is hung now.
func (c *kernelHungCount) finding(h *host.Host, now time.Duration) []finding.Finding {
	const fresh = 10 * time.Minute
	if c.at == 0 || now-c.at > fresh {
		return nil
	}
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Info, Reason: reasonTaskWasHung,
		Message: fmt.Sprintf("the kernel found hung tasks %d times, %s ago; none is hung now", c.rise,
			(now - c.at).Round(time.Second)),
		Facts: map[string]string{"detectCount": fmt.Sprint(c.last)},
	}}
}

// The load counts a task in state D like one that runs. Every 5 s and a tick (LOAD_FREQ) the kernel computes
//
//	load1 = load1 × e + n × (1 − e)     n: tasks that run or are in state D; e = exp(−5/60), 1884/2048
//
// so that with n ≥ 1 in k updates load1 has become load1 × eᵏ + 1 − eᵏ at least. If it is less, no task was in state D
// all that time, and no thread of the node has to be read: on a node with constant load this holds below 0.9. A higher
// load proves nothing. The running tasks cannot be subtracted: their number is known for now only, not for the moments
// at which the kernel counted.
//
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/kernel/sched/loadavg.c

const (
	loadDecay    = 1884.0 / 2048
	loadShortest = 5 * time.Second
	loadLongest  = 5010 * time.Millisecond // 501 ticks of 10 ms, the coarsest clock
	// loadError is the error of two numbers with two digits, and of the kernel's rounding to 1/2048 in each update.
	loadError = 0.02
	// loadGap is the least time between two readings of the load that are compared: a burst of running tasks raises it
	// for a moment, a blocked one for all that time.
	loadGap = 55 * time.Second
	// loadApart is the least time between two readings that are kept: the kernel updates the load no sooner.
	loadApart = 5 * time.Second
	// loadUnknown is the load caused by a task blocked for 40 s, whatever the load was before.
	loadUnknown = 0.5
)

// loadReading is the load at a time since boot.
type loadReading struct {
	at    time.Duration
	load1 float64
}

// excludes reports whether no task can have been in state D from one reading to the next.
func (before loadReading) excludes(now loadReading) bool {
	if before.at == 0 {
		return now.load1 < loadUnknown
	}
	least := math.Inf(1)
	elapsed := now.at - before.at
	for k := int(elapsed / loadLongest); k <= int(elapsed/loadShortest)+1; k++ {
		// The first update may miss the task: a processor that sleeps without ticks is counted one update later.
		blocked := 1 - math.Pow(loadDecay, float64(max(k-1, 0)))
		least = min(least, before.load1*math.Pow(loadDecay, float64(k))+blocked)
	}
	return now.load1 < least-loadError
}

// nothingBlocks reports whether the load proves that no task has been blocked for the last minute.
func (m *hungTasks) nothingBlocks(files host.Files, now time.Duration) (bool, error) {
	seen, err := checkkit.Parse(files, "/proc/loadavg", load.ParseLoadavg)
	if err != nil {
		return false, err
	}
	next, before := loadReading{now, seen.Load1}, loadReading{}
	for len(m.loads) > 1 && now-m.loads[1].at >= loadGap {
		m.loads = m.loads[1:]
	}
	if len(m.loads) > 0 && now-m.loads[0].at >= loadGap {
		before = m.loads[0]
	}
	if len(m.loads) == 0 || now-m.loads[len(m.loads)-1].at >= loadApart {
		m.loads = append(m.loads, next)
	}
	return before.excludes(next), nil
}
