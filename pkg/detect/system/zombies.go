package system

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// zombies reads, through the shared table of processes,
//
//	/proc/PID/stat    300 (sh) Z 299 …       state Z: it has exited, and its parent (the second number behind the name) has not
//	                                         waited for it
//
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
//
// Zombies are counted for each parent, which is at fault. The most common fault of the node behind them is a parent
// that hangs in the kernel: hung-tasks reports it. A process whose main thread has exited while others run shows state
// Z too: it has more than one thread.

// ZombiesSettings are the settings of zombies. A raised finding is kept until the number is below three quarters.
type ZombiesSettings struct {
	PerParent int `yaml:"perParent"` // zombies of one parent
}

// DefaultZombiesSettings returns the settings that are used unless the configuration says otherwise.
func DefaultZombiesSettings() ZombiesSettings { return ZombiesSettings{PerParent: 100} }

// Zombies finds processes that do not reap their children.
func Zombies(s ZombiesSettings) detect.Check {
	state := &zombieState{settings: s}
	return detect.Check{
		ID: "zombies", Domain: "kernel",
		Summary: "a process does not reap its children: zombies accumulate and use up PIDs",
		Advice: "Restart the pod or service of the parent: its zombies disappear with it. In a pod, run an init " +
			"(tini, or shareProcessNamespace) as PID 1. Where the parent itself is in state D or stopped (`ps -o " +
			"stat,wchan PID`), resolve that first.",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat, shared with all checks"},
			Why: "Each zombie keeps a PID. When those of the pod or the node are used up, no process can be started, " +
				"not even a probe or a shell.",
			Faults: []detect.Fault{
				{Reason: "ZombieProcesses", Severity: finding.Warning, When: "a process has at least 100 zombie " +
					"children for 5 minutes; a busy shell or CI runner has some tens for seconds"},
			},
			FalseAlarms: "A process whose main thread ended before the others is no zombie and is not counted; those " +
				"of a parent that reaps in batches do not last 5 minutes.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 3, For: 5 * time.Minute}},
		Run:    state.run,
	}
}

// zombieState is kept between runs.
type zombieState struct {
	settings ZombiesSettings
	first    map[tasks.TaskID]zombieParent // as they were when they first had too many
}

// zombieParent is a process with zombies.
type zombieParent struct {
	stat  proc.Stat
	count int
	at    time.Duration
}

func (m *zombieState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	table, err := h.ProcessTable(ctx, 30*time.Second)
	if err != nil {
		return nil, err
	}
	now, parents := h.Clock().SinceBoot, zombieParents(table, float64(m.settings.PerParent)*checkkit.ClearRatio)
	first := make(map[tasks.TaskID]zombieParent, len(parents))
	groups := make(map[string][]zombieParent) // by name: one finding for each subject
	for _, p := range parents {
		id := tasks.TaskID{Tid: p.stat.PID, Start: p.stat.StartTime}
		p.at = now
		first[id] = p
		if old, known := m.first[id]; known {
			first[id] = old
		}
		name := checkkit.Sanitize(p.stat.Comm, 64)
		groups[name] = append(groups[name], p)
	}
	m.first = first
	var findings []finding.Finding
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if len(findings) == 20 {
			break // task-limits reports a node with more such programs
		}
		findings = append(findings, m.finding(ctx, h, name, groups[name]))
	}
	return findings, nil
}

// zombieParents returns the processes with at least that number of zombies, the one with the most first.
func zombieParents(table []proc.Stat, least float64) []zombieParent {
	counts := make(map[int]int)
	for _, p := range table {
		if p.State == 'Z' && p.Threads <= 1 {
			counts[p.PPID]++
		}
	}
	var parents []zombieParent
	for _, p := range table {
		if n := counts[p.PID]; n > 0 && float64(n) >= least {
			parents = append(parents, zombieParent{stat: p, count: n})
		}
	}
	slices.SortStableFunc(parents, func(a, b zombieParent) int { return b.count - a.count })
	return parents
}

// finding reports all parents of one name, which mostly are one program in many pods.
func (m *zombieState) finding(ctx context.Context, h *host.Host, name string, parents []zombieParent) finding.Finding {
	total, before, since := 0, 0, h.Clock().SinceBoot
	var pids []string
	pods := make(map[string]bool)
	for _, p := range parents {
		old := m.first[tasks.TaskID{Tid: p.stat.PID, Start: p.stat.StartTime}]
		total, before, since = total+p.count, before+old.count, min(since, old.at)
		pids = append(pids, strconv.Itoa(p.stat.PID))
		if uid, ok := checkkit.PodOfProcess(h, p.stat.PID); ok {
			pods[uid] = true
		}
	}
	f := finding.Finding{
		Subject: finding.Subject{Kind: "process", Name: name}, Severity: finding.Warning, Reason: "ZombieProcesses",
		Message: fmt.Sprintf("%s (PID %s) has %d zombie children that it does not reap", name,
			finding.JoinFirst(pids, 3), total),
		Facts:      map[string]string{"zombies": strconv.Itoa(total), "pids": finding.JoinFirst(pids, 20)},
		BelowRaise: parents[0].count < m.settings.PerParent,
	}
	if elapsed := h.Clock().SinceBoot - since; elapsed >= time.Minute && total > before {
		perHour := float64(total-before) / elapsed.Hours()
		f.Message += fmt.Sprintf(", %d more than %s ago", total-before, elapsed.Round(time.Second))
		f.Facts["perHour"] = fmt.Sprintf("%.0f", perHour)
	}
	checkkit.AddPods(&f, "; in pods ", checkkit.PodNames(ctx, h, slices.Sorted(maps.Keys(pods))))
	return f
}
