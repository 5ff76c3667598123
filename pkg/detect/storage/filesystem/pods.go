package filesystem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// AffectedPods names the pods that a filesystem touches: those with a mount of it below kubelet's pods, and those whose
// containers see it or write their own layer to it. It is best effort: a process that ends meanwhile, or a kubelet that
// does not answer, makes the list shorter, or leaves UIDs instead of names.
func AffectedPods(ctx context.Context, h *host.Host, mounts []mount.Mount, f Filesystem) []string {
	affected := f.podsWith(ctx, h, func(inside []mount.Mount) bool {
		return slices.ContainsFunc(inside, func(m mount.Mount) bool { return f.serves(mounts, m) })
	})
	return checkkit.PodNames(ctx, h, slices.Collect(maps.Keys(affected)))
}

// Users are the pods that use a filesystem: UID and name, or the UID again.
type Users map[string]string

// Names returns the sorted names.
func (u Users) Names() []string { return slices.Sorted(maps.Values(u)) }

// UsingPods is AffectedPods without the pods that merely see the filesystem, such as an exporter of metrics that has the
// host's root directory. It is empty if none of them lives: kubelet has it or did not answer, or a process of it has the
// filesystem. A deleted pod may leave a mount behind.
//
// A pod in before has used it: it still does while kubelet has the pod and the pod has not finished. Its container may have
// ended because of the very fault, and wait to be started again.
func UsingPods(ctx context.Context, h *host.Host, mounts []mount.Mount, f Filesystem, before Users) Users {
	onHost := byID(mounts)
	using := f.podsWith(ctx, h, func(inside []mount.Mount) bool {
		insideByID := byID(inside)
		return slices.ContainsFunc(inside, func(m mount.Mount) bool {
			return f.serves(mounts, m) && !merelySeen(h, onHost, insideByID, m)
		})
	})
	if len(using)+len(before) == 0 {
		return nil
	}
	known, unfinished := checkkit.KubeletPods(ctx, h)
	alive, users := false, make(Users)
	for uid, hasProcess := range using {
		users[uid] = cmp.Or(known[uid], uid)
		alive = alive || hasProcess || known == nil || known[uid] != ""
	}
	if !alive {
		users = make(Users)
	}
	for uid, name := range before {
		if known == nil || unfinished[uid] {
			users[uid] = cmp.Or(known[uid], name)
		}
	}
	return users
}

func byID(mounts []mount.Mount) map[int]mount.Mount {
	all := make(map[int]mount.Mount, len(mounts))
	for _, m := range mounts {
		all[m.ID] = m
	}
	return all
}

// merelySeen reports whether a mount inside a container is a copy that came with a volume for which the directory above is
// mounted, and that volume is read-only, the host's whole root directory, or has it below kubelet's own directories.
func merelySeen(h *host.Host, onHost, inside map[int]mount.Mount, m mount.Mount) bool {
	at, below := m, false
	for range inside {
		above, ok := inside[at.Parent]
		twin, copied := copyOf(onHost, at, above)
		if !ok || !copied {
			break
		}
		at, below = above, below || BelowKubelet(twin.Point, h.Paths)
	}
	if at.ID == m.ID {
		return false // a volume of its own
	}
	root, ok := MountHolding(slices.Collect(maps.Values(onHost)), "/")
	whole := ok && at.Device() == root.Device() && at.Root == root.Root
	return below || whole || slices.Contains(at.Options, "ro")
}

// copyOf returns the mount of the host that stands at the same place of the same filesystem as m stands inside a container:
// a recursive bind mount of the directory above makes such copies.
func copyOf(onHost map[int]mount.Mount, m, above mount.Mount) (mount.Mount, bool) {
	place := path.Join(above.Root, strings.TrimPrefix(m.Point, above.Point))
	for _, twin := range onHost {
		if on := onHost[twin.Parent]; twin.Device() == m.Device() && twin.Root == m.Root && on.Device() == above.Device() &&
			path.Join(on.Root, strings.TrimPrefix(twin.Point, on.Point)) == place {
			return twin, true
		}
	}
	return mount.Mount{}, false
}

// podsWith returns the UIDs of the pods with a mount of the filesystem below kubelet's pods, and of those with a process in
// a mount namespace of its own that uses it. The value is whether it has such a process.
func (f Filesystem) podsWith(ctx context.Context, h *host.Host, uses func(inside []mount.Mount) bool) map[string]bool {
	affected := make(map[string]bool)
	for _, m := range f.Mounts {
		if uid, ok := h.Paths.PodOfPath(m.Point); ok {
			affected[uid] = false
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
		if inside, err := mount.TableOf(h, pid); err == nil && uses(inside) {
			affected[uid] = true
		}
	}
	return affected
}
