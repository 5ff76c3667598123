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

// Kubelet is the interface to the node's kubelet. All calls are local, but kubelet itself asks the apiserver who calls
// its API: see AtRest in internal/kube for the cost of that, and for when RecentPods and RecentScrape make a new
// request.
type Kubelet struct {
	// Healthz reads the unauthenticated healthz endpoint and returns its body. A status other than 200 is an error.
	Healthz func(ctx context.Context) (string, error)
	// Pods is kubelet's own list (/pods): static pods have the UID used on the node.
	Pods func(ctx context.Context) ([]corev1.Pod, error)
	// RecentPods is the same list, for callers that need not compare it with another: it makes a request only if a pod
	// may have changed, and once in each round (see AtRest in internal/kube). Nil: use Pods.
	RecentPods func(ctx context.Context) ([]corev1.Pod, error)
	// PodNames lists kubelet's pods as "namespace/name", each with its number of pods, without credentials: see
	// kubelet.PodNames. Pods that have ended may be missing.
	PodNames func(ctx context.Context) (map[string]int, error)
	// Metric returns the samples of one metric family, from label string ("config=\"orphan\",lifecycle=\"sync\"") to
	// value.
	Metric func(ctx context.Context, family string) (map[string]float64, error)
	// Scrape returns the metrics of KubeletMetrics. All callers within some 50 s share one answer.
	Scrape func(ctx context.Context) (*kubelet.Scrape, error)
	// RecentScrape returns the last answer while no pod changes, with a request once in each round. Nil: use Scrape.
	RecentScrape func(ctx context.Context) (*kubelet.Scrape, error)
	// ServingCertificate returns the certificate that kubelet's API shows, in one handshake without credentials. If
	// kubelet has none yet, the error wraps ErrNoCertificate.
	ServingCertificate func(ctx context.Context) (*x509.Certificate, error)
	// Process finds the running kubelet. An error that wraps fs.ErrNotExist means that none runs.
	Process func() (Process, error)
}

// Runtime is the interface to the container runtime over CRI (k8s.io/cri-api runtime/v1), through the socket that
// kubelet uses.
type Runtime struct {
	Version    func(ctx context.Context) (*cri.VersionResponse, error)
	Status     func(ctx context.Context) (*cri.StatusResponse, error)
	Sandboxes  func(ctx context.Context) ([]*cri.PodSandbox, error) // no filter, all states
	Containers func(ctx context.Context) ([]*cri.Container, error)  // no filter, all states
	// Lists makes the same call as Containers and drops the answer: for callers that only measure it.
	Lists func(ctx context.Context) error
	// SandboxStatus is the verbose status: Info contains the runtime's own JSON (pid, runtimeSpec, cniResult …).
	SandboxStatus func(ctx context.Context, id string) (*cri.PodSandboxStatusResponse, error)
	// Events calls take for each event of a container or sandbox until ctx ends or the runtime does: only then it returns, with
	// an error. ErrNotConfigured: the runtime has no events for us.
	Events func(ctx context.Context, take func(*cri.ContainerEventResponse)) error
	// ImageBytes is the disk usage of images, and of container layers if the runtime counts them with images: a number
	// that the runtime maintains, not a walk.
	ImageBytes func(ctx context.Context) (uint64, error)
	// HasImage reports whether the runtime has an image, by the name in a pod.
	HasImage func(ctx context.Context, image string) (bool, error)
	// Images lists all images. Call it only for a reason: some runtimes read each of them.
	Images func(ctx context.Context) ([]*cri.Image, error)
	// ImageID returns the ID of an image by any of its names; empty if the runtime has no image of that name.
	ImageID func(ctx context.Context, name string) (string, error)
	// ImageDirs are directories on the filesystems that hold images: ImageFsInfo.
	ImageDirs func(ctx context.Context) ([]string, error)
	// CgroupDriver returns the driver that the runtime tells kubelet to use (RuntimeConfig: containerd 2.0, CRI-O
	// 1.28), which kubelet follows since 1.31. It is nil, or returns an error, if the runtime names none.
	CgroupDriver func(ctx context.Context) (string, error)
	// Process finds the runtime's daemon by the peer credentials of its socket.
	Process func(ctx context.Context) (Process, error)
}

