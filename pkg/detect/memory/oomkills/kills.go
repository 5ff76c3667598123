package oomkills

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// oomKill records the kills in one cgroup, and the limit that caused them.
type oomKill struct {
	victim oomCgroup
	times  int
	limit  string // the cgroup whose limit was reached; empty for the node's memory
	gone   bool   // the victim was removed, so only its slice is known, or it was in the slice itself
	own    bool   // the limit is the victim's own, and not that of a slice above
	// containers are those of the victim with kills, by ID and then by name.
	containers []string
	victimName string // for people
}

// oomKills are the kills since the scan before.
type oomKills []oomKill

// since returns the kills since before, and their reasons: see the head of oomkills.go.
func (s oomScan) since(before oomState) oomKills {
	rises := make(map[string]oomCounts)
	for _, c := range s.cgroups {
		rises[c.path] = c.counts.since(before.Counts[c.path])
	}
	var kills oomKills
	counted := uint64(0)
	for _, c := range s.cgroups {
		if c.role == oomSlice && path.Dir(c.path) == "/" {
			kills = append(kills, s.killsIn(c, rises)...)
			counted += rises[c.path].Kills
		}
	}
	if all := s.total - before.Total; all > counted {
		root := oomCgroup{path: "/", role: oomSlice}
		kills = append(kills, oomKill{victim: root, times: oomCounts{Kills: all - counted}.times()})
	}
	return kills
}

// killsIn explains the kills in one of the root's children.
func (s oomScan) killsIn(top oomCgroup, rises map[string]oomCounts) oomKills {
	var kills oomKills
	rest := rises[top.path]
	for _, c := range s.cgroups {
		n := rises[c.path]
		if !isBelow(c.path, top.path) {
			continue
		}
		switch c.role {
		case oomUnit:
			rest.Kills -= min(n.Kills, rest.Kills)
			rest.Limit -= min(n.Limit, rest.Limit)
			if n.Kills > 0 {
				k := oomKill{victim: c, times: n.times(), containers: s.containersIn(c, rises)}
				if n.Limit > 0 {
					k.limit, k.own = c.path, true
				}
				kills = append(kills, k)
			}
		case oomSlice:
			rest.Limit -= min(n.Own, rest.Limit)
		}
	}
	if rest.Kills > 0 { // in a removed pod or service, or in the slice itself
		k := oomKill{victim: top, times: rest.times(), gone: true}
		if rest.Limit > 0 {
			k.limit, k.own = top.path, true
		}
		kills = append(kills, k)
	}
	return kills.blameSlices(s, top, rises)
}

// blameSlices attributes kills not explained by their own limit to the nearest slice above whose limit was reached.
func (kills oomKills) blameSlices(s oomScan, top oomCgroup, rises map[string]oomCounts) oomKills {
	var full []string
	for _, c := range s.cgroups {
		if c.role == oomSlice && isBelow(c.path, top.path) && rises[c.path].Own > 0 {
			full = append(full, c.path)
		}
	}
	slices.SortFunc(full, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for i, k := range kills {
		if k.limit != "" {
			continue
		}
		at := slices.IndexFunc(full, func(dir string) bool { return k.gone || isBelow(k.victim.path, dir) })
		if at >= 0 {
			kills[i].limit = full[at]
		}
	}
	return kills
}

// containersIn returns the IDs of a pod's containers with kills.
func (s oomScan) containersIn(pod oomCgroup, rises map[string]oomCounts) []string {
	var ids []string
	for _, c := range s.cgroups {
		if c.role == oomContainer && c.pod == pod.pod && pod.pod != "" && rises[c.path].Kills > 0 {
			ids = append(ids, c.container)
		}
	}
	return ids
}

// name asks kubelet for the names of pods and containers. Without an answer they keep their IDs.
func (kills oomKills) name(ctx context.Context, h *host.Host) {
	pods, containers := make(map[string]string), make(map[string]string)
	if slices.ContainsFunc(kills, func(k oomKill) bool { return k.victim.pod != "" }) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		known, err := discover.NodePods(ctx, h)
		if err != nil {
			known = nil // the finding matters more than the names
		}
		for i := range known {
			pods[host.NodePodUID(&known[i])] = known[i].Namespace + "/" + known[i].Name
			for _, status := range slices.Concat(known[i].Status.InitContainerStatuses,
				known[i].Status.ContainerStatuses) {
				_, id, _ := strings.Cut(status.ContainerID, "://")
				containers[id] = status.Name
			}
		}
	}
	for i := range kills {
		k := &kills[i]
		k.victimName = checkkit.Sanitize(k.victim.path, checkkit.MaxLine)
		if k.victim.pod != "" {
			k.victimName = cmp.Or(pods[k.victim.pod], "pod "+k.victim.pod)
		}
		for j, id := range k.containers {
			k.containers[j] = cmp.Or(containers[id], id[:min(len(id), 12)])
		}
	}
}
