package repair

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	corev1 "k8s.io/api/core/v1"
	kubecri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	maxImages = 50 // to remove in one run
	// unknownImageAge stands in for kubelet's imageMinimumGCAge if that cannot be read.
	unknownImageAge = time.Hour
	// maxSandboxes limits how many sandboxes are asked for their image, newest first.
	maxSandboxes = 5
)

// imageWatch remembers since when each image has been observed without a container. The runtime does not record the
// last use of an image, so this is all the agent can know, as it is for kubelet.
type imageWatch struct {
	mu    sync.Mutex // guards what follows
	last  finding.Timestamp
	since map[string]finding.Timestamp // by ID
}

// observe notes the images unused now, and returns for how long each has been unused. If the last observation is older
// than age, it forgets all earlier ones: an image may have been pulled again.
func (w *imageWatch) observe(now finding.Timestamp, unused []*kubecri.Image, age time.Duration) map[string]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.since
	if w.last.Boot != now.Boot || now.Since(w.last) >= max(age, time.Minute) {
		known = nil
	}
	w.last, w.since = now, make(map[string]finding.Timestamp, len(unused))
	ages := make(map[string]time.Duration, len(unused))
	for _, image := range unused {
		since, ok := known[image.GetId()]
		if !ok {
			since = now
		}
		w.since[image.GetId()] = since
		ages[image.GetId()] = now.Since(since)
	}
	return ages
}

// images returns the images that are unused, unnamed, not pinned and old enough, if they are on the filesystem.
func (v fullDisk) images(ctx context.Context) (source, error) {
	dirs, err := host.Ask(ctx, "runtime", v.tools.Host.Runtime.ImageDirs)
	if err != nil {
		return source{}, fmt.Errorf("find the filesystem of images: %w", err)
	}
	here := false
	for _, dir := range dirs {
		device, err := v.deviceOf(dir)
		if err != nil {
			return source{}, err
		}
		here = here || device == v.device
	}
	if !here {
		return source{note: "on another filesystem"}, nil
	}
	unused, err := v.unusedImages(ctx)
	if err != nil {
		return source{}, err
	}
	age := v.imageAge()
	old, longest := v.oldImages(ctx, unused, age)
	if len(old) == 0 {
		return source{note: fmt.Sprintf("%d without a container, none of them for %s yet", len(unused), age)}, nil
	}
	old, stay := v.canComeBack(ctx, old)
	if len(old) == 0 {
		return source{note: "all without a container stay: " + stay}, nil
	}
	found := source{note: fmt.Sprintf("sizes by the runtime; observed as unused for %s at most",
		longest.Round(time.Second))}
	if stay != "" {
		found.note += "; others stay: " + stay
	}
	old = old[:min(len(old), maxImages)]
	for _, image := range old {
		found.objects, found.bytes = found.objects+1, found.bytes+image.GetSize()
	}
	found.free = func(ctx context.Context, enough func(context.Context) (bool, error)) (freed, error) {
		return each(ctx, old, enough, v.removeImage)
	}
	return found, nil
}

// oldImages returns the images of unused that were observed so for age, in order of removal, and for how long the first
// was.
func (v fullDisk) oldImages(ctx context.Context, unused []*kubecri.Image, age time.Duration) (old []*kubecri.Image,
	longest time.Duration) {
	ages := v.tools.images.observe(v.tools.Host.Clock(), unused, age)
	old = slices.DeleteFunc(slices.Clone(unused), func(i *kubecri.Image) bool { return ages[i.GetId()] < age })
	if len(old) == 0 {
		return nil, 0
	}
	pulled := v.pulled(ctx)
	slices.SortStableFunc(old, func(a, b *kubecri.Image) int {
		return cmp.Or(-cmp.Compare(ages[a.GetId()], ages[b.GetId()]), pulled(a).Compare(pulled(b)),
			-cmp.Compare(a.GetSize(), b.GetSize()))
	})
	return old, ages[old[0].GetId()]
}

// canComeBack returns the images pulled from a registry: an image loaded by hand or built on the node is lost once
// removed. stay says why the others stay.
func (v fullDisk) canComeBack(ctx context.Context, all []*kubecri.Image) (old []*kubecri.Image, stay string) {
	records := map[string]images.Image{} // containerd's, by name
	ask := v.tools.Host.Containerd.PulledFrom
	if ask != nil {
		known, err := v.tools.Host.Containerd.Images(ctx)
		if err != nil {
			return nil, fmt.Sprintf("cannot tell whether they were pulled: %v", err)
		}
		for _, record := range known {
			records[record.Name] = record
		}
	}
	loaded := 0
	for _, image := range all {
		pulled := wasPulled(image)
		if pulled && ask != nil {
			var err error
			if pulled, err = askPulled(ctx, ask, image, records); err != nil {
				return nil, fmt.Sprintf("cannot tell whether they were pulled: %v", err)
			}
		}
		if pulled {
			old = append(old, image)
		} else {
			loaded++
		}
	}
	if loaded > 0 {
		stay = fmt.Sprintf("%d not pulled from a registry", loaded)
	}
	return old, stay
}

// wasPulled reports whether an image may come from a registry: it has a digest in a repository that is not on this
// machine.
func wasPulled(image *kubecri.Image) bool {
	return slices.ContainsFunc(image.GetRepoDigests(), func(name string) bool {
		return !strings.HasPrefix(name, "localhost/") && !strings.HasPrefix(name, "import-")
	})
}

