package inspect

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/leases"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Scan is one pass's view of the host. What several listers and the truth need is read once, when it is first asked
// for.
type Scan struct {
	Host *host.Host

	ends        deadline
	mounts      func() ([]mount.Mount, error)
	processes   func() (processTable, error)
	attachments func() ([]cni.Attachment, error)
	pins        func() ([]pin, error)
	kubelet     func() (host.Process, error)
	sandboxes   func() ([]*cri.PodSandbox, error)
	containers  func() ([]*cri.Container, error)
	leases      func() ([]leases.Lease, error)

	mu   sync.Mutex        // guards dirs
	dirs map[string]string // resolved directories of network namespaces
}

// NewScan begins a pass. Its paths have symbolic links resolved where the kernel tells resolved ones.
func NewScan(ctx context.Context, h *host.Host) *Scan { return newScan(ctx, h, deadline{}) }

func newScan(ctx context.Context, h *host.Host, ends deadline) *Scan {
	resolved := *h
	resolved.Paths.KubeletRoot = resolve(h.Files, h.Paths.KubeletRoot)
	resolved.Paths.NetnsDirs = nil
	for _, dir := range h.Paths.NetnsDirs {
		resolved.Paths.NetnsDirs = append(resolved.Paths.NetnsDirs, resolve(h.Files, dir))
	}
	s := &Scan{Host: &resolved, dirs: make(map[string]string), ends: ends}
	s.mounts = once(ctx, s, stageLocal, "the mount table", func(context.Context) ([]mount.Mount, error) {
		return mount.Table(&resolved)
	})
	s.processes = once(ctx, s, stageLocal, "/proc", func(ctx context.Context) (processTable, error) {
		return readProcesses(ctx, &resolved)
	})
	s.attachments = once(ctx, s, stageLocal, "the cache of CNI", func(context.Context) ([]cni.Attachment, error) {
		return cni.Attachments(&resolved)
	})
	s.pins = once(ctx, s, stageLocal, "network namespaces", func(context.Context) ([]pin, error) {
		return s.readPins()
	})
	s.kubelet = once(ctx, s, stageLocal, "the search for kubelet's process", func(context.Context) (host.Process,
		error) {
		if h.Kubelet.Process == nil {
			return host.Process{}, fmt.Errorf("kubelet: %w", hosterr.ErrNotConfigured)
		}
		return h.Kubelet.Process()
	})
	s.sandboxes = once(ctx, s, stageRuntime, "the runtime", func(ctx context.Context) ([]*cri.PodSandbox, error) {
		return ask(ctx, "runtime", h.Runtime.Sandboxes)
	})
	s.containers = once(ctx, s, stageRuntime, "the runtime", func(ctx context.Context) ([]*cri.Container, error) {
		return ask(ctx, "runtime", h.Runtime.Containers)
	})
	s.leases = once(ctx, s, stageRuntime, "containerd", func(ctx context.Context) ([]leases.Lease, error) {
		return ask(ctx, "containerd", h.Containerd.Leases)
	})
	return s
}

// once returns a function that reads something when it is first called, and gives up on it when the stage is over.
func once[T any](ctx context.Context, s *Scan, of stage, what string, read func(context.Context) (T, error)) func() (T,
	error) {
	return sync.OnceValues(func() (T, error) { return within(ctx, s.ends, of, what, read) })
}

// ask calls a door's function, which is nil where the host has no such thing.
func ask[T any](ctx context.Context, what string, door func(context.Context) (T, error)) (T, error) {
	if door == nil {
		var none T
		return none, fmt.Errorf("%s: %w", what, hosterr.ErrNotConfigured)
	}
	return door(ctx)
}

// resolve returns a directory of the node itself without symbolic links, since the mount table shows none: kubelet's
// root may be a link to another disk, and /var/run is one to /run. What cannot be resolved is left as it is.
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
