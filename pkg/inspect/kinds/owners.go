package kinds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/cni"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Owner is the sandbox that a network object belongs to, with its pod.
type Owner struct {
	Sandbox string
	Pod     object.Pod
}

// AttachOwners sets the sandbox and the pod of network objects if there is proof: of a network namespace by the CNI
// cache or the runtime's status of a sandbox, of a link by the network namespace of its other end, of a lease by its
// sandbox. An object without an owner is never a leftover, and is in doubt if a source that could name its owner was
// not read. Objects with only the UID get their names from the runtime.
func AttachOwners(ctx context.Context, scan *hostscan.Scan, objects []object.Object) error {
	sandboxes, unreadable := scan.Sandboxes()
	if unreadable != nil {
		sandboxes = nil // the inventory has that error
	}
	names := make(map[string]object.Pod)
	for _, s := range sandboxes {
		names[s.GetMetadata().GetUid()] = witness.PodOfSandbox(s)
	}
	attachments, cacheErr := scan.Attachments() // the lister of attachments reports the error too
	netnsMounts, err := netnsOwners(ctx, scan, objects, sandboxes, attachments)
	unreadable = errors.Join(unreadable, cacheErr, err)
	leases := leaseOwners(sandboxes, attachments)
	ids := collectIDs(scan, objects, leases)
	for i := range objects {
		o := &objects[i]
		switch o.Kind {
		case object.Netns:
			AttachOwner(o, netnsMounts[o.ID])
		case object.Link:
			AttachOwner(o, netnsMounts[o.Facts["netns"]])
		case object.Lease:
			AttachOwner(o, leases[o.ID])
		default:
			ids.attachTo(o)
		}
		if unreadable != nil && object.LosesOwner(o.Kind) && o.Foreign == "" && o.Pod.UID == "" {
			o.Doubt = "its owner is not known: " + unreadable.Error()
		}
		if name, ok := names[o.Pod.UID]; ok && o.Pod.Name == "" {
			o.Pod = name
		}
	}
	return err
}

// AttachOwner sets the owner of o. There must be exactly one.
func AttachOwner(o *object.Object, owners []Owner) {
	if o.Foreign != "" || len(owners) == 0 {
		return
	}
	if len(owners) > 1 {
		o.Foreign = fmt.Sprintf("claimed by two sandboxes, %s and %s", owners[0].Sandbox, owners[1].Sandbox)
		return
	}
	o.SandboxID, o.Pod = owners[0].Sandbox, owners[0].Pod
	o.Foreign = object.ForeignUID(o.Pod.UID)
}

// netnsOwners returns the owners of each mounted network namespace, by path.
func netnsOwners(ctx context.Context, scan *hostscan.Scan, objects []object.Object, sandboxes []*cri.PodSandbox,
	attachments []cni.Attachment) (map[string][]Owner, error) {
	owners := make(map[string][]Owner)
	attached := make(map[string]bool)
	for _, a := range attachments {
		attached[a.ContainerID] = true
		if a.Netns != "" {
			add(owners, scan.NetnsPath(a.Netns), Owner{a.ContainerID, podOfAttachment(a)})
		}
	}
	for _, o := range objects {
		if o.Kind == object.Netns && o.Foreign == "" && len(owners[o.ID]) == 0 {
			return owners, askSandboxes(ctx, scan, owners, attached, sandboxes)
		}
	}
	return owners, nil
}

func add(owners map[string][]Owner, pin string, o Owner) {
	same := func(other Owner) bool { return other.Sandbox == o.Sandbox && other.Pod.UID == o.Pod.UID }
	if !slices.ContainsFunc(owners[pin], same) {
		owners[pin] = append(owners[pin], o)
	}
}

// maxStatuses limits the requests for a sandbox's verbose status in one pass. It is more than the pods that kubelet
// runs on a node.
const maxStatuses = 256

