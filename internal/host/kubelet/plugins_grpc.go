package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// maxPluginMessage bounds a plugin's answer, in bytes.
const maxPluginMessage = 64 << 10

// NewPlugins returns the client of this host's plugins. It connects only to sockets below one of roots: a node needs
// kubelet's root folder, the folder of the runtime's socket and /run.
func NewPlugins(roots ...string) Plugins {
	d := pluginDialer{roots}
	return Plugins{
		Connect: func(ctx context.Context, socket string) error {
			conn, err := d.dial(ctx, socket)
			if err != nil {
				return err
			}
			return conn.Close()
		},
		GetInfo: d.getInfo,
		Name:    d.name,
		Probe:   d.probe,
		NodeID:  d.nodeID,
	}
}

// speak connects to socket and passes the connection to call.
func speak[T any](ctx context.Context, d pluginDialer, socket string, call func(*grpc.ClientConn) (T, error)) (
	answer T, err error) {
	conn, err := d.dial(ctx, socket) // before gRPC, which would turn the kernel's error into text
	if err != nil {
		return answer, err
	}
	return speakOn(ctx, conn, channel{socket, maxPluginMessage}, call)
}

// channel is a socket with the bound of its answers, in bytes.
type channel struct {
	socket string
	most   int
}

// speakOn passes a connection to call, and closes it. to describes the socket of the connection.
func speakOn[T any](ctx context.Context, conn net.Conn, to channel, call func(*grpc.ClientConn) (T, error)) (
	answer T, err error) {
	defer conn.Close()
	dials := make(chan net.Conn, 1) // one connection: gRPC must not dial again
	dials <- conn
	client, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-dials:
				return conn, nil
			default:
				return nil, errors.New("it closed the connection")
			}
		}),
		grpc.WithDisableServiceConfig(), grpc.WithAuthority("localhost"), grpc.WithMaxHeaderListSize(16<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(to.most)),
	)
	if err != nil {
		return answer, fmt.Errorf("speak to %s: %w", to.socket, err)
	}
	defer client.Close()
	if answer, err = call(client); err != nil {
		if ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded {
			err = fmt.Errorf("no answer in time: %w", cmp.Or(ctx.Err(), context.DeadlineExceeded))
		}
		return answer, fmt.Errorf("speak to %s: %w", to.socket, err)
	}
	return answer, nil
}

func (d pluginDialer) getInfo(ctx context.Context, socket string) (PluginInfo, error) {
	answer, err := speak(ctx, d, socket, func(conn *grpc.ClientConn) (*registration.PluginInfo, error) {
		return registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	})
	if err != nil {
		return PluginInfo{}, err
	}
	info := PluginInfo{Type: answer.GetType(), Name: answer.GetName(), Versions: answer.GetSupportedVersions(),
		Endpoint: cmp.Or(answer.GetEndpoint(), socket)} // kubelet's default
	return info, info.Validate()
}

// Validate returns why a node cannot accept an answer to GetInfo.
func (i PluginInfo) Validate() error {
	if len(i.Versions) > maxPluginVersions {
		return fmt.Errorf("plugin names %d versions", len(i.Versions))
	}
	for _, text := range append([]string{i.Type, i.Name, i.Endpoint}, i.Versions...) {
		if len(text) > maxPluginText || !utf8.ValidString(text) {
			return fmt.Errorf("plugin says %.100q: too long, or not UTF-8", text)
		}
	}
	if i.Type == registration.CSIPlugin && !IsCSIDriverName(i.Name) {
		return fmt.Errorf("plugin calls itself %.100q, which cannot be a CSI driver's name", i.Name)
	}
	return nil
}

func (d pluginDialer) name(ctx context.Context, endpoint string) (string, error) {
	name, err := speak(ctx, d, endpoint, func(conn *grpc.ClientConn) (string, error) {
		answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		return answer.GetName(), err
	})
	if err == nil && !IsCSIDriverName(name) {
		err = fmt.Errorf("driver at %s calls itself %.100q, which cannot be a CSI driver's name", endpoint, name)
	}
	return name, err
}

func (d pluginDialer) probe(ctx context.Context, endpoint string) (bool, error) {
	return speak(ctx, d, endpoint, func(conn *grpc.ClientConn) (bool, error) {
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		// By the specification, an answer without ready means true.
		return err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()), err
	})
}

func (d pluginDialer) nodeID(ctx context.Context, endpoint string) (string, error) {
	id, err := speak(ctx, d, endpoint, func(conn *grpc.ClientConn) (string, error) {
		answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		return answer.GetNodeId(), err
	})
	if err == nil && !utf8.ValidString(id) {
		err = fmt.Errorf("driver at %s: node ID %.100q is not UTF-8", endpoint, id)
	}
	return id, err
}
