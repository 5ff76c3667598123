package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
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
	services, notFound := checkkit.DaemonCgroups(ctx, h, "pids")
	for _, name := range cgroup.KubepodsCgroups(h.Paths) {
		services = append(services, checkkit.DaemonCgroup{Name: name, Dir: pids.Point + name, Why: "which all pods are in"})
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
