package repair

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	corev1 "k8s.io/api/core/v1"
	kubecri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// imageNode is a node with unused images a … f, of a megabyte each; the sandboxes use "pause".
type imageNode struct {
	*disk
	r *Runner
}

func newImageNode(t *testing.T, w *world) *imageNode {
	t.Helper()
	d := onDisk(w)
	d.settings.DiskSpace.CoreDumps, d.settings.DiskSpace.Images = false, true
	d.fill(8)
	n := &imageNode{disk: d, r: d.runner()}
	rt := &n.r.options.Host.Runtime
	all := []*kubecri.Image{{Id: "sha256:pause", RepoTags: []string{"registry.k8s.io/pause:3"}}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		all = append(all, &kubecri.Image{Id: "sha256:" + name, RepoTags: []string{"docker.io/library/" + name + ":1"},
			RepoDigests: []string{"docker.io/library/" + name + "@sha256:0" + name}, Size: 1 << 20})
	}
	records := []images.Image{}
	for _, image := range all {
		for _, name := range append(image.RepoTags, image.RepoDigests...) {
			records = append(records, images.Image{Name: name})
		}
	}
	n.r.options.Host.Containerd.Images = hosttest.Answer(records, nil)
	n.r.options.Host.Containerd.PulledFrom = func(context.Context, images.Image) (string, error) { return "docker.io", nil }
	rt.Images = func(context.Context) ([]*kubecri.Image, error) { return slices.Clone(all), nil }
	rt.ImageDirs = hosttest.Answer([]string{"/var/lib/containerd"}, nil)
	rt.Sandboxes = hosttest.Answer([]*kubecri.PodSandbox{{Id: "s"}}, nil)
	rt.SandboxStatus = func(context.Context, string) (*kubecri.PodSandboxStatusResponse, error) {
		return &kubecri.PodSandboxStatusResponse{Info: map[string]string{"info": `{"image": "registry.k8s.io/pause:3"}`}}, nil
	}
	return n
}

// bend changes one of the images.
func (n *imageNode) bend(i int, change func(*kubecri.Image)) {
	old := n.r.options.Host.Runtime.Images
	n.r.options.Host.Runtime.Images = func(ctx context.Context) ([]*kubecri.Image, error) {
		all, err := old(ctx)
		image := &kubecri.Image{Id: all[i].Id, RepoTags: all[i].RepoTags, RepoDigests: all[i].RepoDigests, Size: all[i].Size}
		change(image)
		all[i] = image
		return all, err
	}
}

// look returns the action's answer after it has observed the node every half minute for some time.
func (n *imageNode) look(t *testing.T, passed time.Duration) string {
	t.Helper()
	for end := time.Now().Add(passed); ; time.Sleep(30 * time.Second) {
		job, err := examineSpace(t.Context(), n.r.tools, n.believed.Finding)
		if !time.Now().Before(end) {
			if err != nil {
				return err.Error()
			}
			return job.Does
		}
	}
}

