// Package memory finds faults of memory: too little of it, fragmentation, leaks, swap, huge pages.
package memory

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// memory-available reads
//
//	/proc/meminfo      MemTotal:       24683656 kB
//	                   MemAvailable:   24087148 kB     what programs can still have without swapping (Linux 3.14)
//	                   Hugetlb:               0 kB     set aside as huge pages: no ordinary program can have it (4.20)
//
// and, only when memory is short, memory.current and memory.stat of the pods' cgroups (memory.usage_in_bytes in v1).
//
// https://docs.kernel.org/filesystems/proc.html#meminfo,
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
//
// The threshold is 2 % of the memory, at least 150 MiB and at most 2 GiB: kubelet begins to evict pods at 100 MiB
// (memory.available<100Mi) unless it is told otherwise, and looks only every 10 s, so that this tells a little before.
// What is never fatal here: kubelet sets its own condition MemoryPressure, and the check load tells when the node
// does little but reclaim.
//
// Known false alarms: a node that is filled to the brim on purpose, by one program that reserves its memory once: lower
// availablePercent there. MemAvailable is an estimate; page cache that is dirty or locked counts too favourably.

// MemoryAvailableSettings adjust memory-available.
type MemoryAvailableSettings struct {
	AvailablePercent float64 `yaml:"availablePercent"` // of all memory; less is a finding
}

// DefaultMemoryAvailableSettings returns the settings that are used unless the configuration says otherwise.
func DefaultMemoryAvailableSettings() MemoryAvailableSettings {
	return MemoryAvailableSettings{AvailablePercent: 2}
}

const (
	memoryAvailableID    = "memory-available"
	memoryAvailableLeast = 150 << 20 // above kubelet's own threshold of 100 MiB
	memoryAvailableMost  = 2 << 30   // more is no want, however large the machine
	// memoryAvailableKeep times the threshold is what must be available before the finding is gone.
	memoryAvailableKeep = 1.25
)

// MemoryAvailable finds nodes that are about to run out of memory.
func MemoryAvailable(s MemoryAvailableSettings) detect.Check {
	return detect.Check{
		ID: memoryAvailableID, Domain: "memory",
		Summary: "the node is about to run out of memory",
		Advice: "The message names the pods that use most. Give them limits (resources.limits.memory) or move them. " +
			"What pods do not account for is in system services or in the kernel: systemd-cgtop -m, and the check slab-leak.",
		Doc: detect.Doc{
			Reads: []string{"/proc/meminfo",
				"memory.current and memory.stat of the pods' cgroups, when memory is short"},
			Why: "Below 100 MiB kubelet evicts pods; faster than kubelet looks, the kernel kills processes of its own choice.",
			Faults: []detect.Fault{{Reason: "MemoryLow", Severity: finding.Warning,
				When: "MemAvailable stays below 2 % of the memory (at least " +
					"150 MiB, at most 2 GiB) for a minute; gone at 1.25 times of it"}},
			FalseAlarms: "A node that one program fills on purpose: set availablePercent lower.",
		},
		Every: 20 * time.Second, Deadline: 8 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Looks: 3, For: 40 * time.Second},
			Clear: finding.Hold{Looks: 3, For: 40 * time.Second}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return lookAtAvailable(ctx, h, s)
		},
	}
}

func lookAtAvailable(ctx context.Context, h *host.Host, s MemoryAvailableSettings) ([]finding.Finding, error) {
	info, err := checkkit.ReadMeminfo(h.Files)
	if err != nil {
		return nil, err
	}
	available, ok := info["MemAvailable"]
	if !ok {
		return nil, fmt.Errorf("read /proc/meminfo: no MemAvailable")
	}
	usable := info["MemTotal"] - min(info["Hugetlb"], info["MemTotal"])
	threshold := min(max(uint64(float64(usable)*s.AvailablePercent/100), memoryAvailableLeast), memoryAvailableMost)
	if float64(available) >= float64(threshold)*memoryAvailableKeep {
		return nil, nil
	}
	message := fmt.Sprintf("%s of %s are available (threshold %s)", checkkit.SizeText(available),
		checkkit.SizeText(usable), checkkit.SizeText(threshold))
	facts := map[string]string{
		"availableBytes": strconv.FormatUint(available, 10), "usableBytes": strconv.FormatUint(usable, 10),
		"thresholdBytes": strconv.FormatUint(threshold, 10),
	}
	if pods := podsByMemory(ctx, h); len(pods) > 0 {
		message += "; most: " + checkkit.JoinFirst(pods, 3)
		facts["topMemory"] = checkkit.JoinFirst(pods, 10)
	}
	return []finding.Finding{{
		Check: memoryAvailableID, Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Reason: "MemoryLow", Message: message, Facts: facts, BelowRaise: available >= threshold,
	}}, nil
}
