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

// oomKill is what was killed in one cgroup, and for whose want of memory.
type oomKill struct {
	victim oomCgroup
	times  int
	limit  string // the cgroup whose limit was reached; empty for the node's memory
	gone   bool   // of the victim only the slice is known in which it was, or it was in the slice itself
	own    bool   // the limit is the victim's own, and not that of a slice above
	// containers are those of the victim in which something was killed, by ID and then by name.
	containers []string
	who        string // the victim as people call it
}

// oomNews is what was killed since the scan before.
type oomNews []oomKill

// since tells what has been killed since before, and why: see the head of oomkills.go.
func (s oomScan) since(before oomState) oomNews {
	news := make(map[string]oomCounts)
	for _, c := range s.cgroups {
		news[c.path] = c.counts.since(before.Counts[c.path])
	}
	var kills oomNews
	counted := uint64(0)
	for _, c := range s.cgroups {
		if c.role == oomSlice && path.Dir(c.path) == "/" {
			kills = append(kills, s.killsIn(c, news)...)
			counted += news[c.path].Kills
		}
	}
	if all := s.total - before.Total; all > counted {
		root := oomCgroup{path: "/", role: oomSlice}
		kills = append(kills, oomKill{victim: root, times: oomCounts{Kills: all - counted}.times()})
	}
	return kills
}

// killsIn explains the kills in one of the root's children.
func (s oomScan) killsIn(top oomCgroup, news map[string]oomCounts) oomNews {
	var kills oomNews
	rest := news[top.path]
	for _, c := range s.cgroups {
		n := news[c.path]
		if !isBelow(c.path, top.path) {
			continue
		}
		switch c.role {
		case oomUnit:
			rest.Kills -= min(n.Kills, rest.Kills)
			rest.Limit -= min(n.Limit, rest.Limit)
			if n.Kills > 0 {
				k := oomKill{victim: c, times: n.times(), containers: s.containersIn(c, news)}
				if n.Limit > 0 {
					k.limit, k.own = c.path, true
				}
				kills = append(kills, k)
			}
		case oomSlice:
			rest.Limit -= min(n.Own, rest.Limit)
		}
	}
	if rest.Kills > 0 { // in a pod or service that is gone, or in the slice itself
		k := oomKill{victim: top, times: rest.times(), gone: true}
		if rest.Limit > 0 {
			k.limit, k.own = top.path, true
		}
		kills = append(kills, k)
	}
	return kills.blameSlices(s, top, news)
}

// blameSlices gives kills that no limit of their own explains to the slice above whose limit was reached, the nearest
// first.
func (kills oomNews) blameSlices(s oomScan, top oomCgroup, news map[string]oomCounts) oomNews {
	var full []string
	for _, c := range s.cgroups {
		if c.role == oomSlice && isBelow(c.path, top.path) && news[c.path].Own > 0 {
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

// containersIn returns the IDs of a pod's containers in which something was killed.
func (s oomScan) containersIn(pod oomCgroup, news map[string]oomCounts) []string {
	var ids []string
	for _, c := range s.cgroups {
		if c.role == oomContainer && c.pod == pod.pod && pod.pod != "" && news[c.path].Kills > 0 {
			ids = append(ids, c.container)
		}
	}
	return ids
}

// name asks kubelet for the names of pods and containers. Without it they keep their IDs.
func (kills oomNews) name(ctx context.Context, h *host.Host) {
	pods, containers := make(map[string]string), make(map[string]string)
	if slices.ContainsFunc(kills, func(k oomKill) bool { return k.victim.pod != "" }) && h.Kubelet.Pods != nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		known, err := discover.NodePods(ctx, h)
		if err != nil {
			known = nil // the names are not worth the finding
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
		k.who = checkkit.Sanitize(k.victim.path, checkkit.MaxLine)
		if k.victim.pod != "" {
			k.who = cmp.Or(pods[k.victim.pod], "pod "+k.victim.pod)
		}
		for j, id := range k.containers {
			k.containers[j] = cmp.Or(containers[id], id[:min(len(id), 12)])
		}
	}
}