// Containerd is containerd's own view of its namespace "k8s.io", below CRI. It knows sandboxes that are still being
// created (their lease comes first) and containers that CRI never loaded.
type Containerd struct {
	Containers func(ctx context.Context) ([]containers.Container, error)
	Leases     func(ctx context.Context) ([]leases.Lease, error)
	// Tasks asks every shim for the state of its containers: call it only for a reason.
	Tasks func(ctx context.Context) ([]*tasks.Process, error)
	// Snapshots are the active ones of a snapshotter. The key of a container's writable layer is the container's ID.
	Snapshots func(ctx context.Context, snapshotter string) ([]snapshots.Info, error)
	// Images are containerd's records of images, one for each name: they show when a name was last pulled.
	Images func(ctx context.Context) ([]images.Image, error)
	// PulledFrom is a registry that an image was pulled from; empty: it came from none, as `ctr images import` loads one.
	PulledFrom func(ctx context.Context, image images.Image) (registry string, err error)
	// Sandboxes are the IDs of the sandboxes that containerd 2 keeps records of; older ones keep none.
	Sandboxes func(ctx context.Context) ([]string, error)
}

// Cluster is the interface to the apiserver about this node. Every call is a request: see DESIGN on being a good
// citizen.
type Cluster struct {
	// Pods is a consistent LIST (resourceVersion unset) of all pods whose spec.nodeName is this node, in every phase,
	// all pages.
	Pods func(ctx context.Context) ([]corev1.Pod, error)
	// RecentPods is the same list, cached for minutes.
	RecentPods func(ctx context.Context) ([]corev1.Pod, error)
	// Pod gets one pod by name; if apierrors.IsNotFound is true for the error, it does not exist.
	Pod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// PodsNamed is a consistent LIST of the pods of that name whose spec.nodeName is this node: one, or none. A node's
	// own identity may call it even if it is forbidden to get a pod that does not exist.
	PodsNamed func(ctx context.Context, namespace, name string) ([]corev1.Pod, error)

	Node func(ctx context.Context) (*corev1.Node, error)
	// Watched returns the Node from a watch: a moment old, without a request; nil if there is no watch. Watched may be
	// nil.
	Watched func() *corev1.Node
	CSINode func(ctx context.Context) (*storagev1.CSINode, error)
	// DaemonSets and ControllerRevisions come from the apiserver's cache (resourceVersion=0) and are cached for
	// minutes, since every node of the cluster requests the same.
	DaemonSets          func(ctx context.Context) ([]appsv1.DaemonSet, error)
	ControllerRevisions func(ctx context.Context, namespace string) ([]appsv1.ControllerRevision, error)

	// Still reports whether a watch shows that no pod of this node has changed for the given time. It is false if a new
	// round has begun since, or if there is no watch. It makes no request. It may be nil.
	Still func(ago time.Duration) bool

	// Answered returns how long ago the apiserver last answered a request of the agent, with any result. It makes no
	// request.
	Answered func() (ago time.Duration, ever bool)
	// Endpoint is kubelet's address of the apiserver, host:port. ErrNotConfigured: it is not configured on this node.
	Endpoint func() (string, error)
	// Reach makes a new connection to it and sends GET /livez without credentials: any status is an answer.
	Reach func(ctx context.Context) (status int, err error)
}

// SeenNode returns the Node from a watch, or reads it. It must not be changed.
func (c Cluster) SeenNode(ctx context.Context) (*corev1.Node, error) {
	if c.Watched != nil {
		if node := c.Watched(); node != nil {
			return node, nil
		}
	}
	return Ask(ctx, "apiserver", c.Node)
}

// Process is one process with an identity that outlives the reuse of its PID.
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

// Network answers questions about the kernel's network stack that no file answers. It sends no packets, and does not
// wait for the RTNL lock, which may be held for minutes on a sick node.
type Network struct {
	// Route looks up the route of a packet from the node to an address. It returns nil if there is one, otherwise the
	// kernel's error (ENETUNREACH, EHOSTUNREACH …).
	Route func(to netip.Addr) error
	// RouteDevice names the device of that route.
	RouteDevice func(to netip.Addr) (string, error)
	// BusiestPorts finds the peer with most of this node's TCP connections from local ports first to last. It reads all
	// sockets, about a microsecond each: call it only for a reason.
	BusiestPorts func(ctx context.Context, first, last uint16) (netlink.PortUse, error)

	// PacketFilter and Layout replace the kernel's answers in tests. If a fixture tree replaces the host's files, any
	// function without a replacement is not configured.
	PacketFilter func() (packetfilter.PacketFilter, error)
	Layout       func() (netlink.NetworkLayout, error)
}

// NewNetwork returns the client of the agent's own network namespace.
func NewNetwork() Network {
	return Network{Route: netlink.LookupRoute, RouteDevice: netlink.RouteDevice, BusiestPorts: netlink.BusiestPorts}
}
