package remediate

import (
	"context"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// sandboxDirectoryAction removes what containerd's CRI plugin made on the disk for a sandbox: containerd does so itself,
// but for what it has lost only when it starts.
func sandboxDirectoryAction() Action {
	return Action{
		Kind: inspect.SandboxDirectory, Order: 67,
		Summary: "unmount shm, without force, then remove the plugin's own files by name and the directory by rmdir",
		Plan: func(o inspect.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("unmount the shared memory in %s (mounts: %s) and remove that directory", o.ID,
				o.Facts["shmMounts"]), ""
		},
		Needs: func(_ inspect.Assessment, rest []inspect.Assessment, _ Settings) string {
			before := []inspect.Kind{inspect.Sandbox, inspect.Container, inspect.ContainerdContainer, inspect.Process,
				inspect.Shim}
			for _, other := range rest {
				if slices.Contains(before, other.Kind) && !isDead(other) {
					return fmt.Sprintf("the %s %s of its pod still exists", other.Kind, shortID(other.ID))
				}
			}
			return ""
		},
		Do: func(ctx context.Context, t Tools, o inspect.Assessment) error {
			file, err := fileOf(o)
			if err != nil {
				return err
			}
			directory := mutate.SandboxDirectory{Dir: o.ID, File: file}
			if err := t.Mutator.UnmountShm(ctx, directory); err != nil {
				return err
			}
			if err := t.FaultPoint("sandbox-directory: unmounted"); err != nil {
				return err
			}
			return t.Mutator.RemoveSandboxDirectory(ctx, directory)
		},
		Verify: fileGone,
	}
}
