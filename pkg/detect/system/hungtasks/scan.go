package hungtasks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
)

// blockedTask is a task in state D.
type blockedTask struct {
	tasks.Task
	switches uint64        // context switches so far: it runs before each of them
	first    uint64        // the same at since
	since    time.Duration // uptime of the first run that found it in its present wait
}

// pfKthread is the flag of kernel threads in /proc/PID/stat.
const pfKthread = 0x00200000

// stillBlocked returns the tasks that are in state D now, with the time since when they have been.
func stillBlocked(h *host.Host, inStateD []threadStat, before map[tasks.TaskID]*blockedTask,
	ignore []string) (map[tasks.TaskID]*blockedTask, error) {
	var wakes kernelWakes
	freezer := tasks.TaskScan{Freezers: make(map[string]bool)}
	now := h.Clock().SinceBoot
	seen := make(map[tasks.TaskID]*blockedTask)
	for _, t := range inStateD {
		if len(seen) >= tasks.MaxTasks || slices.Contains(ignore, t.stat.Comm) {
			continue
		}
		file := fmt.Sprintf("/proc/%d/task/%d/status", t.pid, t.stat.PID)
		status, err := checkkit.Parse(h.Files, file, parseTaskStatus)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has exited
		}
		if err != nil {
			return nil, err
		}
		// A kernel thread created but not started yet has never run.
		if !status.blocked || status.switches == 0 || freezer.Frozen(h, t.pid, t.stat) {
			continue
		}
		id := tasks.TaskID{Tid: t.stat.PID, Start: t.stat.StartTime}
		found := &blockedTask{Task: tasks.Task{PID: t.pid, ID: id, Comm: t.stat.Comm}, switches: status.switches,
			first: status.switches, since: now}
		if old := before[id]; old != nil {
			same, err := wakes.continues(h.Files, old, found)
			if err != nil {
				return nil, err
			}
			if same {
				found.since, found.first = old.since, old.first
			}
		}
		seen[id] = found
	}
	return seen, nil
}

// threadStat is one thread of a process.
type threadStat struct {
	pid  int
	stat proc.Stat
}

// inStateD lists the tasks in state D: once a minute it looks at all tasks, otherwise at those of the last time.
func (m *hungTasks) inStateD(ctx context.Context, h *host.Host, now time.Duration) ([]threadStat, error) {
	if m.scanned == 0 || now-m.scanned >= scanEvery {
		found, err := tasksInD(ctx, h)
		if err == nil {
			m.scanned = now
		}
		return found, err
	}
	var found []threadStat
	for id, t := range m.seen {
		stat, err := h.TaskStat(t.PID, id.Tid)
		switch {
		case proc.Gone(err):
		case err != nil:
			return nil, err
		case stat.StartTime == id.Start && stat.State == 'D':
			found = append(found, threadStat{t.PID, stat})
		}
	}
	return found, nil
}

// tasksInD lists tasks in state D, threads too: programs of many threads, as those in Go, rarely have their main one
// blocked.
func tasksInD(ctx context.Context, h *host.Host) ([]threadStat, error) {
	table, err := h.ProcessTable(ctx, 10*time.Second)
	if err != nil {
		return nil, err
	}
	var found []threadStat
	var threaded []int
	left, own := tasks.MaxTasks, tasks.Own(h, table)
	for _, p := range table {
		switch {
		case own[p.PID]: // the check that started a probe reports that it hangs
		case p.Threads > 1 && p.Flags&pfKthread == 0 && left > 0:
			threaded = append(threaded, p.PID)
			left -= p.Threads
		case p.State == 'D':
			found = append(found, threadStat{p.PID, p})
		}
	}
	err = h.Threads(ctx, threaded, func(pid int, thread proc.Stat) {
		if thread.State == 'D' {
			found = append(found, threadStat{pid, thread})
		}
	})
	return found, err
}

// waitsForVfork recognises parents whose vfork child has not called exec yet: they wait in state D by design. A hung
// child is found on its own. The function was renamed in 5.10 and in 4.2; wait_for_vfork_done is mostly inlined.
func waitsForVfork(wchan string) bool {
	return slices.Contains([]string{"kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"}, wchan)
}

// taskStatus is the used part of proc_pid_status(5).
type taskStatus struct {
	blocked  bool // in state D
	switches uint64
}

// parseTaskStatus parses lines such as "State: D (disk sleep)" and "voluntary_ctxt_switches: 150". The first line holds
// the task's name, which the task chose itself, with newlines escaped.
func parseTaskStatus(data []byte) (taskStatus, error) {
	var s taskStatus
	state, counts := false, 0
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			state, s.blocked = value != "", strings.HasPrefix(value, "D")
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil {
				return taskStatus{}, checkkit.InLine(string(line), errors.New("want a number"))
			}
			s.switches += n
			counts++
		}
	}
	if !state || counts != 2 {
		return taskStatus{}, errors.New("no state, or no context switches")
	}
	return s, nil
}

// A task that waits for an I/O which it submitted itself (O_DIRECT, a flush, a passthrough command) is woken by the
// kernel twice in each period of its detection of hung tasks, and waits again. The only purpose is that the detection
// ignores it ("prevent hang_check timer from firing at us during very long I/O"):
//
//	/proc/sys/kernel/hung_task_timeout_secs   120     0: the detection is off, no task is woken
//	/proc/PID/task/TID/wchan                  submit_bio_wait, blk_io_schedule, blk_execute_rq, blk_wait_io
//
// So the kernel never reports such a task, and its context switches grow by one a minute. It is hung nevertheless.
//
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/block/bio.c (submit_bio_wait),
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/block/blk-core.c (blk_io_schedule)

// kernelWakes is how often the kernel wakes such tasks. It is read at most once in a run, if needed.
type kernelWakes struct {
	known bool
	every time.Duration // 0: never
}

func (k *kernelWakes) read(files host.Files) error {
	if k.known {
		return nil
	}
	seconds, err := checkkit.ReadCount(files, "/proc/sys/kernel/hung_task_timeout_secs")
	if hosterr.Ignore(err, fs.ErrNotExist) != nil { // 0 if the kernel was built without the detection
		return err
	}
	k.known, k.every = true, time.Duration(min(seconds, 1<<31))*time.Second/2
	return nil
}

// continues reports whether a task in state D has been so since old was first read: it did not run at all, or not more
// often than the kernel woke it. Only the latter costs reading a file.
func (k *kernelWakes) continues(files host.Files, old, now *blockedTask) (bool, error) {
	const mostWakes = 1000 // in hours; a task with more of them works
	switch ran := now.switches - old.first; {
	case now.switches == old.switches:
		return true, nil
	case now.switches < old.switches || ran > mostWakes:
		return false, nil
	default:
		if err := k.read(files); err != nil || k.every <= 0 {
			return false, err
		}
		wakes := 1 + uint64((now.since-old.since)/k.every)
		return ran <= wakes && slices.Contains([]string{"submit_bio_wait", "blk_io_schedule", "blk_execute_rq",
			"blk_wait_io"}, tasks.WaitChannel(files, now.PID, now.ID.Tid)), nil
	}
}
