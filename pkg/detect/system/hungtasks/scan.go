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
