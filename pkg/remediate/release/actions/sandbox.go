package actions

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// sandboxAction leaves as much as possible to the runtime: it stops containers, takes down the network through CNI, and
// removes cgroups, root filesystems and the name. StopPodSandbox alone would kill containers without a grace period.
func sandboxAction() Action {
	return Action{
		Kind: object.Sandbox,
		Plan: func(o object.Assessment, s Settings) (string, string) {
			return fmt.Sprintf(
				"stop the containers of sandbox %s with %s grace, stop it (CNI DEL) and remove it, through CRI",
				shortID(o.ID), s.ContainerGrace), ""
		},
		Needs: notFrozen,
		Do:    releaseSandbox,
		Verify: func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
			return unlisted(ctx, "container runtime", t.Host.Runtime.Sandboxes,
				func(s *cri.PodSandbox) bool { return s.GetId() == o.ID })
		},
	}
}

// notFrozen delays the runtime, which cannot stop containers whose processes are frozen. The process action thaws them.
func notFrozen(_ object.Assessment, rest []object.Assessment, _ Settings) string {
	frozen := slices.ContainsFunc(rest, func(o object.Assessment) bool {
		return o.Kind == object.Cgroup && o.Facts["frozen"] == "true"
	})
	alive := slices.ContainsFunc(rest, func(o object.Assessment) bool {
		return o.Kind == object.Process && !o.IsDead()
	})
	if frozen && alive {
		return "its processes are frozen: they are thawed and ended first"
	}
	return ""
}

func releaseSandbox(ctx context.Context, t Tools, o object.Assessment) error {
	containers, err := listed(ctx, "container runtime", t.Host.Runtime.Containers)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if c.GetPodSandboxId() != o.ID || c.GetState() != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		container := mutate.RuntimeObject{ID: c.GetId(), CreatedAt: c.GetCreatedAt()}
		grace := graceOf(c.GetAnnotations()[witness.GraceAnnotation], t.Settings)
		err := within("stop container "+shortID(c.GetId()), t.Mutator.StopContainer(ctx, container, grace))
		if err = t.then(err, "sandbox: container stopped", func() error { return nil }); err != nil {
			return err
		}
	}
	err = within("stop sandbox", t.Mutator.StopSandbox(ctx, runtimeObject(o)))
	return t.then(err, "sandbox: stopped", func() error {
		return within("remove sandbox", t.Mutator.RemoveSandbox(ctx, runtimeObject(o)))
	})
}

func runtimeObject(o object.Assessment) mutate.RuntimeObject {
	return mutate.RuntimeObject{ID: o.Identity.Runtime.ID, CreatedAt: o.Identity.Runtime.Created}
}

// graceOf returns the pod's grace period, but at most the configured one: the real grace period was over long ago.
func graceOf(seconds string, s Settings) time.Duration {
	n, err := strconv.ParseInt(seconds, 10, 32)
	if err != nil || n < 0 {
		return s.ContainerGrace
	}
	return min(time.Duration(n)*time.Second, s.ContainerGrace)
}
