package systemd

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// daemon-stopped reads the table of processes each minute, in each run /proc/PID/stat of the daemons in it, and of
// those that have used no processor since the last run
//
//	/proc/PID/cgroup                   0::/system.slice/chronyd.service
//	/sys/fs/cgroup/…/cgroup.events     populated 1
//	                                   frozen 0              1: systemctl freeze, cgroup.freeze
//	/proc/PID/task/TID/stat            812 (chronyd) R …
//	/proc/PID/task/TID/schedstat       8462831 119038 97     ns on a processor, ns waited for one, times it was given one
//
// proc_pid_stat(5), https://docs.kernel.org/scheduler/sched-stats.html, https://docs.kernel.org/admin-guide/cgroup-v2.html
//
// A process in state T was stopped by a signal (SIGSTOP; a shell's Ctrl-Z) and does not run until it is continued,
// while systemd shows its unit as "active (running)" and its sockets still accept connections. In state t a debugger
// holds it, which is a moment under strace: it counts if the process has used no processor since the last run.
//
// A thread in state R that got no processor since an earlier run has been runnable all that time, since running alone
// could change either. Under a limit (cpu.max) and on the busiest node each thread gets one now and then; starved ones
// are victims of realtime tasks that take all of a processor, or of a processor that hangs.

// The possible faults of a daemon.
const (
	reasonDaemonStopped = "DaemonStopped"
	reasonDaemonFrozen  = "DaemonFrozen"
	reasonDaemonStarved = "DaemonStarved"

	// daemonStarvedAfter is how long a thread of a daemon must have been runnable without running.
	daemonStarvedAfter = 2 * time.Minute
	// daemonsKnownFor is how old the table that identifies the daemons may be.
	daemonsKnownFor = time.Minute
	// maxDaemonThreads bounds the threads of a daemon whose waiting is tracked.
	maxDaemonThreads = 100
)

// daemonRole returns why a node needs a daemon, by the daemon's name in the kernel: 15 bytes.
func daemonRole(comm string) string { return daemonRoles()[comm] }

// daemonRoles is made once: a check looks up each process of the node.
var daemonRoles = sync.OnceValue(func() map[string]string {
	roles := make(map[string]string)
	for role, comms := range map[string][]string{
		"kubelet":             slices.Concat(distro.KubeletPrograms(), distro.Launchers()),
		"a container runtime": distro.RuntimePrograms(),
		"a time daemon": {"chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "timemaster", "ntp-daemon",
			"openntpd"},
		"the journal":        {"systemd-journal"},
		"the device manager": {"systemd-udevd", "udevd"},
		"the message bus":    {"dbus-daemon", "dbus-broker", "dbus-broker-lau"},
		"the login manager":  {"systemd-logind"},
		"of the network": {"NetworkManager", "systemd-network", "systemd-resolve", "wickedd", "wickedd-nanny",
			"dhclient", "dhcpcd", "teamd", "ovs-vswitchd", "ovsdb-server", "watchfrr", "zebra", "bgpd", "ospfd", "ospf6d",
			"isisd", "bfdd", "bird", "bird6", "keepalived"},
		"of the storage": {"multipathd", "iscsid", "dmeventd"},
	} {
		for _, comm := range comms {
			roles[comm] = role
		}
	}
	return roles
})

