// Package oomkills finds processes and containers killed for lack of memory.
package oomkills

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// oom-kills reads
//
//	/proc/vmstat                   oom_kill 36           processes that the OOM killer has killed since boot, whichever
//	                                                     limit it was for (Linux 4.13)
//
// and, in the first run and whenever that has grown, of the cgroups (v2) of pods, their containers, services and slices
//
//	memory.events                  oom 2                 a limit here or below was reached, nothing could be reclaimed
//	                               oom_kill 3            processes here and below that were killed, for any limit
//	                               oom_group_kill 1      times that a whole cgroup was killed for one (memory.oom.group)
//	memory.events.local            oom 0                 of this cgroup's own limit alone (Linux 5.2)
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
//
// These counts are complete and add up, which is why they decide: a kill in a pod or service whose "oom" grew too was
// for its own limit; for that of a slice if the slice's local "oom" grew; and otherwise for the node's memory. Counts
// of a pod outlive its containers, and those of the slice outlive the pod. Lines of the kernel's log only wake this
// check: they are lost in a flood, and are limited in rate. In cgroup v1 a kill counts in the victim's own cgroup only,
// which the runtime removes at once.

const (
	ID                = "oom-kills"
	oomPodFor         = 10 * time.Minute // how long a kill in a pod is reported
	oomFor            = 30 * time.Minute // and any other
	oomEscalateWithin = 10 * time.Minute
	oomEscalate       = 3 // kills in that time
)

// New finds kills for lack of memory, and the limits that caused them. The store may be nil: then kills while no agent
// ran are not reported.
func New(store detect.StateStore) detect.Check {
	m := &oomCheck{saved: detect.Saved[oomState]{Store: store, Key: oomKey}}
	return detect.Check{
		ID: ID, Domain: "memory",
		Summary: "the OOM killer killed processes",
		Advice: "A pod: raise its limit or find its leak (`kubectl describe pod` shows OOMKilled). The node: see " +
			"memory-available for what uses memory, give pods requests that match their use, and reserve memory for " +
			"the system (systemReserved, kubeReserved). `dmesg | grep -i 'killed process'` names the processes.",
		Doc: detect.Doc{
			Reads: []string{"/proc/vmstat", "memory.events and memory.events.local of pods, containers, services and " +
				"slices (cgroup v2), after a kill"},
			Why: "A killed process of a pod is a crash; a node that is out of memory kills any process, system " +
				"services too.",
			Faults: []detect.Fault{
				{Reason: "ContainerOOMKilled", Severity: finding.Warning,
					When: "a process in a pod was killed for the pod's or container's own limit: info for 10 " +
						"minutes; a warning from the third in 10 minutes"},
				{Reason: "CgroupOOMKilled", Severity: finding.Warning, When: "a process was killed for the limit of " +
					"a service, or of a slice such as kubepods; for 30 minutes"},
				{Reason: "OOMKilling", Severity: finding.Fatal, When: "a process was killed because the node had no " +
					"memory: a warning for 30 minutes; fatal from the third in 10 minutes, when kubelet cannot keep " +
					"up"},
			},
			FalseAlarms: "None known. Kills by systemd-oomd and by kubelet are not the kernel's and do not count. In " +
				"cgroup v1 the check does not apply: only the kernel's log shows there which limit it was.",
		},
		Condition:    detect.MemoryProblem(),
		CounterBased: true,
		UsesPartly:   []host.Setting{host.CgroupRoot},
		Every:        time.Minute,
		Wakes:        []detect.Wake{checkkit.KernelWake()},
		Run:          m.run,
	}
}

// oomCheck holds the counts so far, and the reported kills.
type oomCheck struct {
	saved  detect.Saved[oomState]
	loaded bool
	state  oomState
}

func (m *oomCheck) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	hierarchy, err := checkkit.ControllerHierarchy(h, "memory")
	if err != nil {
		return nil, err
	}
	if !hierarchy.V2 {
		return nil, finding.NotApplicable("cgroup v1 does not show which limit a kill was for: see the kernel's log")
	}
	now := h.Clock()
	m.load(now.Boot)
	total, err := OOMKills(h.Files)
	if err != nil {
		return nil, err
	}
	if !m.state.Counted || total != m.state.Total {
		if err := m.count(ctx, h, hierarchy, now.SinceBoot); err != nil {
			return nil, err
		}
	}
	m.state.expire(now.SinceBoot)
	return m.state.findings(checkkit.NodeName(h), now.SinceBoot), nil
}

// count reads the counts of all cgroups, tallies their rises, and saves them. A first run has no counts to compare
// with.
func (m *oomCheck) count(ctx context.Context, h *host.Host, hierarchy cgroup.CgroupHierarchy, now time.Duration) error {
	if !m.state.Counted {
		if err := oomCountsAreHierarchical(h, hierarchy); err != nil {
			return err
		}
	}
	scan, err := scanOOM(ctx, h, hierarchy)
	if err != nil {
		return err
	}
	if m.state.Counted && scan.total > m.state.Total {
		kills := scan.since(m.state)
		kills.name(ctx, h)
		m.state.add(kills, now)
	}
	m.state.Counted, m.state.Total, m.state.Counts = true, scan.total, scan.counts()
	m.saved.Save(m.state)
	return nil
}

// oomCountsAreHierarchical checks that the counts of a cgroup contain those below it.
func oomCountsAreHierarchical(h *host.Host, hierarchy cgroup.CgroupHierarchy) error {
	mounts, err := mount.Visible(mount.Recent(h))
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if mount.Point == hierarchy.Point && slices.Contains(mount.SuperOptions, "memory_localevents") {
			return finding.NotApplicable("%s is mounted with memory_localevents", hierarchy.Point)
		}
	}
	return nil
}

// OOMKills returns how many processes the kernel has killed.
func OOMKills(files host.Files) (uint64, error) {
	stat, err := checkkit.ReadCounts(files, "/proc/vmstat")
	if err != nil {
		return 0, err
	}
	total, ok := stat["oom_kill"]
	if !ok {
		return 0, fmt.Errorf("read /proc/vmstat: no oom_kill")
	}
	return total, nil
}
