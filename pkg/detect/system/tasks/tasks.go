// Package tasks scans the tasks of the machine: which are blocked, where, and who owns them.
package tasks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

const (
	// scanEvery is the least time between two scans: the agent must not add to the load of an overloaded node.
	scanEvery = 25 * time.Second
	// MaxTasks bounds a scan; some 10 µs each.
	MaxTasks = 30_000
)

// TaskID identifies a task for its lifetime, even if its number is reused.
type TaskID struct {
	Tid   int
	Start uint64
}

// Task is one thread that runs, waits for a processor, or is blocked.
type Task struct {
	PID   int
	ID    TaskID
	Comm  string
	Wchan string // the kernel function in which it waits; only of blocked ones
}

// TaskScan is the result of one scan of /proc.
type TaskScan struct {
	at       time.Duration     // uptime; 0 for no scan yet
	ticks    map[TaskID]uint64 // processes by main thread: time on a processor so far
	delta    map[int]float64   // by PID: processors used since the scan before; nil for a first scan
	runnable []Task
	Blocked  []Task
	since    map[TaskID]time.Duration // blocked tasks: uptime of the first scan that found them so
	Freezers map[string]bool          // state files of cgroups: true if frozen
	cut      bool                     // there are more tasks than MaxTasks

	// the agent's own, which are not among the others
	OwnRunnable int
	ownBlocked  []Task
}

// Renew scans again, unless the last scan is fresh.
func (before TaskScan) Renew(ctx context.Context, h *host.Host) (TaskScan, error) {
	now := h.Clock().SinceBoot
	if before.at > 0 && now-before.at < scanEvery {
		return before, nil
	}
	scan := TaskScan{at: now, ticks: make(map[TaskID]uint64), since: make(map[TaskID]time.Duration),
		Freezers: make(map[string]bool)}
	table, err := h.ProcessTable(ctx, 0)
	if err != nil {
		return TaskScan{}, err
	}
	left, own, threads := MaxTasks, Own(h, table), h.ThreadLister()
	for _, leader := range table {
		if own[leader.PID] {
			scan.addOwn(ctx, h, leader, threads)
			continue
		}
		if ctx.Err() != nil {
			return TaskScan{}, fmt.Errorf("scan the threads of %d processes: %w", len(table), ctx.Err())
		}
		scan.ticks[TaskID{leader.PID, leader.StartTime}] = leader.CPUTicks
		if left <= 0 {
			scan.cut = true
			break
		}
		left -= scan.addTasks(ctx, h, leader, threads)
	}
	for _, t := range slices.Concat(scan.Blocked, scan.ownBlocked) {
		scan.since[t.ID] = now
		if first, ok := before.since[t.ID]; ok {
			scan.since[t.ID] = first
		}
	}
	scan.delta = cpuSince(before, scan)
	return scan, nil
}

// threadLister lists the threads of a process.
type threadLister = func(ctx context.Context, pid int) ([]proc.Stat, error)

// addOwn adds the threads of a process of the agent.
func (s *TaskScan) addOwn(ctx context.Context, h *host.Host, leader proc.Stat, threads threadLister) {
	of := TaskScan{Freezers: s.Freezers}
	of.addTasks(ctx, h, leader, threads)
	s.OwnRunnable += len(of.runnable)
	s.ownBlocked = append(s.ownBlocked, of.Blocked...)
}

// addTasks adds the threads of a process that run or are blocked, and returns the number of its threads. Blocked
// programs of many threads, as those in Go and Java, rarely have their main thread blocked.
func (s *TaskScan) addTasks(ctx context.Context, h *host.Host, leader proc.Stat, threads threadLister) int {
	if leader.Threads <= 1 {
		s.add(h, leader.PID, leader)
		return 1
	}
	found, _ := threads(ctx, leader.PID) // without an answer it has none
	for _, thread := range found {
		s.add(h, leader.PID, thread)
	}
	return max(len(found), 1)
}

func (s *TaskScan) add(h *host.Host, pid int, stat proc.Stat) {
	t := Task{PID: pid, ID: TaskID{stat.PID, stat.StartTime}, Comm: stat.Comm}
	switch stat.State {
	case 'R':
		s.runnable = append(s.runnable, t)
	case 'D':
		if t.Wchan = WaitChannel(h.Files, pid, stat.PID); !s.Frozen(h, pid, stat) {
			s.Blocked = append(s.Blocked, t)
		}
	}
}

// WaitChannel returns the kernel function in which a task waits, or "?" if the kernel does not show it.
func WaitChannel(files host.Files, pid, tid int) string {
	wchan, err := files.Text(fmt.Sprintf("/proc/%d/task/%d/wchan", pid, tid))
	if err != nil || wchan == "" || wchan == "0" {
		return "?"
	}
	return wchan
}

// Frozen reports whether a task in state D was frozen on purpose. Before Linux 6.1 it has a flag; since then it is
// frozen wherever it slept, and neither flags nor wait channel show it (a frozen "sleep" waits in hrtimer_nanosleep),
// so the freezer of cgroup v1 must be read. Tasks that cgroup v2 froze show state S. Neither kind counts as load.
func (s *TaskScan) Frozen(h *host.Host, pid int, stat proc.Stat) bool {
	const pfFrozen = 0x00010000
	if stat.Flags&pfFrozen != 0 {
		return true
	}
	cgroups, err := h.ProcCgroups(pid)
	if err != nil || cgroups["freezer"] == "" {
		return false
	}
	name := path.Join(h.Paths.CgroupMount, "freezer", cgroups["freezer"], "freezer.state")
	if _, known := s.Freezers[name]; !known {
		state, err := h.Files.Text(name)
		s.Freezers[name] = err == nil && state == "FROZEN"
	}
	return s.Freezers[name]
}

