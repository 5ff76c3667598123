package actions

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// netnsAction removes the mount that keeps an empty network namespace alive.
func netnsAction() Action {
	return Action{
		Kind: object.Netns,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			does := fmt.Sprintf("unmount and unlink %s", o.ID)
			if other := o.Facts["alsoAt"]; other != "" {
				return does, fmt.Sprintf("its network namespace is also mounted at %s and would stay", other)
			}
			return does, ""
		},
		Needs: func(o object.Assessment, rest []object.Assessment, s Settings) string {
			if s.ForceNetwork {
				return ""
			}
			for _, other := range rest {
				if other.SandboxID == o.SandboxID && o.SandboxID != "" &&
					(other.Kind == object.CNIAttachment || other.Kind == object.Sandbox) {
					return fmt.Sprintf("its %s %s still exists", other.Kind, shortID(other.ID))
				}
			}
			return ""
		},
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.RemoveNetns(ctx, netnsOf(o))
		},
		Verify: func(_ context.Context, t Tools, o object.Assessment) (bool, error) {
			return t.Mutator.NetnsGone(netnsOf(o))
		},
	}
}

// netnsOf takes the inode of the namespace, or of the empty file when no namespace is mounted on it any more.
func netnsOf(o object.Assessment) mutate.Netns {
	return mutate.Netns{Path: o.ID, Inode: o.Identity.File.Inode}
}
