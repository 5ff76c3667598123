package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// Two kubelets that keep their pods in one cgroup tree each take the other's pods for orphans (talos#6071). So would
// the agent: while another kubelet may share our kubelet's tree or directory, there are no leftovers. A kubelet with
// its pods elsewhere, such as a kind node below its container's cgroup, does not matter: only the cgroups directly
// below our kubelet's kubepods cgroup are ours.

// otherKubeletMemory is how long the pods of another kubelet are assumed to exist after it was last seen: they keep
// running when it crashes, is restarted or is stopped for an upgrade.
const otherKubeletMemory = time.Hour

// OtherKubelets are the kubelets besides ours on the host.
type OtherKubelets struct {
	Sharing  []string // those that may keep their pods where ours are, each with the reason
	Separate []string // those that do not
	Past     string   // one that did, last seen less than otherKubeletMemory ago
	Err      error    `json:"-"` // they could not be determined
}

func askOthers(ctx context.Context, scan *hostscan.Scan) OtherKubelets {
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

// otherKubeletKey is the key in the history of the other kubelet seen last. It is not the key of a kind.
const otherKubeletKey = "other-kubelet"

// recall takes from the history which kubelet shared our kubelet's cgroups or directory before this pass.
func (o *OtherKubelets) recall(history History, now finding.Timestamp) {
	last, ok := history[otherKubeletKey]
	if ok && sameBoot(last.Last, now) && now.Since(last.Last) < otherKubeletMemory {
		o.Past = fmt.Sprintf("%s ago: %s", round(now.Since(last.Last)), last.Identity["kubelet"])
	}
}

// note stores for the next pass which kubelet shares them now, or did.
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
		return unknownGate(name, "another kubelet ran here %s: its pods count as live for %s", o.Past,
			otherKubeletMemory)
	case len(o.Separate) > 0:
		return openGate(name, "%s: keeps its pods elsewhere", strings.Join(o.Separate[:min(3, len(o.Separate))], ", "))
	}
	return openGate(name, "no kubelet but ours runs here")
}
