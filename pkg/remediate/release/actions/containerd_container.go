package actions

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// containerdContainerAction removes containers that containerd has and CRI has lost: kubelet cannot stop them, and they
// run beside the new copy of the pod. It asks containerd itself, in the order of containerd's own client.
func containerdContainerAction() Action {
	return Action{
		Kind: object.ContainerdContainer,
		Plan: func(o object.Assessment, s Settings) (string, string) {
			return fmt.Sprintf("end the task of container %s (%s) with %s grace, delete it, and the container with its "+
				"snapshot, through containerd", shortID(o.ID), cmp.Or(o.Facts["name"], o.Facts["kind"]), s.ContainerGrace), ""
		},
		// A sandbox goes after its containers, which may live in its namespaces.
		Less: func(a, b object.Assessment) int {
			inSandbox := func(o object.Assessment) int { return rank(o.Facts["kind"] != "sandbox") }
			return cmp.Or(cmp.Compare(inSandbox(a), inSandbox(b)), cmp.Compare(a.ID, b.ID))
		},
		Needs: func(o object.Assessment, rest []object.Assessment, s Settings) string {
			for _, other := range rest {
				if other.Kind == object.Sandbox || other.Kind == object.Container {
					return fmt.Sprintf("the %s %s of its pod goes first, through CRI", other.Kind, shortID(other.ID))
				}
			}
			return notFrozen(o, rest, s)
		},
		Do: releaseContainerdContainer,
		Verify: func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
			return unlisted(ctx, "containers", t.Host.Containerd.Containers,
				func(c containers.Container) bool { return c.ID == o.ID })
		},
	}
}

func releaseContainerdContainer(ctx context.Context, t Tools, o object.Assessment) error {
	container := mutate.RuntimeContainer{ID: o.Identity.Runtime.ID, CreatedAt: o.Identity.Runtime.Created, UID: o.Pod.UID}
	err := within("end the task", t.Mutator.EndRuntimeTask(ctx, container, t.Settings.ContainerGrace))
	err = t.then(err, "containerd-container: task ended",
		func() error { return t.Mutator.DeleteRuntimeTask(ctx, container) })
	return t.then(err, "containerd-container: task deleted",
		func() error { return t.Mutator.DeleteRuntimeContainer(ctx, container) })
}
