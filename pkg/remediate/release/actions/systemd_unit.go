package actions

import (
	"context"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// systemdUnitAction makes systemd forget failed units of a deleted pod: its slice, and the scope in which kubelet made
// a mount.
func systemdUnitAction() Action {
	return Action{
		Kind: object.SystemdUnit,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			does := fmt.Sprintf("have systemd forget %s, which is %s", o.ID, o.Facts["active"])
			if o.Facts["active"] != "failed" {
				return does, "it has not failed: systemd forgets it by itself once no unit refers to it"
			}
			return does, ""
		},
		Needs: after(object.Sandbox, object.Container, object.ContainerdContainer, object.Process,
			object.Mount, object.Cgroup),
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.ResetFailedUnit(ctx, o.ID)
		},
		Verify: func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
			units, err := t.Host.Systemd.PodUnits(ctx)
			return err == nil && !slices.ContainsFunc(units, func(unit systemd.PodUnit) bool {
				return unit.Name == o.ID && unit.Active == "failed"
			}), err
		},
	}
}
