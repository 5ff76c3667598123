package detect

// The kernel's log, /dev/kmsg: one record a read, "priority,sequence,µs since boot,flags;text". A program may write to it, but
// not with the kernel's facility (priority >> 3 is 0), so that only the kernel's own words count.
// https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
//
// Known false alarms: a rule without state behind it (kernel.Rule.ConfirmedBy) keeps its finding until the record expires,
// although what it speaks of may be over sooner.

import (
	"context"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/kernel"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const kernelLogID = "kernel-log"

// KernelLog reports what the kernel of this boot said of itself, its hardware and its filesystems. What one of the checks
// named in states can read from state is left to that check: the record only wakes it.
func KernelLog(log *kernel.Log, states ...string) Check {
	return Check{
		ID: kernelLogID, Domain: "kernel",
		Summary: "the kernel reported a fault in its log",
		Advice:  "read the lines around it: dmesg --time-format iso, or journalctl -k; nodeagent replay explains a saved log",
		Condition: Condition{
			Type: "KernelFault", ReadyType: "KernelReady",
			HealthyReason: "KernelIsHealthy", HealthyMessage: "the kernel reports no fault that the node cannot live with",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Wakes: []Wake{KernelWake(kernelLogID)},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			findings, err := log.Findings(h.Clock().Up, func(r *kernel.Rule) bool { return slices.Contains(states, r.ConfirmedBy) })
			for i := range findings {
				if findings[i].Subject.Kind == kernel.NodeKind {
					findings[i].Subject.Name = h.NodeName
				}
			}
			return findings, err
		},
	}
}

// KernelWake is the wake of a check that wants to look when a rule which it confirms has recognised a record.
func KernelWake(check string) Wake {
	return Wake{Source: WakeKernelLog, Match: "\x00" + check + "\x00"}
}

// KernelLogSource feeds log with what watch reads, and wakes: checks that asked for a text, the check that confirms the rule
// which recognised it, and KernelLog itself. watch begins with what the kernel has kept of this boot.
func KernelLogSource(log *kernel.Log, clock func() finding.Stamp, watch func(ctx context.Context, each func(host.KernelRecord)) error) Source {
	return Source{Name: WakeKernelLog, Run: func(ctx context.Context, wake func(text string)) error {
		log.Begin()
		return watch(ctx, func(r host.KernelRecord) {
			if r.Lost > 0 {
				log.Lost(r.Lost, clock().Up)
				wake("\x00" + kernelLogID + "\x00")
			}
			if !r.FromKernel() {
				return
			}
			text := r.Text
			if rule, ok := log.Observe(r.Text, r.Time); ok {
				text += "\x00" + kernelLogID + "\x00" + rule.ConfirmedBy + "\x00"
			}
			wake(text)
		})
	}}
}
