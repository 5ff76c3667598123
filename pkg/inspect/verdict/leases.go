package verdict

import (
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// noteDeadLease records that a lease is a leftover: it then no longer protects the network of its sandbox.
func (e *evaluation) noteDeadLease(o object.Assessment) {
	if o.Kind == object.Lease && o.Verdict == object.Leftover {
		e.deadLeases[o.SandboxID] = true
	}
}

// onlyDeadLease reports whether containerd knows the sandbox of o only by a leftover lease.
func (e *evaluation) onlyDeadLease(o *object.Object) bool {
	return o.Kind.Networked() && e.deadLeases[o.SandboxID] && e.inventory.Containerd.Known[o.SandboxID] == witness.LeaseName
}
