package release

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// systemdUnitAction makes systemd forget failed units of a deleted pod: its slice, and the scope in which kubelet made
// a mount.
func systemdUnitAction() Action {
	return Action{
		Kind: object.SystemdUnit, Order: 110,
		Summary: "`reset-failed` of a transient unit",
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
			for _, unit := range units {
				if unit.Name == o.ID && unit.Active == "failed" {
					return false, err
				}
			}
			return err == nil, err
		},
	}
}
