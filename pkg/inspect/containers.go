package inspect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Labels and annotations that kubelet puts on containers: pkg/kubelet/types/labels.go and
// pkg/kubelet/kuberuntime/labels.go.
const (
	uidLabel        = "io.kubernetes.pod.uid"
	namespaceLabel  = "io.kubernetes.pod.namespace"
	nameLabel       = "io.kubernetes.pod.name"
	GraceAnnotation = "io.kubernetes.pod.terminationGracePeriod" // of the pod, in seconds
)

// kindLabel is on everything that containerd's CRI plugin creates in its namespace; the value is sandbox or container.
const kindLabel = "io.cri-containerd.kind"

func containerSpec() KindSpec {
	return KindSpec{
		Kind: Container, List: listContainers, FromRuntime: true,
		What: "a container of the runtime (CRI), in any state",
		Harm: "it may still run and write to volumes that another node uses by now",
	}
}

// listContainers lists CRI containers in every state, and as foreign the containers in containerd's namespace k8s.io
// that were created by hand.
func listContainers(ctx context.Context, scan *Scan) ([]Object, error) {
	containers, err := scan.containers()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(containers))
	for _, c := range containers {
		labels := c.GetLabels()
		objects = append(objects, Object{
			Kind:        Container,
			ID:          c.GetId(),
			Pod:         Pod{UID: labels[uidLabel], Namespace: labels[namespaceLabel], Name: labels[nameLabel]},
			SandboxID:   c.GetPodSandboxId(),
			ContainerID: c.GetId(),
			Identity:    Identity{"id": c.GetId(), "created": strconv.FormatInt(c.GetCreatedAt(), 10)},
			Facts: facts(
				"name", c.GetMetadata().GetName(),
				"state", containerState(c.GetState()),
				"attempt", strconv.FormatUint(uint64(c.GetMetadata().GetAttempt()), 10),
				"terminationGracePeriod", c.GetAnnotations()[GraceAnnotation],
			),
			Foreign: foreignUID(labels[uidLabel]),
		})
	}
	handmade, err := handmadeContainers(ctx, scan)
	return append(objects, handmade...), err
}

// handmadeContainers lists containers in containerd's namespace k8s.io that were not created through CRI.
func handmadeContainers(ctx context.Context, scan *Scan) ([]Object, error) {
	records, err := ask(ctx, "containerd", scan.Host.Containerd.Containers)
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil, nil // another runtime
	}
	if err != nil {
		return nil, fmt.Errorf("containerd's containers: %w", err)
	}
	var objects []Object
	for _, record := range records {
		if record.Labels[kindLabel] != "" {
			continue
		}
		objects = append(objects, Object{
			Kind:        Container,
			ID:          record.ID,
			ContainerID: record.ID,
			Identity: Identity{"id": record.ID,
				"created": strconv.FormatInt(record.CreatedAt.UnixNano(), 10)},
			Facts:   facts("image", record.Image),
			Foreign: "created by hand in containerd's namespace k8s.io: it has no label " + kindLabel,
		})
	}
	return objects, nil
}

// containerState returns CREATED, RUNNING, EXITED or UNKNOWN.
func containerState(state cri.ContainerState) string {
	return strings.TrimPrefix(state.String(), "CONTAINER_")
}
