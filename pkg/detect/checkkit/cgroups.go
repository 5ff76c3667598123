package checkkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// ControllerHierarchy returns the cgroup hierarchy with a controller. It uses the path where every distribution mounts
// them, which takes two small reads; the mount table of a node with many pods has megabytes.
func ControllerHierarchy(h *host.Host, controller string) (cgroup.CgroupHierarchy, error) {
	mount := h.Paths.CgroupMount
	if text, err := h.Files.Text(path.Join(mount, "cgroup.controllers")); err == nil &&
		slices.Contains(strings.Fields(text), controller) {
		return cgroup.CgroupHierarchy{Point: mount, V2: true}, nil
	}
	v1 := path.Join(mount, controller)
	if _, err := h.Files.Stat(path.Join(v1, "cgroup.procs")); err == nil {
		return cgroup.CgroupHierarchy{Name: controller, Point: v1}, nil
	}
	return cgroup.CgroupHierarchy{}, finding.NotApplicable("%s has no cgroup controller %s", mount, controller)
}

// DeadlineError is the error of a scan of cgroups whose deadline has passed.
func DeadlineError(ctx context.Context, hierarchy cgroup.CgroupHierarchy) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("read the cgroups of %s: %w", hierarchy.Point, ctx.Err())
}

// WalkSlices calls visit for the cgroups below dir, which is the root or a cgroup above pods: for slices, into which it
// descends, and for the units in them, which are all others except pods. Paths are relative to the hierarchy's root.
func WalkSlices(files host.Files, root, dir string, abovePods map[string]bool,
	visit func(path string, slice bool) error) error {
	entries, _, err := files.Entries(path.Join(root, dir))
	if IsGone(err) {
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
			if err := WalkSlices(files, root, below, abovePods, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// FoldersAbove returns dirs and all their parent folders, without the root.
func FoldersAbove(dirs []string) map[string]bool {
	above := make(map[string]bool)
	for _, dir := range dirs {
		for ; dir != "/" && dir != "."; dir = path.Dir(dir) {
			above[dir] = true
		}
	}
	return above
}

// DaemonCgroup is a cgroup that contains kubelet, the runtime or all pods.
type DaemonCgroup struct{ Name, Dir, Why string }

// DaemonCgroups returns the cgroups of kubelet and the runtime, and their ancestors: any of them may be the one whose
// limit is reached. Together with an error it returns those it found.
func DaemonCgroups(ctx context.Context, h *host.Host, controller string) ([]DaemonCgroup, error) {
	daemons, err := discover.Daemons(ctx, h)
	var found []DaemonCgroup
	for _, d := range daemons {
		hierarchy, own, cgroupErr := cgroup.CgroupOf(h, d.PID, controller)
		// no such controller, or it has exited
		if errors.Is(cgroupErr, hosterr.ErrNotConfigured) || errors.Is(cgroupErr, fs.ErrNotExist) {
			continue
		}
		err = errors.Join(err, cgroupErr)
		if cgroupErr != nil {
			continue
		}
		for _, name := range cgroup.CgroupChain(own) {
			found = append(found, DaemonCgroup{name, hierarchy.Point + name, "which " + Sanitize(d.Comm, 32) +
				" is in"})
		}
	}
	return found, err
}
