package release

import (
	"context"
	"fmt"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// containerAction removes containers that the runtime still lists when their sandbox is gone or cannot be removed.
func containerAction() Action {
	return Action{
		Kind: object.Container, Order: 20,
		Summary: "CRI: StopContainer with grace, RemoveContainer",
		Plan: func(o object.Assessment, s Settings) (string, string) {
			return fmt.Sprintf("stop container %s (%s) with %s grace and remove it, through CRI",
				shortID(o.ID), o.Facts["name"], graceOf(o.Facts["terminationGracePeriod"], s)), ""
		},
		Needs: notFrozen,
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			container := runtimeObject(o)
			if err := t.Mutator.StopContainer(ctx, container, graceOf(o.Facts["terminationGracePeriod"],
				t.Settings)); err != nil {
				return fmt.Errorf("stop container: %w", err)
			}
			if err := t.goOn("container: stopped"); err != nil {
				return err
			}
			return t.Mutator.RemoveContainer(ctx, container)
		},
		Verify: func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
			containers, err := listCRI(ctx, t.Host.Runtime.Containers)
			return err == nil && !slices.ContainsFunc(containers, func(c *cri.Container) bool {
				return c.GetId() == o.ID
			}), err
		},
	}
}