// DaemonStopped finds daemons of the node that exist and do not run.
func DaemonStopped() detect.Check {
	c := &daemonsSeen{}
	return detect.Check{
		ID: "daemon-stopped", Domain: "kubernetes",
		Summary: "a daemon that the node needs exists and does not run: it is stopped, frozen or starved",
		Advice: "Continue a stopped one with `kill -CONT PID`, a frozen one with `systemctl thaw UNIT`; `grep TracerPid " +
			"/proc/PID/status` names the debugger of a traced one. Where one is starved, `ps -eLo " +
			"pid,tid,cls,rtprio,psr,pcpu,comm --sort=-pcpu | head` shows which realtime task (FF, RR) takes its processor, " +
			"and `taskset -p PID` to which ones it is bound.",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat", "of daemons that have used no processor since the last run: " +
				"/proc/PID/cgroup, cgroup.events of its cgroup (cgroup v2), /proc/PID/task/TID/{stat,schedstat}"},
			Why: "systemd calls such a daemon active, and clients that connect to it wait: pods stay in " +
				"ContainerCreating, the clock drifts, logs are lost, devices do not appear, routes expire.",
			Faults: []detect.Fault{
				{Reason: reasonDaemonStopped, Severity: finding.Warning, When: "a signal has stopped it (state T), in two " +
					"runs, or a debugger holds it (state t) and it used no processor between two runs. For kubelet and " +
					"the runtime kubelet-health and runtime-health report what that means for pods"},
				{Reason: reasonDaemonFrozen, Severity: finding.Warning, When: "its cgroup is frozen, in two runs"},
				{Reason: reasonDaemonStarved, Severity: finding.Warning, When: "a thread of it was runnable for two minutes " +
					"and was given no processor, nor was any other thread of it"},
			},
			FalseAlarms: "A limit of its cgroup or a busy node makes a daemon slow, not starved: each of its threads is given " +
				"a processor now and then. A daemon that sleeps is idle. Processes in containers and in sessions of users " +
				"do not count, whatever their names are: a network agent that runs as a pod is seen by its probes and by " +
				"critical-daemonsets.",
		},
		Every:  30 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2}},
		Run:    c.run,
	}
}

// daemonsSeen is kept between runs.
type daemonsSeen struct {
	last map[int]daemonSeen // by PID
}

// daemonSeen is a daemon in one run.
type daemonSeen struct {
	proc.Stat

	waits map[int]threadWait // of threads that were runnable, by their ID
}

// threadWait is a thread that waits for a processor.
type threadWait struct {
	start     uint64        // of the thread, in clock ticks since boot
	schedstat string        // unchanged while it waits
	since     time.Duration // uptime of the first run that found it so
}

func (c *daemonsSeen) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	table, err := daemonProcesses(ctx, h)
	if err != nil {
		return nil, err
	}
	seen := make(map[int]daemonSeen)
	faults := make(map[string]*daemonFault) // by name
	doubts := make(map[finding.Subject]error)
	for _, stat := range table {
		before, known := c.last[stat.PID]
		idle := known && before.StartTime == stat.StartTime && before.CPUTicks == stat.CPUTicks
		d := daemonSeen{Stat: stat}
		reason, text, err := d.judge(ctx, h, before, known, idle)
		seen[stat.PID] = d
		if err != nil && !proc.Gone(err) {
			doubts[daemonSubject(stat.Comm)] = err
		}
		if reason == "" || err != nil {
			continue
		}
		if faults[stat.Comm] == nil {
			faults[stat.Comm] = &daemonFault{comm: stat.Comm, reason: reason, text: text}
		}
		faults[stat.Comm].pids = append(faults[stat.Comm].pids, strconv.Itoa(stat.PID))
	}
	c.last = seen
	var findings []finding.Finding
	for _, f := range faults {
		findings = append(findings, f.finding())
	}
	slices.SortFunc(findings, finding.Compare)
	return findings, finding.Partial(doubts)
}

// daemonProcesses returns the daemons as they are now. Only the set of daemons comes from a table that may be older: a
// daemon started meanwhile is seen within a minute.
func daemonProcesses(ctx context.Context, h *host.Host) ([]proc.Stat, error) {
	table, err := h.ProcessTable(ctx, daemonsKnownFor)
	if err != nil {
		return nil, err
	}
	var daemons []proc.Stat
	for _, known := range table {
		if daemonRole(known.Comm) == "" {
			continue
		}
		stat, err := h.ProcStat(known.PID)
		switch {
		case proc.Gone(err):
		case err != nil:
			return nil, err
		case daemonRole(stat.Comm) != "" && proc.Alive(stat):
			daemons = append(daemons, stat)
		}
	}
	return daemons, nil
}

