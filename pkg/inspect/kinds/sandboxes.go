package kinds

import (
	"context"
	"strconv"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func sandboxSpec() Spec {
	return Spec{
		Kind: object.Sandbox, List: listSandboxes, FromRuntime: true,
		What: "a pod sandbox of the runtime (CRI), in any state",
		Harm: "its name, address and cgroup stay taken: a new pod of that name waits in ContainerCreating",
	}
}

// listSandboxes lists CRI pod sandboxes in every state, all attempts.
func listSandboxes(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	sandboxes, err := scan.Sandboxes()
	if err != nil {
		return nil, err
	}
	objects := make([]object.Object, 0, len(sandboxes))
	for _, s := range sandboxes {
		objects = append(objects, object.Object{
			Kind:      object.Sandbox,
			ID:        s.GetId(),
			Pod:       witness.PodOfSandbox(s),
			SandboxID: s.GetId(),
			Identity:  object.Identity{Runtime: object.RuntimeID{ID: s.GetId(), Created: s.GetCreatedAt()}},
			Facts: object.Facts(
				"state", witness.SandboxState(s.GetState()),
				"attempt", strconv.FormatUint(uint64(s.GetMetadata().GetAttempt()), 10),
				"source", s.GetAnnotations()[witness.SourceAnnotation],
				"handler", s.GetRuntimeHandler(),
			),
			Foreign: object.ForeignUID(s.GetMetadata().GetUid()),
		})
	}
	return objects, nil
}
