package actions

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// attachmentAction repeats the CNI DEL that a runtime did not run or finish. It comes before the removal of the network
// namespace, because physical devices and virtual functions must be moved out of it first.
func attachmentAction() Action {
	return Action{
		Kind: object.CNIAttachment,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("repeat CNI DEL of network %s for sandbox %s and verify that its addresses %s are free",
				o.Facts["network"], shortID(o.SandboxID), o.Facts["addresses"]), ""
		},
		Needs: func(o object.Assessment, rest []object.Assessment, _ Settings) string {
			if s, ok := object.Find(rest, object.Sandbox, o.SandboxID); ok && s.Facts["state"] != "NOTREADY" {
				return "its sandbox is still ready"
			}
			return ""
		},
		Look: func(_ context.Context, t Tools, o object.Assessment) string {
			return whyNot(t.Mutator.MayDelAttachment(attachmentOf(o)))
		},
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.DelAttachment(ctx, attachmentOf(o))
		},
		Verify: attachmentGone,
	}
}

func attachmentOf(o object.Assessment) mutate.Attachment {
	return mutate.Attachment{File: o.ID, Inode: o.Identity.File.Inode, Size: int64(o.Identity.File.Size),
		ContainerID: o.SandboxID}
}

// attachmentGone verifies that libcni has no cached result any more and host-local holds no address for it.
func attachmentGone(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
	if gone, err := fileGone(ctx, t, o); err != nil || !gone {
		return false, err
	}
	for dir := range strings.SplitSeq(o.Facts["leaseDirectories"], ":") {
		if dir == "" {
			continue
		}
		held, err := t.Mutator.LeasesHeld(dir, o.SandboxID, o.Facts["interface"])
		if err != nil {
			return false, err
		}
		if len(held) > 0 {
			return false, fmt.Errorf("addresses %s are still held in %s", strings.Join(held, ", "), dir)
		}
	}
	return true, nil
}
