package cri

import (
	"context"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageBytes asks the runtime's image service, on the same socket, for the disk usage of its image filesystems.
func imageBytes(conn grpc.ClientConnInterface) func(ctx context.Context) (uint64, error) {
	client := cri.NewImageServiceClient(conn)
	return func(ctx context.Context) (uint64, error) {
		answer, err := client.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
		if err != nil {
			return 0, err
		}
		sum := uint64(0)
		for _, f := range answer.GetImageFilesystems() {
			sum += f.GetUsedBytes().GetValue()
		}
		return sum, nil
	}
}

// hasImage asks for the status of an image, which the runtime omits if it has no such image.
func hasImage(conn grpc.ClientConnInterface) func(ctx context.Context, image string) (bool, error) {
	client := cri.NewImageServiceClient(conn)
	return func(ctx context.Context, image string) (bool, error) {
		answer, err := client.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
		return answer.GetImage() != nil, err
	}
}

// listImages lists all images.
func listImages(conn grpc.ClientConnInterface) func(ctx context.Context) ([]*cri.Image, error) {
	client := cri.NewImageServiceClient(conn)
	return func(ctx context.Context) ([]*cri.Image, error) {
		answer, err := client.ListImages(ctx, &cri.ListImagesRequest{})
		return answer.GetImages(), err
	}
}

// imageID asks for the status of an image, as hasImage does.
func imageID(conn grpc.ClientConnInterface) func(ctx context.Context, name string) (string, error) {
	client := cri.NewImageServiceClient(conn)
	return func(ctx context.Context, name string) (string, error) {
		answer, err := client.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		return answer.GetImage().GetId(), err
	}
}

// imageDirs asks for the directories in which the runtime keeps images.
func imageDirs(conn grpc.ClientConnInterface) func(ctx context.Context) ([]string, error) {
	client := cri.NewImageServiceClient(conn)
	return func(ctx context.Context) (dirs []string, err error) {
		answer, err := client.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
		for _, f := range answer.GetImageFilesystems() {
			if dir := f.GetFsId().GetMountpoint(); dir != "" {
				dirs = append(dirs, dir)
			}
		}
		return dirs, err
	}
}
