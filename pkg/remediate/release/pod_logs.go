package release

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// podLogsAction removes the logs of deleted pods that kubelet's garbage collection has left for a day.
func podLogsAction() Action {
	return Action{
		Kind: inspect.PodLogs, Order: 120,
		Summary: "remove the runtime's log files by name, if no process has one open, and the directories by rmdir",
		Plan: func(o inspect.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("remove the container logs in %s (%s bytes)", o.ID, o.Facts["bytes"]), ""
		},
		// While other objects are left, the logs may explain why.
		Needs: func(_ inspect.Assessment, rest []inspect.Assessment, _ Settings) string {
			for _, other := range rest {
				if other.Kind != inspect.PodLogs && !isDead(other) {
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
			return t.Mutator.RemovePodLogs(ctx, mutate.PodLogs{Dir: o.ID, UID: o.Pod.UID, File: file})
		},
		Verify: fileGone,
	}
}
