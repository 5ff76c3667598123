package mutate

import (
	"context"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// RunChild runs any command as a child, for at most limit.
func RunChild(ctx context.Context, d *Mutator, limit time.Duration, args ...string) error {
	d.children.limit = limit
	_, err := d.children.run(ctx, &exec.Cmd{Path: args[0], Args: args})
	return err
}

// UnmountDetached requests a lazy unmount whatever the kind of filesystem.
func UnmountDetached(ctx context.Context, d *Mutator, uid string, m Mount) error {
	_, err := d.do(ctx, child.Request{
		Op: child.OpUnmount, Base: d.podsDir(), UID: uid, Mount: m, Flags: unix.UMOUNT_NOFOLLOW | unix.MNT_DETACH,
	})
	return err
}

// HarmOver returns a harm as a child reports it.
func HarmOver() error {
	return errorOf(child.Answer{Outcome: child.OutcomeHarm, Why: "others went"}, child.OpUnmount)
}

// ParseAttachment exports parseAttachment for the fuzz target.
func ParseAttachment(data []byte, name, containerID string) error {
	entry, err := parseAttachment(data, name, containerID)
	if err == nil {
		_, err = networkOf(entry)
	}
	return err
}

// pinning is a runtime to which every image is pinned: containerd 1.6 cannot pin one.
type pinning struct{ cri.ImageServiceClient }

func (p pinning) ListImages(ctx context.Context, r *cri.ListImagesRequest, o ...grpc.CallOption) (*cri.ListImagesResponse,
	error) {
	answer, err := p.ImageServiceClient.ListImages(ctx, r, o...)
	for _, image := range answer.GetImages() {
		image.Pinned = true
	}
	return answer, err
}

// PinImages makes the Mutator see all images as pinned, until unpin is called.
func PinImages(d *Mutator) (unpin func()) {
	before := d.images
	d.images = pinning{before}
	return func() { d.images = before }
}
