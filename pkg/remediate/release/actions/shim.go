package actions

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// shimAction ends shims that containerd has lost and that have no processes below them. containerd notices the end of a
// shim, and removes its bundle and the mount of the root filesystem itself.
func shimAction() Action {
	return Action{
		Kind: object.Shim,
		Plan: func(o object.Assessment, s Settings) (string, string) {
			does := fmt.Sprintf("end shim %s once no process is below it: SIGTERM, after %s SIGKILL", o.ID, s.ProcessGrace)
			if o.Facts["command"] == "conmon" {
				return does, "it is CRI-O's, which has no API to lose it"
			}
			return does, ""
		},
		Needs: after(object.Sandbox, object.Container, object.ContainerdContainer, object.Process),
		// The processes below it are checked right before each signal: the inspection may be a minute old.
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			shim := mutate.Shim{PID: o.Identity.Process.PID, StartTime: o.Identity.Process.StartTime, ID: o.ContainerID}
			return t.Mutator.EndShim(ctx, shim, t.Settings.ProcessGrace)
		},
		Verify: func(_ context.Context, t Tools, o object.Assessment) (bool, error) {
			return t.Mutator.Ended(mutate.Process{PID: o.Identity.Process.PID, StartTime: o.Identity.Process.StartTime})
		},
	}
}
