package cri

import (
	"context"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strings"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
)

// Namespace is the containerd namespace of the CRI plugin. Other namespaces belong to other engines and are never read.
const Namespace = "k8s.io"

// NewContainerd returns the client of containerd's own API (1.6 and later) on socket. The rules of NewRuntime apply.
func NewContainerd(socket string) (host.Containerd, io.Closer, error) {
	if err := discover.CheckSocket(socket); err != nil {
		return host.Containerd{}, nil, err
	}
	conn := &socketConn{path: socket}
	return host.Containerd{
		Containers: list(conn, "/containers",
			func(ctx context.Context, c *client.Client) ([]containers.Container, error) {
				return c.ContainerService().List(ctx)
			}),
		Leases: list(conn, "/leases", func(ctx context.Context, c *client.Client) ([]leases.Lease, error) {
			return c.LeasesService().List(ctx)
		}),
		Images: list(conn, "/images", func(ctx context.Context, c *client.Client) ([]images.Image, error) {
			return c.ImageService().List(ctx)
		}),
		PulledFrom: func(ctx context.Context, image images.Image) (string, error) {
			answers, err := list(conn, "/content", func(ctx context.Context, c *client.Client) ([]string, error) {
				return pulledFrom(ctx, c, image)
			})(ctx)
			return strings.Join(answers, " "), err
		},
		Tasks: list(conn, "/tasks", func(ctx context.Context, c *client.Client) ([]*tasks.Process, error) {
			answer, err := c.TaskService().List(ctx, &tasksapi.ListTasksRequest{})
			return answer.GetTasks(), err
		}),
		Sandboxes: list(conn, "/sandboxes", func(ctx context.Context, c *client.Client) (ids []string, err error) {
			records, err := c.SandboxStore().List(ctx)
			for _, record := range records {
				ids = append(ids, record.ID)
			}
			if errdefs.IsNotImplemented(err) {
				err = nil // containerd 1.6
			}
			return ids, err
		}),
		Snapshots: func(ctx context.Context, snapshotter string) ([]snapshots.Info, error) {
			return list(conn, "/snapshots", activeSnapshots(snapshotter))(ctx)
		},
	}, conn, nil
}

// pulledFrom returns the registries that containerd has noted in the labels of an image's manifest when it was pulled:
// containerd.io/distribution.source.docker.io=library/busybox, since containerd 1.3.
func pulledFrom(ctx context.Context, c *client.Client, image images.Image) (registries []string, err error) {
	info, err := c.ContentStore().Info(ctx, image.Target.Digest)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	for label := range info.Labels {
		if registry, ok := strings.CutPrefix(label, labels.LabelDistributionSource+"."); ok {
			registries = append(registries, registry)
		}
	}
	slices.Sort(registries)
	return registries, err
}

// maxSnapshots bounds how many snapshots are listed. More than a node's containers need is an error.
const maxSnapshots = 1 << 14

// activeSnapshots lists the writable snapshots of a snapshotter.
func activeSnapshots(snapshotter string) func(context.Context, *client.Client) ([]snapshots.Info, error) {
	return func(ctx context.Context, c *client.Client) (active []snapshots.Info, err error) {
		err = c.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			if len(active) == maxSnapshots {
				return fmt.Errorf("more than %d active snapshots", maxSnapshots)
			}
			active = append(active, info)
			return nil
		}, "kind==active")
		return active, err
	}
}

// list calls containerd's client, in the namespace of the CRI plugin. The client is a handle on the connection.
func list[T any](s *socketConn, what string,
	call func(context.Context, *client.Client) ([]T, error)) func(context.Context) ([]T, error) {
	return func(ctx context.Context) (all []T, err error) {
		ctx = namespaces.WithNamespace(ctx, Namespace)
		err = s.call(ctx, what, func(conn *grpc.ClientConn) error {
			c, err := client.NewWithConn(conn)
			if err != nil {
				return err
			}
			all, err = call(ctx, c)
			return errgrpc.ToGRPC(err)
		})
		return all, err
	}
}

// ConnectContainerd returns containerd's client for a few calls; the first one makes the connection.
func ConnectContainerd(socket string) (*client.Client, error) {
	return client.New(path.Clean("/"+socket), client.WithExtraDialOpts([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return DialRoots(ctx, path.Clean("/"+socket))
		}),
	}), client.WithCallOpts([]grpc.CallOption{grpc.MaxCallRecvMsgSize(maxMessage)}))
}
