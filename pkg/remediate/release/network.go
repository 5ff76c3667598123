package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// attachmentAction repeats the CNI DEL that a runtime did not run or finish. It comes before the removal of the network
// namespace, because physical devices and virtual functions must be moved out of it first.
func attachmentAction() Action {
	return Action{
		Kind: object.CNIAttachment, Order: 40,
		Summary: "CNI DEL with the configuration, arguments and capabilities that libcni kept of the ADD",
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("repeat CNI DEL of network %s for sandbox %s and verify that its addresses %s are free",
				o.Facts["network"], shortID(o.SandboxID), o.Facts["addresses"]), ""
		},
		Needs: func(o object.Assessment, rest []object.Assessment, _ Settings) string {
			if s, ok := findObject(rest, object.Sandbox, o.SandboxID); ok && s.Facts["state"] != "NOTREADY" {
				return "its sandbox is still ready"
			}
			return ""
		},
		Preview: func(_ context.Context, t Tools, o object.Assessment) string {
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

// netnsAction removes the mount that keeps an empty network namespace alive.
func netnsAction() Action {
	return Action{
		Kind: object.Netns, Order: 50,
		Summary: "unmount and unlink the file of a network namespace without processes",
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

// linkAction deletes the host end of a pod's veth pair: by index, after its peer was compared, never by name.
func linkAction() Action {
	return Action{
		Kind: object.Link, Order: 60,
		Summary: "delete a veth by index",
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

// leaseAction deletes containerd's lease of a sandbox. It comes when no process of the sandbox runs and its network is
// down, in the runtime's own order: from then on containerd may garbage-collect the objects that the lease kept.
func leaseAction() Action {
	return Action{
		Kind: object.Lease, Order: 65,
		Summary: "delete containerd's lease of a sandbox that is gone",
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
		Verify: leaseGone,
	}
}

// leaseGone reports whether containerd no longer lists a lease.
func leaseGone(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
	if t.Host.Containerd.Leases == nil {
		return false, fmt.Errorf("leases: %w", hosterr.ErrNotConfigured)
	}
	leases, err := t.Host.Containerd.Leases(ctx)
	if err != nil {
		return false, err
	}
	for _, lease := range leases {
		if lease.ID == o.ID {
			return false, nil
		}
	}
	return true, nil
}

// attachmentGone verifies that libcni has no cached result any more and host-local holds no address for it.
func attachmentGone(_ context.Context, t Tools, o object.Assessment) (bool, error) {
	if gone, err := pathGone(t.Host, o.ID); err != nil || !gone {
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

// fileGone verifies objects whose ID is a path on the node's own filesystems.
func fileGone(_ context.Context, t Tools, o object.Assessment) (bool, error) {
	return pathGone(t.Host, o.ID)
}

func pathGone(h *host.Host, name string) (bool, error) {
	_, err := h.Files.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

func findObject(objects []object.Assessment, kind object.Kind, id string) (object.Assessment, bool) {
	at := slices.IndexFunc(objects, func(o object.Assessment) bool { return o.Kind == kind && o.ID == id })
	if at < 0 {
		return object.Assessment{}, false
	}
	return objects[at], true
}
