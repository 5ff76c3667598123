package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/cni"
)

// owner is the sandbox that a network object belongs to, with its pod.
type owner struct {
	sandbox string
	pod     Pod
}

// attachOwners sets the sandbox and the pod of network objects where there is proof: of a network namespace by the CNI
// cache or the runtime's status of a sandbox, of a link by the network namespace of its other end, of a lease by its
// sandbox. An object without an owner is never a leftover, and is in doubt when something that could name its owner was
// not read. Names are added from the runtime where an object has only the UID.
func attachOwners(ctx context.Context, scan *Scan, objects []Object) error {
	sandboxes, unreadable := scan.sandboxes()
	if unreadable != nil {
		sandboxes = nil // the inventory has that error
	}
	names := make(map[string]Pod)
	for _, s := range sandboxes {
		names[s.GetMetadata().GetUid()] = podOfSandbox(s)
	}
	attachments, cacheErr := scan.attachments() // the lister of attachments reports the error too
	netnsMounts, err := netnsOwners(ctx, scan, objects, sandboxes, attachments)
	unreadable = errors.Join(unreadable, cacheErr, err)
	leases := leaseOwners(sandboxes, attachments)
	ids := newIDs(scan, objects, leases)
	for i := range objects {
		o := &objects[i]
		switch o.Kind {
		case Netns:
			attachOwner(o, netnsMounts[o.ID])
		case Link:
			attachOwner(o, netnsMounts[o.Facts["netns"]])
		case Lease:
			attachOwner(o, leases[o.ID])
		default:
			ids.attachTo(o)
		}
		if unreadable != nil && losesOwner(o.Kind) && o.Foreign == "" && o.Pod.UID == "" {
			o.Doubt = "its owner is not known: " + unreadable.Error()
		}
		if name, ok := names[o.Pod.UID]; ok && o.Pod.Name == "" {
			o.Pod = name
		}
	}
	return err
}

// attachOwner sets the owner of o. There must be exactly one.
func attachOwner(o *Object, owners []owner) {
	if o.Foreign != "" || len(owners) == 0 {
		return
	}
	if len(owners) > 1 {
		o.Foreign = fmt.Sprintf("claimed by two sandboxes, %s and %s", owners[0].sandbox, owners[1].sandbox)
		return
	}
	o.SandboxID, o.Pod = owners[0].sandbox, owners[0].pod
	o.Foreign = foreignUID(o.Pod.UID)
}

func podOfSandbox(s *cri.PodSandbox) Pod {
	return Pod{UID: s.GetMetadata().GetUid(), Namespace: s.GetMetadata().GetNamespace(),
		Name: s.GetMetadata().GetName()}
}

// netnsOwners returns the owners of each mounted network namespace, by path.
func netnsOwners(ctx context.Context, scan *Scan, objects []Object, sandboxes []*cri.PodSandbox,
	attachments []cni.Attachment) (map[string][]owner, error) {
	owners := make(map[string][]owner)
	attached := make(map[string]bool)
	for _, a := range attachments {
		attached[a.ContainerID] = true
		if a.Netns != "" {
			add(owners, netnsPath(scan, a.Netns), owner{a.ContainerID, podOfAttachment(a)})
		}
	}
	for _, o := range objects {
		if o.Kind == Netns && o.Foreign == "" && len(owners[o.ID]) == 0 {
			return owners, askSandboxes(ctx, scan, owners, attached, sandboxes)
		}
	}
	return owners, nil
}

func add(owners map[string][]owner, pin string, o owner) {
	same := func(other owner) bool { return other.sandbox == o.sandbox && other.pod.UID == o.pod.UID }
	if !slices.ContainsFunc(owners[pin], same) {
		owners[pin] = append(owners[pin], o)
	}
}

// maxStatuses bounds the requests for a sandbox's verbose status in one pass. It is more than the pods that kubelet
// runs on a node.
const maxStatuses = 256

// askSandboxes asks the runtime for the network namespaces of sandboxes without a cached CNI result. An error means
// that the owner of a namespace may be missing.
func askSandboxes(ctx context.Context, scan *Scan, owners map[string][]owner, attached map[string]bool,
	sandboxes []*cri.PodSandbox) error {
	asked := 0
	var unreadable []error
	for _, s := range sandboxes {
		if attached[s.GetId()] || scan.Host.Runtime.SandboxStatus == nil {
			continue
		}
		if asked++; asked > maxStatuses {
			unreadable = append(unreadable, fmt.Errorf("more than %d sandboxes have no cached CNI result", maxStatuses))
			break
		}
		status, err := scan.Host.Runtime.SandboxStatus(ctx, s.GetId())
		if grpcstatus.Code(err) == codes.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			unreadable = append(unreadable, fmt.Errorf("status of sandbox %s: %w", s.GetId(), err))
			continue
		}
		if pin := netnsOfStatus(status); pin != "" {
			add(owners, netnsPath(scan, pin), owner{s.GetId(), podOfSandbox(s)})
		}
	}
	return errors.Join(unreadable[:min(len(unreadable), 3)]...)
}

// netnsOfStatus finds the path of the network namespace in the verbose status of containerd and CRI-O; empty for a
// sandbox in the host's network. containerd 2 has sandboxes without a container and so without runtimeSpec (sandboxer
// shim, for virtual machines), but always reports its own metadata (internal/cri/store/sandbox/metadata.go).
func netnsOfStatus(status *cri.PodSandboxStatusResponse) string {
	var info struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string } `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
		Sandbox struct{ Metadata struct{ NetNSPath string } } `json:"sandboxMetadata"`
	}
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil {
		return ""
	}
	for _, namespace := range info.RuntimeSpec.Linux.Namespaces {
		if namespace.Type == "network" {
			return namespace.Path
		}
	}
	return info.Sandbox.Metadata.NetNSPath
}
