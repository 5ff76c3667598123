package kinds

import (
	"context"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func containerSpec() Spec {
	return Spec{
		Kind: object.Container, List: listContainers, FromRuntime: true,
		What: "a container of the runtime (CRI), in any state",
		Harm: "it may still run and write to volumes that another node uses by now",
	}
}

// listContainers lists CRI containers in every state.
func listContainers(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	containers, err := scan.Containers()
	if err != nil {
		return nil, err
	}
	objects := make([]object.Object, 0, len(containers))
	for _, c := range containers {
		labels := c.GetLabels()
		objects = append(objects, object.Object{
			Kind: object.Container,
			ID:   c.GetId(),
			Pod: object.Pod{UID: labels[witness.UIDLabel], Namespace: labels[witness.NamespaceLabel],
				Name: labels[witness.NameLabel]},
			SandboxID:   c.GetPodSandboxId(),
			ContainerID: c.GetId(),
			Identity:    object.Identity{Runtime: object.RuntimeID{ID: c.GetId(), Created: c.GetCreatedAt()}},
			Facts: object.Facts(
				"name", c.GetMetadata().GetName(),
				"state", strings.TrimPrefix(c.GetState().String(), "CONTAINER_"),
				"attempt", strconv.FormatUint(uint64(c.GetMetadata().GetAttempt()), 10),
				"terminationGracePeriod", c.GetAnnotations()[witness.GraceAnnotation],
			),
			Foreign: object.ForeignUID(labels[witness.UIDLabel]),
		})
	}
	return objects, nil
}
