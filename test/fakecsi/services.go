package fakecsi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar is the registration socket.
type registrar struct {
	registration.UnimplementedRegistrationServer
	d *Driver
}

func (r registrar) GetInfo(_ context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	switch k := r.d.now(); {
	case k.HangGetInfo:
		r.d.hang()
		return nil, status.Error(codes.Aborted, "hung")
	case k.RefuseGetInfo:
		return nil, status.Error(codes.Internal, "fake driver refuses GetInfo")
	}
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.d.options.Name, Endpoint: r.d.Endpoint(),
		SupportedVersions: r.d.options.Versions,
	}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	for {
		select {
		case r.d.statuses <- s:
			return &registration.RegistrationStatusResponse{}, nil
		default:
		}
		select {
		case <-r.d.statuses:
		default:
		}
	}
}

// identity is the Identity service of CSI.
type identity struct {
	csi.UnimplementedIdentityServer
	d *Driver
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.d.options.Name, VendorVersion: "0"}, nil
}

func (identity) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (i identity) Probe(_ context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	k := i.d.now()
	switch {
	case k.HangProbe:
		i.d.hang()
		return nil, status.Error(codes.Aborted, "hung")
	case k.ProbeError != "":
		return nil, status.Error(codes.FailedPrecondition, k.ProbeError)
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!k.NotReady)}, nil
}
