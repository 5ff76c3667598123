package system

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

// entropy reads
//
//	/proc/sys/kernel/random/poolsize         4096: the old generator; 256: the new one, since 5.18 and in stable kernels since May 2022
//	/proc/sys/kernel/random/entropy_avail    3215
//
// https://man7.org/linux/man-pages/man4/random.4.html, https://docs.kernel.org/admin-guide/sysctl/kernel.html#random
//
// With the old generator /dev/random blocks when the estimate falls below 64 bits (read_wakeup_threshold), and programs
// that read it wait, for minutes on a virtual machine without a source: below 100 bits, as the field's tools have it, for
// five minutes. The new one never blocks once it has begun, and always says 256: there is nothing to look at.
//
// Known false alarms, and what is done: one reader may empty the pool for a moment; five minutes are asked for.

const entropyID = "entropy"

// Entropy finds old kernels that run out of randomness.
func Entropy() detect.Check {
	return detect.Check{
		ID: entropyID, Domain: "kernel",
		Summary: "the kernel has so little entropy that readers of /dev/random wait",
		Advice:  "Install rngd or haveged, or give the virtual machine a virtio-rng device. A kernel of 5.18 or later does not have this fault.",
		Doc: detect.Doc{
			Reads:       []string{"/proc/sys/kernel/random/{poolsize,entropy_avail}"},
			Why:         "Programs that make keys, TLS servers at their start above all, hang until entropy comes.",
			Faults:      []detect.Fault{{Reason: "EntropyLow", Severity: finding.Warning, When: "entropy_avail is below 100 bits for 5 minutes on a kernel with the old generator; it blocks below 64"}},
			FalseAlarms: "Kernels with the new generator always say 256 of 256, and are not looked at.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Looks: 5, For: 5 * time.Minute}, Clear: finding.Hold{Looks: 2}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			const dir, newPool, low = "/proc/sys/kernel/random/", 256, 100
			pool, err := checkkit.ReadNumber(h.Files, dir+"poolsize")
			if err != nil {
				return nil, err
			}
			if pool == newPool {
				return nil, finding.NotApplicable("the kernel's random numbers never run out")
			}
			available, err := checkkit.ReadNumber(h.Files, dir+"entropy_avail")
			if err != nil {
				return nil, err
			}
			if float64(available) > low/checkkit.ClearRatio {
				return nil, nil
			}
			return []finding.Finding{{
				Check: entropyID, Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "EntropyLow",
				Message: fmt.Sprintf("the kernel has %d bits of entropy left, of %d", available, pool),
				Facts:   map[string]string{"bits": strconv.Itoa(available)}, BelowRaise: available >= low,
			}}, nil
		},
	}
}
