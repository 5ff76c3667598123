package host

import (
	"context"
	"crypto/x509"
	"net/netip"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

// Kubelet is what the node's kubelet says. All calls are local, but kubelet itself asks the apiserver who calls its API:
// see AtRest in internal/kube for what that costs, and for when RecentPods and RecentScrape ask again.
type Kubelet struct {
	// Healthz asks the unauthenticated healthz endpoint and returns its body. A status other than 200 is an error.
	Healthz func(ctx context.Context) (string, error)
	// Pods is kubelet's own list (/pods): static pods carry the UID that is used on the node.
	Pods func(ctx context.Context) ([]corev1.Pod, error)
	// RecentPods is the same list, for those who need not compare it with another: kubelet is asked again only where a
	// pod may have changed, and in each round (see AtRest in internal/kube). Nil: ask Pods.
	RecentPods func(ctx context.Context) ([]corev1.Pod, error)
	// PodNames lists kubelet's pods as "namespace/name", each with their number, without credentials: see
	// kubelet.PodNames. Pods that have ended may be missing.
	PodNames func(ctx context.Context) (map[string]int, error)
	// Metric returns the samples of one metric family, as label string ("config=\"orphan\",lifecycle=\"sync\"") to
	// value.
	Metric func(ctx context.Context, family string) (map[string]float64, error)
	// Scrape returns the metrics of KubeletMetrics. All that ask within some 50 s share one answer.
	Scrape func(ctx context.Context) (*kubelet.Scrape, error)
	// RecentScrape is the last answer as long as nothing happens to any pod; kubelet is asked in each round then. Nil:
	// ask Scrape.
	RecentScrape func(ctx context.Context) (*kubelet.Scrape, error)
	// ServingCertificate returns the certificate that kubelet's API shows, in one handshake without credentials.
	// Where it has none to show, the error wraps ErrNoCertificate.
	ServingCertificate func(ctx context.Context) (*x509.Certificate, error)
	// Process finds the running kubelet. An error that wraps fs.ErrNotExist means that none runs.
	Process func() (Process, error)
}

// Runtime is what the container runtime says over CRI (k8s.io/cri-api runtime/v1), through the socket that kubelet
// uses.
type Runtime struct {
	Version    func(ctx context.Context) (*cri.VersionResponse, error)
	Status     func(ctx context.Context) (*cri.StatusResponse, error)
	Sandboxes  func(ctx context.Context) ([]*cri.PodSandbox, error) // no filter, all states
	Containers func(ctx context.Context) ([]*cri.Container, error)  // no filter, all states
	// SandboxStatus is the verbose status: Info carries the runtime's own JSON (pid, runtimeSpec, cniResult …).
	SandboxStatus func(ctx context.Context, id string) (*cri.PodSandboxStatusResponse, error)
	// ImageBytes is what images, and layers of containers where the runtime counts them with those, take on the disk: a
	// number that the runtime keeps, not a walk.
	ImageBytes func(ctx context.Context) (uint64, error)
	// HasImage reports whether the runtime has an image, by the name that a pod has for it.
	HasImage func(ctx context.Context, image string) (bool, error)
	// Images lists all images. Only with a reason: some runtimes read each of them.
	Images func(ctx context.Context) ([]*cri.Image, error)
	// ImageID is the ID of an image by any of its names; empty where the runtime has none of that name.
	ImageID func(ctx context.Context, name string) (string, error)
	// ImageDirs are directories on the filesystems that hold images: ImageFsInfo.
	ImageDirs func(ctx context.Context) ([]string, error)
	// CgroupDriver is the driver that the runtime tells kubelet to use (RuntimeConfig: containerd 2.0, CRI-O 1.28),
	// which kubelet follows since 1.31. Nil, or an error, where it names none.
	CgroupDriver func(ctx context.Context) (string, error)
	// Process finds the runtime's daemon by the peer credentials of its socket.
	Process func(ctx context.Context) (Process, error)
}

// Containerd is containerd's own view of its namespace "k8s.io", below CRI. It knows sandboxes that are still being
// created (their lease comes first) and containers that CRI never loaded.
type Containerd struct {
	Containers func(ctx context.Context) ([]containers.Container, error)
	Leases     func(ctx context.Context) ([]leases.Lease, error)
	// Tasks asks every shim for the state of its containers: only with a reason.
	Tasks func(ctx context.Context) ([]*tasks.Process, error)
	// Snapshots are the active ones of a snapshotter. A writable layer of a container has its ID as key.
	Snapshots func(ctx context.Context, snapshotter string) ([]snapshots.Info, error)
	// Images are containerd's records of images, one for each name: they say when a name was pulled last.
	Images func(ctx context.Context) ([]images.Image, error)
	// PulledFrom is a registry that an image was pulled from; empty: it came from none, as `ctr images import` loads one.
	PulledFrom func(ctx context.Context, image images.Image) (registry string, err error)
	// Sandboxes are the IDs of the sandboxes that containerd 2 keeps records of; older ones keep none.
	Sandboxes func(ctx context.Context) ([]string, error)
}

// Cluster is what the apiserver says of this node. Every call is a request: see DESIGN on being a good citizen.
type Cluster struct {
	// Pods is a consistent LIST (resourceVersion unset) of all pods whose spec.nodeName is this node, in every phase,
	// all pages.
	Pods func(ctx context.Context) ([]corev1.Pod, error)
	// RecentPods is the same list, kept for minutes.
	RecentPods func(ctx context.Context) ([]corev1.Pod, error)
	// Pod gets one pod by name; an error for which apierrors.IsNotFound is true means that it does not exist.
	Pod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// PodsNamed is a consistent LIST of the pods of that name whose spec.nodeName is this node: one, or none. A
	// node's own identity may ask it also where to get a pod that does not exist is forbidden.
	PodsNamed func(ctx context.Context, namespace, name string) ([]corev1.Pod, error)

	Node func(ctx context.Context) (*corev1.Node, error)
	// Watched is the Node as a watch shows it: a moment old, and no request. Nil where there is no watch; it may be nil.
	Watched func() *corev1.Node
	CSINode func(ctx context.Context) (*storagev1.CSINode, error)
	// DaemonSets and ControllerRevisions are answered from the apiserver's cache (resourceVersion=0) and kept for
	// minutes, since every node of the cluster asks for the same.
	DaemonSets          func(ctx context.Context) ([]appsv1.DaemonSet, error)
	ControllerRevisions func(ctx context.Context, namespace string) ([]appsv1.ControllerRevision, error)

	// Still reports whether no pod of this node has changed for so long, as a watch of them shows. It is false where a
	// new round has begun since, and where nothing is watched. No request is made. It may be nil.
	Still func(ago time.Duration) bool

	// Answered returns how long ago the apiserver last answered a request of the agent, whatever it said. No request is
	// made.
	Answered func() (ago time.Duration, ever bool)
	// Endpoint is where kubelet finds the apiserver, host:port. ErrNotConfigured: nothing on this node says so.
	Endpoint func() (string, error)
	// Reach makes a new connection there and asks GET /livez without credentials: any status is an answer.
	Reach func(ctx context.Context) (status int, err error)
}

// SeenNode returns the Node as a watch shows it, or asks for it. It must not be changed.
func (c Cluster) SeenNode(ctx context.Context) (*corev1.Node, error) {
	if c.Watched != nil {
		if node := c.Watched(); node != nil {
			return node, nil
		}
	}
	return c.Node(ctx)
}

// Process is one process with the identity that outlives the reuse of its PID.
type Process struct {
	PID       int
	StartTime uint64 // field 22 of /proc/PID/stat, clock ticks since boot
	Comm      string
	Args      []string // bounded; empty for kernel threads
}

// Age returns how long ago the process started, given the time since boot.
func (p Process) Age(up time.Duration) time.Duration {
	const ticks = 100 // USER_HZ is 100 on every architecture that Kubernetes supports
	return up - time.Duration(p.StartTime)*time.Second/ticks
}

// Network answers what no file of the kernel's network stack does. Nothing is sent by asking, and nothing waits for the
// RTNL lock, which may be held for minutes on a sick node.
type Network struct {
	// Route looks up how a packet of the node to an address would go. It is nil where there is a way, otherwise what
	// the kernel says (ENETUNREACH, EHOSTUNREACH …).
	Route func(to netip.Addr) error
	// RouteDevice names the device through which such a packet would go.
	RouteDevice func(to netip.Addr) (string, error)
	// BusiestPorts finds the peer to which most of this node's TCP connections go from local ports first to last. It
	// reads all sockets, about a microsecond each: ask only when there is a reason.
	BusiestPorts func(ctx context.Context, first, last uint16) (netlink.PortUse, error)

	// PacketFilter and Layout put made-up answers in the place of the kernel's. With a fixture tree in the place of the
	// host's files, what is not made up is not configured.
	PacketFilter func() (packetfilter.PacketFilter, error)
	Layout       func() (netlink.NetworkLayout, error)
}

// NewNetwork returns the client of the network namespace in which the agent lives.
func NewNetwork() Network {
	return Network{Route: netlink.LookupRoute, RouteDevice: netlink.RouteDevice, BusiestPorts: netlink.BusiestPorts}
}
