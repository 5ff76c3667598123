package mutate

import (
	"context"
	"fmt"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Image is the identity of an image: its ID is the digest of its configuration, and its names show whether it was
// pulled or tagged again since.
type Image struct {
	ID    string
	Names []string // all, as hostcri.ImageNames returns them
}

// imageLimit bounds the removal of an image: containerd removes its layers before it answers.
const imageLimit = 2 * time.Minute

// RemoveImage makes the runtime remove an image by all its names. containerd would also remove one in use, so
// RemoveImage asks right before: the error is a Refusal if the image is pinned, and ErrBusy if any container, running
// or not, uses it. It is no error if the image is gone.
func (d *Mutator) RemoveImage(ctx context.Context, image Image) error {
	if d.images == nil {
		return hosterr.ErrNotConfigured
	}
	ctx, cancel := context.WithTimeout(ctx, imageLimit)
	defer cancel()
	listed, err := d.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return notBegun(fmt.Errorf("list images: %w", err))
	}
	at := slices.IndexFunc(listed.GetImages(), func(i *cri.Image) bool { return i.GetId() == image.ID })
	if at < 0 {
		return nil
	}
	now := listed.GetImages()[at]
	switch {
	case now.GetPinned():
		return refuse("image %s is pinned", image.ID)
	case !slices.Equal(hostcri.ImageNames(now), image.Names):
		return changed("image %s has other names", image.ID)
	}
	containers, err := d.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return notBegun(fmt.Errorf("list containers: %w", err))
	}
	used, err := hostcri.UsedImages(listed.GetImages(), hostcri.ImagesOf(containers.GetContainers()),
		func(name string) (string, error) {
			answer, err := d.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
			return answer.GetImage().GetId(), err
		})
	if err != nil {
		return notBegun(fmt.Errorf("images that containers use: %w", err))
	}
	if used[image.ID] {
		return fmt.Errorf("image %s is one of a container: %w", image.ID, ErrBusy)
	}
	_, err = d.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image.ID}})
	return err
}
