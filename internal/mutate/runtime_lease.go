package mutate

import (
	"context"
	"fmt"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
)

// RuntimeLease is the identity of containerd's lease of a sandbox.
type RuntimeLease struct {
	ID        string // of the sandbox
	CreatedAt int64  // nanoseconds since the epoch
}

// leaseLimit bounds the checks and the deletion, which containerd only records.
const leaseLimit = 30 * time.Second

// DeleteRuntimeLease deletes the lease of a sandbox that containerd no longer has, in the namespace of the CRI plugin.
// It does not delete the resources that the lease kept: containerd's own garbage collector does that, later. It is no
// error if the lease is gone.
func (d *Mutator) DeleteRuntimeLease(ctx context.Context, l RuntimeLease) error {
	if !host.IsContainerID(l.ID) {
		return refuse("lease %q is no sandbox's: its ID has another form", l.ID)
	}
	socket := d.host.Paths.ContainerdSocket
	if socket == "" || d.runtime == nil {
		return refuse("lease %s: no containerd is configured", l.ID)
	}
	c, err := hostcri.ConnectContainerd(socket)
	if err != nil {
		return notBegun(fmt.Errorf("containerd %s: %w", socket, err))
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, hostcri.Namespace), leaseLimit)
	defer cancel()
	listed, err := c.LeasesService().List(ctx)
	if err != nil {
		return notBegun(fmt.Errorf("leases: %w", err))
	}
	exists := false
	for _, lease := range listed {
		if lease.ID != l.ID {
			continue
		}
		exists = true
		if created := lease.CreatedAt.UnixNano(); created != l.CreatedAt {
			return changed("lease %s was created at %d instead of %d", l.ID, created, l.CreatedAt)
		}
		if len(lease.Labels) > 0 {
			return refuse("lease %s carries labels, and the CRI plugin gives none", l.ID)
		}
	}
	if !exists {
		return nil
	}
	if err := d.sandboxGone(ctx, c, l.ID); err != nil {
		return notBegun(fmt.Errorf("lease %s: %w", l.ID, err))
	}
	if err := c.LeasesService().Delete(ctx, leases.Lease{ID: l.ID}); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete lease %s: %w", l.ID, err)
	}
	return nil
}

// sandboxGone makes sure that the runtime has no object under the ID of a sandbox: neither CRI's own, nor containerd's,
// which are created before CRI's.
func (d *Mutator) sandboxGone(ctx context.Context, c *client.Client, id string) error {
	for _, ask := range []struct {
		what string
		get  func() error
	}{
		{"CRI has the sandbox", func() error {
			_, err := d.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
			return err
		}},
		{"containerd has a record of the sandbox", func() error {
			_, err := c.SandboxStore().Get(ctx, id)
			if errdefs.IsNotImplemented(err) {
				return errdefs.ErrNotFound // containerd 1.6 has no such store
			}
			return err
		}},
		{"containerd has a container of the sandbox", func() error {
			_, err := c.ContainerService().Get(ctx, id)
			return err
		}},
		{"containerd has a task of the sandbox", func() error {
			_, err := c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
			return err
		}},
	} {
		if err := mustBeMissing(ask.what, ask.get()); err != nil {
			return err
		}
	}
	return nil
}
