// Package cri is the client of the container runtime: of CRI, and of containerd's own API.
package cri

import (
	"context"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// NewRuntime returns the client of the container runtime that listens on socket. It makes the connection on first use,
// and again when the runtime comes back, so the socket need not exist yet. Only the deadline of its ctx bounds a call:
// callers must set one, because a stopped runtime accepts connections and never answers.
func NewRuntime(socket string) (host.Runtime, io.Closer, error) {
	if err := discover.CheckSocket(socket); err != nil {
		return host.Runtime{}, nil, err
	}
	conn := &socketConn{path: socket}
	client := cri.NewRuntimeServiceClient(conn)
	return host.Runtime{
		Version: func(ctx context.Context) (*cri.VersionResponse, error) {
			return client.Version(ctx, &cri.VersionRequest{})
		},
		Status: func(ctx context.Context) (*cri.StatusResponse, error) {
			return client.Status(ctx, &cri.StatusRequest{})
		},
		Sandboxes: func(ctx context.Context) ([]*cri.PodSandbox, error) {
			answer, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return answer.GetItems(), err
		},
		Containers: func(ctx context.Context) ([]*cri.Container, error) {
			answer, err := client.ListContainers(ctx, &cri.ListContainersRequest{})
			return answer.GetContainers(), err
		},
		Lists: func(ctx context.Context) error {
			return conn.Invoke(ctx, cri.RuntimeService_ListContainers_FullMethodName, &cri.ListContainersRequest{},
				&cri.ListContainersResponse{}, grpc.ForceCodecV2(dropping{encoding.GetCodecV2(proto.Name)}))
		},
		SandboxStatus: func(ctx context.Context, id string) (*cri.PodSandboxStatusResponse, error) {
			return client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
		},
		Events: func(ctx context.Context, take func(*cri.ContainerEventResponse)) error {
			return containerEvents(ctx, client, take)
		},
		ImageBytes:   imageBytes(conn),
		HasImage:     hasImage(conn),
		Images:       listImages(conn),
		ImageID:      imageID(conn),
		ImageDirs:    imageDirs(conn),
		CgroupDriver: func(ctx context.Context) (string, error) { return cgroupDriver(ctx, client) },
		Process: func(ctx context.Context) (host.Process, error) {
			return discover.SocketOwner(ctx, host.Files{}, socket)
		},
	}, conn, nil
}

// dropping is a codec that drops answers: to decode those of a node with many pods costs more than to receive them.
type dropping struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (dropping) Unmarshal(mem.BufferSlice, any) error { return nil }

// containerEvents follows the container events. Containerd 1 gives each event to one of its clients only: it is not asked, since
// kubelet may be another client.
func containerEvents(ctx context.Context, client cri.RuntimeServiceClient, take func(*cri.ContainerEventResponse)) error {
	version, err := client.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return err
	}
	if v := strings.TrimPrefix(version.GetRuntimeVersion(), "v"); version.GetRuntimeName() == "containerd" && strings.HasPrefix(v, "1.") {
		return fmt.Errorf("container events of containerd %s: %w", v, hosterr.ErrNotConfigured)
	}
	stream, err := client.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("container events: %w", err)
		}
		take(event)
	}
}

// cgroupDriver reads the runtime's configuration. An omitted driver is no answer, because 0 is the first of the
// drivers.
func cgroupDriver(ctx context.Context, client cri.RuntimeServiceClient) (string, error) {
	answer, err := client.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	switch {
	case err != nil:
		return "", err
	case answer.GetLinux() == nil:
		return "", fmt.Errorf("cgroup driver of the runtime: %w", hosterr.ErrNotConfigured)
	case answer.GetLinux().GetCgroupDriver() == cri.CgroupDriver_CGROUPFS:
		return host.CgroupfsDriver, nil
	case answer.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD:
		return host.SystemdDriver, nil
	}
	return "", fmt.Errorf("cgroup driver of the runtime: %s is not known", answer.GetLinux().GetCgroupDriver())
}
