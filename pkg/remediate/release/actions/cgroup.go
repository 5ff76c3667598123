package actions

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// cgroupAction removes empty cgroups, children first. Volumes in memory must be unmounted before: otherwise their
// memory would be charged to the parent permanently (kubelet uses the same order).
func cgroupAction() Action {
	return Action{
		Kind: object.Cgroup,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf("remove the empty cgroup %s", o.ID), ""
		},
		Less: func(a, b object.Assessment) int {
			ofSystemd := func(o object.Assessment) int { return rank(o.Facts["hierarchy"] == "name=systemd") }
			return cmp.Or(
				cmp.Compare(strings.Count(b.ID, "/"), strings.Count(a.ID, "/")),
				cmp.Compare(ofSystemd(a), ofSystemd(b)), // systemd removes the others itself
				cmp.Compare(a.ID, b.ID),
			)
		},
		Needs: func(_ object.Assessment, rest []object.Assessment, _ Settings) string {
			for _, other := range rest {
				switch {
				case other.Kind == object.Mount && other.Identity.Mount.Type == "tmpfs":
					return fmt.Sprintf("a volume in memory is still mounted on %s", other.Identity.Mount.Point)
				case other.Kind == object.Container && other.Facts["state"] != "EXITED":
					return fmt.Sprintf("container %s still exists", shortID(other.ID))
				}
			}
			return ""
		},
		Do: func(ctx context.Context, t Tools, o object.Assessment) error {
			return t.Mutator.RemoveCgroup(ctx,
				mutate.Cgroup{Dir: o.ID, UID: o.Pod.UID, Driver: o.Facts["driver"], File: fileOf(o)})
		},
		Verify: fileGone,
	}
}
