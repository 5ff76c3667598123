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

// maxPluginMessage bounds an answer of a plugin, in bytes.
const maxPluginMessage = 64 << 10

// NewPlugins returns the door to the plugins of this host. It connects only to sockets below one of roots: kubelet's
// root folder, the folder of the runtime's socket and /run are what a node needs.
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

// speak connects to socket and hands the connection to call.
func (d pluginDialer) speak(ctx context.Context, socket string, call func(*grpc.ClientConn) error) error {
	conn, err := d.dial(ctx, socket) // before gRPC, which would turn the kernel's answer into text
	if err != nil {
		return err
	}
	defer conn.Close()
	dials := make(chan net.Conn, 1) // one connection: gRPC must not connect again
	dials <- conn
	client, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-dials:
				return conn, nil
			default:
				return nil, errors.New("the plugin closed the connection")
			}
		}),
		grpc.WithDisableServiceConfig(), grpc.WithAuthority("localhost"), grpc.WithMaxHeaderListSize(16<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPluginMessage)),
	)
	if err != nil {
		return fmt.Errorf("speak to %s: %w", socket, err)
	}
	defer client.Close()
	if err := call(client); err != nil {
		if ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded {
			return fmt.Errorf("speak to %s: no answer in time: %w", socket, cmp.Or(ctx.Err(), context.DeadlineExceeded))
		}
		return fmt.Errorf("speak to %s: %w", socket, err)
	}
	return nil
}

func (d pluginDialer) getInfo(ctx context.Context, socket string) (PluginInfo, error) {
	var answer *registration.PluginInfo
	err := d.speak(ctx, socket, func(conn *grpc.ClientConn) (err error) {
		answer, err = registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
		return err
	})
	if err != nil {
		return PluginInfo{}, err
	}
	info := PluginInfo{Type: answer.GetType(), Name: answer.GetName(), Endpoint: answer.GetEndpoint(),
		Versions: answer.GetSupportedVersions()}
	if info.Endpoint == "" {
		info.Endpoint = socket // as kubelet understands it
	}
	return info, info.Validate()
}

// Validate returns what a node cannot accept in an answer to GetInfo.
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
	var name string
	err := d.speak(ctx, endpoint, func(conn *grpc.ClientConn) error {
		answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		name = answer.GetName()
		return err
	})
	if err == nil && !IsCSIDriverName(name) {
		err = fmt.Errorf("driver at %s calls itself %.100q, which cannot be a CSI driver's name", endpoint, name)
	}
	return name, err
}

func (d pluginDialer) probe(ctx context.Context, endpoint string) (bool, error) {
	ready := false
	err := d.speak(ctx, endpoint, func(conn *grpc.ClientConn) error {
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		// An answer that leaves ready out means true, by the specification.
		ready = err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue())
		return err
	})
	return ready, err
}

func (d pluginDialer) nodeID(ctx context.Context, endpoint string) (string, error) {
	var id string
	err := d.speak(ctx, endpoint, func(conn *grpc.ClientConn) error {
		answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		id = answer.GetNodeId()
		return err
	})
	if err == nil && !utf8.ValidString(id) {
		err = fmt.Errorf("driver at %s: node ID %.100q is not UTF-8", endpoint, id)
	}
	return id, err
}
