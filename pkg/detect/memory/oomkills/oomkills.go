// Package oomkills finds processes and containers that were killed for want of memory.
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
//	/proc/vmstat                   oom_kill 36           processes that the kernel killed for want of memory since boot,
//	                                                     whoever's limit it was (Linux 4.13)
//
// and, on a first look and whenever that has grown, of the cgroups (v2) of pods, their containers, services and slices
//
//	memory.events                  oom 2                 a limit here or below was reached and nothing could be reclaimed
//	                               oom_kill 3            processes here and below that were killed, whoever's limit it was
//	                               oom_group_kill 1      times that a whole cgroup was killed for one (memory.oom.group)
//	memory.events.local            oom 0                 of this cgroup's own limit alone (Linux 5.2)
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
//
// These counts are complete and add up, which is why they decide: what was killed in a pod or service whose "oom"
// grew too was killed by its own limit; by that of a slice when the slice's local "oom" grew; and otherwise because
// the node had no memory. Counts of a pod survive its containers, and those of the slice the pod. Lines of the
// kernel's log only wake this check: they are lost in a flood, and are limited in rate.
//
// In cgroup v1 a kill counts in the victim's own cgroup only, which the runtime removes at once, and the limit that was
// reached cannot be told: there the check does not apply, and the lines of the log are all the evidence there is.
//
// A container that reaches its own limit is its owner's affair: info, and a warning from the third kill in ten
// minutes. A node without memory is the node's: a warning, and fatal from the third kill in ten minutes, when the
// kernel kills faster than kubelet evicts. A finding is kept for 10 minutes (pods) or 30 (all else) after the last
// kill.
//
// Known false alarms: none known. Kills by systemd-oomd and by kubelet are none of the kernel's and do not count.

const (
	ID             = "oom-kills"
	oomPodFor      = 10 * time.Minute // how long a kill in a pod is told
	oomFor         = 30 * time.Minute // and any other
	oomGraveWithin = 10 * time.Minute
	oomGrave       = 3 // kills in that time
)

// New finds what was killed for want of memory, and for whose want. Memory may be nil: then kills while no agent ran
// are not told of.
func New(memory detect.StateStore) detect.Check {
	m := &oomSeen{store: memory}
	return detect.Check{
		ID: ID, Domain: "memory",
		Summary: "the kernel killed processes for want of memory",
		Advice: "A pod: raise its limit or find its leak (`kubectl describe pod` shows OOMKilled). The node: see " +
			"memory-available for who uses memory, give pods requests that are true, and reserve memory for the " +
			"system (systemReserved, kubeReserved). `dmesg | grep -i 'killed process'` names the processes.",
		Doc: detect.Doc{
			Reads: []string{"/proc/vmstat", "memory.events and memory.events.local of pods, containers, services and " +
				"slices (cgroup v2), after a kill"},
			Why: "A killed process of a pod is a crash; a node that kills for its own want of memory kills what it " +
				"likes, system services too.",
			Faults: []detect.Fault{
				{Reason: "ContainerOOMKilled", Severity: finding.Warning,
					When: "a process in a pod was killed by the pod's or container's own limit: info for 10 minutes; " +
						"a warning from the third in 10 minutes"},
				{Reason: "CgroupOOMKilled", Severity: finding.Warning, When: "a process was killed by the limit of a " +
					"service, or of a slice such as kubepods; for 30 minutes"},
				{Reason: "OOMKilling", Severity: finding.Fatal, When: "a process was killed because the node had no " +
					"memory: a warning for 30 minutes; fatal from the third in 10 minutes, when kubelet cannot keep up"},
			},
			FalseAlarms: "None known. In cgroup v1 the check does not apply: there only the kernel's log tells whose " +
				"limit it was.",
		},
		Condition:    detect.MemoryProblem(),
		CounterBased: true,
		Every:        time.Minute, Deadline: 10 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   m.look,
	}
}

// oomSeen is what was counted so far, and what is told.
type oomSeen struct {
	store  detect.StateStore
	loaded bool
	state  oomState
}

func (m *oomSeen) look(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	hierarchy, err := checkkit.ControllerHierarchy(h, "memory")
	if err != nil {
		return nil, err
	}
	if !hierarchy.V2 {
		return nil, finding.NotApplicable("cgroup v1 does not tell whose limit a kill was for: see the kernel's log")
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

// count reads the counts of all cgroups, tells what is new in them, and remembers them. A first look has nothing to
// compare with.
func (m *oomSeen) count(ctx context.Context, h *host.Host, hierarchy cgroup.CgroupHierarchy, now time.Duration) error {
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
	m.save()
	return nil
}

// oomCountsAreHierarchical makes sure that the counts of a cgroup contain those below it.
func oomCountsAreHierarchical(h *host.Host, hierarchy cgroup.CgroupHierarchy) error {
	mounts, err := mount.Table(h)
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