// askPulled reports whether containerd has recorded a registry for any name of an image.
func askPulled(ctx context.Context, ask func(context.Context, images.Image) (string, error), image *kubecri.Image,
	records map[string]images.Image) (bool, error) {
	for _, name := range cri.ImageNames(image) {
		record, ok := records[name]
		if !ok {
			continue
		}
		if registry, err := ask(ctx, record); registry != "" || err != nil {
			return registry != "", err
		}
	}
	return false, nil
}

// removeImage asks again who uses or names images, and has the runtime remove one.
func (v fullDisk) removeImage(ctx context.Context, image *kubecri.Image) (uint64, error) {
	unused, err := v.unusedImages(ctx)
	if err != nil {
		return 0, notBegun(err)
	}
	if !slices.ContainsFunc(unused, func(i *kubecri.Image) bool { return i.GetId() == image.GetId() }) {
		return 0, refuse("image %s is used, or gone", image.GetId())
	}
	return image.GetSize(), v.tools.Mutator.RemoveImage(ctx, mutate.Image{ID: image.GetId(), Names: cri.ImageNames(image)})
}

// imageAge is how long an image must have been unused: at least kubelet's imageMinimumGCAge.
func (v fullDisk) imageAge() time.Duration {
	kubelets, err := discover.ReadKubeletEviction(v.tools.Host)
	if err != nil {
		kubelets.ImageMinimumGCAge = unknownImageAge
	}
	return max(v.tools.Settings.DiskSpace.ImageAge, kubelets.ImageMinimumGCAge)
}

// unusedImages returns the images that are not pinned and belong to no container, pod or sandbox.
func (v fullDisk) unusedImages(ctx context.Context) ([]*kubecri.Image, error) {
	h := v.tools.Host
	all, err := host.Ask(ctx, "runtime", h.Runtime.Images)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	containers, err := h.Runtime.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	names := cri.ImagesOf(containers)
	pinned := slices.ContainsFunc(all, func(i *kubecri.Image) bool { return i.GetPinned() })
	sandboxes, err := v.sandboxImages(ctx, pinned)
	if err != nil {
		return nil, err
	}
	pods, err := v.podImages(ctx)
	if err != nil {
		return nil, err
	}
	names = slices.Concat(names, sandboxes, pods)
	if h.Containerd.Containers != nil { // also those unknown to CRI
		below, err := h.Containerd.Containers(ctx)
		if err != nil {
			return nil, fmt.Errorf("containerd's containers: %w", err)
		}
		for _, c := range below {
			names = append(names, c.Image)
		}
	}
	used, err := cri.UsedImages(all, names, func(name string) (string, error) { return h.Runtime.ImageID(ctx, name) })
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(i *kubecri.Image) bool {
		return i.GetId() == "" || i.GetPinned() || used[i.GetId()]
	}), nil
}

// sandboxImages returns the images of sandboxes. Without them no pod could start, and older runtimes do not pin them:
// at least one must be known or pinned.
func (v fullDisk) sandboxImages(ctx context.Context, pinned bool) ([]string, error) {
	all, err := v.tools.Host.Runtime.Sandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("sandboxes: %w", err)
	}
	slices.SortFunc(all, func(a, b *kubecri.PodSandbox) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	var names []string
	for _, s := range all[:min(len(all), maxSandboxes)] {
		status, err := v.tools.Host.Runtime.SandboxStatus(ctx, s.GetId())
		if err != nil {
			continue // it is gone; the others tell
		}
		var info struct {
			Image string `json:"image"`
		}
		if json.Unmarshal([]byte(status.GetInfo()["info"]), &info) == nil && info.Image != "" {
			names = append(names, info.Image)
		}
	}
	if len(names) == 0 && !pinned {
		return nil, refuse("no image is pinned, and the image of sandboxes is unknown")
	}
	return names, nil
}

// podImages returns the images named by this node's pods, including volumes and containers that have not started.
func (v fullDisk) podImages(ctx context.Context) (names []string, err error) {
	var pods []corev1.Pod
	err = hosterr.ErrNotConfigured
	// kubelet's own identity may not query kubelet
	for _, ask := range []func(context.Context) ([]corev1.Pod, error){v.tools.Host.Kubelet.Pods, v.tools.Host.Cluster.Pods} {
		if ask != nil && err != nil {
			pods, err = ask(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find the images that pods of this node name: %v", err) //nolint:errorlint // no source is missing
	}
	for _, pod := range pods {
		names = append(names, imagesOfPod(pod.Spec)...)
	}
	return names, nil
}

func imagesOfPod(spec corev1.PodSpec) (names []string) {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		names = append(names, c.Image)
	}
	for _, c := range spec.EphemeralContainers {
		names = append(names, c.Image)
	}
	for _, volume := range spec.Volumes {
		if volume.Image != nil {
			names = append(names, volume.Image.Reference)
		}
	}
	return names
}

// pulled returns when containerd last pulled an image. For other runtimes and unknown images it is the zero time, so
// that these come first.
func (v fullDisk) pulled(ctx context.Context) func(*kubecri.Image) time.Time {
	at := map[string]time.Time{}
	if ask := v.tools.Host.Containerd.Images; ask != nil {
		records, err := ask(ctx)
		if err != nil {
			records = []images.Image{} // only the order depends on it
		}
		for _, r := range records {
			at[r.Name] = r.UpdatedAt
		}
	}
	return func(i *kubecri.Image) (last time.Time) {
		for _, name := range cri.ImageNames(i) {
			if at[name].After(last) {
				last = at[name]
			}
		}
		return last
	}
}
