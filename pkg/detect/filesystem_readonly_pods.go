package detect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

// podsHit names the pods that use a filesystem: those with a mount of it below kubelet's pods, and those whose containers
// have it mounted or write their own layer to it. Only called for filesystems that failed. It does its best: a process
// that ends meanwhile, or a kubelet that does not answer, only makes the list shorter or plainer.
func podsHit(ctx context.Context, h *host.Host, mounts []host.Mount, f filesystem) []string {
	hit := make(map[string]bool) // pod UIDs
	for _, m := range f.mounts {
		if uid, ok := h.Paths.PodOfPath(m.Point); ok {
			hit[uid] = true
		}
	}
	pids, _ := h.PIDs()
	seen := make(map[string]bool) // mount namespaces
	// A pod's process that has entered the host's namespace, such as the agent's own, sees all of the host's filesystems.
	for _, process := range []string{strconv.Itoa(max(h.Paths.InitPID, 1)), "self"} {
		if namespace, err := h.Files.Link("/proc/" + process + "/ns/mnt"); err == nil {
			seen[namespace] = true
		}
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			break
		}
		uid, ok := podOfProcess(h, pid)
		if !ok || hit[uid] {
			continue
		}
		namespace, err := h.Files.Link(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || seen[namespace] {
			continue
		}
		seen[namespace] = true
		inside, err := h.MountsOf(pid)
		if err == nil && slices.ContainsFunc(inside, func(m host.Mount) bool { return f.serves(mounts, m) }) {
			hit[uid] = true
		}
	}
	return podNames(ctx, h, slices.Sorted(maps.Keys(hit)))
}

// volumePods names the pods whose volume the filesystem is.
func (f filesystem) volumePods(ctx context.Context, h *host.Host) []string {
	var uids []string
	for _, m := range f.mounts {
		if uid, ok := h.Paths.PodOfPath(m.Point); ok && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return podNames(ctx, h, uids)
}

// serves reports whether a mount inside a container is of the filesystem, or is an overlay that writes to it.
func (f filesystem) serves(hostMounts []host.Mount, m host.Mount) bool {
	if m.Device() == f.device {
		return true
	}
	if m.FSType != "overlay" {
		return false
	}
	for _, option := range m.SuperOptions {
		if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
			return f.holds(hostMounts, upper)
		}
	}
	return false
}

// podOfProcess returns the pod that a process belongs to by its cgroups.
func podOfProcess(h *host.Host, pid int) (string, bool) {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return "", false
	}
	for _, cgroup := range cgroups {
		if uid, _, ok := h.Paths.PodOfCgroup(cgroup); ok {
			return uid, true
		}
	}
	return "", false
}

// podNames turns UIDs into namespace/name where kubelet knows them, sorted.
func podNames(ctx context.Context, h *host.Host, uids []string) []string {
	if len(uids) == 0 {
		return nil
	}
	known := kubeletNames(ctx, h)
	for i, uid := range uids {
		uids[i] = cmp.Or(known[uid], uid)
	}
	slices.Sort(uids)
	return uids
}

// kubeletNames asks kubelet which pods it has: UID to namespace/name. It is empty when kubelet does not answer soon.
func kubeletNames(ctx context.Context, h *host.Host) map[string]string {
	if h.Kubelet.Pods == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	pods, err := h.NodePods(ctx)
	if err != nil {
		return nil
	}
	names := make(map[string]string, len(pods))
	for i := range pods {
		names[host.NodePodUID(&pods[i])] = pods[i].Namespace + "/" + pods[i].Name
	}
	return names
}
