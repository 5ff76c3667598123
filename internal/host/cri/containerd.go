package cri

import (
	"context"
	"io"
	"net"
	"path"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
)

// Namespace is the containerd namespace of the CRI plugin. Other namespaces are other engines' and are never read.
const Namespace = "k8s.io"

// NewContainerd returns the client of containerd's own API (1.6 and later) on socket, under the same terms as
// NewRuntime.
func NewContainerd(socket string) (host.Containerd, io.Closer, error) {
	if err := discover.CheckSocket(socket); err != nil {
		return host.Containerd{}, nil, err
	}
	conn := &socketConn{path: socket}
	return host.Containerd{
		Containers: func(ctx context.Context) (list []containers.Container, err error) {
			err = conn.containerd(ctx, "/containers", func(ctx context.Context, c *client.Client) error {
				list, err = c.ContainerService().List(ctx)
				return err
			})
			return list, err
		},
		Leases: func(ctx context.Context) (list []leases.Lease, err error) {
			err = conn.containerd(ctx, "/leases", func(ctx context.Context, c *client.Client) error {
				list, err = c.LeasesService().List(ctx)
				return err
			})
			return list, err
		},
		Tasks: func(ctx context.Context) (list []*tasks.Process, err error) {
			err = conn.containerd(ctx, "/tasks", func(ctx context.Context, c *client.Client) error {
				answer, err := c.TaskService().List(ctx, &tasksapi.ListTasksRequest{})
				list = answer.GetTasks()
				return err
			})
			return list, err
		},
		Sandboxes: func(ctx context.Context) (ids []string, err error) {
			err = conn.containerd(ctx, "/sandboxes", func(ctx context.Context, c *client.Client) error {
				records, err := c.SandboxStore().List(ctx)
				ids = nil // of an attempt that failed
				for _, record := range records {
					ids = append(ids, record.ID)
				}
				return err
			})
			if status.Code(err) == codes.Unimplemented {
				return nil, nil // containerd 1.6
			}
			return ids, err
		},
	}, conn, nil
}

// containerd calls containerd's client, in the namespace of the CRI plugin. The client is a handle on the connection.
func (s *socketConn) containerd(ctx context.Context, what string,
	call func(context.Context, *client.Client) error) error {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	return s.call(ctx, what, func(conn *grpc.ClientConn) error {
		c, err := client.NewWithConn(conn)
		if err != nil {
			return err
		}
		return errgrpc.ToGRPC(call(ctx, c))
	})
}

// ConnectContainerd returns containerd's client for a few calls; the connection is made with the first one.
func ConnectContainerd(socket string) (*client.Client, error) {
	return client.New(path.Clean("/"+socket), client.WithExtraDialOpts([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return DialRoots(ctx, path.Clean("/"+socket))
		}),
	}), client.WithCallOpts([]grpc.CallOption{grpc.MaxCallRecvMsgSize(maxMessage)}))
}
