package mutate

import (
	"context"
	"fmt"
	"path"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	sandbox "github.com/containerd/containerd/api/services/sandbox/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
)

// RuntimeLease is the identity of containerd's lease of a sandbox.
type RuntimeLease struct {
	ID        string // of the sandbox
	CreatedAt int64  // nanoseconds since the epoch
}

// leaseLimit bounds the questions before the deletion and the deletion itself, which containerd only notes.
const leaseLimit = 30 * time.Second

// DeleteRuntimeLease deletes the lease of a sandbox that containerd has no more, in the namespace of the CRI plugin.
// Nothing that the lease kept is deleted here: containerd's own collector does that, later. A lease that is gone is
// no error.
func (d *Mutator) DeleteRuntimeLease(ctx context.Context, l RuntimeLease) error {
	if !host.IsContainerID(l.ID) {
		return refuse("lease %q is no sandbox's: its ID has another form", l.ID)
	}
	socket := d.host.Paths.ContainerdSocket
	if socket == "" || d.runtime == nil {
		return refuse("lease %s: no containerd is configured", l.ID)
	}
	connection, err := grpc.NewClient("unix://"+path.Clean("/"+socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("containerd %s: %w", socket, err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(hostcri.InCRINamespace(ctx), leaseLimit)
	defer cancel()
	client := leases.NewLeasesClient(connection)
	answer, err := client.List(ctx, &leases.ListRequest{})
	if err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	there := false
	for _, lease := range answer.GetLeases() {
		if lease.GetID() != l.ID {
			continue
		}
		there = true
		if created := lease.GetCreatedAt().AsTime().UnixNano(); created != l.CreatedAt {
			return changed("lease %s was made at %d instead of %d", l.ID, created, l.CreatedAt)
		}
		if len(lease.GetLabels()) > 0 {
			return refuse("lease %s carries labels, and the CRI plugin gives none", l.ID)
		}
	}
	if !there {
		return nil
	}
	if err := d.sandboxGone(ctx, connection, l.ID); err != nil {
		return fmt.Errorf("lease %s: %w", l.ID, err)
	}
	if _, err := client.Delete(ctx, &leases.DeleteRequest{ID: l.ID, Sync: false}); err != nil &&
		status.Code(err) != codes.NotFound {
		return fmt.Errorf("delete lease %s: %w", l.ID, err)
	}
	return nil
}

// sandboxGone makes sure that the runtime has nothing under the ID of a sandbox: not CRI's own, nor what is below CRI
// and comes to be before it.
func (d *Mutator) sandboxGone(ctx context.Context, connection grpc.ClientConnInterface, id string) error {
	for _, ask := range []struct {
		what string
		get  func() error
	}{
		{"CRI has the sandbox", func() error {
			_, err := d.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
			return err
		}},
		{"containerd has a record of the sandbox", func() error {
			_, err := sandbox.NewStoreClient(connection).Get(ctx, &sandbox.StoreGetRequest{SandboxID: id})
			if status.Code(err) == codes.Unimplemented {
				return status.Error(codes.NotFound, "containerd 1.6 keeps none")
			}
			return err
		}},
		{"containerd has a container of the sandbox", func() error {
			_, err := containers.NewContainersClient(connection).Get(ctx, &containers.GetContainerRequest{ID: id})
			return err
		}},
		{"containerd has a task of the sandbox", func() error {
			_, err := tasks.NewTasksClient(connection).Get(ctx, &tasks.GetRequest{ContainerID: id})
			return err
		}},
	} {
		switch err := ask.get(); {
		case err == nil:
			return fmt.Errorf("%s: %w", ask.what, ErrBusy)
		case status.Code(err) != codes.NotFound:
			return fmt.Errorf("whether %s: %w", ask.what, err)
		}
	}
	return nil
}
