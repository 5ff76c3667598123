package oomkills

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// maxOOMCgroups bounds a scan; each costs some 10 µs.
const maxOOMCgroups = 20_000

// oomCounts are the counts of one cgroup. They begin at zero when it is created.
type oomCounts struct {
	Limit  uint64 `json:"limit,omitempty"`  // oom of memory.events
	Own    uint64 `json:"own,omitempty"`    // oom of memory.events.local; only read of slices
	Kills  uint64 `json:"kills,omitempty"`  // oom_kill
	Groups uint64 `json:"groups,omitempty"` // oom_group_kill
}

// since returns the rises since before. A cgroup of the same name may be a new one: its counts begin again.
func (c oomCounts) since(before oomCounts) oomCounts {
	if c.Kills < before.Kills || c.Limit < before.Limit || c.Own < before.Own || c.Groups < before.Groups {
		return c
	}
	return oomCounts{c.Limit - before.Limit, c.Own - before.Own, c.Kills - before.Kills, c.Groups - before.Groups}
}

// times returns the number of kills; a cgroup killed as a whole counts once.
func (c oomCounts) times() int {
	if c.Groups > 0 {
		return int(min(c.Groups, 1000))
	}
	return int(min(c.Kills, 1000))
}

// oomRole is the role of a cgroup in a scan.
type oomRole int

const (
	oomSlice     oomRole = iota // the root's children, and those above pods: limits of many
	oomUnit                     // a pod, or a service: its parts are not distinguished
	oomContainer                // of a pod
)

// oomCgroup is one cgroup of a scan.
type oomCgroup struct {
	path      string
	role      oomRole
	pod       string // UID; empty if it is no pod
	container string // ID
	counts    oomCounts
}

// oomScan holds all counts of one moment.
type oomScan struct {
	total   uint64
	cgroups []oomCgroup
}

// counts returns the counts without zeros.
func (s oomScan) counts() map[string]oomCounts {
	counts := make(map[string]oomCounts)
	for _, c := range s.cgroups {
		if c.counts != (oomCounts{}) {
			counts[c.path] = c.counts
		}
	}
	return counts
}

// scanOOM reads all counts. The total and those of the cgroups belong together: if a process is killed meanwhile it
// reads again, and after three times it takes the later total: better to miss a kill than to blame the node for it.
func scanOOM(ctx context.Context, h *host.Host, hierarchy cgroup.CgroupHierarchy) (oomScan, error) {
	var scan oomScan
	for range 3 {
		before, err := OOMKills(h.Files)
		if err != nil {
			return oomScan{}, err
		}
		if scan.cgroups, err = oomCgroups(ctx, h, hierarchy); err != nil {
			return oomScan{}, err
		}
		if scan.total, err = OOMKills(h.Files); err != nil {
			return oomScan{}, err
		}
		if scan.total == before {
			break
		}
	}
	return scan, nil
}

// oomCgroups reads the slices, then pods with their containers, and services.
func oomCgroups(ctx context.Context, h *host.Host, hierarchy cgroup.CgroupHierarchy) ([]oomCgroup, error) {
	var found []oomCgroup
	add := func(c oomCgroup) error {
		if len(found) >= maxOOMCgroups {
			return fmt.Errorf("list %s: more than %d cgroups", hierarchy.Point, maxOOMCgroups)
		}
		counts, err := readOOM(h.Files, path.Join(hierarchy.Point, c.path), c.role == oomSlice)
		if checkkit.IsGone(err) {
			return checkkit.DeadlineError(ctx, hierarchy) // removed meanwhile, or memory is not counted there
		}
		c.counts = counts
		found = append(found, c)
		return errors.Join(err, checkkit.DeadlineError(ctx, hierarchy))
	}
	abovePods := checkkit.FoldersAbove(cgroup.PodCgroupDirs(h.Paths))
	err := checkkit.WalkSlices(h.Files, hierarchy.Point, "/", abovePods, func(path string, slice bool) error {
		role := oomUnit
		if slice {
			role = oomSlice
		}
		return add(oomCgroup{path: path, role: role})
	})
	if err != nil {
		return nil, err
	}
	pods, err := cgroup.PodCgroups(h, hierarchy)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if p.Depth > 1 || p.Depth == 1 && p.ContainerID == "" {
			continue
		}
		role := oomUnit
		if p.Depth == 1 {
			role = oomContainer
		}
		if err := add(oomCgroup{path: p.Path, role: role, pod: p.UID, container: p.ContainerID}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func readOOM(files host.Files, dir string, isSlice bool) (oomCounts, error) {
	events, err := checkkit.ReadCounts(files, path.Join(dir, "memory.events"))
	if err != nil {
		return oomCounts{}, err
	}
	counts := oomCounts{Limit: events["oom"], Kills: events["oom_kill"], Groups: events["oom_group_kill"]}
	if isSlice {
		own, err := checkkit.ReadCounts(files, path.Join(dir, "memory.events.local"))
		if err != nil && !checkkit.IsGone(err) {
			return oomCounts{}, err
		}
		counts.Own = own["oom"]
	}
	return counts, nil
}

// isBelow reports whether a cgroup lies in another, or is it.
func isBelow(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }
