package actions

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// ipamLeaseAction frees addresses that host-local still holds for a sandbox without an attachment. If CNI's cache still
// has the attachment, its DEL frees them (attachmentAction). Leases of other plugins are not objects: only those
// plugins can read their own records.
func ipamLeaseAction() Action {
	return Action{
		Kind: object.IPAMLease,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			does := fmt.Sprintf("have host-local free address %s of network %s, which it holds for sandbox %s",
				o.Facts["address"], o.Facts["network"], shortID(o.SandboxID))
			if o.Facts["malformed"] != "" {
				return does, "its content is malformed: " + o.Facts["malformed"]
			}
			return does, ""
		},
		Needs: after(object.Sandbox, object.Container, object.ContainerdContainer, object.Process,
			object.CNIAttachment, object.Netns, object.Link),
		Look: func(ctx context.Context, t Tools, o object.Assessment) string {
			return whyNot(t.Mutator.MayFreeAddress(ctx, addressLeaseOf(o)))
		},
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.FreeAddress(ctx, addressLeaseOf(o))
		},
		Verify: addressFree,
	}
}

func addressLeaseOf(o object.Assessment) mutate.AddressLease {
	return mutate.AddressLease{File: o.ID, ID: fileOf(o), Modified: o.Identity.File.Modified, ContainerID: o.SandboxID}
}

// addressFree reports whether host-local holds no address for the sandbox: there is no lease, or it now belongs to
// another sandbox.
func addressFree(_ context.Context, t Tools, o object.Assessment) (bool, error) {
	held, err := t.Mutator.LeasesHeld(path.Dir(o.ID), o.SandboxID, o.Facts["interface"])
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return err == nil && !slices.Contains(held, path.Base(o.ID)), err
}
