package memory

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// system-cgroups reads, of slices and services but not of pods,
//
//	cgroup v2    memory.max     8589934592          or max; beyond it a process of the cgroup is killed
//	             memory.high    max                 beyond it all in the cgroup are slowed down to reclaim
//	             memory.current 4294967296
//	             memory.stat    inactive_file 1024  page cache that is reclaimed first
//	cgroup v1    memory.limit_in_bytes, memory.usage_in_bytes, memory.stat (total_inactive_file)
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files,
// https://kubernetes.io/docs/tasks/administer-cluster/reserve-compute-resources/

const (
	systemCgroupsThreshold = 95 // percent
	systemCgroupsKeep      = 90
)

// SystemCgroups finds slices and services that are about to reach their memory limit.
func SystemCgroups() detect.Check {
	return detect.Check{
		ID: "system-cgroups", Domain: "memory",
		Summary: "a slice or service is about to reach its memory limit",
		Advice: "kubepods: pods use more than the node allots to them; move some, or reserve less (kubeReserved, " +
			"systemReserved). A system slice or service: reserve more for it, or raise MemoryMax (`systemctl edit`).",
		Doc: detect.Doc{
			Reads: []string{"memory.max, memory.high, memory.current and memory.stat of slices and services in " +
				"/sys/fs/cgroup (cgroup v1: memory.limit_in_bytes, …)"},
			Why: "When kubepods reaches its limit, pods are killed that stay within their own; when a system slice " +
				"does, kubelet or the runtime may be.",
			Faults: []detect.Fault{{Reason: "CgroupMemoryNearLimit", Severity: finding.Warning,
				When: "the working set (memory without inactive page cache, as kubelet counts it) is 95 % of the " +
					"limit or of memory.high for a minute; cleared below 90 %"}},
			FalseAlarms: "Services that fill their limit on purpose, such as a cache of a configured size. Limits of " +
				"pods are not checked.",
		},
		Every: time.Minute, Deadline: 8 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2}, Clear: finding.Hold{Runs: 2}},
		Run:    checkSystemCgroups,
	}
}

func checkSystemCgroups(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	hierarchy, err := checkkit.ControllerHierarchy(h, "memory")
	if err != nil {
		return nil, err
	}
	var results checkkit.Results
	abovePods := checkkit.FoldersAbove(cgroup.PodCgroupDirs(h.Paths))
	err = checkkit.WalkSlices(h.Files, hierarchy.Point, "/", abovePods, func(name string, _ bool) error {
		subject := finding.Subject{Kind: "cgroup", Name: name}
		f, ok, err := nearLimit(h, hierarchy, name)
		switch {
		case checkkit.IsGone(err): // removed meanwhile, or without a limit
		case err != nil:
			results.Doubt(subject, err)
		case ok:
			f.Subject = subject
			if abovePods[name] {
				addLargestPods(ctx, h, &f)
			}
			results.Add(f, true)
		}
		return checkkit.DeadlineError(ctx, hierarchy)
	})
	if err != nil {
		return nil, err
	}
	return results.Done()
}

// nearLimit compares the memory of a cgroup with its limit.
func nearLimit(h *host.Host, hierarchy cgroup.CgroupHierarchy, name string) (finding.Finding, bool, error) {
	dir := path.Join(hierarchy.Point, name)
	limit, what, err := memoryLimit(h.Files, hierarchy, dir)
	if err != nil || limit == 0 {
		return finding.Finding{}, false, err
	}
	used, err := memoryOf(h, hierarchy, dir)
	percent := checkkit.PercentOf(used, limit)
	if err != nil || percent < systemCgroupsKeep {
		return finding.Finding{}, false, err
	}
	return finding.Finding{
		Severity: finding.Warning, Reason: "CgroupMemoryNearLimit", BelowRaise: percent < systemCgroupsThreshold,
		Message: fmt.Sprintf("%s uses %s of %s (%s)", checkkit.Sanitize(name, checkkit.MaxLine),
			checkkit.SizeText(used), checkkit.SizeText(limit), what),
		Facts: map[string]string{
			"usedBytes": fmt.Sprint(used), "limitBytes": fmt.Sprint(limit)},
	}, true, nil
}

// memoryLimit returns the lower one of the limits of a cgroup and the name of its file; 0 for none.
func memoryLimit(files host.Files, hierarchy cgroup.CgroupHierarchy, dir string) (limit uint64, what string,
	err error) {
	names := []string{"memory.max", "memory.high"}
	if !hierarchy.V2 {
		names = []string{"memory.limit_in_bytes"}
	}
	for _, name := range names {
		value, limited, err := checkkit.ReadLimit(files, path.Join(dir, name))
		if err != nil {
			return 0, "", err
		}
		if limited && value > 0 && (limit == 0 || value < limit) {
			limit, what = value, name
		}
	}
	return limit, what, nil
}
