package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// swap reads
//
//	/proc/swaps      Filename				Type		Size		Used		Priority
//	                 /dev/zram0                              partition	8388604		51200		100      in KiB
//	/proc/meminfo    MemAvailable, SwapTotal, SwapFree
//
// and, only while there is swap, kubelet's arguments and configuration: failSwapOn (true unless set) and
// memorySwap.swapBehavior.
//
// proc_swaps(5), https://kubernetes.io/docs/concepts/architecture/nodes/#swap-memory. The same file lists memory
// compressed in a zram device used as swap.

// Swap finds swap that kubelet does not expect, and swap without free space.
func Swap() detect.Check {
	return detect.Check{
		ID: "swap", Domain: "memory",
		Summary: "swap is on that kubelet does not allow, or swap is used up",
		Advice: "Unexpected swap: run `swapoff -a` and remove it from /etc/fstab and from systemd (`systemctl " +
			"--type swap`; zram-generator), or allow it with failSwapOn: false and memorySwap. Swap used up: see " +
			"memory-available for what uses the memory.",
		Doc: detect.Doc{
			Reads: []string{"/proc/swaps", "/proc/meminfo", "kubelet's arguments and configuration files"},
			Why: "Kubelet checks for swap when it starts, and refuses to start if failSwapOn is set: the node does " +
				"not survive its next restart of kubelet. A node that has used up memory and swap kills processes " +
				"next.",
			Faults: []detect.Fault{
				{Reason: "SwapUnexpected", Severity: finding.Warning, When: "there is swap, and the running kubelet " +
					"is configured to refuse it when it starts"},
				{Reason: "SwapFull", Severity: finding.Warning, When: "less than 10 % of swap is free and less than " +
					"10 % of memory available: full swap alone is no fault, since the kernel leaves there what is " +
					"not needed"},
			},
			FalseAlarms: "None known. A kubelet that has neither the flag --fail-swap-on nor a configuration file is " +
				"not evaluated.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Run: checkSwap,
	}
}

// swapArea is one line of /proc/swaps.
type swapArea struct {
	name        string
	total, used uint64 // bytes
}

func checkSwap(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	areas, err := checkkit.Parse(h.Files, "/proc/swaps", parseSwaps)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("the kernel has no swap")
	}
	if err != nil || len(areas) == 0 {
		return nil, err
	}
	info, err := checkkit.ReadMeminfo(h.Files)
	if err != nil {
		return nil, err
	}
	var names []string
	var total, used uint64
	for _, a := range areas {
		names, total, used = append(names, a.name), total+a.total, used+a.used
	}
	f := finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Facts: map[string]string{"areas": finding.JoinFirst(names, 10), "totalBytes": fmt.Sprint(total),
			"usedBytes": fmt.Sprint(used)},
	}
	if checkkit.PercentOf(used, total) > 90 && checkkit.PercentOf(info["MemAvailable"], info["MemTotal"]) < 10 {
		f.Reason = "SwapFull"
		f.Message = fmt.Sprintf("%s of %s swap are used, and only %s of memory are available", checkkit.SizeText(used),
			checkkit.SizeText(total), checkkit.SizeText(info["MemAvailable"]))
		return []finding.Finding{f}, nil
	}
	refuses, err := kubeletRefusesSwap(h)
	if err != nil || !refuses {
		return nil, err
	}
	f.Reason = "SwapUnexpected"
	f.Message = fmt.Sprintf("swap is on (%s), and kubelet is configured with failSwapOn: it will not start again",
		finding.JoinFirst(names, 3))
	return []finding.Finding{f}, nil
}

// parseSwaps parses /proc/swaps. Blanks in names are written as \040; the name of a deleted file ends in
// "\040(deleted)".
func parseSwaps(text string) ([]swapArea, error) {
	header, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(header, "Filename") {
		return nil, checkkit.InLine(header, errors.New("want the header"))
	}
	var areas []swapArea
	for line := range strings.Lines(rest) {
		fields := strings.Fields(line)
		if len(fields) != 5 {
			return nil, checkkit.InLine(line, errors.New("want 5 fields"))
		}
		total, err := strconv.ParseUint(fields[2], 10, 50)
		used, errUsed := strconv.ParseUint(fields[3], 10, 50)
		if err != nil || errUsed != nil {
			return nil, checkkit.InLine(line, errors.New("bad size"))
		}
		areas = append(areas, swapArea{checkkit.Sanitize(fields[0], checkkit.MaxLine), total << 10, used << 10})
	}
	return areas, nil
}
