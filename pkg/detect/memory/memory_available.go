// Package memory finds faults of memory: too little of it, fragmentation, leaks, swap, huge pages.
package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// memory-available reads
//
//	/proc/meminfo      MemTotal:       24683656 kB
//	                   MemAvailable:   24087148 kB     memory that programs can still have without swapping (Linux 3.14)
//	                   Hugetlb:               0 kB     set aside as huge pages: no ordinary program can have it (4.20)
//
// and, only if memory is short, memory.current and memory.stat of the pods' cgroups (memory.usage_in_bytes in v1).
//
// https://docs.kernel.org/filesystems/proc.html#meminfo,
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/

// MemoryAvailableSettings adjust memory-available.
type MemoryAvailableSettings struct {
	AvailablePercent float64 `yaml:"availablePercent"` // of all memory; less is a finding
}

// DefaultMemoryAvailableSettings returns the settings that are used unless the configuration says otherwise.
func DefaultMemoryAvailableSettings() MemoryAvailableSettings {
	return MemoryAvailableSettings{AvailablePercent: 2}
}

const (
	memoryAvailableMin  = 150 << 20 // above kubelet's own threshold of 100 MiB
	memoryAvailableMax  = 2 << 30   // more is no shortage, however large the machine
	memoryAvailableKeep = 1.25      // times the threshold must be available before the finding is cleared
)

// MemoryAvailable finds nodes that are about to run out of memory.
func MemoryAvailable(s MemoryAvailableSettings) detect.Check {
	return detect.Check{
		ID: "memory-available", Domain: "memory",
		Summary: "the node is about to run out of memory",
		Advice: "The message names the pods that use most memory. Set limits for them (resources.limits.memory) or " +
			"move them. Memory that no pod accounts for is used by system services or the kernel: see `systemd-cgtop " +
			"-m` and the check slab-leak.",
		Doc: detect.Doc{
			Reads: []string{"/proc/meminfo",
				"memory.current and memory.stat of the pods' cgroups, when memory is short"},
			Why: "Below 100 MiB (memory.available<100Mi) kubelet evicts pods. It checks every 10 s only: if memory " +
				"runs out faster, the kernel kills processes of its choice.",
			Faults: []detect.Fault{{Reason: "MemoryLow", Severity: finding.Warning,
				When: "MemAvailable stays below 2 % of the memory (at least 150 MiB, at most 2 GiB) for a minute; " +
					"cleared at 1.25 times that. Never fatal: kubelet sets its own condition MemoryPressure"}},
			FalseAlarms: "A node that one program fills on purpose: set availablePercent lower. MemAvailable is an " +
				"estimate; it is too high where much page cache is dirty or locked.",
		},
		Every: 20 * time.Second, Deadline: 8 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 3, For: 40 * time.Second},
			Clear: finding.Hold{Runs: 3, For: 40 * time.Second}},
		Run: s.run,
	}
}

func (s MemoryAvailableSettings) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	info, err := checkkit.ReadMeminfo(h.Files)
	if err != nil {
		return nil, err
	}
	available, ok := info["MemAvailable"]
	if !ok {
		return nil, fmt.Errorf("read /proc/meminfo: no MemAvailable")
	}
	usable := info["MemTotal"] - min(info["Hugetlb"], info["MemTotal"])
	threshold := min(max(uint64(float64(usable)*s.AvailablePercent/100), memoryAvailableMin), memoryAvailableMax)
	if float64(available) >= float64(threshold)*memoryAvailableKeep {
		return nil, nil
	}
	f := finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "MemoryLow",
		Message: fmt.Sprintf("%s of %s are available (threshold %s)", checkkit.SizeText(available),
			checkkit.SizeText(usable), checkkit.SizeText(threshold)),
		Facts: map[string]string{
			"availableBytes": fmt.Sprint(available), "usableBytes": fmt.Sprint(usable),
			"thresholdBytes": fmt.Sprint(threshold),
		},
		BelowRaise: available >= threshold,
	}
	addLargestPods(ctx, h, &f)
	return []finding.Finding{f}, nil
}
