package actions

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// leaseAction deletes containerd's lease of a sandbox. It comes when no process of the sandbox runs and its network is
// down, in the runtime's own order: from then on containerd may garbage-collect the objects that the lease kept.
func leaseAction() Action {
	return Action{
		Kind: object.Lease,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("delete lease %s in containerd's namespace k8s.io", shortID(o.ID)), ""
		},
		Needs: func(o object.Assessment, rest []object.Assessment, _ Settings) string {
			for _, other := range rest {
				switch other.Kind {
				case object.Sandbox, object.Container, object.Process, object.CNIAttachment, object.Netns,
					object.Link:
					return fmt.Sprintf("the %s %s of its pod still exists", other.Kind, shortID(other.ID))
				}
			}
			return ""
		},
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			id := o.Identity.Runtime
			return t.Mutator.DeleteRuntimeLease(ctx, mutate.RuntimeLease{ID: id.ID, CreatedAt: id.Created})
		},
		Verify: func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
			return unlisted(ctx, "leases", t.Host.Containerd.Leases, func(l leases.Lease) bool { return l.ID == o.ID })
		},
	}
}
