package detect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
)

// maxOOMCgroups bounds a scan; each costs some 10 µs.
const maxOOMCgroups = 20_000

// oomCounts are the counts of one cgroup. They begin at zero when it is made.
type oomCounts struct {
	Limit  uint64 `json:"limit,omitempty"`  // oom of memory.events
	Own    uint64 `json:"own,omitempty"`    // oom of memory.events.local; only read of slices
	Kills  uint64 `json:"kills,omitempty"`  // oom_kill
	Groups uint64 `json:"groups,omitempty"` // oom_group_kill
}

// since returns what has been counted since before. A cgroup of the same name may be a new one: its counts begin again.
func (c oomCounts) since(before oomCounts) oomCounts {
	if c.Kills < before.Kills || c.Limit < before.Limit || c.Own < before.Own || c.Groups < before.Groups {
		return c
	}
	return oomCounts{c.Limit - before.Limit, c.Own - before.Own, c.Kills - before.Kills, c.Groups - before.Groups}
}

// times returns how often something was killed: a cgroup that is killed as a whole is one time.
func (c oomCounts) times() int {
	if c.Groups > 0 {
		return int(min(c.Groups, 1000))
	}
	return int(min(c.Kills, 1000))
}

// oomRole says what a cgroup is to a scan.
type oomRole int

const (
	oomSlice     oomRole = iota // the root's children, and those that lie above pods: limits of many
	oomUnit                     // a pod, or a service: below it nothing is told apart
	oomContainer                // of a pod
)

// oomCgroup is one cgroup of a scan.
type oomCgroup struct {
	path      string
	role      oomRole
	pod       string // UID; empty for what is no pod
	container string // ID
	counts    oomCounts
}

// oomScan is all that was counted at one time.
type oomScan struct {
	total   uint64
	cgroups []oomCgroup
}

// counts returns all that are not zero.
func (s oomScan) counts() map[string]oomCounts {
	counts := make(map[string]oomCounts)
	for _, c := range s.cgroups {
		if c.counts != (oomCounts{}) {
			counts[c.path] = c.counts
		}
	}
	return counts
}

// scanOOM reads all counts. The total and those of the cgroups belong together: when a process is killed meanwhile it reads
// again, and after three times it takes the later total, so that a kill is rather not told than told of the node.
func scanOOM(ctx context.Context, h *host.Host, hierarchy host.CgroupHierarchy) (oomScan, error) {
	var scan oomScan
	for range 3 {
		before, err := oomKills(h.Files)
		if err != nil {
			return oomScan{}, err
		}
		if scan.cgroups, err = oomCgroups(ctx, h, hierarchy); err != nil {
			return oomScan{}, err
		}
		if scan.total, err = oomKills(h.Files); err != nil {
			return oomScan{}, err
		}
		if scan.total == before {
			break
		}
	}
	return scan, nil
}

// oomCgroups reads the slices, then pods with their containers, and services.
func oomCgroups(ctx context.Context, h *host.Host, hierarchy host.CgroupHierarchy) ([]oomCgroup, error) {
	var found []oomCgroup
	add := func(c oomCgroup) error {
		if len(found) >= maxOOMCgroups {
			return fmt.Errorf("list %s: more than %d cgroups", hierarchy.Point, maxOOMCgroups)
		}
		counts, err := readOOM(h.Files, path.Join(hierarchy.Point, c.path), c.role == oomSlice)
		if isGone(err) {
			return timeIsUp(ctx, hierarchy) // removed meanwhile, or memory is not counted there
		}
		c.counts = counts
		found = append(found, c)
		return errors.Join(err, timeIsUp(ctx, hierarchy))
	}
	abovePods := foldersAbove(h.Paths.PodCgroupDirs())
	err := walkSlices(h.Files, hierarchy.Point, "/", abovePods, func(path string, slice bool) error {
		role := oomUnit
		if slice {
			role = oomSlice
		}
		return add(oomCgroup{path: path, role: role})
	})
	if err != nil {
		return nil, err
	}
	pods, err := h.PodCgroups(hierarchy)
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

// timeIsUp is the error of a look at cgroups that may not go on.
func timeIsUp(ctx context.Context, hierarchy host.CgroupHierarchy) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("look at the cgroups of %s: %w", hierarchy.Point, ctx.Err())
}

// walkSlices calls visit with the cgroups below dir, the root or one above pods: with slices, into which it descends, and with
// the units in them, which are all others but pods. A path is that below the hierarchy's root.
func walkSlices(files host.Files, root, dir string, abovePods map[string]bool, visit func(path string, slice bool) error) error {
	entries, _, err := files.Entries(path.Join(root, dir))
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b host.Entry) int { return cmp.Compare(a.Name, b.Name) })
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below := path.Join(dir, e.Name)
		slice := dir == "/" || abovePods[below]
		if !slice && abovePods[dir] {
			continue // a pod
		}
		if err := visit(below, slice); err != nil {
			return err
		}
		if slice {
			if err := walkSlices(files, root, below, abovePods, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// foldersAbove returns dirs and all folders that lead to them, without the root.
func foldersAbove(dirs []string) map[string]bool {
	above := make(map[string]bool)
	for _, dir := range dirs {
		for ; dir != "/" && dir != "."; dir = path.Dir(dir) {
			above[dir] = true
		}
	}
	return above
}

func readOOM(files host.Files, dir string, isSlice bool) (oomCounts, error) {
	events, err := readCounts(files, path.Join(dir, "memory.events"))
	if err != nil {
		return oomCounts{}, err
	}
	counts := oomCounts{Limit: events["oom"], Kills: events["oom_kill"], Groups: events["oom_group_kill"]}
	if isSlice {
		own, err := readCounts(files, path.Join(dir, "memory.events.local"))
		if err != nil && !isGone(err) {
			return oomCounts{}, err
		}
		counts.Own = own["oom"]
	}
	return counts, nil
}

// isGone reports whether a cgroup, or a file of it, is not there: a read of a cgroup that is being removed says ENODEV.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// isBelow reports whether a cgroup lies in another, or is it.
func isBelow(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }
