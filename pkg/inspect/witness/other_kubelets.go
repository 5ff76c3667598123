package witness

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Two kubelets that keep their pods in one cgroup tree each take the other's pods for orphans (talos#6071). So would
// the agent: while another kubelet may share our kubelet's tree or directory, there are no leftovers. A kubelet with
// its pods elsewhere, such as a kind node below its container's cgroup, does not matter: only the cgroups directly
// below our kubelet's kubepods cgroup are ours.

// OtherKubeletMemory is how long the pods of another kubelet are assumed to exist after it was last seen: they keep
// running when it crashes, is restarted or is stopped for an upgrade.
const OtherKubeletMemory = time.Hour

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

// Recall takes from the history which kubelet shared our kubelet's cgroups or directory before this pass.
func (o *OtherKubelets) Recall(history object.History, now finding.Timestamp) {
	last, ok := history[otherKubeletKey]
	if ok && object.SameBoot(last.Last, now) && now.Since(last.Last) < OtherKubeletMemory {
		o.Past = fmt.Sprintf("%s ago: %s", object.Round(now.Since(last.Last)), last.Identity.Names["kubelet"])
	}
}

// Note stores for the next pass which kubelet shares them now, or did.
func (o *OtherKubelets) Note(history, next object.History, now finding.Timestamp) {
	switch {
	case len(o.Sharing) > 0:
		sharing := object.Identity{Names: map[string]string{"kubelet": o.Sharing[0]}}
		next[otherKubeletKey] = object.Sighting{Identity: sharing, First: now, Last: now}
	case o.Past != "":
		next[otherKubeletKey] = history[otherKubeletKey]
	}
}