// judge returns the fault of a daemon, and keeps the state for the next run. idle means that it has used no processor
// since before.
func (d *daemonSeen) judge(ctx context.Context, h *host.Host, before daemonSeen, known, idle bool) (reason, text string,
	err error) {
	if known && !idle && d.State != 'T' { // it has run
		return "", "", nil
	}
	cgroup, foreign, err := daemonCgroup(h, d.PID)
	if foreign || err != nil {
		return "", "", err
	}
	switch {
	case d.State == 'T':
		return reasonDaemonStopped, "is stopped by a signal (state T) and does nothing until it is continued", nil
	case d.State == 't' && before.State == 't':
		return reasonDaemonStopped, "is held by a debugger (state t) and does nothing until that lets it go", nil
	case cgroupFrozen(h, cgroup):
		return reasonDaemonFrozen, "is frozen with its cgroup " + checkkit.Sanitize(cgroup, 200) +
			" and does nothing until that is thawed", nil
	}
	waited, err := d.waited(ctx, h, before)
	if waited >= daemonStarvedAfter {
		return reasonDaemonStarved, fmt.Sprintf("is runnable and was given no processor for %s",
			waited.Round(time.Second)), nil
	}
	return "", "", err
}

// waited returns for how long the longest waiting thread of the daemon has waited for a processor.
func (d *daemonSeen) waited(ctx context.Context, h *host.Host, before daemonSeen) (time.Duration, error) {
	var runnable []proc.Stat
	if err := h.Threads(ctx, []int{d.PID}, func(_ int, thread proc.Stat) {
		if thread.State == 'R' && len(runnable) < maxDaemonThreads {
			runnable = append(runnable, thread)
		}
	}); err != nil {
		return 0, err
	}
	now := h.Clock().SinceBoot
	longest := time.Duration(0)
	d.waits = make(map[int]threadWait, len(runnable))
	for _, thread := range runnable {
		counts, err := h.Files.Text(proc.File(d.PID, "task/"+strconv.Itoa(thread.PID)+"/schedstat"))
		if err != nil || counts == "" || strings.HasPrefix(counts, "0 0 0") {
			continue // the thread is gone, or the kernel does not count (CONFIG_SCHED_INFO)
		}
		wait := threadWait{thread.StartTime, counts, now}
		if old, ok := before.waits[thread.PID]; ok && old.start == wait.start && old.schedstat == counts {
			wait.since = old.since
		}
		d.waits[thread.PID] = wait
		longest = max(longest, now-wait.since)
	}
	return longest, nil
}

// daemonCgroup returns the cgroup of a process in cgroup v2, and whether it belongs to a container or a user.
func daemonCgroup(h *host.Host, pid int) (cgroup string, foreign bool, err error) {
	if foreign, err = discover.Foreign(h, pid); foreign || err != nil {
		return "", foreign, err
	}
	cgroups, err := h.ProcCgroups(pid)
	return cgroups[""], false, err
}

// cgroupFrozen reports whether a cgroup or one above it is frozen. An unreadable one counts as not frozen.
func cgroupFrozen(h *host.Host, cgroup string) bool {
	if cgroup == "" || cgroup == "/" {
		return false
	}
	return slices.ContainsFunc([]string{"", "unified"}, func(hierarchy string) bool { // the latter beside cgroup v1
		events, err := h.Files.Text(path.Join(h.Paths.CgroupMount, hierarchy, cgroup, "cgroup.events"))
		return err == nil && slices.Contains(strings.Split(events, "\n"), "frozen 1")
	})
}

func daemonSubject(comm string) finding.Subject {
	return finding.Subject{Kind: "daemon", Name: comm}
}

// daemonFault is the fault of the daemons of one name.
type daemonFault struct {
	comm, reason, text string
	pids               []string
}

func (f daemonFault) finding() finding.Finding {
	return finding.Finding{
		Subject: daemonSubject(f.comm), Severity: finding.Warning, Reason: f.reason,
		Message: fmt.Sprintf("%s (%s; PID %s) %s", f.comm, daemonRole(f.comm), finding.JoinFirst(f.pids, 5), f.text),
		Facts:   map[string]string{"pids": finding.JoinFirst(f.pids, 20), "role": daemonRole(f.comm)},
	}
}
