package memory

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// memoryOf returns the memory that a cgroup uses as kubelet counts it (working set): without the page cache that the
// kernel gives up first.
func memoryOf(h *host.Host, hierarchy cgroup.CgroupHierarchy, dir string) (uint64, error) {
	used, inactive := "memory.current", "inactive_file"
	if !hierarchy.V2 {
		used, inactive = "memory.usage_in_bytes", "total_inactive_file"
	}
	bytes, err := checkkit.ReadCount(h.Files, path.Join(dir, used))
	if err != nil {
		return 0, err
	}
	stat, err := checkkit.ReadCounts(h.Files, path.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	return bytes - min(stat[inactive], bytes), nil
}

// addLargestPods adds the pods that use most memory to a finding.
func addLargestPods(ctx context.Context, h *host.Host, f *finding.Finding) {
	if pods := podsByMemory(ctx, h); len(pods) > 0 {
		f.Message += "; most: " + finding.JoinFirst(pods, 3)
		f.Facts["topMemory"] = finding.JoinFirst(pods, 10)
	}
}

// podsByMemory returns the pods that use most memory, with its size, the largest first. It skips unreadable ones.
func podsByMemory(ctx context.Context, h *host.Host) []string {
	hierarchy, err := checkkit.ControllerHierarchy(h, "memory")
	if err != nil {
		return nil
	}
	cgroups, err := cgroup.PodCgroups(h, hierarchy)
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
	slices.SortFunc(users, func(a, b user) int {
		return cmp.Or(-cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.uid, b.uid))
	})
	names := checkkit.KubeletNames(ctx, h)
	var words []string
	for _, u := range users[:min(len(users), 10)] {
		words = append(words, fmt.Sprintf("%s %s", cmp.Or(names[u.uid], "pod "+u.uid), checkkit.SizeText(u.bytes)))
	}
	return words
}
