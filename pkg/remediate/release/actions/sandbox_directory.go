package actions

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// sandboxDirectoryAction removes the files that containerd's CRI plugin made for a sandbox. containerd removes them
// itself, but those of a lost sandbox only at startup.
func sandboxDirectoryAction() Action {
	return Action{
		Kind: object.SandboxDirectory,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("unmount the shared memory in %s (mounts: %s) and remove that directory", o.ID,
				o.Facts["shmMounts"]), ""
		},
		Needs: after(object.Sandbox, object.Container, object.ContainerdContainer, object.Process, object.Shim),
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			directory := runtimeDirectoryOf(o)
			return t.then(t.Mutator.UnmountShm(ctx, directory), "sandbox-directory: unmounted",
				func() error { return t.Mutator.RemoveSandboxDirectory(ctx, directory) })
		},
		Verify: fileGone,
	}
}
