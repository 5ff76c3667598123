package detect

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// controllerHierarchy returns the cgroup hierarchy with a controller. It looks where every distribution mounts them, which is
// two small reads; the mount table of a node with many pods is megabytes.
func controllerHierarchy(h *host.Host, controller string) (host.CgroupHierarchy, error) {
	mount := h.Paths.CgroupMount
	if text, err := h.Files.Text(path.Join(mount, "cgroup.controllers")); err == nil && slices.Contains(strings.Fields(text), controller) {
		return host.CgroupHierarchy{Point: mount, V2: true}, nil
	}
	v1 := path.Join(mount, controller)
	if _, err := h.Files.Stat(path.Join(v1, "cgroup.procs")); err == nil {
		return host.CgroupHierarchy{Name: controller, Point: v1}, nil
	}
	return host.CgroupHierarchy{}, finding.NotApplicable("%s has no cgroup controller %s", mount, controller)
}

// memoryOf returns the memory that a cgroup uses, without the page cache that the kernel gives up first, as kubelet counts
// it (working set).
func memoryOf(h *host.Host, hierarchy host.CgroupHierarchy, dir string) (uint64, error) {
	used, inactive := "memory.current", "inactive_file"
	if !hierarchy.V2 {
		used, inactive = "memory.usage_in_bytes", "total_inactive_file"
	}
	bytes, err := readCount(h.Files, path.Join(dir, used))
	if err != nil {
		return 0, err
	}
	stat, err := readCounts(h.Files, path.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	return bytes - min(stat[inactive], bytes), nil
}

// podsByMemory words which pods use most memory, most first. It does its best: it is only asked when memory is short.
func podsByMemory(ctx context.Context, h *host.Host) []string {
	hierarchy, err := controllerHierarchy(h, "memory")
	if err != nil {
		return nil
	}
	cgroups, err := h.PodCgroups(hierarchy)
	if err != nil {
		return nil
	}
	type user struct {
		uid   string
		bytes uint64
	}
	var users []user
	for _, c := range cgroups {
		if c.Depth > 0 || ctx.Err() != nil {
			continue
		}
		if bytes, err := memoryOf(h, hierarchy, c.Dir()); err == nil {
			users = append(users, user{c.UID, bytes})
		}
	}
	slices.SortFunc(users, func(a, b user) int { return cmp.Or(-cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.uid, b.uid)) })
	names := kubeletNames(ctx, h)
	var words []string
	for _, u := range users[:min(len(users), 10)] {
		words = append(words, fmt.Sprintf("%s %s", cmp.Or(names[u.uid], "pod "+u.uid), sizeText(u.bytes)))
	}
	return words
}
