package filesystem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// AffectedPods names the pods that use a filesystem: those with a mount of it below kubelet's pods, and those whose
// containers have it mounted or write their own layer to it. It is best effort: a process that ends meanwhile, or a
// kubelet that does not answer, makes the list shorter, or leaves UIDs instead of names.
func AffectedPods(ctx context.Context, h *host.Host, mounts []mount.Mount, f Filesystem) []string {
	affected := make(map[string]bool) // pod UIDs
	for _, m := range f.Mounts {
		if uid, ok := h.Paths.PodOfPath(m.Point); ok {
			affected[uid] = true
		}
	}
	pids, _ := h.PIDs()
	seen := make(map[string]bool) // mount namespaces
	// A pod's process in the host's namespace, such as the agent's own, sees all of the host's filesystems.
	for _, process := range []string{strconv.Itoa(max(h.Paths.InitPID, 1)), "self"} {
		if namespace, err := h.Files.Link("/proc/" + process + "/ns/mnt"); err == nil {
			seen[namespace] = true
		}
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			break
		}
		uid, ok := checkkit.PodOfProcess(h, pid)
		if !ok || affected[uid] {
			continue
		}
		namespace, err := h.Files.Link(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || seen[namespace] {
			continue
		}
		seen[namespace] = true
		inside, err := mount.TableOf(h, pid)
		if err == nil && slices.ContainsFunc(inside, func(m mount.Mount) bool { return f.serves(mounts, m) }) {
			affected[uid] = true
		}
	}
	return checkkit.PodNames(ctx, h, slices.Sorted(maps.Keys(affected)))
}
