package cri

import (
	"context"
	"io"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	sandbox "github.com/containerd/containerd/api/services/sandbox/v1"
	taskservice "github.com/containerd/containerd/api/services/tasks/v1"
	tasks "github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
)

// criNamespace is the containerd namespace of the CRI plugin. Other namespaces are other engines' and are never read.
const criNamespace = "k8s.io"

// NewContainerd returns the door to containerd's own API (1.6 and later) on socket, under the same terms as NewRuntime.
func NewContainerd(socket string) (host.Containerd, io.Closer, error) {
	if err := discover.CheckSocket(socket); err != nil {
		return host.Containerd{}, nil, err
	}
	conn := &socketConn{path: socket}
	containerClient := containers.NewContainersClient(conn)
	leaseClient := leases.NewLeasesClient(conn)
	taskClient := taskservice.NewTasksClient(conn)
	storeClient := sandbox.NewStoreClient(conn)
	return host.Containerd{
		Containers: func(ctx context.Context) ([]*containers.Container, error) {
			answer, err := containerClient.List(InCRINamespace(ctx), &containers.ListContainersRequest{})
			return answer.GetContainers(), err
		},
		Leases: func(ctx context.Context) ([]*leases.Lease, error) {
			answer, err := leaseClient.List(InCRINamespace(ctx), &leases.ListRequest{})
			return answer.GetLeases(), err
		},
		Tasks: func(ctx context.Context) ([]*tasks.Process, error) {
			answer, err := taskClient.List(InCRINamespace(ctx), &taskservice.ListTasksRequest{})
			return answer.GetTasks(), err
		},
		Sandboxes: func(ctx context.Context) ([]string, error) {
			answer, err := storeClient.List(InCRINamespace(ctx), &sandbox.StoreListRequest{})
			if status.Code(err) == codes.Unimplemented {
				return nil, nil // containerd 1.6
			}
			var ids []string
			for _, record := range answer.GetList() {
				ids = append(ids, record.GetSandboxID())
			}
			return ids, err
		},
	}, conn, nil
}

// InCRINamespace names the namespace as containerd's own client does (pkg/namespaces, GRPCHeader).
func InCRINamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
}
