package mutate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// RuntimeObject is the identity of a CRI sandbox or container.
type RuntimeObject struct {
	ID        string
	CreatedAt int64 // nanoseconds since the epoch, as the runtime reports it
}

// stopSlack is how long the runtime may take beyond a container's grace before the call is given up.
const stopSlack = 30 * time.Second

// networkLimit bounds StopPodSandbox, which waits for CNI plugins: kubelet gives it two minutes.
const networkLimit = 2 * time.Minute

// StopContainer asks the runtime to end a container: the image's stop signal, and after grace SIGKILL. It is no error
// if the container is gone.
func (d *Mutator) StopContainer(ctx context.Context, c RuntimeObject, grace time.Duration) error {
	return d.onContainer(ctx, c, grace+stopSlack, func(ctx context.Context) error {
		_, err := d.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.ID,
			Timeout: int64(grace.Seconds())})
		return err
	})
}

// RemoveContainer removes an ended container. It refuses a running one: CRI would kill it at once.
func (d *Mutator) RemoveContainer(ctx context.Context, c RuntimeObject) error {
	return d.onContainer(ctx, c, stopSlack, func(ctx context.Context) error {
		listed, err := d.listed(ctx, c.ID)
		if err != nil {
			return err
		}
		if listed.GetState() == cri.ContainerState_CONTAINER_RUNNING {
			return refuse("container %s runs", c.ID)
		}
		_, err = d.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID})
		return err
	})
}

// StopSandbox asks the runtime to end the rest of a sandbox and to take down its network. If a CNI plugin refuses, the
// error contains the plugin's message.
func (d *Mutator) StopSandbox(ctx context.Context, s RuntimeObject) error {
	return d.onSandbox(ctx, s, networkLimit, func(ctx context.Context) error {
		_, err := d.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.ID})
		return err
	})
}

// RemoveSandbox removes a sandbox that is no longer ready, with the containers in it. It refuses a ready one.
func (d *Mutator) RemoveSandbox(ctx context.Context, s RuntimeObject) error {
	return d.onSandbox(ctx, s, networkLimit, func(ctx context.Context) error {
		answer, err := d.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.ID})
		if err != nil {
			return err
		}
		if answer.GetStatus().GetState() == cri.PodSandboxState_SANDBOX_READY {
			return refuse("sandbox %s is ready", s.ID)
		}
		_, err = d.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.ID})
		return err
	})
}

func (d *Mutator) onContainer(ctx context.Context, c RuntimeObject, limit time.Duration,
	change func(context.Context) error) error {
	return d.onRuntime(ctx, c, limit, func(ctx context.Context) (int64, error) {
		listed, err := d.listed(ctx, c.ID)
		return listed.GetCreatedAt(), err
	}, change)
}

// listed returns a container as the runtime lists it, as inspections do: CRI-O reports another creation time in its
// status than in its list. If the container is gone, the error is codes.NotFound.
func (d *Mutator) listed(ctx context.Context, id string) (*cri.Container, error) {
	answer, err := d.runtime.ListContainers(ctx,
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: id}})
	if err != nil {
		return nil, err
	}
	for _, c := range answer.GetContainers() {
		if c.GetId() == id {
			return c, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "container %s is not listed", id)
}

func (d *Mutator) onSandbox(ctx context.Context, s RuntimeObject, limit time.Duration,
	change func(context.Context) error) error {
	return d.onRuntime(ctx, s, limit, func(ctx context.Context) (int64, error) {
		answer, err := d.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.ID})
		return answer.GetStatus().GetCreatedAt(), err
	}, change)
}

// onRuntime makes sure that the object is the evaluated one and then changes it. The runtime accepts any unambiguous
// abbreviation of an ID, so only complete IDs are let through.
func (d *Mutator) onRuntime(ctx context.Context, o RuntimeObject, limit time.Duration,
	created func(context.Context) (int64, error), change func(context.Context) error) error {
	if d.runtime == nil {
		return hosterr.ErrNotConfigured
	}
	if !host.IsContainerID(o.ID) {
		return refuse("%q is no whole ID", o.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	at, err := created(ctx)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return notBegun(fmt.Errorf("status of %s: %w", o.ID, err))
	}
	if at != o.CreatedAt {
		return changed("%s was created at %d instead of %d", o.ID, at, o.CreatedAt)
	}
	if err := change(ctx); err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	return nil
}