// cpuSince returns how many processors each process used between two scans.
func cpuSince(before, now TaskScan) map[int]float64 {
	if before.at == 0 {
		return nil
	}
	elapsed := (now.at - before.at).Seconds()
	delta := make(map[int]float64)
	for id, ticks := range now.ticks {
		const hertz = 100 // USER_HZ
		if used := float64(ticks-min(before.ticks[id], ticks)) / hertz / elapsed; used >= 0.01 {
			// A process that started since then has used all of it meanwhile.
			delta[id.Tid] = used
		}
	}
	return delta
}

// BlockedLong counts the tasks that an earlier scan found blocked too.
func (s TaskScan) BlockedLong() int { return s.long(s.Blocked) }

// OwnBlockedLong counts the agent's own tasks: each adds 1 to the load.
func (s TaskScan) OwnBlockedLong() int { return s.long(s.ownBlocked) }

func (s TaskScan) long(blocked []Task) int {
	long := 0
	for _, t := range blocked {
		if s.at-s.since[t.ID] >= scanEvery {
			long++
		}
	}
	return long
}

// LoadCauses names the causes of the load, the largest first.
type LoadCauses struct {
	CPU     []string // "default/web 1.8 CPUs", or in a first run "default/web 3 runnable"
	Blocked []string // "3 in rpc_wait_bit_killable (default/app: stat)"
	Cut     bool
}

// MaxOwners bounds the number of processes whose owner is looked up.
const MaxOwners = 200

// Causes sums by owner: a pod, else a service or other cgroup.
func (s TaskScan) Causes(ctx context.Context, h *host.Host) LoadCauses {
	owners := ownerNames{host: h, pods: make(map[string]string)}
	amount, unit := make(map[string]float64), "%s %.1f CPUs"
	if s.delta != nil {
		pids := slices.SortedFunc(maps.Keys(s.delta), func(a, b int) int {
			return -cmp.Compare(s.delta[a], s.delta[b])
		})
		for _, pid := range pids[:min(len(pids), MaxOwners)] {
			amount[owners.of(pid)] += s.delta[pid]
		}
	} else {
		unit = "%s %.0f runnable"
		for _, t := range s.runnable[:min(len(s.runnable), MaxOwners)] {
			amount[owners.of(t.PID)]++
		}
	}
	blocked := make(map[string]float64)
	for _, t := range s.Blocked[:min(len(s.Blocked), MaxOwners)] {
		blocked[fmt.Sprintf("in %s (%s: %s)", t.Wchan, owners.of(t.PID), t.Comm)]++
	}
	owners.name(ctx)
	c := LoadCauses{Cut: s.cut}
	for _, owner := range checkkit.Largest(amount) {
		c.CPU = append(c.CPU, fmt.Sprintf(unit, owners.replace(owner), amount[owner]))
	}
	for _, where := range checkkit.Largest(blocked) {
		c.Blocked = append(c.Blocked, fmt.Sprintf("%.0f %s", blocked[where], owners.replace(where)))
	}
	return c
}

// serviceOf returns the cgroup that names the service of a process, in whichever hierarchy has one.
func serviceOf(cgroups map[string]string) string {
	for _, controllers := range []string{"name=systemd", "", "cpu,cpuacct", "cpu"} {
		if name := cgroups[controllers]; name != "" && name != "/" {
			return path.Clean(name)[1:]
		}
	}
	return ""
}

// Own returns the agent's own processes, by PID: this one, and the probes that it has started, which hang if a
// filesystem does. They are no load of the node: one run of all checks keeps each processor busy for a moment, and
// reads its program from a disk that may be slow. Another agent's processes count.
func Own(h *host.Host, table []proc.Stat) map[int]bool {
	own := make(map[int]bool)
	link, err := h.Files.Link("/proc/self")
	if err != nil {
		return own
	}
	self, err := strconv.Atoi(link)
	if err != nil {
		return own
	}
	own[self] = true
	for _, p := range table {
		if p.PPID == self && p.Comm == probe.ChildName {
			own[p.PID] = true
		}
	}
	return own
}

// ownerNames finds the owners of processes.
type ownerNames struct {
	host *host.Host
	pods map[string]string // UID to the name of the pod
}

// of returns the owner of a process: "pod <uid>", a service such as "system.slice/kubelet.service", or its own name.
func (o ownerNames) of(pid int) string {
	if uid, ok := checkkit.PodOfProcess(o.host, pid); ok {
		o.pods[uid] = "pod " + uid
		return "pod " + uid
	}
	if cgroups, err := o.host.ProcCgroups(pid); err == nil {
		if service := serviceOf(cgroups); service != "" {
			return service
		}
	}
	stat, err := o.host.ProcStat(pid)
	if err != nil {
		return "an exited process"
	}
	return "process " + stat.Comm
}

// name asks kubelet for the names of the pods so far; without an answer they keep their UIDs.
func (o ownerNames) name(ctx context.Context) {
	if len(o.pods) == 0 {
		return
	}
	known := checkkit.KubeletNames(ctx, o.host)
	for uid, name := range o.pods {
		o.pods[uid] = cmp.Or(known[uid], name)
	}
}

// replace replaces UIDs by names.
func (o ownerNames) replace(text string) string {
	for uid, name := range o.pods {
		text = strings.ReplaceAll(text, "pod "+uid, name)
	}
	return text
}
