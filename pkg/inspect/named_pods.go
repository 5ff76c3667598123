package inspect

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// recent returns the last list of the apiserver, if it may still count for pods that have ended.
func (i *Inspector) recent(now finding.Timestamp) witness.ClusterInventory {
	if last := i.cluster; last.OK() && object.SameBoot(last.At, now) && now.Since(last.At) < recheck {
		return last
	}
	return witness.ClusterInventory{}
}
