package actions

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// linkAction deletes the host end of a pod's veth pair: by index, after its peer was compared, never by name.
func linkAction() Action {
	return Action{
		Kind: object.Link,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("delete link %s by its index", o.ID), ""
		},
		Needs: func(o object.Assessment, rest []object.Assessment, s Settings) string {
			if s.ForceNetwork || o.SandboxID == "" {
				return ""
			}
			for _, other := range rest {
				if other.Kind == object.CNIAttachment && other.SandboxID == o.SandboxID {
					return fmt.Sprintf("its CNI attachment %s still exists", other.ID)
				}
			}
			return ""
		},
		Do: func(_ context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.DeleteLink(linkOf(o))
		},
		Verify: func(_ context.Context, t Tools, o object.Assessment) (bool, error) {
			return t.Mutator.LinkGone(linkOf(o))
		},
	}
}

func linkOf(o object.Assessment) mutate.Link {
	link := o.Identity.Link
	return mutate.Link{Index: link.Index, PeerIndex: link.PeerIndex, PeerNetns: link.PeerNamespace}
}