// askSandboxes asks the runtime for the network namespaces of sandboxes without a cached CNI result. An error means
// that the owner of a namespace may be missing.
func askSandboxes(ctx context.Context, scan *hostscan.Scan, owners map[string][]Owner, attached map[string]bool,
	sandboxes []*cri.PodSandbox) error {
	asked := 0
	var unreadable []error
	for _, s := range sandboxes {
		if attached[s.GetId()] || scan.Host.Runtime.SandboxStatus == nil {
			continue
		}
		if asked++; asked > maxStatuses {
			unreadable = append(unreadable, fmt.Errorf("more than %d sandboxes have no cached CNI result",
				maxStatuses))
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
			add(owners, scan.NetnsPath(pin), Owner{s.GetId(), witness.PodOfSandbox(s)})
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

// ids are the sources that name the pods of sandboxes and containers, whose IDs share one form and one space: the
// runtime and containerd, CNI's cache, and objects of this pass such as a process in the cgroup of a container.
type ids struct {
	owners     map[string][]Owner // by ID
	handmade   map[string]bool    // containers in k8s.io that CRI did not create
	unreadable error
}

// collectIDs collects the owners of IDs. sandboxes are the owners already known.
func collectIDs(s *hostscan.Scan, objects []object.Object, sandboxes map[string][]Owner) ids {
	t := ids{owners: make(map[string][]Owner), handmade: make(map[string]bool)}
	for id, owners := range sandboxes {
		t.owners[id] = slices.Clone(owners)
	}
	containers, err := s.Containers()
	if err == nil {
		for _, c := range containers {
			t.add(c.GetId(), witness.PodOfLabels(c.GetLabels()))
		}
	}
	records, recordsErr := s.Records()
	if errors.Is(recordsErr, hosterr.ErrNotConfigured) {
		recordsErr = nil // another runtime
	}
	for _, record := range records {
		t.add(record.ID, witness.PodOfLabels(record.Labels))
		t.handmade[record.ID] = record.Labels[witness.KindLabel] == ""
	}
	for i := range objects {
		if o := &objects[i]; o.Foreign == "" {
			t.add(o.SandboxID, o.Pod)
			t.add(o.ContainerID, o.Pod)
		}
	}
	t.unreadable = errors.Join(err, recordsErr)
	if t.unreadable == nil {
		t.addSpecs(s, objects)
	}
	return t
}

// addSpecs adds the owners of bundles that no other source names, by their specifications; if there are thousands, it
// reads different ones in each pass.
func (t ids) addSpecs(s *hostscan.Scan, objects []object.Object) {
	const most = 200 // some 20 ms
	var unnamed []*object.Object
	for i := range objects {
		if o := &objects[i]; o.Kind == object.Rootfs && o.Foreign == "" && len(t.owners[o.ContainerID]) == 0 {
			unnamed = append(unnamed, o)
		}
	}
	rand.Shuffle(len(unnamed), func(i, j int) { unnamed[i], unnamed[j] = unnamed[j], unnamed[i] })
	for _, o := range unnamed[:min(len(unnamed), most)] {
		spec := hostcri.SpecAnnotations(s.Host.Files, o.ID)
		t.add(o.ContainerID, object.Pod{UID: spec[hostcri.SandboxUIDAnnotation], Name: spec[hostcri.SandboxNameAnnotation],
			Namespace: spec[hostcri.SandboxNamespaceAnnotation]})
	}
}

// add records that an ID is one of a pod's.
func (t ids) add(id string, pod object.Pod) {
	same := func(other Owner) bool { return other.Pod.UID == pod.UID }
	if id != "" && pod.UID != "" && !slices.ContainsFunc(t.owners[id], same) {
		t.owners[id] = append(t.owners[id], Owner{id, pod})
	}
}

// attachTo sets the owner of an object that shows only an ID.
func (t ids) attachTo(o *object.Object) {
	id := o.ContainerID + o.SandboxID // such an object has one of them
	if !o.Kind.NamedByID() || o.Foreign != "" {
		return
	}
	if t.handmade[id] {
		o.Foreign = "of a container that was created by hand in containerd's namespace k8s.io"
		return
	}
	sandbox := o.SandboxID
	AttachOwner(o, t.owners[id])
	o.SandboxID = sandbox
	if t.unreadable != nil && o.Foreign == "" && o.Pod.UID == "" {
		o.Doubt = "its owner is not known: " + t.unreadable.Error()
	}
}

// ExplainIDs gives suspects that show only the ID of a sandbox the facts about its network: that a process of another
// runtime lives in it, or that this could not be read.
func ExplainIDs(suspects []*object.Object) {
	network := make(map[string]*object.Object)
	for _, o := range suspects {
		if o.Kind.Networked() && o.Foreign+o.Doubt != "" {
			network[o.SandboxID] = o
		}
	}
	for _, o := range suspects {
		if of := network[cmp.Or(o.SandboxID, o.ContainerID)]; of != nil && o.Kind.NamedByID() && o.Foreign == "" {
			o.Foreign, o.Doubt, o.Holders = of.Foreign, of.Doubt, slices.Clone(of.Holders)
		}
	}
}
