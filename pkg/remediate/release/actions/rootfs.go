package actions

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// rootfsAction removes the bundle of a container that containerd has otherwise lost. containerd does so only at
// startup, and never if its own removal was interrupted. The bundle of a known container is released with the
// container, and that of a shim with the shim.
func rootfsAction() Action {
	return Action{
		Kind: object.Rootfs,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("unmount the root filesystem in %s (mounts: %s) and remove that bundle", o.ID,
				o.Facts["mounts"]), ""
		},
		Needs: after(object.Sandbox, object.Container, object.ContainerdContainer, object.Process, object.Shim),
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			bundle := runtimeDirectoryOf(o)
			return t.then(t.Mutator.UnmountRootfs(ctx, bundle), "rootfs: unmounted",
				func() error { return t.Mutator.RemoveBundle(ctx, bundle) })
		},
		Verify: fileGone,
	}
}

func runtimeDirectoryOf(o object.Assessment) mutate.RuntimeDirectory {
	return mutate.RuntimeDirectory{Dir: o.ID, File: fileOf(o)}
}
