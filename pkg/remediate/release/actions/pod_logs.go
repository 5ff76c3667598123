package actions

import (
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// podLogsAction removes the logs of deleted pods that kubelet's garbage collection has left for a day.
func podLogsAction() Action {
	return Action{
		Kind: object.PodLogs,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("remove the container logs in %s (%s bytes)", o.ID, o.Facts["bytes"]), ""
		},
		// While other objects are left, the logs may explain why.
		Needs: func(_ object.Assessment, rest []object.Assessment, _ Settings) string {
			for _, other := range rest {
				if other.Kind != object.PodLogs && !other.IsDead() {
					return fmt.Sprintf("the %s %s of its pod still exists", other.Kind, shortID(other.ID))
				}
			}
			return ""
		},
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.RemovePodLogs(ctx, mutate.PodLogs{Dir: o.ID, UID: o.Pod.UID, File: fileOf(o)})
		},
		Verify: fileGone,
	}
}
