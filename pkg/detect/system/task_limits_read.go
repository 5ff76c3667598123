package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
	daemons, notFound := checkkit.DaemonCgroups(ctx, h, "pids")
	for _, c := range append(daemons, kubepodsCgroups(h, pids)...) {
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
	used, err := checkkit.Parse(h.Files, "/proc/loadavg", allTasks)
	if err != nil {
		return taskLimit{}, err
	}
	l := taskLimit{subject: checkkit.NodeSubject(h), reason: "TasksNearLimit", usage: usage{used: used}}
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

// allTasks returns the number of tasks from "0.14 0.25 0.30 1/96 488".
func allTasks(loadavg string) (uint64, error) {
	fields := strings.Fields(loadavg)
	if len(fields) != 5 {
		return 0, fmt.Errorf("%q: want 5 fields", checkkit.Sanitize(loadavg, 80))
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseUint(all, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q: want runnable/all tasks", checkkit.Sanitize(fields[3], 80))
	}
	return n, nil
}

func kubepodsCgroups(h *host.Host, hierarchy cgroup.CgroupHierarchy) []checkkit.DaemonCgroup {
	var found []checkkit.DaemonCgroup
	for _, name := range cgroup.KubepodsCgroups(h.Paths) {
		found = append(found, checkkit.DaemonCgroup{Name: name, Dir: hierarchy.Point + name,
			Why: "which all pods are in"})
	}
	return found
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
