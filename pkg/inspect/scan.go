package inspect

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	leases "github.com/containerd/containerd/v2/core/leases"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Scan is one pass's view of the host. What several listers and the inventory need is read once, on first use.
type Scan struct {
	Host *host.Host

	ends        deadline
	mounts      func() ([]mount.Mount, error)
	processes   func() (processTable, error)
	attachments func() ([]cni.Attachment, error)
	netnsMounts func() ([]netnsMount, error)
	kubelet     func() (host.Process, error)
	sandboxes   func() ([]*cri.PodSandbox, error)
	containers  func() ([]*cri.Container, error)
	leases      func() ([]leases.Lease, error)
	records     func() ([]containers.Container, error) // containerd's containers
	tasks       func() (map[string]*tasks.Process, error)
	bundles     func() ([]bundle, error)

	mu   sync.Mutex        // guards dirs
	dirs map[string]string // resolved directories of network namespaces
}

// NewScan begins a pass. Symbolic links are resolved in those of its paths that the kernel reports in resolved form.
func NewScan(ctx context.Context, h *host.Host) *Scan { return newScan(ctx, h, deadline{}) }

func newScan(ctx context.Context, h *host.Host, ends deadline) *Scan {
	resolved := *h
	resolved.Paths.KubeletRoot = resolve(h.Files, h.Paths.KubeletRoot)
	if h.Paths.ContainerdState != "" {
		resolved.Paths.ContainerdState = resolve(h.Files, h.Paths.ContainerdState)
	}
	resolved.Paths.NetnsDirs = nil
	for _, dir := range h.Paths.NetnsDirs {
		resolved.Paths.NetnsDirs = append(resolved.Paths.NetnsDirs, resolve(h.Files, dir))
	}
	s := &Scan{Host: &resolved, dirs: make(map[string]string), ends: ends}
	s.mounts = readOnce(ctx, s, stageLocal, "the mount table", func(context.Context) ([]mount.Mount, error) {
		return mount.Table(&resolved)
	})
	s.processes = readOnce(ctx, s, stageLocal, "/proc", func(ctx context.Context) (processTable, error) {
		return readProcesses(ctx, &resolved)
	})
	s.attachments = readOnce(ctx, s, stageLocal, "the cache of CNI", func(context.Context) ([]cni.Attachment, error) {
		return cni.Attachments(&resolved)
	})
	s.netnsMounts = readOnce(ctx, s, stageLocal, "network namespaces", func(context.Context) ([]netnsMount, error) {
		return s.readNetnsMounts()
	})
	s.kubelet = readOnce(ctx, s, stageLocal, "the search for kubelet's process", func(context.Context) (host.Process,
		error) {
		if h.Kubelet.Process == nil {
			return host.Process{}, fmt.Errorf("kubelet: %w", hosterr.ErrNotConfigured)
		}
		return h.Kubelet.Process()
	})
	s.sandboxes = readOnce(ctx, s, stageRuntime, "the runtime", func(ctx context.Context) ([]*cri.PodSandbox, error) {
		return ask(ctx, "runtime", h.Runtime.Sandboxes)
	})
	s.containers = readOnce(ctx, s, stageRuntime, "the runtime", func(ctx context.Context) ([]*cri.Container, error) {
		return ask(ctx, "runtime", h.Runtime.Containers)
	})
	s.leases = readOnce(ctx, s, stageRuntime, "containerd", func(ctx context.Context) ([]leases.Lease, error) {
		return ask(ctx, "containerd", h.Containerd.Leases)
	})
	s.records = readOnce(ctx, s, stageRuntime, "containerd", func(ctx context.Context) ([]containers.Container, error) {
		return ask(ctx, "containerd", h.Containerd.Containers)
	})
	s.tasks = readOnce(ctx, s, stageRuntime, "containerd's tasks", func(ctx context.Context) (map[string]*tasks.Process,
		error) {
		return s.readTasks(ctx)
	})
	s.bundles = readOnce(ctx, s, stageLocal, "the bundles of containers", func(context.Context) ([]bundle, error) {
		return s.readBundles()
	})
	return s
}

// readOnce returns a function that reads something on its first call, and abandons it when the stage is over.
func readOnce[T any](ctx context.Context, s *Scan, of stage, what string,
	read func(context.Context) (T, error)) func() (T,
	error) {
	return sync.OnceValues(func() (T, error) { return within(ctx, s.ends, of, what, read) })
}

// ask makes a call to a client, which is nil when it is not configured.
func ask[T any](ctx context.Context, what string, call func(context.Context) (T, error)) (T, error) {
	if call == nil {
		var none T
		return none, fmt.Errorf("%s: %w", what, hosterr.ErrNotConfigured)
	}
	return call(ctx)
}

// resolve returns a directory of the node without symbolic links, as the mount table shows it: kubelet's root may be a
// link to another disk, and /var/run is one to /run. What cannot be resolved is returned as it is.
func resolve(files host.Files, dir string) string {
	real, err := filepath.EvalSymlinks(files.Path(dir))
	if err != nil {
		return filepath.Clean(dir)
	}
	root := files.Path("/")
	if root == "/" {
		return real
	}
	return filepath.Join("/", strings.TrimPrefix(real, root))
}
