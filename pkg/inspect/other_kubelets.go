package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Two kubelets that keep their pods in one tree of cgroups each take the other's for orphans (talos#6071). So would
// the agent: while another kubelet may share our kubelet's tree or directory, nothing is a leftover. One that keeps
// its pods elsewhere, as a node of kind below its container's cgroup does, bothers nobody: what is not right below
// our kubelet's own kubepods is never ours.

// otherKubeletMemory is how long after another kubelet was last seen its pods may still be there: it may crash, be
// restarted or be stopped for an upgrade while they run on.
const otherKubeletMemory = time.Hour

// OtherKubelets is which kubelets besides ours run on the host.
type OtherKubelets struct {
	Sharing  []string // those that may keep their pods where ours are, each with why
	Separate []string // those that do not
	Past     string   // one that did, and was last seen less than otherKubeletMemory ago
	Err      error    // it could not be told
}

func askOthers(ctx context.Context, scan *Scan) OtherKubelets {
	var inventory OtherKubelets
	others, err := discover.OtherKubelets(ctx, scan.Host, scan.Host.Kubelet.Process)
	inventory.Err = err
	for _, other := range others {
		if other.Shares == "" {
			inventory.Separate = append(inventory.Separate, other.String())
		} else {
			inventory.Sharing = append(inventory.Sharing, other.String()+": "+other.Shares)
		}
	}
	return inventory
}

// otherKubeletKey is where the history keeps the kubelet that was seen last. It names no kind.
const otherKubeletKey = "other-kubelet"

// recall takes from the history who shared our kubelet's places before this pass.
func (o *OtherKubelets) recall(history History, now finding.Timestamp) {
	last, ok := history[otherKubeletKey]
	if ok && sameBoot(last.Last, now) && now.Since(last.Last) < otherKubeletMemory {
		o.Past = fmt.Sprintf("%s ago: %s", round(now.Since(last.Last)), last.Identity["kubelet"])
	}
}

// note keeps for the next pass who shares them now, or did.
func (o *OtherKubelets) note(history, next History, now finding.Timestamp) {
	switch {
	case len(o.Sharing) > 0:
		next[otherKubeletKey] = Sighting{Identity: Identity{"kubelet": o.Sharing[0]}, First: now, Last: now}
	case o.Past != "":
		next[otherKubeletKey] = history[otherKubeletKey]
	}
}

func noOtherKubelet(t *Inventory) gate {
	const name = "no-other-kubelet"
	switch o := &t.Others; {
	case o.Err != nil:
		return unknownGate(name, "whether another kubelet runs here: %v", o.Err)
	case len(o.Sharing) > 0:
		return unknownGate(name, "another kubelet runs here: %s", strings.Join(o.Sharing[:min(3, len(o.Sharing))],
			"; "))
	case o.Past != "":
		return unknownGate(name, "another kubelet ran here %s: its pods count as living for %s", o.Past,
			otherKubeletMemory)
	case len(o.Separate) > 0:
		return openGate(name, "%s: keeps its pods elsewhere", strings.Join(o.Separate[:min(3, len(o.Separate))], ", "))
	}
	return openGate(name, "no kubelet but ours runs here")
}
