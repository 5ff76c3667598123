package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// owner is the sandbox that something in the network belongs to, with its pod.
type owner struct {
	sandbox string
	pod     Pod
}

// tie gives the network objects the sandbox and the pod that they belong to, where there is proof: a network namespace by
// the CNI cache or the runtime's own status of a sandbox, a link by the network namespace at its other end. What stays
// untied is never a leftover. Names are added from the runtime where an object tells only the UID.
func tie(ctx context.Context, scan *Scan, objects []Object) error {
	sandboxes, err := scan.sandboxes()
	if err != nil {
		sandboxes = nil // the truth says so
	}
	names := make(map[string]Pod)
	for _, s := range sandboxes {
		names[s.GetMetadata().GetUid()] = podOfSandbox(s)
	}
	owners, err := pinOwners(ctx, scan, objects, sandboxes)
	for i := range objects {
		o := &objects[i]
		key := o.ID
		if o.Kind == Link {
			key = o.Facts["netns"]
		}
		if o.Kind == Netns || o.Kind == Link {
			tieTo(o, owners[key])
		}
		if name, ok := names[o.Pod.UID]; ok && o.Pod.Name == "" {
			o.Pod = name
		}
	}
	return err
}

// tieTo gives o its owner, of which there must be one and no more.
func tieTo(o *Object, owners []owner) {
	if o.Foreign != "" || len(owners) == 0 {
		return
	}
	if len(owners) > 1 {
		o.Foreign = fmt.Sprintf("claimed by two sandboxes, %s and %s", owners[0].sandbox, owners[1].sandbox)
		return
	}
	o.SandboxID, o.Pod = owners[0].sandbox, owners[0].pod
	o.Foreign = strangeUID(o.Pod.UID)
}

func podOfSandbox(s *cri.PodSandbox) Pod {
	return Pod{UID: s.GetMetadata().GetUid(), Namespace: s.GetMetadata().GetNamespace(), Name: s.GetMetadata().GetName()}
}

// pinOwners returns who owns each pinned network namespace, by the path of the pin.
func pinOwners(ctx context.Context, scan *Scan, objects []Object, sandboxes []*cri.PodSandbox) (map[string][]owner, error) {
	owners := make(map[string][]owner)
	if !slices.ContainsFunc(objects, func(o Object) bool { return o.Kind == Netns || o.Kind == Link }) {
		return owners, nil
	}
	attachments, err := scan.attachments() // an error is told by the lister of attachments; here it leaves pins untied
	attached := make(map[string]bool)
	for _, a := range attachments {
		attached[a.ContainerID] = true
		if a.Netns != "" {
			add(owners, pinPath(scan, a.Netns), owner{a.ContainerID, podOfAttachment(a)})
		}
	}
	for _, o := range objects {
		if o.Kind == Netns && o.Foreign == "" && len(owners[o.ID]) == 0 {
			return owners, cmp.Or(askSandboxes(ctx, scan, owners, attached, sandboxes), err)
		}
	}
	return owners, err
}

func add(owners map[string][]owner, pin string, o owner) {
	if !slices.Contains(owners[pin], o) {
		owners[pin] = append(owners[pin], o)
	}
}

// maxStatuses bounds the requests for a sandbox's verbose status in one pass.
const maxStatuses = 64

// askSandboxes asks the runtime for the network namespaces of sandboxes that have no cached CNI result.
func askSandboxes(ctx context.Context, scan *Scan, owners map[string][]owner, attached map[string]bool, sandboxes []*cri.PodSandbox) error {
	asked := 0
	for _, s := range sandboxes {
		if attached[s.GetId()] || scan.Host.Runtime.SandboxStatus == nil {
			continue
		}
		if asked++; asked > maxStatuses {
			return fmt.Errorf("more than %d sandboxes without cached CNI result: some network namespaces stay unknown", maxStatuses)
		}
		status, err := scan.Host.Runtime.SandboxStatus(ctx, s.GetId())
		if err != nil {
			continue // removed meanwhile, or the pin stays untied
		}
		if pin := netnsOfStatus(status); pin != "" {
			add(owners, pinPath(scan, pin), owner{s.GetId(), podOfSandbox(s)})
		}
	}
	return nil
}

// netnsOfStatus finds the path of the network namespace in the verbose status of containerd and CRI-O; empty for one that
// uses the host's. containerd 2 has no runtimeSpec for a sandbox without a container, as virtual machines are, nor for one whose
// shim has died, but a copy of what it keeps itself (internal/cri/store/sandbox/metadata.go).
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
