package cri

import (
	"context"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageBytes asks the runtime's image service, which listens on the same socket, for what its image filesystems hold.
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

// hasImage asks for the status of an image, which the runtime leaves out where it has none.
func hasImage(conn grpc.ClientConnInterface) func(ctx context.Context, image string) (bool, error) {
	client := cri.NewImageServiceClient(conn)
	return func(ctx context.Context, image string) (bool, error) {
		answer, err := client.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
		return answer.GetImage() != nil, err
	}
}
