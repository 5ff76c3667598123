package memory

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// dying-cgroups reads, in cgroup v2,
//
//	/sys/fs/cgroup/cgroup.stat    nr_descendants 212
//	                              nr_dying_descendants 35          removed, but something still refers to them
//	                              nr_dying_subsys_memory 35        the same of the memory controller alone (Linux 6.13)
//
// and in v1
//
//	/proc/cgroups                 #subsys_name	hierarchy	num_cgroups	enabled
//	                              memory	4	27	1
//
// whose num_cgroups includes removed ones; only if it is high are the directories of the hierarchy counted.
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html (cgroup.stat), cgroups(7)

const (
	dyingCgroupsThreshold = 10_000
	dyingCgroupsKeep      = 8_000
)

// DyingCgroups finds nodes on which removed cgroups pile up.
func DyingCgroups() detect.Check {
	return detect.Check{
		ID: "dying-cgroups", Domain: "memory",
		Summary: "removed cgroups pile up in the kernel",
		Advice: "Something creates and removes cgroups all the time: jobs, crash-looping pods, or session scopes " +
			"(`loginctl list-sessions`). Run `echo 1 > /proc/sys/vm/drop_caches` once, at a quiet time: it frees " +
			"those that page cache holds. Linux 5.x and later leak far fewer.",
		Doc: detect.Doc{
			Reads: []string{"/sys/fs/cgroup/cgroup.stat", "/proc/cgroups and the directories of the memory " +
				"hierarchy, in cgroup v1"},
			Why: "A removed memory cgroup stays while page cache or a kernel object that was charged to it is in " +
				"use. It takes kernel memory that belongs to no pod, and slows down kubelet, which reads the " +
				"statistics of all cgroups.",
			Faults: []detect.Fault{{Reason: "DyingCgroups", Severity: finding.Warning,
				When: "10,000 removed cgroups of the memory controller, which is about a gigabyte on 64 processors; " +
					"cleared below 8,000"}},
			FalseAlarms: "Some hundreds are normal where jobs come and go, and are not reported. A node with very " +
				"much free memory keeps them longer; memory pressure makes the kernel free them.",
		},
		Every: 10 * time.Minute,
		Run:   checkDyingCgroups,
	}
}

func checkDyingCgroups(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	hierarchy, err := checkkit.ControllerHierarchy(h, "memory")
	if err != nil {
		return nil, err
	}
	count := dyingInV2
	if !hierarchy.V2 {
		count = dyingInV1
	}
	dying, err := count(ctx, h, hierarchy.Point)
	if err != nil || dying < dyingCgroupsKeep {
		return nil, err
	}
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Reason: "DyingCgroups", Message: fmt.Sprintf("%d removed cgroups are still in the kernel", dying),
		Facts: map[string]string{"dying": fmt.Sprint(dying)}, BelowRaise: dying < dyingCgroupsThreshold,
	}}, nil
}

func dyingInV2(_ context.Context, h *host.Host, root string) (uint64, error) {
	name := path.Join(root, "cgroup.stat")
	stat, err := checkkit.ReadCounts(h.Files, name)
	if err != nil {
		return 0, err
	}
	if ofMemory, ok := stat["nr_dying_subsys_memory"]; ok {
		return ofMemory, nil
	}
	dying, ok := stat["nr_dying_descendants"]
	if !ok {
		return 0, fmt.Errorf("read %s: no nr_dying_descendants", name)
	}
	return dying, nil
}

func dyingInV1(ctx context.Context, h *host.Host, root string) (uint64, error) {
	all, err := checkkit.Parse(h.Files, "/proc/cgroups", memoryCgroups)
	if err != nil || all < dyingCgroupsKeep {
		return 0, err
	}
	alive, err := countFolders(ctx, h.Files, root, all)
	return all - min(alive, all), err
}

// memoryCgroups returns the number of cgroups in the line "memory	4	27	1" of /proc/cgroups.
func memoryCgroups(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 4 || fields[0] != "memory" {
			continue
		}
		count, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return 0, checkkit.InLine(line, errors.New("bad number of cgroups"))
		}
		return count, nil
	}
	return 0, fmt.Errorf("no line of memory")
}

// countFolders counts a folder and those below it, but not beyond most. A cgroup removed meanwhile is no error.
func countFolders(ctx context.Context, files host.Files, root string, most uint64) (uint64, error) {
	todo, count := []string{root}, uint64(0)
	for len(todo) > 0 && count < most {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("count the folders below %s: %w", root, ctx.Err())
		}
		dir := todo[len(todo)-1]
		todo, count = todo[:len(todo)-1], count+1
		entries, _, err := files.Entries(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				todo = append(todo, path.Join(dir, e.Name))
			}
		}
	}
	return count, nil
}
