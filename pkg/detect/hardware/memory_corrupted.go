package hardware

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// memory-corrupted reads
//
//	/proc/meminfo    HardwareCorrupted:     8 kB     bad pages that the kernel took out of use (CONFIG_MEMORY_FAILURE)
//
// https://docs.kernel.org/filesystems/proc.html#meminfo, https://docs.kernel.org/mm/hwpoison.html. Pages that could not
// be taken out of use are in the kernel's log alone (rule memory-failure-unrecovered), and failing modules in edac.

// MemoryCorrupted finds nodes with damaged pages of memory.
func MemoryCorrupted() detect.Check {
	return detect.Check{
		ID: "memory-corrupted", Domain: "memory",
		Summary: "memory pages are damaged; the kernel took them out of use",
		Advice: "Find the module: the check edac, `ras-mc-ctl --errors`, or the event log of the BMC (`ipmitool sel " +
			"list`). Drain the node and have the module replaced; a reboot brings the damaged pages back into use.",
		Doc: detect.Doc{
			Reads: []string{"/proc/meminfo"},
			Why: "A process that uses a damaged page is killed; a damaged page of the kernel stops the machine. " +
				"Memory that failed once is likely to fail again nearby.",
			Faults: []detect.Fault{{Reason: "MemoryCorrupted", Severity: finding.Warning,
				When: "HardwareCorrupted is not 0: healthy memory has no such page; until the next boot"}},
			FalseAlarms: "Pages that a test poisoned on purpose (hwpoison-inject, MADV_HWPOISON).",
		},
		Every: 5 * time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   checkCorrupted,
	}
}

func checkCorrupted(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	info, err := checkkit.ReadMeminfo(h.Files)
	if err != nil {
		return nil, err
	}
	bytes, ok := info["HardwareCorrupted"]
	if !ok {
		return nil, finding.NotApplicable("the kernel cannot take damaged memory out of use (CONFIG_MEMORY_FAILURE)")
	}
	if bytes == 0 {
		return nil, nil
	}
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Reason: "MemoryCorrupted", Message: fmt.Sprintf("%s of memory are damaged and out of use",
			checkkit.SizeText(bytes)),
		Facts: map[string]string{"bytes": fmt.Sprint(bytes)},
	}}, nil
}
