package inspect

import (
	"context"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
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

func containerSpec() KindSpec {
	return KindSpec{
		Kind: Container, List: listContainers, FromRuntime: true,
		What: "a container of the runtime (CRI), in any state",
		Harm: "it may still run and write to volumes that another node uses by now",
	}
}

// listContainers lists CRI containers in every state.
func listContainers(_ context.Context, scan *hostscan.Scan) ([]Object, error) {
	containers, err := scan.Containers()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(containers))
	for _, c := range containers {
		labels := c.GetLabels()
		objects = append(objects, Object{
			Kind:        Container,
			ID:          c.GetId(),
			Pod:         Pod{UID: labels[UIDLabel], Namespace: labels[NamespaceLabel], Name: labels[NameLabel]},
			SandboxID:   c.GetPodSandboxId(),
			ContainerID: c.GetId(),
			Identity:    Identity{"id": c.GetId(), "created": strconv.FormatInt(c.GetCreatedAt(), 10)},
			Facts: Facts(
				"name", c.GetMetadata().GetName(),
				"state", containerState(c.GetState()),
				"attempt", strconv.FormatUint(uint64(c.GetMetadata().GetAttempt()), 10),
				"terminationGracePeriod", c.GetAnnotations()[GraceAnnotation],
			),
			Foreign: ForeignUID(labels[UIDLabel]),
		})
	}
	return objects, nil
}

// containerState returns CREATED, RUNNING, EXITED or UNKNOWN.
func containerState(state cri.ContainerState) string {
	return strings.TrimPrefix(state.String(), "CONTAINER_")
}

// containerdContainerSpec describes the containers below CRI. Their lister is in pkg/inspect/listers.
func containerdContainerSpec() KindSpec {
	return KindSpec{
		Kind: ContainerdContainer, FromRuntime: true, GoneFrom: []string{Runtime}, OptIn: true,
		What: "a container of containerd in the namespace `k8s.io` that CRI made and does not list, with its task",
		Harm: "kubelet cannot see, stop or remove it: its process may run beside the new copy of its pod, and its " +
			"name and snapshot stay taken",
	}
}
