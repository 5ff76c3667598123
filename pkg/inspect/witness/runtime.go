package witness

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Labels and annotations that kubelet puts on containers: pkg/kubelet/types/labels.go and
// pkg/kubelet/kuberuntime/labels.go.
const (
	UIDLabel        = "io.kubernetes.pod.uid"
	NamespaceLabel  = "io.kubernetes.pod.namespace"
	NameLabel       = "io.kubernetes.pod.name"
	GraceAnnotation = "io.kubernetes.pod.terminationGracePeriod" // of the pod, in seconds
)

// KindLabel is on all objects of containerd's CRI plugin in its namespace; the value is sandbox or container.
const KindLabel = "io.cri-containerd.kind"

// RuntimeInventory is the container runtime's answer over CRI.
type RuntimeInventory struct {
	Response
	Name       string                   // "containerd", "cri-o"; empty when not reported
	Sandboxes  map[string]SandboxFact   // by ID
	Pods       map[string]SandboxFact   // by UID: one of its sandboxes, a READY one if there is any
	Containers map[string]string        // sandbox ID by container ID
	Running    map[string]bool          // UIDs with a running container
	Misnamed   map[string]bool          // UIDs whose sandboxes have different pod names
	Grace      map[string]time.Duration // termination grace period by UID
	Ready      Condition
	NetReady   Condition
	Age        time.Duration // of the process
	AgeErr     error         `json:"-"`
}

// SandboxFact is the runtime's statement about one sandbox.
type SandboxFact struct {
	object.Pod
	ID     string
	State  string // READY, NOTREADY
	Source string // where kubelet had the pod from: api, file, http
}

// Condition is one condition of the runtime.
type Condition struct {
	OK  bool
	Why string
}

// ContainerdInventory holds the objects that containerd knows below CRI.
type ContainerdInventory struct {
	Response
	Other string            // the runtime's name when it is not containerd; containerd is then not a witness
	Known map[string]string // by container or lease ID: what it is
	Pods  map[string]bool   // UIDs in container labels
}

func askRuntime(ctx context.Context, scan *hostscan.Scan) RuntimeInventory {
	r := RuntimeInventory{
		Response:  Response{Asked: true, At: scan.Host.Clock()},
		Sandboxes: make(map[string]SandboxFact), Pods: make(map[string]SandboxFact),
		Containers: make(map[string]string), Grace: make(map[string]time.Duration),
		Running: make(map[string]bool), Misnamed: make(map[string]bool),
	}
	sandboxes, err := scan.Sandboxes()
	if err != nil {
		r.Err = err
		return r
	}
	containers, err := scan.Containers()
	if err != nil {
		r.Err = err
		return r
	}
	for _, s := range sandboxes {
		fact := SandboxFact{
			Pod: PodOfSandbox(s), ID: s.GetId(), State: SandboxState(s.GetState()),
			Source: s.GetAnnotations()[SourceAnnotation],
		}
		r.Sandboxes[fact.ID] = fact
		if known, ok := r.Pods[fact.UID]; ok && known.Pod != fact.Pod {
			r.Misnamed[fact.UID] = true
		}
		if r.Pods[fact.UID].State != "READY" {
			r.Pods[fact.UID] = fact
		}
	}
	for _, c := range containers {
		r.Containers[c.GetId()] = c.GetPodSandboxId()
		uid := c.GetLabels()[UIDLabel]
		if runs(c.GetState()) {
			r.Running[uid], r.Running[r.Sandboxes[c.GetPodSandboxId()].UID] = true, true
		}
		if seconds, err := strconv.ParseInt(c.GetAnnotations()[GraceAnnotation], 10, 32); err == nil {
			r.Grace[uid] = max(r.Grace[uid], time.Duration(seconds)*time.Second)
		}
	}
	if version, err := host.Ask(ctx, "runtime", scan.Host.Runtime.Version); err == nil {
		r.Name = version.GetRuntimeName()
	}
	delete(r.Running, "")
	r.Ready, r.NetReady = askConditions(ctx, scan)
	process, err := scan.Runtime()
	r.Age, r.AgeErr = process.Age(scan.Host.Clock().SinceBoot), err
	return r
}

// runs reports whether a container may be running: an unknown state counts as running.
func runs(state cri.ContainerState) bool {
	return state == cri.ContainerState_CONTAINER_RUNNING || state == cri.ContainerState_CONTAINER_UNKNOWN
}

// askConditions asks for RuntimeReady and NetworkReady.
func askConditions(ctx context.Context, scan *hostscan.Scan) (runtime, network Condition) {
	status, err := host.Ask(ctx, "runtime", scan.Host.Runtime.Status)
	if err != nil {
		why := "its status could not be read: " + err.Error()
		return Condition{Why: why}, Condition{Why: why}
	}
	return conditionOf(status, cri.RuntimeReady), conditionOf(status, cri.NetworkReady)
}

func conditionOf(status *cri.StatusResponse, kind string) Condition {
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() != kind {
			continue
		}
		if c.GetStatus() {
			return Condition{OK: true, Why: kind + " is true"}
		}
		return Condition{Why: strings.TrimSpace(fmt.Sprintf("%s is false: %s %s", kind, c.GetReason(), c.GetMessage()))}
	}
	return Condition{Why: "the runtime does not report " + kind}
}

// askContainerd lists containerd's containers and leases. A sandbox being created has a lease or a container with its
// ID long before CRI lists it.
func askContainerd(_ context.Context, scan *hostscan.Scan) ContainerdInventory {
	c := ContainerdInventory{
		Response: Response{Asked: true, At: scan.Host.Clock()},
		Known:    make(map[string]string), Pods: make(map[string]bool),
	}
	leases, err := scan.Leases()
	if err != nil {
		c.Err = err
		return c
	}
	containers, err := scan.Records()
	if err != nil {
		c.Err = err
		return c
	}
	for _, lease := range leases {
		c.Known[lease.ID] = LeaseName
	}
	for _, record := range containers {
		c.Known[record.ID] = "container"
		if uid := record.Labels[UIDLabel]; uid != "" {
			c.Pods[uid] = true
		}
	}
	return c
}

// LeaseName is the name of a lease in ContainerdInventory.Known.
const LeaseName = "lease"

func PodOfSandbox(s *cri.PodSandbox) object.Pod {
	return object.Pod{UID: s.GetMetadata().GetUid(), Namespace: s.GetMetadata().GetNamespace(),
		Name: s.GetMetadata().GetName()}
}

func PodOfLabels(labels map[string]string) object.Pod {
	return object.Pod{UID: labels[UIDLabel], Namespace: labels[NamespaceLabel], Name: labels[NameLabel]}
}

// SandboxState returns READY or NOTREADY.
func SandboxState(state cri.PodSandboxState) string {
	return strings.TrimPrefix(state.String(), "SANDBOX_")
}
