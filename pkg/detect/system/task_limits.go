package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// task-limits reads
//
//	/proc/loadavg                      0.14 0.25 0.30 1/96 488     the fourth field: runnable/all tasks (threads, not processes)
//	/proc/sys/kernel/{pid_max,threads-max}                 32768
//	/sys/fs/cgroup/…/pids.{current,max}                    88, "max" for no limit
//
// the last of kubelet's and the runtime's cgroup and those above it, of kubepods, and of each pod. Every thread takes a
// PID. The runtime's cgroup also holds all shims, some ten threads for each pod, and a service may use at most 15 % of
// the PIDs unless its unit has TasksMax=infinity.
//
// https://docs.kernel.org/admin-guide/sysctl/kernel.html#pid-max,
// https://docs.kernel.org/admin-guide/cgroup-v2.html#pid, https://kubernetes.io/docs/concepts/policy/pid-limiting/

// TaskLimits finds nodes, services and pods that are close to their limit of tasks.
func TaskLimits(s UsageSettings) detect.Check {
	memory := usageState{}
	return detect.Check{
		ID: "task-limits", Domain: "kernel",
		Summary: "the node, the runtime or a pod is close to its limit of processes and threads",
		Advice: "Find the processes with the most threads: `ps -eLo pid,comm | sort | uniq -c | sort -n`. Restart " +
			"the one that leaks, or raise the limit that the message names: sysctl kernel.pid_max or " +
			"kernel.threads-max, TasksMax=infinity in the unit of the runtime, podPidsLimit of kubelet.",
		Doc: detect.Doc{
			Reads: []string{"/proc/loadavg", "/proc/sys/kernel/{pid_max,threads-max}",
				"pids.current and pids.max of kubelet's, the runtime's, kubepods' and the pods' cgroups"},
			Why: "When no PID is left, fork fails with \"resource temporarily unavailable\": containers do not " +
				"start, exec probes fail, and programs written in Go, kubelet and containerd among them, crash.",
			Faults: []detect.Fault{
				{Reason: "TasksNearLimit", Severity: finding.Fatal, When: "the node's tasks are 80 % of the smaller " +
					"of kernel.pid_max and kernel.threads-max (warning), or 95 % (fatal: the next pods cannot start)"},
				{Reason: "CgroupTasksNearLimit", Severity: finding.Fatal, When: "the same for pids.max of the cgroup " +
					"of kubelet, the runtime or kubepods, or one above"},
				{Reason: "PodTasksNearLimit", Severity: finding.Warning,
					When: "the same for a pod; a pod's own limit is never fatal to the node"},
			},
			FalseAlarms: "A pod that runs at its limit by design: raise podPidsLimit. Bursts shorter than a minute " +
				"are not reported.",
		},
		Condition:  detect.KernelProblem(),
		UsesPartly: []host.Setting{host.CgroupRoot},
		Every:      time.Minute,
		Policy:     finding.Policy{Raise: finding.Hold{Runs: 2, For: time.Minute}, Clear: finding.Hold{Runs: 2}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			limits, err := readTaskLimits(ctx, h)
			var findings []finding.Finding
			for _, l := range limits {
				f, near := memory.near(s, l.finding(), l.usage, l.reason != "PodTasksNearLimit")
				if !near {
					continue
				}
				if l.reason == "PodTasksNearLimit" {
					pod := checkkit.PodNames(ctx, h, []string{l.subject.UID})[0]
					f.Facts["pods"], f.Message = pod, "pod "+pod+" has "+l.usage.String()+" tasks"
				}
				findings = append(findings, f)
			}
			return findings, err
		},
	}
}

// taskLimit is one limit and its usage.
type taskLimit struct {
	subject finding.Subject
	reason  string
	what    string // owner of the limit, for messages
	usage   usage
}

func (l taskLimit) finding() finding.Finding {
	return finding.Finding{
		Subject: l.subject, Reason: l.reason, Message: fmt.Sprintf("%s: %s tasks", l.what, l.usage),
		Facts: map[string]string{
			"tasks": fmt.Sprint(l.usage.used), "limit": fmt.Sprint(l.usage.limit),
		},
	}
}

// readTaskLimits returns the limits that could be read, and an error for the others.
func readTaskLimits(ctx context.Context, h *host.Host) ([]taskLimit, error) {
	node, err := nodeTaskLimit(h)
	if err != nil {
		return nil, err
	}
	limits, doubts := []taskLimit{node}, make(map[finding.Subject]error)
	add := func(subject finding.Subject, reason, what, dir string) {
		u, limited, err := readPids(h.Files, dir)
		switch {
		case err != nil:
			doubts[subject] = err
		case limited:
			limits = append(limits, taskLimit{subject, reason, what, u})
		}
	}
	pids, err := cgroup.CgroupWith(h, "pids")
	if err != nil {
		return limits, hosterr.Ignore(err, hosterr.ErrNotConfigured)
	}
	done := make(map[string]bool)
	services, notFound := checkkit.DaemonCgroups(ctx, h, "pids")
	for _, name := range cgroup.KubepodsCgroups(h.Paths) {
		services = append(services, checkkit.DaemonCgroup{Name: name, Dir: pids.Point + name,
			Why: "which all pods are in"})
	}
	for _, c := range services {
		if !done[c.Name] {
			done[c.Name] = true
			add(finding.Subject{Kind: "cgroup", Name: c.Name}, "CgroupTasksNearLimit", c.Name+", "+c.Why, c.Dir)
		}
	}
	pods, err := cgroup.PodOnlyCgroups(h, pids)
	if err != nil {
		return limits, err
	}
	for _, p := range pods {
		add(finding.Subject{Kind: rules.PodKind, Name: p.UID, UID: p.UID}, "PodTasksNearLimit", "", p.Dir())
	}
	if notFound != nil {
		return limits, notFound // their cgroups are unknown
	}
	return limits, finding.Partial(doubts)
}

// nodeTaskLimit compares all tasks with the smaller of the two limits of the kernel: reaching either makes fork fail.
func nodeTaskLimit(h *host.Host) (taskLimit, error) {
	seen, err := checkkit.Parse(h.Files, "/proc/loadavg", load.ParseLoadavg)
	if err != nil {
		return taskLimit{}, err
	}
	l := taskLimit{subject: checkkit.NodeSubject(h), reason: "TasksNearLimit", usage: usage{used: seen.Tasks}}
	for _, name := range []string{"pid_max", "threads-max"} {
		limit, err := checkkit.ReadCount(h.Files, "/proc/sys/kernel/"+name)
		if err != nil {
			return taskLimit{}, err
		}
		if limit == 0 {
			return taskLimit{}, fmt.Errorf("read /proc/sys/kernel/%s: 0 is no limit", name)
		}
		if l.usage.limit == 0 || limit < l.usage.limit {
			l.usage.limit, l.what = limit, "the node, by kernel."+name
		}
	}
	return l, nil
}

// readPids reads the tasks of a cgroup and below; limited is false if it is absent or has no limit.
func readPids(files host.Files, dir string) (u usage, limited bool, err error) {
	if u.limit, limited, err = checkkit.ReadLimit(files, dir+"/pids.max"); limited {
		u.used, err = checkkit.ReadCount(files, dir+"/pids.current")
	}
	if errors.Is(err, fs.ErrNotExist) { // also if it was removed meanwhile
		return usage{}, false, nil
	}
	return u, limited, err
}
