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

// owner is the sandbox that something in the network belongs to, with its pod.
type owner struct {
	sandbox string
	pod     Pod
}

// attachOwners gives the network objects the sandbox and the pod that they belong to, where there is proof: a network
// namespace by the CNI cache or the runtime's own status of a sandbox, a link by the network namespace at its other
// end, a lease by its sandbox. What stays untied is never a leftover, and in doubt where something that could name
// its owner was not read. Names are added from the runtime where an object tells only the UID.
func attachOwners(ctx context.Context, scan *Scan, objects []Object) error {
	sandboxes, unreadable := scan.sandboxes()
	if unreadable != nil {
		sandboxes = nil // the truth says so
	}
	names := make(map[string]Pod)
	for _, s := range sandboxes {
		names[s.GetMetadata().GetUid()] = podOfSandbox(s)
	}
	attachments, cacheErr := scan.attachments() // the error is told by the lister of attachments, too
	netnsMounts, err := netnsOwners(ctx, scan, objects, sandboxes, attachments)
	unreadable = errors.Join(unreadable, cacheErr, err)
	leases := leaseOwners(sandboxes, attachments)
	for i := range objects {
		o := &objects[i]
		switch o.Kind {
		case Netns:
			attachOwner(o, netnsMounts[o.ID])
		case Link:
			attachOwner(o, netnsMounts[o.Facts["netns"]])
		case Lease:
			attachOwner(o, leases[o.ID])
		}
		if unreadable != nil && losesOwner(o.Kind) && o.Foreign == "" && o.Pod.UID == "" {
			o.Doubt = "whose it is: " + unreadable.Error()
		}
		if name, ok := names[o.Pod.UID]; ok && o.Pod.Name == "" {
			o.Pod = name
		}
	}
	return err
}

// attachOwner gives o its owner, of which there must be one and no more.
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

// netnsOwners returns who owns each pinned network namespace, by the path of the pin.
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

// maxStatuses bounds the requests for a sandbox's verbose status in one pass: more than kubelet runs pods on a node.
const maxStatuses = 256

// askSandboxes asks the runtime for the network namespaces of sandboxes that have no cached CNI result. An error
// means that one may be somebody's who could not be asked for.
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

// netnsOfStatus finds the path of the network namespace in the verbose status of containerd and CRI-O; empty for one
// that uses the host's. containerd 2 knows sandboxes without a container and so without runtimeSpec (sandboxer shim,
// of virtual machines), but always tells what it keeps itself (internal/cri/store/sandbox/metadata.go).
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
