package fakecsi

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the Node service of CSI.
type node struct {
	csi.UnimplementedNodeServer
	d *Driver
}

func (n node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	k := n.d.now()
	switch {
	case k.NodeInfoError != "":
		return nil, status.Error(codes.Internal, k.NodeInfoError)
	case k.EmptyNodeID:
		return &csi.NodeGetInfoResponse{}, nil
	}
	return &csi.NodeGetInfoResponse{NodeId: n.d.options.NodeID}, nil
}

func (node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse,
	error) {
	stage := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{stage}}, nil
}

func (n node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if n.d.now().FailMounts {
		return nil, status.Error(codes.Internal, "fake driver fails to mount")
	}
	return &csi.NodeStageVolumeResponse{}, mountTmpfs(r.GetStagingTargetPath())
}

func (node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse,
	error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.GetStagingTargetPath())
}

func (n node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse,
	error) {
	if n.d.now().FailMounts {
		return nil, status.Error(codes.Internal, "fake driver fails to mount")
	}
	if n.d.options.Publish != PublishBind {
		return &csi.NodePublishVolumeResponse{}, mountTmpfs(r.GetTargetPath())
	}
	source := r.GetStagingTargetPath()
	if source == "" {
		source = filepath.Join(filepath.Dir(n.d.Endpoint()), "volumes", filepath.Base(r.GetVolumeId()))
	}
	return &csi.NodePublishVolumeResponse{}, bind(source, r.GetTargetPath())
}

func (node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse,
	error) {
	if err := unmount(r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := os.Remove(r.GetTargetPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "remove: %v", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// mountTmpfs mounts a small tmpfs; a target that is mounted already is left as it is, as the protocol demands.
func mountTmpfs(target string) error {
	if err := prepare(target); err != nil {
		return err
	}
	if mounted(target) {
		return nil
	}
	if err := unix.Mount("fakecsi", target, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size=1m"); err != nil {
		return status.Errorf(codes.Internal, "mount %s: %v", target, err)
	}
	return nil
}

func bind(source, target string) error {
	if err := errors.Join(prepare(source), prepare(target)); err != nil {
		return err
	}
	if mounted(target) {
		return nil
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "bind %s: %v", target, err)
	}
	return nil
}

func prepare(dir string) error {
	if dir == "" {
		return status.Error(codes.InvalidArgument, "path is missing")
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return status.Errorf(codes.Internal, "make folder: %v", err)
	}
	return nil
}

func unmount(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not mounted: done already
		return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
	}
	return nil
}

// mounted reports whether dir is the root of a mount.
func mounted(dir string) bool {
	var x unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, 0, &x)
	return err == nil && x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