// The images whose removal is planned: each guard excludes one.
func TestImagesThatAreRemoved(t *testing.T) {
	const young = "none of them for 2m0s"
	for name, test := range map[string]struct {
		change func(n *imageNode)
		want   string
	}{
		"none is used": {func(*imageNode) {}, "images 6 (6.0 MiB)"},
		"one was loaded by hand": {func(n *imageNode) {
			n.r.options.Host.Containerd.PulledFrom = func(_ context.Context, image images.Image) (string, error) {
				return map[bool]string{true: "docker.io"}[!strings.Contains(image.Name, "/a")], nil
			}
		}, "others stay: 1 not pulled from a registry"},
		"all were loaded by hand": {func(n *imageNode) {
			n.r.options.Host.Containerd.PulledFrom = func(context.Context, images.Image) (string, error) { return "", nil }
		}, "all without a container stay: 6 not pulled from a registry"},
		"one has no digest in a repository": {func(n *imageNode) {
			n.bend(1, func(image *kubecri.Image) { image.RepoDigests = nil })
		}, "images 5 ("},
		"one is of this machine": {func(n *imageNode) {
			n.bend(1, func(image *kubecri.Image) { image.RepoDigests = []string{"localhost/a@sha256:0a"} })
		}, "images 5 ("},
		"cannot tell whether they were pulled": {func(n *imageNode) {
			n.r.options.Host.Containerd.PulledFrom = func(context.Context, images.Image) (string, error) { return "", errOutage }
		}, "cannot tell whether they were pulled: no answer"},
		"containerd's records are not known": {func(n *imageNode) {
			n.r.options.Host.Containerd.Images = hosttest.Answer([]images.Image(nil), errOutage)
		}, "cannot tell whether they were pulled: no answer"},
		"one of a container that has ended": {func(n *imageNode) {
			n.r.options.Host.Runtime.Containers = hosttest.Answer([]*kubecri.Container{{ImageRef: "sha256:a",
				State: kubecri.ContainerState_CONTAINER_EXITED}}, nil)
		}, "images 5 ("},
		"one by its digest": {func(n *imageNode) {
			n.r.options.Host.Runtime.Containers = hosttest.Answer([]*kubecri.Container{
				{ImageRef: "docker.io/library/a@sha256:0a"}}, nil)
		}, "images 5 ("},
		"one by a short name, which the runtime resolves": {func(n *imageNode) {
			n.r.options.Host.Runtime.Containers = hosttest.Answer([]*kubecri.Container{
				{Image: &kubecri.ImageSpec{Image: "a:1"}}}, nil)
			n.r.options.Host.Runtime.ImageID = func(_ context.Context, name string) (string, error) {
				return map[string]string{"a:1": "sha256:a"}[name], nil
			}
		}, "images 5 ("},
		"one that containerd alone uses": {func(n *imageNode) {
			n.r.options.Host.Containerd.Containers = hosttest.Answer([]containers.Container{
				{Image: "docker.io/library/b:1"}}, nil)
		}, "images 5 ("},
		"those that pods name": {func(n *imageNode) {
			n.r.options.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod{{Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Image: "docker.io/library/a:1"}},
				Containers:     []corev1.Container{{Image: "docker.io/library/b:1"}},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
					Image: "docker.io/library/c:1"}}},
				Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
					Reference: "docker.io/library/d:1"}}}},
			}}}, nil)
		}, "images 2 ("},
		"kubelet does not answer, the apiserver does": {func(n *imageNode) {
			n.r.options.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod(nil), errOutage)
			n.r.options.Host.Cluster.Pods = hosttest.Answer([]corev1.Pod{{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Image: "docker.io/library/b:1"}}}}}, nil)
		}, "images 5 ("},
		"nobody says which pods there are": {func(n *imageNode) {
			n.r.options.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod(nil), errOutage)
			n.r.options.Host.Cluster.Pods = nil
		}, "find the images that pods of this node name: no answer"},
		"one is pinned": {func(n *imageNode) {
			n.bend(1, func(image *kubecri.Image) { image.Pinned = true })
		}, "images 5 ("},
		"what sandboxes are of is not known": {func(n *imageNode) {
			n.r.options.Host.Runtime.Sandboxes = hosttest.Answer([]*kubecri.PodSandbox(nil), nil)
		}, "no image is pinned, and the image of sandboxes is unknown"},
		"containers are not listed": {func(n *imageNode) {
			n.r.options.Host.Runtime.Containers = hosttest.Answer([]*kubecri.Container(nil), errOutage)
		}, "containers: no answer"},
		"a name cannot be resolved": {func(n *imageNode) {
			n.r.options.Host.Runtime.Containers = hosttest.Answer([]*kubecri.Container{{ImageRef: "?"}}, nil)
			n.r.options.Host.Runtime.ImageID = func(context.Context, string) (string, error) { return "", errOutage }
		}, "image ?: no answer"},
		"another filesystem is full": {func(n *imageNode) {
			n.r.options.Host.Runtime.ImageDirs = hosttest.Answer([]string{"/images/overlayfs"}, nil)
		}, "images: on another filesystem"},
		"kubelet gives them an hour": {func(n *imageNode) {
			n.r.options.Host.Paths.KubeletConfig = "/kubelet.yaml"
			n.write("kubelet.yaml", "imageMinimumGCAge: 1h\n")
		}, "none of them for 1h0m0s"},
		"what kubelet gives them is not known": {func(n *imageNode) {
			n.r.options.Host.Paths.KubeletConfig = "/none.yaml"
		}, "none of them for 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := newImageNode(t, w)
				n.r.options.Host.Paths.KubeletConfig = ""
				test.change(n)
				if got := n.look(t, 2*time.Minute); !strings.Contains(got, test.want) {
					t.Errorf("%q, want %q", got, test.want)
				}
			})
		})
	}
	for name, wait := range map[string]struct{ first, gap time.Duration }{
		"it is looked at for the first time": {}, "for a minute": {time.Minute, 0},
		"it was not looked at for long": {2 * time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := newImageNode(t, w)
				n.r.options.Host.Paths.KubeletConfig = ""
				got := n.look(t, wait.first)
				if wait.gap > 0 {
					time.Sleep(wait.gap)
					got = n.look(t, 0)
				}
				if !strings.Contains(got, young) {
					t.Errorf("%q, want %q", got, young)
				}
			})
		})
	}
}

// The images without a container for longest go first; among equals, the one pulled first. An image used again starts
// anew.
func TestOrderOfImages(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := newImageNode(t, w)
		h := n.r.options.Host
		h.Paths.KubeletConfig = ""
		at := func(name string, days int) images.Image {
			return images.Image{Name: "docker.io/library/" + name + ":1", UpdatedAt: time.Unix(0, 0).Add(time.Duration(days) * day)}
		}
		h.Containerd.Images = hosttest.Answer([]images.Image{at("a", 6), at("b", 5), at("c", 4), at("d", 3), at("e", 2),
			at("f", 1)}, nil)
		use := func(id string) {
			h.Runtime.Containers = hosttest.Answer([]*kubecri.Container{{ImageRef: id}}, nil)
		}
		n.look(t, 2*time.Minute)
		use("sha256:f")
		n.look(t, 0)
		use("")
		n.look(t, 2*time.Minute)
		v, err := fullDiskOf(n.r.tools, n.believed.Finding)
		if err != nil {
			t.Fatal(err)
		}
		found, err := v.images(t.Context())
		if err != nil || found.objects != 6 {
			t.Fatalf("%+v, %v", found, err)
		}
		// Each is asked about right before its removal, which fails here since the runtime is missing.
		var asked []string
		h.Runtime.Images = func(context.Context) ([]*kubecri.Image, error) { return nil, errors.New("stop") }
		if _, err := found.free(t.Context(), func(context.Context) (bool, error) { return false, nil }); err == nil ||
			!strings.Contains(err.Error(), "stop") {
			t.Error(err)
		}
		old, _ := v.oldImages(t.Context(), allImages(n), 2*time.Minute)
		for _, i := range old {
			asked = append(asked, strings.TrimPrefix(i.Id, "sha256:"))
		}
		if want := []string{"e", "d", "c", "b", "a", "f"}; !slices.Equal(asked, want) {
			t.Errorf("%q, want %q", asked, want)
		}
	})
}

func allImages(n *imageNode) (all []*kubecri.Image) {
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		all = append(all, &kubecri.Image{Id: "sha256:" + name, RepoTags: []string{"docker.io/library/" + name + ":1"}})
	}
	return all
}
