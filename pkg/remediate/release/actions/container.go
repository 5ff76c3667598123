package actions

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// containerAction removes containers that the runtime still lists when their sandbox is gone or cannot be removed.
func containerAction() Action {
	return Action{
		Kind: object.Container,
		Plan: func(o object.Assessment, s Settings) (string, string) {
			return fmt.Sprintf("stop container %s (%s) with %s grace and remove it, through CRI",
				shortID(o.ID), o.Facts["name"], graceOf(o.Facts["terminationGracePeriod"], s)), ""
		},
		Needs: notFrozen,
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			grace := graceOf(o.Facts["terminationGracePeriod"], t.Settings)
			err := within("stop container", t.Mutator.StopContainer(ctx, runtimeObject(o), grace))
			return t.then(err, "container: stopped", func() error {
				return t.Mutator.RemoveContainer(ctx, runtimeObject(o))
			})
		},
		Verify: func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
			return unlisted(ctx, "container runtime", t.Host.Runtime.Containers,
				func(c *cri.Container) bool { return c.GetId() == o.ID })
		},
	}
}
