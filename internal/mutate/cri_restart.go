package mutate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// EndContainer asks the runtime to end a container that kubelet will start again: the image's stop signal, and after
// grace SIGKILL. Unlike StopContainer, which makes sure that a container is gone, it requires the inspected container
// to be running: if it has ended or was removed meanwhile, the error is ErrChanged. Nil means that it has ended. If it
// still runs after SIGKILL, because one of its processes hangs in the kernel, the error is a StillRuns.
func (d *Mutator) EndContainer(ctx context.Context, c RuntimeObject, grace time.Duration) error {
	if d.runtime == nil {
		return hosterr.ErrNotConfigured
	}
	state, err := d.containerState(ctx, c)
	if err != nil {
		return notBegun(err)
	}
	if state != cri.ContainerState_CONTAINER_RUNNING {
		return changed("container %s does not run any more (%s)", c.ID, state)
	}
	stopErr := d.StopContainer(ctx, c, grace) // compares once more
	state, err = d.stateAfterStop(context.WithoutCancel(ctx), c)
	switch {
	case state == cri.ContainerState_CONTAINER_RUNNING:
		return StillRuns{ID: c.ID, Err: stopErr}
	case stopErr != nil && state != cri.ContainerState_CONTAINER_EXITED:
		return stopErr
	case errors.Is(err, ErrChanged): // kubelet was quick and removed it
		return nil
	}
	return err
}

// noticeLimit is how long a runtime may take to list a container as ended.
const noticeLimit = 5 * time.Second

// stateAfterStop waits until the runtime has noticed that a container has ended. On a busy node containerd learns of
// the exit before its kill returns, closes the connection to the shim ("ttrpc: closed"), answers the stop with that
// error, and lists the container as running until it has cleaned up.
func (d *Mutator) stateAfterStop(ctx context.Context, c RuntimeObject) (cri.ContainerState, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(noticeLimit); ; {
		state, err := d.containerState(ctx, c)
		if err != nil || state != cri.ContainerState_CONTAINER_RUNNING {
			return state, err
		}
		select {
		case <-deadline:
			return state, nil
		case <-tick.C:
		}
	}
}

// StillRuns is the error of EndContainer when the container has outlived SIGKILL.
type StillRuns struct {
	ID  string
	Err error // error of the runtime; may be nil
}

func (e StillRuns) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("container %s still runs", e.ID)
	}
	return fmt.Sprintf("container %s still runs: %v", e.ID, e.Err)
}

func (e StillRuns) Unwrap() error { return e.Err }

// containerState returns the state of a container if it is the inspected one, and ErrChanged if that is gone.
func (d *Mutator) containerState(ctx context.Context, c RuntimeObject) (cri.ContainerState, error) {
	const unknown = cri.ContainerState_CONTAINER_UNKNOWN
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	listed, err := d.listed(ctx, c.ID)
	if status.Code(err) == codes.NotFound {
		return unknown, fmt.Errorf("container %s is gone: %w", c.ID, ErrChanged)
	}
	if err != nil {
		return unknown, fmt.Errorf("status of %s: %w", c.ID, err)
	}
	if at := listed.GetCreatedAt(); at != c.CreatedAt {
		return unknown, changed("%s was created at %d instead of %d", c.ID, at, c.CreatedAt)
	}
	return listed.GetState(), nil
}

// statusLimit bounds one call to the runtime.
const statusLimit = 20 * time.Second
