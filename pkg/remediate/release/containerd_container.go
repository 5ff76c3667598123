package release

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// containerdContainerAction removes containers that containerd has and CRI has lost: kubelet cannot stop them, and they
// run beside the new copy of the pod. It asks containerd itself, in the order of containerd's own client.
func containerdContainerAction() Action {
	return Action{
		Kind: object.ContainerdContainer, Order: 25,
		Summary: "containerd: SIGTERM to the task, after the grace SIGKILL, delete the task, then the container with its " +
			"snapshot",
		Plan: func(o object.Assessment, s Settings) (string, string) {
			return fmt.Sprintf("end the task of container %s (%s) with %s grace, delete it, and the container with its "+
				"snapshot, through containerd", shortID(o.ID), cmp.Or(o.Facts["name"], o.Facts["kind"]), s.ContainerGrace), ""
		},
		// A sandbox goes after its containers, which may live in its namespaces.
		Less: func(a, b object.Assessment) int {
			return cmp.Or(cmp.Compare(isSandboxRecord(a), isSandboxRecord(b)), cmp.Compare(a.ID, b.ID))
		},
		Needs: func(o object.Assessment, rest []object.Assessment, s Settings) string {
			for _, other := range rest {
				if other.Kind == object.Sandbox || other.Kind == object.Container {
					return fmt.Sprintf("the %s %s of its pod goes first, through CRI", other.Kind, shortID(other.ID))
				}
			}
			return notFrozen(o, rest, s)
		},
		Do:     releaseContainerdContainer,
		Verify: containerdContainerGone,
	}
}

// isSandboxRecord is 1 for the container of a sandbox.
func isSandboxRecord(o object.Assessment) int {
	if o.Facts["kind"] == "sandbox" {
		return 1
	}
	return 0
}

func releaseContainerdContainer(ctx context.Context, t Tools, o object.Assessment) error {
	container := mutate.RuntimeContainer{ID: o.Identity.Runtime.ID, CreatedAt: o.Identity.Runtime.Created, UID: o.Pod.UID}
	if err := t.Mutator.EndRuntimeTask(ctx, container, t.Settings.ContainerGrace); err != nil {
		return fmt.Errorf("end the task: %w", err)
	}
	if err := t.goOn("containerd-container: task ended"); err != nil {
		return err
	}
	if err := t.Mutator.DeleteRuntimeTask(ctx, container); err != nil {
		return err
	}
	if err := t.goOn("containerd-container: task deleted"); err != nil {
		return err
	}
	return t.Mutator.DeleteRuntimeContainer(ctx, container)
}

// containerdContainerGone reports whether containerd no longer has a container of that ID.
func containerdContainerGone(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
	if t.Host.Containerd.Containers == nil {
		return false, fmt.Errorf("containers: %w", hosterr.ErrNotConfigured)
	}
	all, err := listCRI(ctx, t.Host.Containerd.Containers)
	if err != nil {
		return false, err
	}
	for _, record := range all {
		if record.ID == o.ID {
			return false, nil
		}
	}
	return true, nil
}
