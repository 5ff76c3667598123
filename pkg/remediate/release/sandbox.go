package release

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// sandboxAction leaves as much as possible to the runtime: it stops containers, takes down the network through CNI, and
// removes cgroups, root filesystems and the name. StopPodSandbox alone would kill containers without a grace period.
func sandboxAction() Action {
	return Action{
		Kind: object.Sandbox, Order: 10,
		Summary: "CRI: StopContainer with grace for each container, StopPodSandbox, RemovePodSandbox",
		Plan: func(o object.Assessment, s Settings) (string, string) {
			return fmt.Sprintf(
				"stop the containers of sandbox %s with %s grace, stop it (CNI DEL) and remove it, through CRI",
				shortID(o.ID), s.ContainerGrace), ""
		},
		Needs:  notFrozen,
		Do:     releaseSandbox,
		Verify: sandboxGone,
	}
}

// notFrozen delays the runtime, which cannot stop containers whose processes are frozen. The process action thaws them.
func notFrozen(_ object.Assessment, rest []object.Assessment, _ Settings) string {
	frozen := slices.ContainsFunc(rest, func(o object.Assessment) bool {
		return o.Kind == object.Cgroup && o.Facts["frozen"] == "true"
	})
	alive := slices.ContainsFunc(rest, func(o object.Assessment) bool {
		return o.Kind == object.Process && !isDead(o)
	})
	if frozen && alive {
		return "its processes are frozen: they are thawed and ended first"
	}
	return ""
}

func releaseSandbox(ctx context.Context, t Tools, o object.Assessment) error {
	sandbox := runtimeObject(o)
	containers, err := listCRI(ctx, t.Host.Runtime.Containers)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if c.GetPodSandboxId() != o.ID || c.GetState() != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		grace := graceOf(c.GetAnnotations()[witness.GraceAnnotation], t.Settings)
		if err := t.Mutator.StopContainer(ctx, mutate.RuntimeObject{ID: c.GetId(), CreatedAt: c.GetCreatedAt()},
			grace); err != nil {
			return fmt.Errorf("stop container %s: %w", shortID(c.GetId()), err)
		}
		if err := t.goOn("sandbox: container stopped"); err != nil {
			return err
		}
	}
	if err := t.Mutator.StopSandbox(ctx, sandbox); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	if err := t.goOn("sandbox: stopped"); err != nil {
		return err
	}
	if err := t.Mutator.RemoveSandbox(ctx, sandbox); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}

func runtimeObject(o object.Assessment) mutate.RuntimeObject {
	return mutate.RuntimeObject{ID: o.Identity.Runtime.ID, CreatedAt: o.Identity.Runtime.Created}
}

func sandboxGone(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
	sandboxes, err := listCRI(ctx, t.Host.Runtime.Sandboxes)
	return err == nil && !slices.ContainsFunc(sandboxes, func(s *cri.PodSandbox) bool { return s.GetId() == o.ID }), err
}

// graceOf returns the pod's grace period, but at most the configured one: the real grace period was over long ago.
func graceOf(seconds string, s Settings) time.Duration {
	n, err := strconv.ParseInt(seconds, 10, 32)
	if err != nil || n < 0 {
		return s.ContainerGrace
	}
	return min(time.Duration(n)*time.Second, s.ContainerGrace)
}

const listLimit = 30 * time.Second

func listCRI[T any](ctx context.Context, list func(context.Context) ([]T, error)) ([]T, error) {
	if list == nil {
		return nil, fmt.Errorf("container runtime: %w", hosterr.ErrNotConfigured)
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit) // a stopped runtime accepts connections and never answers
	defer cancel()
	return list(ctx)
}

// shortID abbreviates an ID for users.
func shortID(id string) string { return id[:min(len(id), 13)] }
